#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What pagetide reserves on recorded runs, and whether that is within its bounds: the table of docs/benchmarks.md.

    memory_bench.py [FILE...] [--program PAGETIDE] [--json] [--check]

Without files: all of the folder that PAGETIDE_TRACES names, or else those of examples and tests/data. Each file is replayed four times, two runs at once. The
exit code is 1 where a run failed; with --check also where a bound is missed.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

MIB = 1 << 20
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The bounds, each with the sentence of docs/benchmarks.md that it is.
LIVE_RATIO, SLACK = 1.015, 64 * MIB  # peak reserved, over the peak of live bytes; and so much more
BOUND_RATIO = 1.02                   # peak reserved, over the bound that replay prints
END_RATIO = 1.05                     # reserved over live at a phase's end, trimmed; and SLACK more
RUNS_AT_ONCE = 2

# name: options of replay
MODES = {
    "prompt": ["--event-delay", "0", "--cross-stream", "idle"],
    "wait": ["--event-delay", "100", "--cross-stream", "wait"],
    "late": ["--event-delay", "100", "--cross-stream", "idle"],
    "trim": ["--event-delay", "100", "--cross-stream", "idle", "--trim-phases"],
}
UNTRIMMED = ("prompt", "wait", "late")


def driver_share(name):
    """Of the trace's time: what pagetide may spend in the driver beyond expandable segments."""
    return 0.005 if name.startswith(("rl-text-", "rl-vl-native")) else 0.02


class RunFailed(Exception):
    pass


# ---- Runs -----------------------------------------------------------------------------------------------------------


