#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds pagetide, installing what that needs, and runs all tests.
#
#     sh scripts/test.sh [PRESET [ctest's options...]]        PRESET: release, debug, asan, tsan, coverage, fuzz
#
# The larger traces are looked for in the folder that PAGETIDE_TRACES names; tests that need them, or a GPU, are
# skipped where these are absent, and counted at the end.
set -eu
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -eq 0 ] || shift
dir=build
[ "$preset" = release ] || dir=build-$preset

sh scripts/deps.sh build test
echo "Building ($preset)..."
sh scripts/build.sh "$preset" -DTIDE_TESTS=ON

jobs=$(nproc 2>/dev/null || echo 2)
status=0
ctest --test-dir $dir -j "$jobs" --output-on-failure --no-tests=error "$@" || status=$?
python3 scripts/test_summary.py $dir/Testing/Temporary/LastTest.log || status=1
exit $status
