#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests in a build that counts lines, and prints which part of each file they ran.
set -eu
cd "$(dirname "$0")/.."
sh scripts/deps.sh build test coverage
find build-coverage -name '*.gcda' -delete 2>/dev/null || true
sh scripts/test.sh coverage "$@"
# Which lines are missing is too long to print; without the sed gcovr tells them.
gcovr --root . --filter src/ --object-directory build-coverage --gcov-ignore-parse-errors --print-summary \
    build-coverage | sed -E 's/^(.*[0-9]%) .*/\1/'
