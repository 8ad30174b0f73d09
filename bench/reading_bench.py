#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to read a snapshot and replay it through all policies, over the time
that Python's pickle takes to load the same file.

Whole processes in turns; medians, with the lowest and highest behind them.
Python's start is part of its time, as ours is of ours.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOAD = ("import gzip, pickle, sys; "
        "pickle.load((gzip.open if sys.argv[1].endswith('.gz') else open)(sys.argv[1], 'rb'))")


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def default_files():
    folder = os.environ.get("PAGETIDE_TRACES")
    if folder:
        found = sorted(pathlib.Path(folder).glob("rl-vl-*.pickle.gz"))
    else:
        found = sorted((ROOT / "examples").glob("*.pickle.gz"))
    return [str(f) for f in found]


def shown(values):
    return f"{statistics.median(values):7.2f} s ({min(values):.2f}-{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "pagetide"), help="else build/pagetide")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="else rl-vl-* in the folder that PAGETIDE_TRACES names, else the examples",
    )
    options = parser.parse_args()
    files = options.files or default_files()
    if not files:
        sys.exit("reading_bench: no files")
    print(f"{'recording':<32} {'replay, all policies':>24} {'pickle.load':>24}   ratio")
    for file in files:
        ours, theirs = [], []
        for _ in range(options.repeats):
            ours.append(seconds([options.program, "replay", file, "--json"]))
            theirs.append(seconds([sys.executable, "-c", LOAD, file]))
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"{pathlib.Path(file).name[:32]:<32} {shown(ours):>24} {shown(theirs):>24} {ratio:6.2f}x", flush=True)


if __name__ == "__main__":
    main()
