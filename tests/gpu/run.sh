#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the library and the checks with what a CUDA image has (gcc and nvcc) and
# runs them. Exit code 77 where there is no GPU.
set -eu
cd "$(dirname "$0")/../.."
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
out=${GPU_BUILD:-build/gpu}
if ! command -v "$nvcc" >/dev/null; then
    echo "skipped: no nvcc"
    exit 77
fi
mkdir -p "$out"
sources=$(ls src/*.c src/base/*.c src/device/*.c src/chunk/*.c src/heap/*.c src/ledger/*.c)
# shellcheck disable=SC2086
gcc -O2 -std=gnu17 -D_GNU_SOURCE -DNDEBUG -fPIC -shared -fvisibility=hidden -DTIDE_BUILD_SHARED -Iinclude -Isrc \
    $sources -o "$out/libpagetide.so" -pthread -ldl -lm
"$nvcc" -O2 -arch="${GPU_ARCH:-native}" -Iinclude tests/gpu/gpu_check.cu -o "$out/gpu_check" \
    -L"$out" -lpagetide -Xlinker -rpath -Xlinker '$ORIGIN'
if [ "${1:-}" = build ]; then
    exit 0
fi
"$out/gpu_check"
echo "one process:"
"$out/gpu_check" churn "${GPU_CHURN_SECONDS:-20}" 1
echo "two processes at once:"
"$out/gpu_check" churn "${GPU_CHURN_SECONDS:-60}" 2 &
other=$!
failed=0
"$out/gpu_check" churn "${GPU_CHURN_SECONDS:-60}" 3 || failed=1
wait $other || failed=1
exit $failed
