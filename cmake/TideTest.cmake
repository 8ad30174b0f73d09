# How tests are declared. In tests/<room>/CMakeLists.txt:
#
#     tide_add_test(chunk_epoch epoch_test.c)
#     tide_add_fuzzer(trace_fuzz trace_fuzz.c ${CMAKE_CURRENT_SOURCE_DIR}/corpus)
#
# A test that finds no traces (the variable PAGETIDE_TRACES names their folder)
# or no GPU skips itself: by cmocka's skip(), or by the exit code 77.

# Sets `out` to whether there is cmocka; an error where TIDE_TESTS is ON.
function(tide_find_cmocka out)
    find_path(CMOCKA_INCLUDE cmocka.h)
    find_library(CMOCKA_LIB cmocka)
    mark_as_advanced(CMOCKA_INCLUDE CMOCKA_LIB)
    set(found FALSE)
    if(CMOCKA_INCLUDE AND CMOCKA_LIB)
        set(found TRUE)
    elseif(TIDE_TESTS STREQUAL "ON")
        message(FATAL_ERROR "The tests need cmocka: sh scripts/deps.sh, or apt-get install libcmocka-dev")
    else()
        message(STATUS "Tests left out: cmocka is not installed")
    endif()
    set(${out} ${found} PARENT_SCOPE)
endfunction()

# A program of unit tests from these sources, linked with every room, run by ctest.
function(tide_add_test name)
    add_executable(${name} ${ARGN})
    target_include_directories(${name} PRIVATE ${CMOCKA_INCLUDE} ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE tide_all ${CMOCKA_LIB} Threads::Threads m)
    target_compile_definitions(${name} PRIVATE TIDE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    tide_plain_link(${name})
    add_test(NAME ${name} COMMAND ${name})
    tide_test_defaults(${name})
endfunction()

# A test that is a command line.
function(tide_add_script_test name)
    add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    tide_test_defaults(${name})
endfunction()

function(tide_test_defaults name)
    set(environment
        ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1
        UBSAN_OPTIONS=print_stacktrace=1
        TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200 ENVIRONMENT "${environment}")
endfunction()

# A source with LLVMFuzzerTestOneInput: a fuzzer in the fuzz build, elsewhere a
# test that runs it over the files of a folder, so that what was found stays fixed.
function(tide_add_fuzzer name source corpus)
    if(TIDE_FUZZ)
        add_executable(${name} ${source})
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    else()
        add_executable(${name} ${source} ${PROJECT_SOURCE_DIR}/cmake/fuzz_main.c)
    endif()
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE tide_all Threads::Threads m)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    tide_plain_link(${name})
    if(TIDE_FUZZ)
        add_test(NAME ${name} COMMAND ${name} -runs=20000 -seed=1 -max_total_time=60 ${corpus})
    else()
        add_test(NAME ${name} COMMAND ${name} ${corpus})
    endif()
    tide_test_defaults(${name})
endfunction()
