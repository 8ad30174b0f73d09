/* SPDX-License-Identifier: Apache-2.0 */
/* The pickle machine: every opcode, from bytes to a value printed in words. */
#include "trace/pickle.h"
#include "trace/pickle_opcodes.h"
#include "trace/records.h"
#include "trace_test.h"

/* Runs a pickle; its value in words, or "!" and the message. */
static const char *run(const void *data, size_t size) {
    static char text[2048];
    char path[32];
    tide__meter meter = {.limit = TIDE__METER_ALLOWANCE};
    tide__source source;
    tide__pickle machine;
    tide__records records;
    tide__value top;
    int fd = memory_file(data, size, path);
    assert_int_equal(tide__source_open(&source, path, &meter, NULL, NULL), TIDE_OK);
    assert_int_equal(tide__pickle_open(&machine, &source, &meter), TIDE_OK);
    assert_int_equal(tide__records_open(&records, &machine), TIDE_OK);
    if (tide__pickle_run(&machine, &top) == TIDE_OK) {
        tide__value_text(&machine, top, text, sizeof text);
    } else {
        snprintf(text, sizeof text, "!%s", tide_last_error());
    }
    tide__records_close(&records);
    tide__pickle_close(&machine);
    tide__source_close(&source);
    close(fd);
    return text;
}

/* The body of a pickle of protocol 5, without its beginning and STOP. */
static const char *run_body(const void *body, size_t size) {
    bytes b = {0};
    PUT(&b, "\x80\x05");
    put(&b, body, size);
    PUT(&b, ".");
    const char *text = run(b.data, b.size);
    free_bytes(&b);
    return text;
}

#define EXPECT(body, text) assert_string_equal(run_body((body), sizeof(body) - 1), (text))
#define EXPECT_FAILURE(body, cause) expect_failure((body), sizeof(body) - 1, (cause))

static void expect_failure(const void *body, size_t size, const char *cause) {
    const char *text = run_body(body, size);
    if (text[0] != '!' || strstr(text, cause) == NULL) {
        fail_msg("'%s' does not say '%s'", text, cause);
    }
}

static void singles(void **state) {
    EXPECT("N", "None");
    EXPECT("\x88", "True");
    EXPECT("\x89", "False");
    EXPECT("I01\n", "True");
    EXPECT("I00\n", "False");
}

