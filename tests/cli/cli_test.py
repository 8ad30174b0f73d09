#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line as people and scripts meet it: exit codes, what goes to stdout and what to stderr.

    cli_test.py PROGRAM DATA_FOLDER [CASE...]
"""
import bz2
import fcntl
import gzip
import io
import json
import lzma
import os
import pickle
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

PROGRAM, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
NATIVE = os.path.join(DATA, "streams-native.pickle.gz")
EXPANDABLE = os.path.join(DATA, "streams-expandable.pickle.gz")
CASES = []


class Skip(Exception):
    """This machine cannot run the case."""


def case(function):
    CASES.append(function)
    return function


def call(*args, stdout=subprocess.PIPE, **more):
    return subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                          text=True, timeout=150, check=False, **more)


def expect(done, code, out=None, err=None):
    """The exit code, and a regular expression each for stdout and stderr ('' is: nothing)."""
    said = f"$ pagetide {' '.join(done.args[1:])}\ncode {done.returncode}\n--stdout\n{done.stdout}\n--stderr\n{done.stderr}"
    assert done.returncode == code, f"exit code {code} expected\n{said}"
    for name, pattern, text in (("stdout", out, done.stdout), ("stderr", err, done.stderr)):
        if pattern == "":
            assert text == "", f"nothing expected on {name}\n{said}"
        elif pattern is not None:
            assert re.search(pattern, text), f"{pattern!r} expected on {name}\n{said}"
    return done


# ---- Help and wrong calls -------------------------------------------------------------------------------------------


@case
def help_goes_to_stdout():
    for args in (["--help"], ["-h"], ["help"]):
        expect(call(*args), 0, r"^usage: pagetide COMMAND(.|\n)*replay(.|\n)*info", "")
    for command in ("replay", "info"):
        for args in ([command, "--help"], ["help", command], [command, "x", "--help"]):
            expect(call(*args), 0, f"^usage: pagetide {command} FILE", "")


@case
def help_names_every_option():
    out = call("replay", "--help").stdout
    for option in "policy device limit event-delay cross-stream trim-phases gpu json check".split():
        assert f"--{option}" in out, option
    assert max(map(len, out.splitlines())) <= 90


@case
def version_is_one_line():
    for args in (["--version"], ["version"]):
        expect(call(*args), 0, r"^pagetide \d+\.\d+\.\d+\n$", "")


@case
def no_command_is_a_wrong_call():
    expect(call(), 2, "", r"^usage: pagetide")


@case
def an_unknown_command_is_a_wrong_call_with_a_hint():
    expect(call("reply", NATIVE), 2, "", r"'reply' is not a command; did you mean 'replay'\?")
    expect(call("frobnicate"), 2, "", r"'frobnicate' is not a command\nTry 'pagetide --help'")
    expect(call("help", "frobnicate"), 2, "", r"is not a command")
    expect(call(NATIVE), 2, "", r"to replay the file: pagetide replay ")


WRONG_CALLS = [
    ([], "which file"),
    (["--policy", "natve", NATIVE], "--policy: 'natve' is not one of native, expandable, pagetide"),
    (["--policy", "", NATIVE], "--policy: ''"),
    (["--policy", "native,", NATIVE], "--policy: 'native,' has a comma with no name beside it"),
    (["--policy", ",native", NATIVE], "--policy: ',native' has a comma with no name beside it"),
    (["--policy", "native,,pagetide", NATIVE], "--policy: 'native,,pagetide' has a comma with no name beside it"),
    (["--device", "cuda", NATIVE], "--device: 'cuda' is not sim or host"),
    (["--limit", "lots", NATIVE], "--limit: 'lots'"),
    (["--limit", "0", NATIVE], "--limit: '0'"),
    (["--limit", "-1", NATIVE], "--limit: '-1'"),
    (["--limit", "99999999999999999999", NATIVE], "--limit: '99999999999999999999'"),
    (["--limit", "80", NATIVE], "--limit: '80' is 80 B, less than any allocator takes at once (2 MiB); did you mean 80GiB?"),
    (["--limit", "80", "GiB", NATIVE], "--limit: '80' is 80 B, less than any allocator takes at once (2 MiB); did you mean 80GiB?"),
    (["--limit", "100K", NATIVE], "--limit: '100K' is 100.00 KiB, less than any allocator takes at once (2 MiB)\n"),
    (["--limit", "999TiB", NATIVE], "--limit: '999TiB' is more than 4.00 TiB, the most that can be replayed"),
    (["--event-delay", "-1", NATIVE], "--event-delay: '-1'"),
    (["--event-delay", "nan", NATIVE], "--event-delay: 'nan'"),
    (["--event-delay", "1e99", NATIVE], "--event-delay: '1e99'"),
    (["--event-delay", "5 ms", NATIVE], "--event-delay: '5 ms'"),
    (["--event-delay", "", NATIVE], "--event-delay: ''"),
    (["--cross-stream", "maybe", NATIVE], "--cross-stream: 'maybe' is not off, idle or wait"),
    (["--gpu", "-1", NATIVE], "--gpu: '-1'"),
    (["--gpu", "one", NATIVE], "--gpu: 'one'"),
    (["--gpu", "99999999999", NATIVE], "--gpu: '99999999999'"),
    ([NATIVE, "--limit"], "option '--limit' needs a value"),
    ([NATIVE, "--json=yes"], "option '--json=yes' takes no value"),
    ([NATIVE, "--frobnicate"], "unknown option '--frobnicate'\n"),
    ([NATIVE, "--limt", "80GiB"], "unknown option '--limt'; did you mean '--limit'?"),
    ([NATIVE, "--plicy=native"], "unknown option '--plicy=native'; did you mean '--policy'?"),
    ([NATIVE, "-x"], "unknown option '-x'"),
]


@case
def wrong_options_are_named():
    for args, message in WRONG_CALLS:
        expect(call("replay", *args), 2, "", re.escape(f"pagetide replay: {message}"))
    expect(call("info"), 2, "", "pagetide info: ")
    expect(call("info", NATIVE, "--frobnicate"), 2, "", "--frobnicate")


# ---- Answers --------------------------------------------------------------------------------------------------------


@case
def replay_prints_a_table():
    out = expect(call("replay", NATIVE), 0, r"streams-native\.pickle\.gz, GPU 0", "").stdout
    for policy in ("native", "expandable", "pagetide"):
        assert re.search(rf"^  {policy} +[\d.]+ [KMG]iB +[\d.]+", out, flags=re.M), out
    assert re.search(r"^  phase +peak live", out, flags=re.M), out
    assert re.search(r"agrees\s+with\s+the\s+recording", out), out
    assert max(map(len, out.splitlines())) <= 80 + len(NATIVE), out


@case
def a_narrow_terminal_gets_narrow_lines():
    for columns in (50, 60, 72):
        narrow = {**os.environ, "COLUMNS": str(columns)}
        for args in (["replay"], ["replay", "--trim-phases", "--limit", "1GiB"], ["info"]):
            for path in (NATIVE, os.path.join(DATA, "graphs-native.pickle.gz")):
                out = expect(call(*args, os.path.basename(path), cwd=DATA, env=narrow), 0, None, "").stdout
                longest = max(out.splitlines(), key=len)
                assert len(longest) <= columns, f"{columns} columns, {args}: {longest}"


@case
def info_says_what_is_missing():
    expect(call("info", NATIVE), 0, r"missing\n    stack frames: no entry has any \(_record_memory_history\(context=", "")


@case
def only_the_policies_asked_for():
    out = expect(call("replay", NATIVE, "--policy", "pagetide,native"), 0, None, "").stdout
    assert re.search("^  native ", out, flags=re.M) and not re.search("^  expandable ", out, flags=re.M), out


@case
def the_answer_stands_first():
    out = expect(call("replay", NATIVE, "--limit", "1700MiB"), 0, None, "").stdout
    assert re.search(r"GPU 0\n\n  native runs out of memory at event .*", out), out
    assert re.search(r"The\s+least\s+that\s+is\s+enough:\s+\d.*native", out), out
    assert re.search(r"driver\s+\(modelled\)", out), out


@case
def a_file_may_be_standard_input():
    for command in ("replay", "info"):
        with open(NATIVE, "rb") as f:
            done = subprocess.run([PROGRAM, command, "-"], stdin=f, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0 and done.stderr == "" and "6,728 events" in done.stdout, done
    expect(call("replay", "-"), 1, "", "^pagetide: /dev/stdin: ")


KEYS = ["file", "gpu", "events", "allocations", "trace_seconds", "peak_live", "bound_reserved", "recorded", "policies"]
RECORDED_KEYS = ["policy", "peak_reserved", "compared", "mismatches", "reason"]
POLICY_KEYS = ["policy", "peak_reserved", "ratio", "moves", "waits", "wait_seconds", "driver_calls",
               "driver_seconds", "elapsed_seconds", "oom", "phases"]
OPTION_KEYS = {"limit_bytes": None, "event_delay_ms": 100.0, "cross_stream": "idle", "trim_phases": False,
               "device": "sim"}  # as they are without options
PHASE_KEYS = ["phase", "peak_live", "peak_reserved", "end_live", "end_reserved"]
OOM_KEYS = ["event", "wanted", "live", "reserved"]


def expect_types(thing, keys, **types):
    assert list(thing)[:len(keys)] == keys, list(thing)
    for key in keys:
        kind = types.get(key, int)
        assert isinstance(thing[key], kind) and not isinstance(thing[key], bool), (key, thing[key])


def expect_schema(result):
    expect_types(result, KEYS, file=str, trace_seconds=float, recorded=dict, policies=list)
    expect_types(result["recorded"], RECORDED_KEYS, policy=(str, type(None)), reason=(str, type(None)))
    for policy in result["policies"]:
        expect_types(policy, POLICY_KEYS, policy=str, ratio=float, wait_seconds=float, driver_seconds=float,
                     elapsed_seconds=float, oom=(dict, type(None)), phases=list)
        if policy["oom"]:
            expect_types(policy["oom"], OOM_KEYS)
        for phase in policy["phases"]:
            expect_types(phase, PHASE_KEYS, phase=str)


@case
def json_has_the_documented_keys_and_types():
    done = expect(call("replay", NATIVE, EXPANDABLE, "--json"), 0, None, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout
    for line, recorded in zip(lines, ("native", "expandable")):
        result = json.loads(line)
        expect_schema(result)
        assert result["recorded"]["policy"] == recorded
        assert result["recorded"]["mismatches"] == 0 and result["recorded"]["compared"] >= result["allocations"]
        assert [p["policy"] for p in result["policies"]] == ["native", "expandable", "pagetide"]
        for policy in result["policies"]:
            assert policy["peak_reserved"] >= result["peak_live"]
            assert abs(policy["ratio"] - policy["peak_reserved"] / result["peak_live"]) < 1e-9
            assert len({phase["phase"] for phase in policy["phases"]}) == len(policy["phases"])


@case
def json_tells_the_options_it_is_of():
    result = json.loads(call("replay", NATIVE, "--json").stdout)
    assert {key: result[key] for key in OPTION_KEYS} == OPTION_KEYS, result
    assert all(policy["fits_from"] is None for policy in result["policies"])
    result = json.loads(call("replay", NATIVE, "--json", "--limit", "4GB", "--event-delay", "2.5", "--cross-stream",
                             "wait", "--trim-phases", "--device", "host").stdout)
    assert [result[key] for key in OPTION_KEYS] == [4 << 30, 2.5, "wait", True, "host"], result
    assert result["policies"][2]["fits_from"] is None  # not tried again and again on real pages


@case
def json_tells_the_smallest_limit_that_fits():
    arguments = ["replay", NATIVE, "--json", "--limit"]
    found = {p["policy"]: p["fits_from"] for p in json.loads(call(*arguments, "2GiB").stdout)["policies"]}
    for name, limit in found.items():
        for tried, fits in ((limit, True), (limit - (8 << 20), False)):
            policy = json.loads(call(*arguments, str(tried), "--policy", name).stdout)["policies"][0]
            assert (policy["oom"] is None) == fits, (name, limit, policy)


@case
def json_tells_out_of_memory():
    live = json.loads(call("replay", NATIVE, "--json").stdout)["peak_live"]
    # An eighth less than what was live: nobody can fit.
    done = expect(call("replay", NATIVE, "--json", "--limit", str(live - live // 8)), 0, None, "")
    result = json.loads(done.stdout)
    expect_schema(result)
    for policy in result["policies"]:
        assert policy["oom"], policy
        assert policy["oom"]["live"] + policy["oom"]["wanted"] > live - live // 8
        assert policy["oom"]["reserved"] <= live - live // 8
        assert 0 <= policy["oom"]["event"] < result["events"]


@case
def gpu_picks_one():
    expect(call("replay", NATIVE, "--gpu", "0"), 0, "GPU 0", "")
    expect(call("replay", NATIVE, "--gpu", "3"), 1, "", "streams-native.*GPU 3")


@case
def phases_can_be_trimmed():
    result = json.loads(expect(call("replay", NATIVE, "--json", "--trim-phases", "--cross-stream", "wait",
                                    "--policy", "pagetide"), 0, None, "").stdout)
    for phase in result["policies"][0]["phases"]:
        assert phase["end_reserved"] <= 1.05 * phase["end_live"] + (64 << 20), phase


# ---- Files that cannot be replayed ----------------------------------------------------------------------------------


def bad_files(folder):
    """{path: what stderr says of it}."""
    good = gzip.open(NATIVE).read()
    contents = {
        "empty.pickle": b"",
        "text.pickle": b"this is no pickle\n",
        "cut.pickle": good[:len(good) // 2],
        "cut.pickle.gz": open(NATIVE, "rb").read()[:10000],
        "list.pickle": pickle.dumps([1, 2, 3]),
        "shape.pickle": pickle.dumps({"weights": [1.0], "epoch": 3}),
        "calls.pickle": b"\x80\x04cos\nsystem\n(S'echo pwned >&2'\ntR.",
        "zeros.bin": bytes(4096),
        "old.pickle": pickle.dumps({"device_traces": []}, protocol=0),
        "text.json": b'{"device_traces": []}',
        "packed.pickle.xz": lzma.compress(good),
        "packed.pickle.bz2": bz2.compress(good[:1 << 16]),
    }
    for name, content in contents.items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(content)
    return [os.path.join(folder, name) for name in contents]


def expect_one_clear_line(done, path):
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and os.path.basename(path) in lines[0] and len(lines[0]) < 500, done.stderr


@case
def bad_files_get_one_clear_line():
    with tempfile.TemporaryDirectory() as folder:
        paths = bad_files(folder) + [os.path.join(folder, "missing.pickle"), folder]
        for path in paths:
            for command in ("replay", "info"):
                expect_one_clear_line(expect(call(command, path), 1, ""), path)
        assert "pwned" not in call("replay", os.path.join(folder, "calls.pickle")).stderr.splitlines()


@case
def formats_that_cannot_be_read_are_named():
    said = {"old.pickle": "protocol 0 or 1", "text.json": "JSON", "packed.pickle.xz": "with xz",
            "packed.pickle.bz2": "with bzip2"}
    with tempfile.TemporaryDirectory() as folder:
        bad_files(folder)
        for name, words in said.items():
            expect(call("replay", os.path.join(folder, name)), 1, "", words)


@case
def one_bad_file_does_not_stop_the_others():
    with tempfile.TemporaryDirectory() as folder:
        bad = os.path.join(folder, "missing.pickle")
        done = expect(call("replay", NATIVE, bad, EXPANDABLE, "--json", "--policy", "native"), 1)
        expect_one_clear_line(done, bad)
        assert [json.loads(line)["file"] for line in done.stdout.splitlines()] == [NATIVE, EXPANDABLE]


@case
def a_file_may_be_plain_or_named_like_an_option():
    with tempfile.TemporaryDirectory() as folder:
        with gzip.open(NATIVE) as f, open(os.path.join(folder, "--x.pickle"), "wb") as plain:
            shutil.copyfileobj(f, plain)
        expect(call("replay", "--policy", "native", "--", "--x.pickle", cwd=folder), 0, "--x.pickle, GPU 0", "")


# ---- --check --------------------------------------------------------------------------------------------------------


@case
def check_is_content_with_these_traces():
    for path in (NATIVE, EXPANDABLE):
        expect(call("replay", path, "--check", "--cross-stream", "wait"), 0, None, "")
        expect(call("replay", path, "--check", "--event-delay", "0"), 0, None, "")


@case
def check_finds_out_of_memory():
    done = call("replay", NATIVE, "--check", "--limit", "64MiB")
    expect(done, 1, "pagetide", "pagetide: check: .*streams-native.*pagetide runs out of memory at event")


# ---- Where the output goes ------------------------------------------------------------------------------------------


@case
def a_full_disk_is_told():
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w", encoding="utf-8") as full:
            expect(call("replay", NATIVE, stdout=full), 1, None, "^pagetide: stdout: ")


@case
def a_closed_stdout_is_told():
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', PROGRAM, "replay", NATIVE, "--device", "host"],
                          stderr=subprocess.PIPE, text=True, timeout=150, check=False)
    assert done.returncode == 1 and done.stderr.startswith("pagetide: stdout: "), done


@case
def a_reader_that_leaves_is_no_news():
    read, write = os.pipe()
    os.close(read)
    expect(call("replay", NATIVE, stdout=write), 1, None, "")
    os.close(write)


def on_terminal(args, columns=80, interrupt_after=None, slowed=False):
    """Runs with stderr on a terminal; returns (exit code, what it showed). slowed: the
    program is stopped for a second, so that also a fast machine takes long."""
    try:
        master, slave = pty.openpty()
    except OSError as error:
        raise Skip(f"no terminal: {error}") from error
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    child = subprocess.Popen([PROGRAM, *args], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=slave)
    os.close(slave)
    if slowed:
        time.sleep(0.1)
        child.send_signal(signal.SIGSTOP)
        time.sleep(1)
        child.send_signal(signal.SIGCONT)
    shown, interrupted = b"", False
    while True:
        ready, _, _ = select.select([master], [], [], 120)
        try:
            got = os.read(master, 65536) if ready else b""
        except OSError:  # the other end is closed
            got = b""
        if not got:
            break
        shown += got
        if interrupt_after and not interrupted and interrupt_after in shown:
            child.send_signal(signal.SIGINT)
            interrupted = True
    os.close(master)
    return child.wait(), shown


def screen_line(shown):
    """What is left on the line after carriage returns and erasures."""
    return shown.rsplit(b"\r", 1)[-1].replace(b"\x1b[K", b"")


@case
def progress_is_cleaned_up():
    code, shown = on_terminal(["replay", NATIVE])
    assert code == 0 and screen_line(shown) == b"", shown
    with tempfile.TemporaryDirectory() as folder:
        slow = slow_trace(folder)
        code, shown = on_terminal(["replay", slow], slowed=True)
        assert code == 0 and b"[==" in shown and screen_line(shown) == b"", shown[-200:]
        parts = [int(part) for part in re.findall(rb"(\d+)%", shown)]
        assert parts == sorted(parts) and parts[-1] > 60, parts  # reading and all policies on one bar
        code, shown = on_terminal(["replay", slow], columns=45)
        assert code == 0 and max(map(len, shown.split(b"\r"))) <= 45, shown[-200:]
        code, shown = on_terminal(["replay", slow], interrupt_after=b"%", slowed=True)
        assert code == -signal.SIGINT and screen_line(shown) == b"", (code, shown[-200:])


def pickled(thing):
    """The opcodes of a value without references to others, to be repeated."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=2)
    pickler.fast = True
    pickler.dump(thing)
    return out.getvalue()[2:-1]


