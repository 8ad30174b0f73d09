#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the benchmarks, installing what that needs, and runs them.
set -eu
cd "$(dirname "$0")/.."
sh scripts/deps.sh build bench
sh scripts/build.sh release -DTIDE_BENCH=ON
exec cmake --build build --target bench
