#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/memory_bench.py with a stand-in for pagetide whose figures are made up, and with pagetide itself.

    memory_bench_test.py MEMORY_BENCH PAGETIDE DATA_FOLDER
"""
import json
import os
import subprocess
import sys
import tempfile

BENCH, PROGRAM, DATA = (os.path.abspath(argument) for argument in sys.argv[1:4])
GIB = 1 << 30
CASES = []

# Answers as `pagetide replay FILE --json ...`: FILE holds the result by mode, or "fail". Leaves the most runs at once
# that it saw in FILE.most.
STAND_IN = """#!{python}
import json, os, sys, time
path, args = sys.argv[2], sys.argv[3:]
running = os.path.join(os.path.dirname(path), "running")
os.makedirs(running, exist_ok=True)
mine = os.path.join(running, str(os.getpid()))
open(mine, "w").close()
time.sleep(0.2)
with open(path + ".most", "a") as f:
    f.write(f"{{len(os.listdir(running))}}\\n")
os.remove(mine)
mode = "trim" if "--trim-phases" in args else "prompt" if args[args.index("--event-delay") + 1] == "0" else \\
    "wait" if "wait" in args else "late"
results = json.load(open(path))
if mode not in results:
    sys.exit("pagetide: made to fail")
print(json.dumps({{"file": path, **results[mode]}}))
"""


def case(function):
    CASES.append(function)
    return function


def policy(name, reserved, driver_seconds, end_reserved=GIB):
    rollout = {"phase": "rollout", "peak_live": 10 * GIB, "peak_reserved": reserved, "end_live": GIB,
               "end_reserved": end_reserved}
    update = {**rollout, "phase": "update", "peak_live": 8 * GIB, "peak_reserved": reserved - 2 * GIB}
    return {"policy": name, "peak_reserved": reserved, "ratio": reserved / (10 * GIB), "moves": 0, "waits": 0,
            "wait_seconds": 0.0, "driver_calls": 1, "driver_seconds": driver_seconds, "elapsed_seconds": 1.0,
            "oom": None, "phases": [rollout, update], "trim_seconds": 0.0, "reason": None}


def good():
    """What a run within every bound answers, by mode."""
    result = {"gpu": 0, "events": 10, "allocations": 5, "trace_seconds": 10.0, "peak_live": 10 * GIB,
              "bound_reserved": 10 * GIB, "recorded": {"policy": "native", "compared": 5, "mismatches": 0},
              "policies": [policy("native", 20 * GIB, 0.1), policy("expandable", 12 * GIB, 0.1),
                           policy("pagetide", 10 * GIB, 0.2)]}
    return {mode: json.loads(json.dumps(result)) for mode in ("prompt", "wait", "late", "trim")}


def bench(results, *args, name="run"):
    """Runs the benchmark over one made-up file; (exit code, stdout, stderr, most runs at once)."""
    with tempfile.TemporaryDirectory() as folder:
        program, path = os.path.join(folder, "pagetide"), os.path.join(folder, f"{name}.pickle")
        with open(program, "w", encoding="utf-8") as f:
            f.write(STAND_IN.format(python=sys.executable))
        os.chmod(program, 0o755)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(results, f)
        done = subprocess.run([sys.executable, BENCH, path, "--program", program, *args], capture_output=True,
                              text=True, timeout=120, check=False)
        with open(path + ".most", encoding="utf-8") as f:
            most = max(map(int, f.read().split()))
        return done.returncode, done.stdout, done.stderr, most


def only_row(results, **more):
    code, out, err, _ = bench(results, "--json", **more)
    assert code == 0 and err == "", (code, err)
    return json.loads(out)


@case
def what_is_within_its_bounds_holds():
    code, out, err, most = bench(good(), "--check")
    assert (code, err) == (0, ""), (code, out, err)
    assert "| yes" in out and "1 of 1" in out and "missed:" not in out, out
    assert most <= 2, f"{most} runs at once"


@case
def a_miss_is_told_and_is_an_error_only_when_asked():
    results = good()
    results["wait"]["policies"][2]["peak_reserved"] = 11 * GIB
    code, out, _, _ = bench(results)
    assert code == 0 and "**no**" in out and "0 of 1" in out and "missed: run: wait:" in out, out
    assert bench(results, "--check")[0] == 1


MISSES = {
    "prompt: ": lambda r: r["prompt"]["policies"][2].update(peak_reserved=11 * GIB),
    "wait: ": lambda r: r["wait"]["policies"][2]["phases"][1].update(peak_reserved=9 * GIB),  # outside rollout alone
    "late: 1.0500 x": lambda r: r["late"]["policies"][2].update(peak_reserved=10.5 * GIB),
    "0.310 s in the driver, 0.300 allowed": lambda r: r["wait"]["policies"][2].update(driver_seconds=0.31),
    "trim: ": lambda r: r["trim"]["policies"][2]["phases"][0].update(end_reserved=2 * GIB),
    "differs from the recording at 3": lambda r: r["late"]["recorded"].update(mismatches=3),
    "late: pagetide out of memory at event 7": lambda r: r["late"]["policies"][2].update(oom={"event": 7}),
    "trim: pagetide not replayed: why not":
        lambda r: r["trim"]["policies"][2].update(peak_reserved=None, oom=None, reason="why not"),
}


@case
def each_bound_is_looked_at():
    for expected, spoil in MISSES.items():
        results = good()
        spoil(results)
        row = only_row(results)
        assert not row["holds"] and len(row["missed"]) == 1 and expected in row["missed"][0], (expected, row)


@case
def long_recordings_may_spend_less_in_the_driver():
    results = good()
    results["prompt"]["policies"][2]["driver_seconds"] = 0.16
    assert only_row(results)["holds"]
    assert not only_row(results, name="rl-text-native")["holds"]


@case
def a_run_that_fails_is_an_error_and_has_no_row():
    results = good()
    del results["trim"]
    code, out, err, _ = bench(results)
    assert code == 1 and out == "" and "made to fail" in err, (code, out, err)


@case
def it_reads_what_pagetide_prints():
    files = [os.path.join(DATA, f"streams-{kind}.pickle.gz") for kind in ("native", "expandable")]
    command = [sys.executable, BENCH, "--program", PROGRAM]
    done = subprocess.run(command + files, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stderr == "", done
    assert "| streams-native" in done.stdout and "of 2 |" in done.stdout, done.stdout
    environment = {**os.environ, "PAGETIDE_TRACES": DATA}
    done = subprocess.run(command + ["--json"], env=environment, capture_output=True, text=True, timeout=300,
                          check=False)
    names = [json.loads(line)["recording"] for line in done.stdout.splitlines()]
    assert done.returncode == 0 and names == ["graphs-native", "streams-expandable", "streams-native"], done


@case
def without_traces_it_takes_those_that_come_with_the_source():
    environment = {name: value for name, value in os.environ.items() if name != "PAGETIDE_TRACES"}
    command = [sys.executable, BENCH, "--program", PROGRAM, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    names = [json.loads(line)["recording"] for line in done.stdout.splitlines()]
    assert done.returncode == 0, done
    assert names == ["rl-oom-native", "graphs-native", "streams-expandable", "streams-native"], names
    done = subprocess.run(command, env={**environment, "PAGETIDE_TRACES": "/nowhere"}, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 2 and "no traces in PAGETIDE_TRACES=/nowhere" in done.stderr, done


def main():
    failed = 0
    for function in CASES:
        print(f"[ RUN      ] {function.__name__}", flush=True)
        try:
            function()
            print(f"[       OK ] {function.__name__}", flush=True)
        except (AssertionError, ValueError, KeyError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{type(error).__name__}: {error}\n[  FAILED  ] {function.__name__}", flush=True)
    return 1 if failed else 0


sys.exit(main())
