#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes recorded_*.inc: what Python reads from the recorded traces.

    make_recorded.py FOLDER

FOLDER has the large traces (the variable PAGETIDE_TRACES of the tests); the
small ones are in tests/data.
"""
import glob
import gzip
import os
import pickle
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
           "segment_unmap", "snapshot", "oom", "workspace_snapshot", "other"]
SHOWN = ACTIONS[:7] + ["oom"]
MASK = (1 << 64) - 1


def line(path):
    with gzip.open(path) as f:
        data = f.read()
    snapshot = pickle.loads(data)
    (trace,) = snapshot["device_traces"]
    total, count, streams, stacks = 0, dict.fromkeys(ACTIONS, 0), {0}, set()
    for e in trace:
        count[e["action"]] += 1
        frames = e.get("frames", [])
        streams.add(e["stream"])
        stacks.add(tuple(tuple(f.values()) for f in frames))
        addr = e["device_free"] if e["action"] == "oom" else e["addr"]
        for field in (addr, e["size"], e["time_us"], e["stream"], ACTIONS.index(e["action"]),
                      len(e["user_metadata"].encode()), len(frames)):
            total = ((total ^ field) * 0x100000001B3) & MASK
    segments = snapshot["segments"]
    for s in segments:
        streams.add(s["stream"])
        for b in s["blocks"]:
            stacks.add(tuple(tuple(f.values()) for f in b["frames"]))
    stacks.discard(())
    numbers = [count[a] for a in SHOWN] + [data[1], len(streams), len(segments), sum(len(s["blocks"]) for s in segments),
                                           len(stacks), len(snapshot.get("external_annotations", []))]
    return f'{{"{os.path.basename(path)}", UINT64_C({total:#x}), {", ".join(map(str, numbers))}}},\n'


def write(name, folder):
    paths = sorted(glob.glob(os.path.join(folder, "*.pickle.gz")))
    with open(os.path.join(HERE, name), "w") as out:
        out.writelines(line(p) for p in paths)


write("recorded_shipped.inc", os.path.join(HERE, "..", "data"))
write("recorded_large.inc", sys.argv[1])
