#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds under a sanitizer and runs all tests: sanitize.sh asan|tsan|fuzz [ctest's options...]
set -eu
cd "$(dirname "$0")/.."
[ "${1-}" != fuzz ] || command -v clang >/dev/null 2>&1 || { echo "make fuzz needs clang" >&2; exit 1; }
exec sh scripts/test.sh "$@"
