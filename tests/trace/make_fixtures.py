#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the small snapshots in fixtures/, as Python's own picklers write them.

Run it again after a change here and commit what comes out: the tests only read.
bad-*.pickle must be refused, each for the reason in its name; the rest must be read.
"""
import gzip
import os
import pickle
import subprocess

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")


def frame(name, line):
    return {"name": name, "filename": "train.py", "line": line}


def entry(action, addr, size, stream=0, time_us=0, **more):
    e = {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1_700_000_000_000_000 + time_us}
    e.update(more)
    return e


def snapshot():
    base = 0x7F00_0000_0000
    stack = [frame("forward", 10), frame("main", 99)]
    other = [frame("backward", 20), stack[1]]
    first = [
        entry("segment_alloc", base, 2 << 20, time_us=1, user_metadata="init", frames=stack),
        entry("alloc", base, 1000, time_us=2, user_metadata="init", frames=stack, compile_context="N/A"),
        entry("alloc", base + 1024, 300, time_us=3, user_metadata="rollout", frames=other),
        entry("free_requested", base, 1000, time_us=4, user_metadata="rollout", frames=other),
        entry("free_completed", base, 1000, time_us=5, user_metadata="", frames=[]),
        entry("snapshot", 0, 0, time_us=6),
        {"action": "oom", "device_free": 4096, "size": 1 << 40, "stream": 0, "time_us": 1_700_000_000_000_007},
        entry("brand_new_action", 1, 2, time_us=8, user_metadata={"step": 3}),
    ]
    second = [
        entry("segment_map", 0x3_0000_0000, 20 << 20, stream=0x5566_7788_99AA, segment_pool_id=(1, 2)),
        entry("alloc", 0x3_0000_0000, 1 << 33, stream=0x5566_7788_99AA, segment_pool_id=(1, 2), user_metadata=7),
        entry("alloc", 0x5_0000_0000, 0, segment_pool_id=(0, 0)),
        entry("segment_unmap", 0x3_0000_0000, 20 << 20, stream=1, pool_id=(0, 5)),
    ]
    blocks = [
        {"address": base, "size": 1024, "requested_size": 1000, "state": "inactive", "frames": []},
        {"address": base + 1024, "size": 512, "requested_size": 300, "state": "active_allocated", "frames": other},
        {"address": base + 1536, "size": (2 << 20) - 1536, "requested_size": 1, "state": "active_pending_free",
         "frames": stack},
    ]
    segments = [
        {"device": 1, "address": 0x3_0000_0000, "total_size": 20 << 20, "stream": 0x5566_7788_99AA,
         "segment_type": "large", "segment_pool_id": (1, 2), "is_expandable": True, "frames": [],
         "blocks": [{"address": 0x3_0000_0000, "size": 20 << 20, "requested_size": 20 << 20,
                     "state": "active_awaiting_free", "frames": []}]},
        {"device": 0, "address": base, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
         "segment_pool_id": (0, 0), "is_expandable": False, "frames": stack, "blocks": blocks},
    ]
    return {
        "segments": segments,
        "device_traces": [first, second, []],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "expandable_segments": True,
            "garbage_collection_threshold": 0.0,
            "max_split_size": -1,
            "roundup_power2_divisions": {"1": 0, "2": 4},
        },
        "external_annotations": [
            {"stage": "START", "name": "step", "device": 0, "time_us": 1},
            {"stage": "END", "name": "step", "device": 0, "time_us": 2},
        ],
    }


def only(entries):
    return {"segments": [], "device_traces": [entries]}


class Evil:
    def __reduce__(self):
        return (os.system, ("true",))


def write(name, data):
    with open(os.path.join(HERE, name), "wb") as out:
        out.write(data)


def dump(name, value, protocol=4):
    write(name + ".pickle", pickle.dumps(value, protocol))


def good():
    whole = snapshot()
    for protocol in range(2, 6):
        dump(f"protocol{protocol}", whole, protocol)
    write("pure-python.pickle", pickle._dumps(whole, 2))
    plain = pickle.dumps(whole, 4)
    write("whole.pickle.gz", gzip.compress(plain, mtime=0))
    half = len(plain) // 2
    write("members.pickle.gz", gzip.compress(plain[:half], mtime=0) + gzip.compress(plain[half:], mtime=0) + bytes(7))
    write("whole.pickle.zst", subprocess.run(["zstd", "-q", "-c"], input=plain, stdout=subprocess.PIPE, check=True).stdout)
    # The same entry, the same list and the same empty list in several places.
    e, nothing = entry("alloc", 4096, 512, frames=[frame("f", 1)]), []
    trace = [e, entry("free_requested", 4096, 512, frames=e["frames"]), e]
    dump("shared", {"segments": nothing, "device_traces": [trace, trace, nothing, [e]], "external_annotations": nothing})
    # Older versions: no user_metadata, no address or requested_size in blocks.
    old = {"device": 0, "address": 4096, "total_size": 3072, "stream": 0, "segment_type": "small",
           "blocks": [{"size": 1024, "state": "active_allocated", "history": [{"addr": 4096, "real_size": 1000}]},
                      {"size": 2048, "state": "inactive"}]}
    dump("old", {"segments": [old], "device_traces": [[{"action": "alloc", "addr": 4096, "size": 1000, "stream": 0}]]})
    # A ring that wrapped: frees of blocks never seen, and blocks that live all along.
    base = 1 << 40
    wrapped = [entry("free_requested", base, 100, time_us=1), entry("free_completed", base, 100, time_us=2),
               entry("alloc", base, 50, time_us=3), entry("alloc", base + 4096, 70, time_us=4),
               entry("free_requested", base + 4096, 70, time_us=5), entry("free_requested", base + 8192, 9, time_us=6),
               entry("free_completed", base + 8192, 9, time_us=7), entry("free_completed", base + 4096, 70, time_us=8)]
    kept = {"device": 0, "address": base, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [
        {"address": base, "size": 512, "requested_size": 50, "state": "active_allocated"},
        {"address": base + 512, "size": 512, "requested_size": 500, "state": "active_allocated"},
        {"address": base + 1024, "size": (2 << 20) - 1024, "requested_size": 0, "state": "inactive"}]}
    dump("wrapped", {"segments": [kept], "device_traces": [wrapped]})
    dump("bare-traces", whole["device_traces"])
    dump("bare-entries", whole["device_traces"][0])
    dump("bare-segments", whole["segments"])
    dump("empty-trace", {"segments": [], "device_traces": [[]]})
    dump("strange-metadata", only([entry("alloc", 1, 1, user_metadata=m) for m in
                                   (None, True, b"raw", 1.5, (1, 2), [1, [2, [3, [4, [5]]]]], {"a": {"b": None}}, "x\0y",
                                    "\u00fcn\u00efcode", 1 << 80, {1, 2}, "\x1b[31mred")]))
    # More than one batch of APPENDS and of SETITEMS, a frame's end between them.
    many = only([entry("alloc", i << 12, 512, time_us=i, user_metadata=f"step {i // 100}") for i in range(2500)])
    many["allocator_settings"] = {f"key {i}": i for i in range(1500)}
    write("many.pickle.gz", gzip.compress(pickle.dumps(many, 4), mtime=0))
    dump("high-addresses", only([entry("alloc", (1 << 64) - 8192, 4096, stream=-1), entry("alloc", 1 << 63, 1)]))


def bad():
    dump("bad-global", {"device_traces": Evil()})
    dump("bad-global-2", {"device_traces": Evil()}, 2)
    dump("bad-zero", b"", 0)
    dump("bad-number", 42)
    dump("bad-list", [1, 2, 3])
    dump("bad-empty-list", [])
    dump("bad-no-traces", {"segments": []})
    dump("bad-traces", {"device_traces": {"0": []}})
    dump("bad-trace", {"device_traces": [{"0": []}]})
    dump("bad-segments", {"device_traces": [[]], "segments": "none"})
    dump("bad-segment", {"device_traces": [[]], "segments": [{"device": 0}]})
    dump("bad-entry", only([entry("alloc", 1, 1), {"addr": 2}]))
    without = lambda key: only([{k: v for k, v in entry("alloc", 1, 1).items() if k != key}])
    dump("bad-no-addr", without("addr"))
    dump("bad-no-size", without("size"))
    dump("bad-no-action", without("action"))
    for name, key, value in [("addr", "addr", "0x10"), ("negative", "size", -1), ("huge", "size", 1 << 64),
                             ("too-large", "size", 1 << 60), ("overflow", "addr", (1 << 64) - 1), ("float", "size", 1.5),
                             ("time", "time_us", "now"), ("stream", "stream", None), ("pool", "segment_pool_id", [0, 0]),
                             ("action", "action", 5)]:
        e = entry("alloc", 16, 16)
        e[key] = value
        dump("bad-value-" + name, only([e]))
    dump("bad-blocks", {"device_traces": [[]], "segments": [
        {"device": 0, "address": 0, "total_size": 1, "stream": 0, "blocks": [{"size": 1, "state": "unheard of"}]}]})
    dump("bad-device", {"device_traces": [[]], "segments": [
        {"device": 1 << 20, "address": 0, "total_size": 1, "stream": 0, "blocks": []}]})
    dump("bad-many-devices", {"device_traces": [[]] * 2000})
    loop = [entry("alloc", 1, 1)]
    loop.append(loop)
    dump("bad-recursive", only(loop))
    plain = pickle.dumps(snapshot(), 4)
    write("bad-trailing.pickle", plain + b"N.")
    write("bad-trailing.pickle.gz", gzip.compress(plain, mtime=0) + b"rest")
    write("bad-cut.pickle.gz", gzip.compress(plain, mtime=0)[:-5])
    write("bad-empty.pickle", b"")
    write("bad-text.pickle", b"hello, this is not a pickle\n")
    write("bad-zip.pickle", b"PK\3\4" + bytes(26))
    write("bad-protocol.pickle", b"\x80\x06N.")


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    good()
    bad()
