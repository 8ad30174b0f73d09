# A door to CMake: what there is to do, in one word each.

BUILD := build
# What the folder was configured with; else Ninja, where it is installed.
GENERATOR := $(shell sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' $(BUILD)/CMakeCache.txt 2>/dev/null)
ifeq ($(GENERATOR),)
GENERATOR := $(shell command -v ninja >/dev/null 2>&1 && echo Ninja || echo Unix Makefiles)
endif

.PHONY: all test test-gpu demo bench bench-memory bench-reading check format rooms tidy asan tsan coverage fuzz install clean help

all:
	@cmake --preset release -G "$(GENERATOR)" >/dev/null
	@cmake --build $(BUILD)

test: ; @sh scripts/test.sh
test-gpu: ; @sh tests/gpu/run.sh || test $$? = 77
demo: ; @sh scripts/demo.sh

bench: ; @sh scripts/bench.sh
bench-memory: all ; @python3 bench/memory_bench.py --program $(BUILD)/pagetide
bench-reading: all ; @python3 bench/reading_bench.py --program $(BUILD)/pagetide

check: rooms format tidy
format: ; @sh scripts/check_format.sh
rooms: ; @python3 scripts/check_rooms.py
tidy: ; @sh scripts/check_tidy.sh

asan tsan fuzz: ; @sh scripts/sanitize.sh $@
coverage: ; @sh scripts/coverage.sh

install: all
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix "$(abspath $(PREFIX))")

clean: ; @rm -rf $(BUILD) build-*

help:
	@echo 'make            build/pagetide and build/libpagetide.so'
	@echo 'make demo       replay an example trace'
	@echo 'make install    into /usr/local, or PREFIX=DIR'
	@echo 'make test       all tests;  make asan, make tsan: under sanitizers;  make fuzz: the readers under libFuzzer'
	@echo 'make test-gpu   what only a GPU can show; needs gcc and nvcc'
	@echo 'make coverage   which lines the tests run'
	@echo 'make check      rooms, format, clang-tidy; each alone: make rooms, make format, make tidy'
	@echo 'make bench      benchmarks of speed;  make bench-memory: of memory, on the traces of PAGETIDE_TRACES,'
	@echo '                or on those that come with the source;  make bench-reading: beside pickle'
	@echo 'make clean      remove all build folders'
