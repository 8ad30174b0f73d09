#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Holds all C files against .clang-format; with --fix, changes them.
set -eu
cd "$(dirname "$0")/.."
sh scripts/deps.sh check
files=$(find include src tests bench examples cmake -name '*.[ch]' | sort)
if [ "${1-}" = --fix ]; then
    # shellcheck disable=SC2086
    clang-format -i $files
    exit 0
fi
bad=0
for file in $files; do
    if ! clang-format --dry-run -Werror "$file" >/dev/null 2>&1; then
        line=$(clang-format "$file" | diff "$file" - | sed -n 's/^\([0-9]*\).*/\1/p;1q')
        echo "$file:$line: is not as clang-format lays it out"
        bad=$((bad + 1))
    fi
done
echo "check_format: $(echo "$files" | wc -l) files, $bad to change (sh scripts/check_format.sh --fix)"
[ $bad = 0 ]