def replay(program, path, mode):
    """The results of one run: one for each GPU of the file."""
    command = [program, "replay", path, "--json", *MODES[mode]]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RunFailed(f"{program}: {error.strerror}") from error
    if done.returncode != 0:
        raise RunFailed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Progress:
    """A line on stderr, where that is a terminal."""

    def __init__(self, total):
        self.done, self.total, self.shown = 0, total, sys.stderr.isatty()

    def step(self):
        self.done += 1
        if self.shown:
            print(f"\rreplaying: {self.done} of {self.total}", end="", file=sys.stderr, flush=True)

    def end(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def replay_all(program, paths):
    """{(path, mode): results}, and the messages of what failed."""
    jobs = [(path, mode) for path in paths for mode in MODES]
    results, failures, progress = {}, [], Progress(len(jobs))
    with concurrent.futures.ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        runs = {pool.submit(replay, program, *job): job for job in jobs}
        for run in concurrent.futures.as_completed(runs):
            progress.step()
            try:
                results[runs[run]] = run.result()
            except (RunFailed, ValueError) as error:
                failures.append(f"{runs[run][0]}: {error}")
    progress.end()
    return results, sorted(failures)


# ---- Figures --------------------------------------------------------------------------------------------------------


def policy_of(result, name):
    return next(p for p in result["policies"] if p["policy"] == name)


def outside_rollout(phases):
    """(peak live, peak reserved) of the phases other than rollout; None where nothing but them, or no rollout, is."""
    others = [p for p in phases if p["phase"] != "rollout"]
    if not others or len(others) == len(phases):
        return None
    return max(p["peak_live"] for p in others), max(p["peak_reserved"] for p in others)


def ratio(a, b):
    return a / b if b else None


def mode_figures(result):
    """Reserved over live, overall and outside rollout, and the bytes left to the bound where they are fewest."""
    pagetide = policy_of(result, "pagetide")
    pairs = [(result["peak_live"], pagetide["peak_reserved"])]
    outside = outside_rollout(pagetide["phases"])
    if outside:
        pairs.append(outside)
    return {
        "overall": ratio(pairs[0][1], pairs[0][0]),
        "outside_rollout": ratio(outside[1], outside[0]) if outside else None,
        "margin": int(min(LIVE_RATIO * live + SLACK - reserved for live, reserved in pairs)),
        "of_bound": ratio(pairs[0][1], result["bound_reserved"]),
    }


def end_ratio(result):
    """The worst (reserved - 64 MiB) / live of the ends of phases."""
    ends = policy_of(result, "pagetide")["phases"]
    return max((max(p["end_reserved"] - SLACK, 0) / max(p["end_live"], 1) for p in ends), default=0.0)


def not_replayed(by_mode):
    """Why a mode has no figures to hold against the bounds; None where all have."""
    for mode, result in by_mode.items():
        for name in ("pagetide", "expandable"):
            policy = policy_of(result, name)
            if policy["peak_reserved"] is None:
                return f"{mode}: {name} not replayed: {policy['reason']}"
            if policy["oom"]:
                return f"{mode}: {name} out of memory at event {policy['oom']['event']}"
    return None


def measure(by_mode):
    """A row of the table from the results of one GPU in each mode."""
    late = by_mode["late"]
    name = os.path.basename(late["file"]).split(".pickle")[0]
    row = {"recording": name, "gpu": late["gpu"], "peak_live": late["peak_live"],
           "mismatches": late["recorded"]["mismatches"], "compared": late["recorded"]["compared"]}
    reason = not_replayed(by_mode)
    if reason:
        return {**row, "missed": [reason]}
    native, expandable = policy_of(late, "native"), policy_of(late, "expandable")
    pagetides = {mode: policy_of(by_mode[mode], "pagetide") for mode in UNTRIMMED}
    row["native"], row["expandable"] = native["ratio"], expandable["ratio"]
    row["modes"] = {mode: mode_figures(by_mode[mode]) for mode in UNTRIMMED}
    row["driver_seconds"] = max(p["driver_seconds"] for p in pagetides.values())
    row["driver_seconds_expandable"] = expandable["driver_seconds"]
    row["driver_seconds_allowed"] = expandable["driver_seconds"] + driver_share(name) * late["trace_seconds"]
    row["wait_share"] = max((p["wait_seconds"] for p in pagetides.values())) / max(late["trace_seconds"], 1e-9)
    row["end_ratio"] = end_ratio(by_mode["trim"])
    row["missed"] = missed(row)
    return row


def missed(row):
    """The bounds that a row misses, as sentences."""
    out = []
    if row["mismatches"]:
        out.append(f"the model differs from the recording at {row['mismatches']} events")
    for mode in ("prompt", "wait"):
        if row["modes"][mode]["margin"] < 0:
            out.append(f"{mode}: {-row['modes'][mode]['margin'] / MIB:.0f} MiB above {LIVE_RATIO} x live + 64 MiB")
    if row["modes"]["late"]["of_bound"] and row["modes"]["late"]["of_bound"] > BOUND_RATIO:
        out.append(f"late: {row['modes']['late']['of_bound']:.4f} x the bound")
    if row["driver_seconds"] > row["driver_seconds_allowed"]:
        out.append(f"{row['driver_seconds']:.3f} s in the driver, {row['driver_seconds_allowed']:.3f} allowed")
    if row["end_ratio"] > END_RATIO:
        out.append(f"trim: {row['end_ratio']:.3f} x live at a phase's end")
    return out


def rows_of(results, paths):
    """A row for each GPU of each file whose four runs are there."""
    rows = []
    for path in paths:
        runs = [results.get((path, mode)) for mode in MODES]
        if None not in runs:
            rows += [measure(dict(zip(MODES, gpu))) for gpu in zip(*runs)]
    return rows


# ---- The table ------------------------------------------------------------------------------------------------------

HEAD = ["recording", "live GiB", "native", "expandable", "0 ms", "margin MiB", "100 ms, wait", "margin MiB",
        "100 ms, idle", "of the bound", "modelled driver s", "allowed", "waits", "trimmed ends", "holds"]

LEGEND = """\
Peak reserved over peak live: of native and expandable, then of pagetide with events done at once (0 ms), with events
100 ms late and waits on the device, and with late events and no waits; the second figure is of all phases but
rollout. Margin: to 1.015 x live + 64 MiB, where it is smallest. Of the bound: with late events and no waits; at most
1.02. Driver s: modelled, of pagetide, the most of the three; allowed: of expandable, and 0.5% (rl-text-*,
rl-vl-native) or 2% of the recorded time. Waits: share of the recorded time. Trimmed ends: the worst (reserved - 64
MiB) / live at the end of a phase, with --trim-phases; at most 1.05."""


def figure(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def pair(mode):
    outside = mode["outside_rollout"]
    return figure(mode["overall"]) + (f", {figure(outside)}" if outside is not None else "")


def cells(row):
    head = [row["recording"] + (f" (GPU {row['gpu']})" if row["gpu"] else ""), f"{row['peak_live'] / (1 << 30):.2f}"]
    if "modes" not in row:
        return head + ["-"] * (len(HEAD) - 3) + ["**no**"]
    prompt, wait, late = (row["modes"][mode] for mode in UNTRIMMED)
    return head + [
        figure(row["native"]), figure(row["expandable"]), pair(prompt), f"{prompt['margin'] / MIB:.0f}", pair(wait),
        f"{wait['margin'] / MIB:.0f}", pair(late), figure(late["of_bound"], 4), figure(row["driver_seconds"]),
        figure(row["driver_seconds_allowed"]), f"{100 * row['wait_share']:.2f}%", figure(row["end_ratio"]),
        "**no**" if row["missed"] else "yes"
    ]


def total_row(rows):
    """The worst of each column, and the sum of times."""
    measured = [r for r in rows if "modes" in r]
    if not measured:
        return None

    def worst(mode, key):
        return max((r["modes"][mode][key] for r in measured if r["modes"][mode][key] is not None), default=None)

    modes = {mode: {"overall": worst(mode, "overall"), "outside_rollout": worst(mode, "outside_rollout"),
                    "margin": min(r["modes"][mode]["margin"] for r in measured), "of_bound": worst(mode, "of_bound")}
             for mode in UNTRIMMED}
    seconds = {key: sum(r[key] for r in measured)
               for key in ("driver_seconds", "driver_seconds_expandable", "driver_seconds_allowed")}
    return {"recording": "worst, and sums of s", "gpu": 0, "peak_live": max(r["peak_live"] for r in measured),
            "native": max(r["native"] or 0 for r in measured), "modes": modes, **seconds,
            "expandable": max(r["expandable"] for r in measured), "wait_share": max(r["wait_share"] for r in measured),
            "end_ratio": max(r["end_ratio"] for r in measured), "missed": [m for r in rows for m in r["missed"]]}


def print_table(rows):
    lines = [HEAD] + [cells(row) for row in rows]
    total = total_row(rows)
    if total:
        last = cells(total)
        last[-1] = f"{sum(not r['missed'] for r in rows)} of {len(rows)}"
        lines.append(last)
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    for number, line in enumerate(lines):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n" + LEGEND)
    print(f"\nModels: {sum(r['mismatches'] for r in rows)} of {sum(r['compared'] for r in rows)} events compared differ.")
    for row in rows:
        for sentence in row["missed"]:
            print(f"missed: {row['recording']}: {sentence}")


# ---- Calling --------------------------------------------------------------------------------------------------------


def traces_at_hand():
    """Those of PAGETIDE_TRACES; where that is not set, those that come with the source."""
    named = os.environ.get("PAGETIDE_TRACES", "")
    folders = [named] if named else [os.path.join(ROOT, "examples"), os.path.join(ROOT, "tests", "data")]
    return [os.path.join(folder, name) for folder in folders if os.path.isdir(folder)
            for name in sorted(os.listdir(folder)) if ".pickle" in name]


def main():
    parser = argparse.ArgumentParser(description="What pagetide reserves on recorded runs, against its bounds.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="else all of the folder that PAGETIDE_TRACES names, or of examples and tests/data")
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "pagetide"), help="else build/pagetide")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row, in bytes and seconds")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a bound is missed")
    args = parser.parse_args()
    paths = args.files or traces_at_hand()
    if not paths:
        parser.error(f"no files, and no traces in PAGETIDE_TRACES={os.environ.get('PAGETIDE_TRACES', '')}")
    results, failures = replay_all(args.program, paths)
    rows = rows_of(results, paths)
    if args.json:
        for row in rows:
            print(json.dumps({**row, "holds": not row["missed"]}))
    elif rows:
        print_table(rows)
    for failure in failures:
        print(f"memory_bench: {failure}", file=sys.stderr)
    return 1 if failures or (args.check and any(row["missed"] for row in rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
