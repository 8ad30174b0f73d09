#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what a task needs and this machine lacks (Debian, Ubuntu; as root or with sudo).
#
#     sh scripts/deps.sh [build] [test] [bench] [check] [coverage]      without words: build test
#
# Says nothing when nothing is missing. Where it cannot install, it names what is missing and ends with 1.
set -eu

# have WHAT: whether it is there, however it came
have() {
    case $1 in
        *.h) printf '#include <%s>\n' "$1" | ${CC:-cc} -E -x c - >/dev/null 2>&1 ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

packages=
want() { # want PACKAGE WHAT
    have "$2" || packages="$packages $1"
}

[ $# -gt 0 ] || set -- build test
for task; do
    case $task in
        build)
            have cc || have gcc || packages="$packages gcc"
            want libc6-dev stdio.h
            want make make
            want cmake cmake
            want ninja-build ninja
            want zlib1g-dev zlib.h
            want libzstd-dev zstd.h
            ;;
        test)
            # cmocka.h needs others before it, so its name alone is looked for
            [ -f /usr/include/cmocka.h ] || [ -f /usr/local/include/cmocka.h ] || packages="$packages libcmocka-dev"
            want python3 python3
            want pkg-config pkg-config
            want binutils nm
            want zstd zstd
            ;;
        bench)
            want libmimalloc-dev mimalloc.h
            want python3 python3
            ;;
        check)
            want python3 python3
            want clang-format clang-format
            want clang-tidy clang-tidy
            ;;
        coverage) want gcovr gcovr ;;
        *)
            echo "deps.sh: unknown task '$task'" >&2
            exit 2
            ;;
    esac
done
[ -n "$packages" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        sudo=sudo
    else
        echo "Missing:$packages" >&2
        echo "Install them, or run this as root:  apt-get install$packages" >&2
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing (by Debian's names):$packages" >&2
    echo "This machine has no apt-get: install them with its own package manager." >&2
    exit 1
fi

echo "Installing:$packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages >"$log" 2>&1
}
# The lists may be old or absent: fetched only where the first try fails.
if ! install && ! { $sudo apt-get update -q >"$log" 2>&1 && install; }; then
    tail -n 15 "$log" >&2
    echo "apt-get could not install:$packages" >&2
    exit 1
fi
