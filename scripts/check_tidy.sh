#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the rooms (or the files named), by .clang-tidy.
set -eu
cd "$(dirname "$0")/.."
sh scripts/deps.sh build check
[ -f build/compile_commands.json ] || cmake --preset release >/dev/null
[ $# -gt 0 ] || set -- $(find src -name '*.c' | sort)
jobs=$(nproc 2>/dev/null || echo 2)
# gcc's own options are not clang's. With the assertions in, the analyzer knows what they say.
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 clang-tidy --quiet -p build --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-ignored-optimization-argument --extra-arg=-UNDEBUG 2>/dev/null
echo "check_tidy: $# files, nothing found"
