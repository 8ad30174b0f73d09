#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Configures and builds a preset (release without a word), quietly unless it fails.
set -eu
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -eq 0 ] || shift
dir=build
[ "$preset" = release ] || dir=build-$preset

log=$(mktemp)
trap 'rm -f "$log"' EXIT
generator=
# A folder that is configured keeps its generator; else Ninja if there is one.
[ -f $dir/CMakeCache.txt ] || command -v ninja >/dev/null 2>&1 || generator="Unix Makefiles"
[ ! -f $dir/CMakeCache.txt ] || generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' $dir/CMakeCache.txt)

jobs=$(nproc 2>/dev/null || echo 2)
if ! { cmake --preset "$preset" ${generator:+-G "$generator"} "$@" && cmake --build $dir -j "$jobs"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "The build ($preset) failed; the end of its output is above." >&2
    exit 1
fi
