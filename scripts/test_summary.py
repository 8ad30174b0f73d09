#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says in words what a run of ctest did, from its log: test_summary.py build/Testing/Temporary/LastTest.log

Counts cases: a program of unit tests has many, one that prints none of its own is one. Why a case was skipped is
told by the test itself, in a line with "skip" in it.
"""
import re
import sys


def cases_of(body):
    """{name: OK, FAILED or SKIPPED} of the lines that cmocka, and our scripts, print for each case."""
    cases = {}
    for state, name in re.findall(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (.+)$", body, flags=re.M):
        # cmocka lists the skipped and failed again at its end, after "N test(s), listed below"
        if not re.match(r"\d+ test\(s\)", name):
            cases[name] = state
    return cases


def count(log):
    """(passed, failed, skipped names, programs) over a LastTest.log."""
    passed, failed, skipped, programs = 0, 0, [], 0
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.M)[1:]:
        programs += 1
        name, cases = part.split("\n", 1)[0], cases_of(part)
        ok = re.search(r"^Test Passed\.$", part, flags=re.M) is not None
        if not cases:
            # ctest's log says "Test Failed." of a skipped program too
            skip = "Test not run because a required" in part or re.search(r"Skipped|\bskip", part, flags=re.I)
            cases = {name: "OK" if ok else "SKIPPED" if skip else "FAILED"}
        elif not ok and "FAILED" not in cases.values() and "OK" in cases.values():
            cases[name] = "FAILED"  # crashed, or leaked, after its cases
        passed += sum(state == "OK" for state in cases.values())
        failed += sum(state == "FAILED" for state in cases.values())
        skipped += [f"{name}: {case}" for case, state in cases.items() if state == "SKIPPED"]
    return passed, failed, skipped, programs


LOG = """Start testing: Dec 01 03:30 UTC
----------------------------------------------------------
1/4 Testing: units
1/4 Test: units
Output:
----------------------------------------------------------
[ RUN      ] adds
[       OK ] adds
[ RUN      ] replays_the_larger_traces
[  SKIPPED ] replays_the_larger_traces
[  FAILED  ] subtracts
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] replays_the_larger_traces
<end of output>
Test Failed.

2/4 Testing: script
2/4 Test: script
<end of output>
Test Passed.

3/4 Testing: gpu
3/4 Test: gpu
skipped: no GPU
<end of output>
Test Failed.

4/4 Testing: crashes
4/4 Test: crashes
[       OK ] one
Segmentation fault
<end of output>
Test Failed.
"""


def self_test():
    assert count(LOG) == (3, 2, ["units: replays_the_larger_traces", "gpu: gpu"], 4), count(LOG)
    print("test_summary: self-test passed")


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        passed, failed, skipped, programs = count(f.read())
    total = passed + failed + len(skipped)
    print(f"\nOf {total} cases in {programs} programs of tests, {passed} passed and {failed} failed.")
    if skipped:
        print(f"{len(skipped)} were skipped: they need the larger traces (PAGETIDE_TRACES names their folder), a GPU,")
        print("or what else they name:")
        for line in skipped:
            print(f"  {line}")
    else:
        print("None was skipped.")
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")


main()
