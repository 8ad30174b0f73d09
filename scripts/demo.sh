#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds pagetide, installing what that needs, and replays a trace of a run that died out of memory.
set -eu
cd "$(dirname "$0")/.."

sh scripts/deps.sh build
echo "Building..."
sh scripts/build.sh release

# The trace's own limit: that of the process that ran out.
set -- examples/rl-oom-native.pickle.gz --limit 18463515279 --cross-stream wait
echo "\$ build/pagetide replay $*"
echo
exec build/pagetide replay "$@"