static void integers(void **state) {
    EXPECT("K\xff", "255");
    EXPECT("M\xff\xff", "65535");
    EXPECT("J\xff\xff\xff\x7f", "2147483647");
    EXPECT("J\xff\xff\xff\xff", "-1");
    EXPECT("\x8a\x00", "0");
    EXPECT("\x8a\x01\x80", "-128");
    EXPECT("\x8a\x02\xff\x00", "255");
    EXPECT("\x8a\x06\x00\x00\x00\x00\x00\x7f", "139637976727552");
    EXPECT("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "9223372036854775807");
    EXPECT("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", "-9223372036854775808");
    EXPECT("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x08", "576460752303423488"); /* 2^59 */
    EXPECT("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", "18446744073709551615");
    EXPECT("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x0f\x00", "1152921504606846975");
    EXPECT("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a very large number");
    EXPECT("\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "a very large number");
    EXPECT("\x8b\x02\x00\x00\x00\x34\x12", "4660");
    EXPECT("\x8b\x00\x00\x00\x00", "0");
    EXPECT("I-17\n", "-17");
    EXPECT("L99L\n", "99");
    EXPECT("I99999999999999999999\n", "a very large number");
    EXPECT_FAILURE("I\n", "not an integer");
    EXPECT_FAILURE("I1x\n", "not an integer");
    EXPECT_FAILURE("\x8b\xff\xff\xff\xff", "negative length");
}

static void floats(void **state) {
    EXPECT("G\x3f\xf8\x00\x00\x00\x00\x00\x00", "1.5");
    EXPECT("G\x00\x00\x00\x00\x00\x00\x00\x00", "0.0");
    EXPECT("G\x3f\xb9\x99\x99\x99\x99\x99\x9a", "0.1");
    EXPECT("G\x7f\xf0\x00\x00\x00\x00\x00\x00", "inf");
    EXPECT("F2.5\n", "2.5");
    EXPECT_FAILURE("F\n", "not a number");
}

static void strings(void **state) {
    EXPECT("\x8c\x03"
           "abc",
           "abc");
    EXPECT("\x8c\x00", "");
    EXPECT("X\x03\x00\x00\x00xyz", "xyz");
    EXPECT("\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi", "hi");
    EXPECT("U\x03old", "old");
    EXPECT("T\x03\x00\x00\x00old", "old");
    EXPECT("Vtext\n", "text");
    EXPECT("S'quoted'\n", "quoted");
    EXPECT_FAILURE("S'\n", "quotes");
    EXPECT_FAILURE("Sbare\n", "quotes");
    /* A NUL would end a C string early. */
    EXPECT("\x8c\x03"
           "a\0b",
           "a\xef\xbf\xbd"
           "b");
    EXPECT("C\x02\x01\x02", "bytes");
    EXPECT("B\x02\x00\x00\x00\x01\x02", "bytes");
    EXPECT("\x8e\x01\x00\x00\x00\x00\x00\x00\x00\x01", "bytes");
    EXPECT("\x96\x01\x00\x00\x00\x00\x00\x00\x00\x01", "bytes");
}

static void containers(void **state) {
    EXPECT("]", "");
    EXPECT("](K\x01K\x02"
           "e",
           "1,2");
    EXPECT("]K\x01"
           "a",
           "1");
    EXPECT("(K\x01K\x02l", "1,2");
    EXPECT("}(\x8c\x01"
           "aK\x01\x8c\x01"
           "bK\x02u",
           "a:1,b:2");
    EXPECT("}\x8c\x01"
           "aK\x01s",
           "a:1");
    EXPECT("(\x8c\x01"
           "aK\x01"
           "d",
           "a:1");
    EXPECT(")", "");
    EXPECT("K\x01\x85", "1");
    EXPECT("K\x01K\x02\x86", "1,2");
    EXPECT("K\x01N\x86", "1,None");
    EXPECT("K\x01K\x02K\x03\x87", "1,2,3");
    EXPECT("(K\x01K\x02K\x03K\x04t", "1,2,3,4");
    EXPECT("(K\x01K\x02t", "1,2"); /* a pair, as TUPLE2 makes it */
    EXPECT("\x8f(K\x01K\x02\x90", "1,2");
    EXPECT("(K\x01\x91", "1");
    EXPECT("](}(\x8c\x01"
           "a](K\x01K\x02"
           "euNe",
           "a:1,2,None");
    EXPECT_FAILURE("}(K\x01u", "no value");
    EXPECT_FAILURE("K\x05(K\x01"
                   "e",
                   "not a list");
    EXPECT_FAILURE("]\x8c\x01"
                   "aK\x01s",
                   "not a dict");
    EXPECT_FAILURE("](K\x01\x90", "not a set");
}

static void stack(void **state) {
    EXPECT("K\x01K\x02"
           "0",
           "1");
    EXPECT("K\x01(K\x02K\x03"
           "1",
           "1");
    EXPECT("K\x01(0", "1"); /* POP takes a mark that nothing stands above */
    EXPECT("]K\x07"
           "2"
           "0a",
           "7");
    EXPECT("]2a0K\x01", "1"); /* a list in itself */
    EXPECT_FAILURE("", "empty stack");
    EXPECT_FAILURE("0", "empty stack");
    EXPECT_FAILURE("1", "no");
    EXPECT_FAILURE("K\x01(a", "empty stack"); /* not below the mark */
    EXPECT_FAILURE("e", "there is none");
    EXPECT_FAILURE("2", "empty stack");
}

static void memo(void **state) {
    EXPECT("\x8c\x01"
           "a\x94"
           "0h\x00",
           "a");
    EXPECT("Nq\x07"
           "0h\x07",
           "None");
    EXPECT("K\x09r\x00\x01\x00\x00"
           "0j\x00\x01\x00\x00",
           "9");
    EXPECT("K\x09p5\n0g5\n", "9");
    /* A list put in twice is one list. */
    EXPECT("](]\x94h\x00(K\x01"
           "eh\x00"
           "e",
           "1,1,1");
    EXPECT("]\x94(h\x00K\x01"
           "e0K\x02",
           "2");
    EXPECT_FAILURE("h\x00", "never stored");
    EXPECT_FAILURE("Nq\x05h\x04", "never stored");
    EXPECT_FAILURE("\x94", "empty stack");
    EXPECT_FAILURE("Nr\xff\xff\xff\xff", "more memory");
    EXPECT_FAILURE("Np99999999999999999999\n", "not a memo number");
    EXPECT_FAILURE("Np18446744073709551615\n", "memo number");
    EXPECT_FAILURE("Np-1\n", "not a memo number");
}

static void framing(void **state) {
    EXPECT("\x95\x01\x00\x00\x00\x00\x00\x00\x00N", "None");
    EXPECT("\x80\x04N", "None");
    EXPECT_FAILURE("\xff", "not a pickle opcode");
    EXPECT_FAILURE("\0", "not a pickle opcode");
    EXPECT_FAILURE("N.N", "data follows");
}

/* Each that is not run is refused by its name and place. */
static void refused(void **state) {
    static const struct {
        const char *name;
        uint8_t byte;
    } calls[] = {{"GLOBAL", 'c'}, {"STACK_GLOBAL", 0x93}, {"REDUCE", 'R'},          {"BUILD", 'b'},
                 {"INST", 'i'},   {"OBJ", 'o'},           {"NEWOBJ", 0x81},         {"NEWOBJ_EX", 0x92},
                 {"PERSID", 'P'}, {"BINPERSID", 'Q'},     {"EXT1", 0x82},           {"EXT2", 0x83},
                 {"EXT4", 0x84},  {"NEXT_BUFFER", 0x97},  {"READONLY_BUFFER", 0x98}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        uint8_t body[] = {'N', calls[i].byte, 'o', 's', '\n', 'x', '\n', 0, 0, 0};
        char cause[64];
        snprintf(cause, sizeof cause, "offset 3: opcode %s is refused", calls[i].name);
        expect_failure(body, sizeof body, cause);
    }
}

/* Every one of Python's opcodes is in the table once: run or refused. */
static void table(void **state) {
    static const uint8_t all[] = {
#define X(name, byte, run) byte,
        TIDE__OPCODE_LIST(X)
#undef X
    };
    assert_int_equal(sizeof all, 68);
    for (size_t i = 0; i < sizeof all; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(all[i], all[j]);
        }
    }
}

/* An argument that lies across the end of a window, for each place it can. */
static void across_windows(void **state) {
    for (size_t shift = 0; shift < 24; shift++) {
        bytes b = {0};
        PUT(&b, "\x80\x04](");
        PUT(&b, "B");
        size_t fill = TIDE__SOURCE_WINDOW - b.size - 4 - 12 - shift;
        put_little(&b, fill, 4);
        put_repeated(&b, 'x', fill);
        PUT(&b, "J\x78\x56\x34\x12\x8c\x05hello\x8a\x06\x00\x00\x00\x00\x00\x7f\x94h\x00"
                "e.");
        assert_string_equal(run(b.data, b.size), "bytes,305419896,hello,139637976727552,139637976727552");
        free_bytes(&b);
    }
}

static void long_strings(void **state) {
    size_t sizes[] = {255, 256, TIDE__SOURCE_WINDOW / 2, TIDE__SOURCE_WINDOW / 2 + 1,
                      3 * TIDE__SOURCE_WINDOW};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bytes b = {0};
        PUT(&b, "\x80\x04\x8d");
        put_little(&b, sizes[i], 8);
        put_repeated(&b, 'x', sizes[i]);
        PUT(&b, "0K\x01.");
        assert_string_equal(run(b.data, b.size), "1");
        free_bytes(&b);
    }
}

/* Deep nesting is printed to a depth, and cut at the room there is. */
static void words(void **state) {
    EXPECT("](](](](](](K\x01"
           "eeeeee",
           "...");
    bytes b = {0};
    PUT(&b, "](");
    for (int i = 0; i < 4000; i++) {
        PUT(&b, "K\x01");
    }
    PUT(&b, "e");
    assert_int_equal(strlen(run_body(b.data, b.size)), 2047);
    free_bytes(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(singles), cmocka_unit_test(integers),       cmocka_unit_test(floats),
        cmocka_unit_test(strings), cmocka_unit_test(containers),     cmocka_unit_test(stack),
        cmocka_unit_test(memo),    cmocka_unit_test(framing),        cmocka_unit_test(refused),
        cmocka_unit_test(table),   cmocka_unit_test(across_windows), cmocka_unit_test(long_strings),
        cmocka_unit_test(words),
    };
    return cmocka_run_group_tests_name("pickle", tests, NULL, NULL);
}
