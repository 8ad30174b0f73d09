#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Allocate, free and give back 40 GiB in blocks of 64 MiB, again and again: pagetide's
trim beside PyTorch's empty_cache, native and with expandable segments.

    refill_bench.py [--library PATH] [--gib N] [--cycles N] [--json]

Three processes on one GPU take turns, so that a card whose speed drifts drifts for
all; each keeps its own time for every step, with the GPU idle before and after. Medians,
the lowest and highest behind them. Exit code 77 where there is no GPU or no PyTorch.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

BLOCK = 64 << 20
STEPS = ("fill", "free", "give back", "refill")  # refill: the first fill after memory went back
KINDS = ("pagetide", "native", "expandable")


# ---- One process for each allocator: reads a line, does a cycle, writes its times --------------------------


class Pagetide:
    class OpenOptions(ctypes.Structure):
        _fields_ = [
            ("struct_size", ctypes.c_size_t),
            ("backend", ctypes.c_char_p),
            ("device_count", ctypes.c_int),
            ("cross_stream", ctypes.c_int),
            ("limit_bytes", ctypes.c_uint64),
            ("oom_wait_ns", ctypes.c_uint64),
        ]

    class TrimOptions(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("bytes", ctypes.c_uint64), ("wait_ns", ctypes.c_uint64)]

    def __init__(self, library):
        self.lib = ctypes.CDLL(library)
        self.lib.tide_last_error.restype = ctypes.c_char_p
        self.allocator = ctypes.c_void_p()
        options = self.OpenOptions(ctypes.sizeof(self.OpenOptions), b"cuda", 0, 0, 0, 0)
        self.call("tide_open", ctypes.byref(options), ctypes.byref(self.allocator))

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments) != 0:
            raise RuntimeError(f"{name}: {self.lib.tide_last_error().decode()}")

    def alloc(self):
        pointer = ctypes.c_void_p()
        self.call(
            "tide_alloc",
            self.allocator,
            0,
            ctypes.c_size_t(BLOCK),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
            ctypes.byref(pointer),
        )
        return pointer

    def free(self, block):
        self.call("tide_free", self.allocator, block)

    def give_back(self):
        options = self.TrimOptions(ctypes.sizeof(self.TrimOptions), (1 << 64) - 1, (1 << 64) - 1)
        self.call("tide_trim", self.allocator, 0, ctypes.byref(options), None)

    def idle(self):
        pass  # nothing was queued


class Torch:
    def __init__(self):
        import torch

        self.torch = torch
        torch.cuda.init()

    def alloc(self):
        return self.torch.empty(BLOCK, dtype=self.torch.uint8, device="cuda")

    def free(self, block):
        del block

    def give_back(self):
        self.torch.cuda.empty_cache()

    def idle(self):
        self.torch.cuda.synchronize()


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fill(allocator, blocks, count):
    for _ in range(count):
        blocks.append(allocator.alloc())


def empty(allocator, blocks):
    while blocks:
        allocator.free(blocks.pop())


def worker(kind, library, count):
    allocator = Pagetide(library) if kind == "pagetide" else Torch()
    blocks = []
    print("ready", flush=True)
    for _ in sys.stdin:
        times = {}
        allocator.idle()
        times["fill"] = timed(lambda: fill(allocator, blocks, count))
        times["free"] = timed(lambda: empty(allocator, blocks))
        times["give back"] = timed(allocator.give_back)
        times["refill"] = timed(lambda: fill(allocator, blocks, count))
        empty(allocator, blocks)
        allocator.give_back()
        allocator.idle()
        print(json.dumps(times), flush=True)


# ---- The turns ---------------------------------------------------------------------------------------------


def start(kind, options):
    environment = dict(os.environ)
    if kind == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, __file__, "--worker", kind, "--library", options.library, "--gib", str(options.gib)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def expect(process, kind):
    line = process.stdout.readline()
    if not line:
        sys.exit(f"refill_bench: {kind} ended: exit code {process.wait()}")
    return line


def has_gpu():
    code = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", default="build/gpu/libpagetide.so")
    parser.add_argument("--gib", type=int, default=40)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    count = options.gib * 16
    if options.worker:
        worker(options.worker, options.library, count)
        return 0
    if not has_gpu():
        print("skipped: no GPU, or no PyTorch")
        return 77
    processes = {kind: start(kind, options) for kind in KINDS}
    for kind, process in processes.items():
        expect(process, kind)
    results = {kind: [] for kind in KINDS}
    for cycle in range(options.cycles + 1):  # the first warms up
        for kind, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            times = json.loads(expect(process, kind))
            if cycle > 0:
                results[kind].append(times)
    for process in processes.values():
        process.stdin.close()
        process.wait()
    if options.json:
        print(json.dumps(results))
        return 0
    print(f"{options.gib} GiB in blocks of 64 MiB, ms: medians of {options.cycles} cycles (lowest-highest)")
    print(f"{'':<12}" + "".join(f"{step:>28}" for step in STEPS) + f"{'all':>12}")
    for kind in KINDS:
        row, total = "", 0.0
        for step in STEPS:
            values = [1e3 * times[step] for times in results[kind]]
            total += statistics.median(values)
            row += f"{statistics.median(values):>10.2f} ({min(values):.2f}-{max(values):.2f})".rjust(28)
        print(f"{kind:<12}{row}{total:>12.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