def slow_trace(folder):
    """A snapshot that takes a second or more to read and replay, put together faster than that."""
    base = {"addr": 1 << 40, "stream": 0, "time_us": 1000, "frames": []}
    first = pickled({**base, "action": "segment_alloc", "size": 20 << 20})
    again = b"".join(pickled({**base, "action": action, "size": size}) for size in range(1 << 20, 2 << 20, 1 << 12)
                     for action in ("alloc", "free_requested", "free_completed"))
    path = os.path.join(folder, "slow.pickle")
    with open(path, "wb") as f:
        f.write(b"\x80\x02}(" + pickled("segments") + b"]" + pickled("device_traces") + b"](](" + first)
        f.write(again * 4000)
        f.write(b"eeu.")
    return path



# ---- Doctor ---------------------------------------------------------------------------------------------------------


def doctor(*args, gpus=None):
    environment = dict(os.environ, COLUMNS="80", PAGETIDE_LIBCUDA="/nonexistent/libcuda.so.1")
    if gpus is not None:
        environment.update(PAGETIDE_LIBCUDA=os.environ["TIDE_STANDIN"], STANDIN_GPUS=str(gpus))
    return call("doctor", *args, env=environment)


@case
def doctor_without_a_driver_says_so_and_is_an_answer():
    expect(doctor(), 0, r"missing: /nonexistent/libcuda.so.1 cannot be opened", "")
    answer = json.loads(expect(doctor("--json"), 0, err="").stdout)
    assert answer["gpus"] == [] and answer["driver_version"] is None, answer
    assert answer["findings"][0]["kind"] == "missing", answer


@case
def doctor_shows_every_gpu():
    expect(doctor(gpus=2), 0, r"(?s)driver: CUDA \d+\.\d.*GPU 0: .*GPU 1: .*host\n", "")
    answer = json.loads(expect(doctor("--json", gpus=2), 0, err="").stdout)
    assert [g["gpu"] for g in answer["gpus"]] == [0, 1], answer
    for g in answer["gpus"]:
        assert 0 < g["free_bytes"] <= g["total_bytes"] and g["granularity"] == 2 << 20, answer
    assert answer["host"]["memory_bytes"] > answer["host"]["available_bytes"] > 0, answer


@case
def doctor_takes_no_file():
    expect(call("doctor", NATIVE), 2, "", r"takes no file")
    expect(call("doctor", "--jsn"), 2, "", r"did you mean '--json'")


# ---- Running --------------------------------------------------------------------------------------------------------


def main():
    chosen = [c for c in CASES if not sys.argv[3:] or c.__name__ in sys.argv[3:]]
    failed = skipped = 0
    for function in chosen:
        print(f"[ RUN      ] {function.__name__}", flush=True)
        start = time.monotonic()
        try:
            function()
            print(f"[       OK ] {function.__name__}", flush=True)
        except Skip as reason:
            skipped += 1
            print(f"{reason}\n[  SKIPPED ] {function.__name__}", flush=True)
        except (AssertionError, OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{type(error).__name__}: {error}\n[  FAILED  ] {function.__name__}", flush=True)
        if time.monotonic() - start > 20:
            print(f"({function.__name__} took {time.monotonic() - start:.0f} s)")
    print(f"{len(chosen) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
