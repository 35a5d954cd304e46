"""What workers may answer to run, jobs, logs, attach, kill, unstick, doctor and wait: each attack is one error.

A table of attacks is one command on a slice with a worker for each row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.hostile import MARK, HostileSlice, Step, frame, hold, leave, repeat, send, until
from tests.hostile import err as stderr
from tests.lifecycle import said
from tests.tpuctl_process import run_tpuctl
from tpuctl.ssh.channel import WorkerFrame

HELLO = frame(b"h", b"new")
KNOWN = frame(b"h", b"known")
STARTED = frame(b"s")
GO = frame(b"g")
EXIT = frame(b"x", b"exit 0 1.5")

# What a worker sends before an attack, and the words for where it is then.
STAGES: dict[str, tuple[list[Step], str]] = {
    "hello": ([send(MARK)], "before it reported ready"),
    "offered": ([send(MARK, HELLO)], "before it was asked to start the command"),
    "starting": ([send(MARK, HELLO), until(GO)], "before it reported the command as started"),
    "followed": ([send(MARK, HELLO), until(GO), send(STARTED)], "after the command was started"),
}
# Frames that may come at each stage; all others are an attack.
ALLOWED = {
    "hello": "IN_USE READY CONFLICT REFUSED",
    "offered": "",
    "starting": "STARTED CONFLICT REFUSED",
    "followed": "OUT ERR OUT_GONE ERR_GONE TAKEN EXIT LOST REFUSED",
}
PAYLOADS = {
    WorkerFrame.READY: b"new",
    WorkerFrame.EXIT: b"exit 0 1.5",
    WorkerFrame.TAKEN: b"1",
    WorkerFrame.OUT: b"x",
    WorkerFrame.ERR: b"x",
}


def out_of_order() -> dict[str, tuple[list[Step], str]]:
    """Return each frame at each stage where it may not come, and its message."""
    return {
        f"{kind.name} at {stage}": (
            [*steps, send(frame(kind.value, PAYLOADS.get(kind, b"")))],
            f"a frame `{kind.name}` {where}",
        )
        for stage, (steps, where) in STAGES.items()
        for kind in WorkerFrame
        if kind.name not in ALLOWED[stage].split() and (stage, kind) != ("hello", WorkerFrame.MISSING)
    }


FOLLOWED = STAGES["followed"][0]
NINES = b"9" * 5000


def after(*pieces: bytes) -> list[Step]:
    """Return what a worker does that sends this once it has started the command."""
    return [*FOLLOWED, send(*pieces)]


OFF_SCHEMA: dict[str, tuple[list[Step], str]] = {
    "MISSING at hello": (
        [send(MARK, frame(b"m"))],
        "a frame `MISSING` about a job that does not exist yet",
    ),
    "known before go": (
        [send(MARK, KNOWN, STARTED, EXIT)],
        "it reports the command as started, which it was not asked to do",
    ),
    "neither new nor known": (
        [send(MARK, frame(b"h", b"\x1b[2Jerror: x\n"))],
        "a frame `READY` with `\\x1b[2Jerror: x\\n` in it",
    ),
    "started with more": ([*STAGES["starting"][0], send(frame(b"s", b"1"))], "a frame `STARTED` with `1` in it"),
    "no frame": ([send(MARK, b"Broadcast message from root")], "no frame begins with `B`"),
    "not ASCII": ([send(MARK, b"\xff\xff\xff\xff\xff")], "no frame begins with `\\xff`"),
    "4 GiB": (
        [send(MARK, frame(b"h", length=2**32 - 1)), repeat(b"x", 1 << 20)],
        "a frame of 4294967295 bytes where at most 65536 are expected",
    ),
    "a banner without end": (
        [repeat(b"welcome\n", 3 << 20)],
        "more than 1048576 bytes before the program's first",
    ),
    **{
        f"exit {name}": (after(frame(b"x", payload)), f"no exit code: `{shown}`")
        for name, payload, shown in (
            ("of nothing", b"", ""),
            ("without seconds", b"exit 0", "exit 0"),
            ("of a word", b"exit zero 1.0", "exit zero 1.0"),
            ("negative", b"exit -1 1.0", "exit -1 1.0"),
            ("5_0", b"exit 5_0 1.0", "exit 5_0 1.0"),
            ("in other digits", "exit \u0663 1.0".encode(), "exit \u0663 1.0"),
            ("nan", b"exit 0 nan", "exit 0 nan"),
            ("inf", b"exit 0 inf", "exit 0 inf"),
            ("1e300", b"exit 0 1e300", "exit 0 1e300"),
            ("10**5000", b"exit " + NINES + b" 1", f"exit {'9' * 74}…"),
            ("with other words", b"exit 0 1.0 good", "exit 0 1.0 good"),
            ("with a word twice", b"exit 0 1.0 late late", "exit 0 1.0 late late"),
            ("with a line end", b"exit 0 1.0\n", "exit 0 1.0\\n"),
            ("in UTF-16", b"\xff\xfee\0x\0", "\\xff\\xfee\\x00x\\x00"),
            ("otherwise", b"done 0 1.0", "done 0 1.0"),
        )
    },
    "exit 256": (after(frame(b"x", b"exit 256 1")), "an exit code: expected 0 to 255, got 256"),
    "signal 0": (after(frame(b"x", b"signal 0 1")), "a signal: expected 1 to 64, got 0"),
    "signal 65": (after(frame(b"x", b"signal 65 1")), "a signal: expected 1 to 64, got 65"),
    **{
        f"in use: {name}": ([send(MARK, *(frame(b"u", one) for one in payloads))], shown)
        for name, payloads, shown in (
            ("nothing", [b""], "no job: ``"),
            ("with more", [b"job\0001\0a\0b"], "no job: `job\\x001\\x00a\\x00b`"),
            ("without a command", [b"1\0a"], "no job: `1\\x00a`"),
            ("since ever", [b"9999999999\0a\0b"], "an age: expected 0 to 3153600000, got 9999999999"),
            ("too often", [b"1\0a\0b"] * 17, "more than 16 frames `IN_USE`"),
        )
    },
    "lost with more": (after(frame(b"l", b"?")), "a frame `LOST` with `?` in it"),
    "empty output": (after(frame(b"o")), "an empty frame `OUT`"),
    "long output": (after(frame(b"o", length=65537)), "a frame of 65537 bytes where at most 65536 are expected"),
    "stdin that was not sent": (
        after(frame(b"a", b"0")),
        "a frame `TAKEN` about stdin, although none was sent",
    ),
    **{
        f"gone: {name}": (after(frame(b"O", payload)), f"bytes that are not stored: expected {expected}")
        for name, payload, expected in (
            ("nothing", b"", "an integer, got ``"),
            ("0", b"0", "1 to 9223372036854775807, got 0"),
            ("backwards", b"-5", "an integer, got `-5`"),
            ("5_000", b"5_000", "an integer, got `5_000`"),
            ("10**5000", NINES, f"an integer, got `{'9' * 79}…`"),
        )
    },
    "gone: 2**63 in parts": (
        after(frame(b"E", b"%d" % (2**63 - 1)), frame(b"E", b"1")),
        "bytes that are not stored: expected 1 to 0, got 1",
    ),
}


@pytest.fixture
def crowd(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> HostileSlice:
    """A node `pod` with 64 workers."""
    made = HostileSlice(tpuctl, fake_ssh, tmp_path / "workers")
    made.put(sandbox, "v4-512")
    return made


def play(pod: HostileSlice, rows: Mapping[str, tuple[list[Step], str]], *end: Step) -> str:
    """Let the first workers attack, one for each row, and then do this; return which they are."""
    pod.play({worker: [[*steps, *end]] for worker, (steps, _) in enumerate(rows.values())})
    return f"0-{len(rows) - 1}"


@pytest.mark.parametrize("rows", [out_of_order(), OFF_SCHEMA], ids=["out of order", "off the schema"])
def test_run_with_protocol_violation_fails(crowd: HostileSlice, rows: Mapping[str, tuple[list[Step], str]]) -> None:
    workers = play(crowd, rows, hold())

    out, err, code = crowd.tpuctl("run", "pod", "--worker", workers, "--allow-unreachable", "-o", "json", "--", "true")

    report = json.loads(out)["workers"]
    assert {name: one.get("error") for name, one in zip(rows, report, strict=True)} == {
        name: f"unexpected answer: {what}" for name, (_, what) in rows.items()
    }
    assert ({one["exitCode"] for one in report}, code) == ({None}, 11)
    assert "Traceback" not in err
    # None of them is asked again.
    assert {len(crowd.connections(worker)) for worker in range(len(rows))} == {1}


def test_run_with_exit_before_start_starts_nothing(pod: HostileSlice) -> None:
    pod.play({1: [[send(MARK, EXIT), hold()]]})

    assert pod.tpuctl("run", "pod", "--", "touch begun") == (
        "",
        said(
            "error: 1 of 4 workers cannot run it, so the command was not started on any worker: 1",
            "  hint: unexpected answer from worker 1: a frame `EXIT` before it reported ready",
            "  hint: start it on the others: `--allow-unreachable`",
        ),
        11,
    )
    assert not list(pod.root.glob("*/begun"))


def test_run_with_late_protocol_violation_fails_on_that_worker_alone(pod: HostileSlice) -> None:
    pod.play({1: [[*FOLLOWED, send(frame(b"o", b"1\n"), HELLO, EXIT), hold()]]})

    out, err, code = pod.tpuctl("run", "pod", "--", "echo $TPUCTL_WORKER_ID")

    assert (sorted(out.splitlines()), err, code) == (
        ["[0] 0", "[1] 1", "[2] 2", "[3] 3"],
        said(
            "error: the command failed on 1 of 4 workers: 1 (unexpected answer)",
            "  hint: unexpected answer from worker 1: a frame `READY` after the command was started",
        ),
        11,
    )


CUT = [stderr(b"client_loop: send disconnect: Broken pipe\n"), leave(255)]
# What a worker answers on its second connection, after the first was cut once the command had begun.
REJOINED: dict[str, tuple[list[Step], str | None]] = {
    "the same": ([send(MARK, KNOWN, STARTED, EXIT), hold()], None),
    "would start it again": ([send(MARK, HELLO)], "it would start a job that it was asked to follow"),
    "exit at once": ([send(MARK, EXIT)], "a frame `EXIT` before it reported ready"),
    "exit before started": (
        [send(MARK, KNOWN, EXIT)],
        "a frame `EXIT` before it reported the command as started",
    ),
    "missing with more": ([send(MARK, frame(b"m", b"1"))], "a frame `MISSING` with `1` in it"),
}


def test_reconnected_worker_must_begin_the_protocol_from_the_start(crowd: HostileSlice) -> None:
    rows = REJOINED
    crowd.play({at: [[*FOLLOWED, *CUT], steps] for at, (steps, _) in enumerate(rows.values())})

    out, _, code = crowd.tpuctl("run", "pod", "--worker", f"0-{len(rows) - 1}", "-o", "json", "--", "true")

    report = json.loads(out)["workers"]
    assert {name: one.get("error") for name, one in zip(rows, report, strict=True)} == {
        name: what and f"unexpected answer: {what}" for name, (_, what) in rows.items()
    }
    assert ([one["outcome"] for one in report], code) == (["exited", "lost", "lost", "lost", "lost"], 11)


def test_worker_acknowledging_unsent_stdin_fails(pod: HostileSlice) -> None:
    first, *more = (frame(b"a", count) for count in (b"0", b"2", b"4"))
    pod.play({0: [[*FOLLOWED, send(first), until(b"i\0\0\0\x03abc"), send(*more), hold()]]})
    environ = {"PATH": os.environ["PATH"], **pod.tpuctl.environ}

    words = ["run", "pod", "--worker", "0", "--", "cat"]
    done = run_tpuctl(words, env=environ, cwd=pod.tpuctl.folder, input=b"abc")

    assert (
        done.stderr.decode().splitlines()[1]
        == "  hint: unexpected answer from worker 0: bytes of stdin: expected 2 to 3, got 4"
    )
    assert (done.stdout, done.returncode) == (b"", 11)


def test_run_with_frames_after_the_end_ignores_them(pod: HostileSlice) -> None:
    pod.play({1: [[*FOLLOWED, send(EXIT, frame(b"x", b"exit 1 1.5"), frame(b"o", b"more")), hold()]]})

    assert pod.tpuctl("run", "pod", "--worker", "1", "--", "true") == ("", "", 0)


SHARE: dict[str, Any] = {
    "name": "a",
    "began": 1.0,
    "age": 5.0,
    "state": "ended",
    "end": "exit 0 1.5",
    "about": '{"command": "x", "detached": true}',
    "followed": False,
    "sizes": [10, 0],
    "starts": [0, 0],
}


def listing(*shares: Mapping[str, Any], total: object = 1) -> bytes:
    """Return a worker's answer about its jobs."""
    return frame(b"x", json.dumps({"total": total, "jobs": shares}).encode())


def share(name: str, value: object, what: str) -> tuple[list[Step], str]:
    """Return a worker that reports a wrong value of a job."""
    return [
        send(MARK, listing(SHARE | {name: value}))
    ], f"the list.jobs[0].{name}{what if what[0] == '[' else f': {what}'}"


INF, HUGE = float("inf"), 10**400
NOT_FINITE = "a number that is not finite: `Infinity`"
JOBS: dict[str, tuple[list[Step], str]] = {
    "name ../": share("name", "../../.ssh/x", "expected the name of a job, got `../../.ssh/x`"),
    "name of two lines": share("name", "a\nerror: x", "expected the name of a job, got `a\\nerror: x`"),
    "name empty": share("name", "", "expected the name of a job, got ``"),
    "name 5": share("name", 5, "expected a string, got 5"),
    "name long": share("name", "x" * 101, "101 characters where at most 100 are expected"),
    "began 1e300": share("began", 1e300, "expected 0 to 2.21845e+11, got 1e+300"),
    "began -1": share("began", -1, "expected 0 to 2.21845e+11, got -1"),
    "began x": share("began", "x", "expected a number, got `x`"),
    "age inf": ([send(MARK, listing(SHARE | {"age": INF}))], NOT_FINITE),
    "age 1e300": share("age", 1e300, "expected -3.1536e+09 to 3.1536e+09, got 1e+300"),
    "age 10**400": ([send(MARK, listing(SHARE | {"age": HUGE}))], "a number of 401 digits"),
    "age true": share("age", True, "expected a number, got True"),
    "state": share("state", "ruined", "expected running or ended or lost, got `ruined`"),
    "end": share("end", 5, "expected a string, got 5"),
    "about": share("about", ["x"], "expected a string, got a list"),
    "followed": share("followed", 0, "expected true or false, got 0"),
    "sizes one": share("sizes", [1], "1 values where 2 are expected"),
    "sizes three": share("sizes", [1, 2, 3], "3 values where 2 are expected"),
    "sizes None": share("sizes", None, "expected a list, got None"),
    "sizes negative": share("sizes", [-1, 0], "[0]: expected 0 to 9223372036854775807, got -1"),
    "sizes 2**63": share("sizes", [0, 2**63], "[1]: expected 0 to 9223372036854775807, got 9223372036854775808"),
    "sizes 1.5": share("sizes", [1.5, 0], "[0]: expected an integer, got 1.5"),
    "starts backwards": share("starts", [11, 0], "[0]: expected 0 to 10, got 11"),
    "total -1": ([send(MARK, listing(total=-1))], "the list.total: expected 0 to 100000, got -1"),
    "total too small": ([send(MARK, listing(SHARE, total=0))], "the list: 1 jobs, 0 in all, of at most 100"),
    "two of a name": ([send(MARK, listing(SHARE, SHARE, total=2))], "the list.jobs[1]: `a` a second time"),
    "too many": ([send(MARK, listing(*[SHARE] * 101))], "the list: 101 jobs, 1 in all, of at most 100"),
    "jobs an object": ([send(MARK, frame(b"x", b'{"total": 1, "jobs": {}}'))], "the list.jobs: expected a list, got an object"),
    "without jobs": ([send(MARK, frame(b"x", b'{"total": 1}'))], "the list: `jobs` is missing"),
    "None": ([send(MARK, frame(b"x", b"null"))], "the list: expected an object, got None"),
    "deep": ([send(MARK, frame(b"x", b"[" * 100_000))], "JSON nested more than 32 deep"),
    "a literal": ([send(MARK, frame(b"x", b"{'total': 1}"))], "not JSON: `{'total': 1}`"),
    "not UTF-8": ([send(MARK, frame(b"x", b"\xff"))], "not UTF-8: `\\xff`"),
    "5_000": ([send(MARK, frame(b"x", b'{"total": 5_000}'))], "not JSON: `{\"total\": 5_000}`"),
    "two frames": ([send(MARK, listing(), listing())], "2 frames where one is expected"),
    "output": ([send(MARK, frame(b"o", b"x"))], "a frame `OUT` as an answer"),
    "no such job": ([send(MARK, frame(b"m"))], "a frame `MISSING` as an answer"),
    "half a frame": ([send(MARK, listing()[:-1])], "its answer is incomplete"),
    "4 GiB": (
        [send(MARK, frame(b"x", length=2**32 - 1))],
        "a frame of 4294967295 bytes where at most 4194304 are expected",
    ),
    "without end": ([repeat(b"welcome\n", 8 << 20)], "more than 1048576 bytes before the program's first"),
}  # fmt: skip


def errors(err: str, rows: Iterable[str]) -> dict[str, str]:
    """Return the first line of each error, by the row that it is about."""
    found = [line.removeprefix("error: ") for line in err.splitlines() if line.startswith("error: ")]
    assert len(found) == len(set(rows))
    return dict(zip(rows, found, strict=True))


def expected(rows: Mapping[str, tuple[list[Step], str]]) -> dict[str, str]:
    """Return the errors of workers that attack."""
    return {name: f"unexpected answer from worker {at}: {what}" for at, (name, (_, what)) in enumerate(rows.items())}


def test_jobs_with_invalid_answer_fails(crowd: HostileSlice) -> None:
    workers = play(crowd, JOBS)

    out, err, code = crowd.tpuctl("jobs", "pod", "--worker", workers)

    assert errors(err, JOBS) == expected(JOBS)
    assert (out, code) == ("", 11)


def answers(*pieces: bytes) -> list[Step]:
    """Return what a worker does that answers with these frames."""
    return [send(MARK, *pieces)]


def signaled(**changes: object) -> list[Step]:
    """Return a worker that reports a wrong result of a signal."""
    return answers(frame(b"x", json.dumps({"sent": True, "job": SHARE} | changes).encode()))


KILL: dict[str, tuple[list[Step], str]] = {
    "another job": (signaled(job=SHARE | {"name": "b"}), "the answer.job: `b` was not requested"),
    "no job": (signaled(job=None), "the answer.job: expected an object, got None"),
    "sent 1": (signaled(sent=1), "the answer.sent: expected true or false, got 1"),
    "a list": (answers(frame(b"x", b"[]")), "the answer: expected an object, got a list"),
    "no JSON": (answers(frame(b"x")), "not JSON: ``"),
    "missing with more": (answers(frame(b"m", b"1")), "a frame `MISSING` as an answer"),
    "ready": (answers(HELLO), "a frame `READY` as an answer"),
}
# Of a job that has printed ten bytes.
LOGS: dict[str, tuple[list[Step], str]] = {
    "more than there was": (answers(frame(b"o", b"x" * 11)), "11 bytes of output, to 11 of 10"),
    "more in the end": (answers(*[frame(b"o", b"xxxxxx")] * 2), "6 bytes of output, to 12 of 10"),
    "stderr": (answers(frame(b"e", b"x")), "1 bytes of output, to 1 of 0"),
    "empty": (answers(frame(b"o")), "0 bytes of output, to 0 of 10"),
    "more gone": (answers(frame(b"O", b"11")), "11 bytes of output, to 11 of 10"),
    "gone -1": (answers(frame(b"O", b"-1")), "bytes that are not stored: expected an integer, got `-1`"),
    "exit code": (answers(EXIT), "a frame `EXIT` within the output of the job"),
    "started": (answers(STARTED), "a frame `STARTED` within the output of the job"),
    "taken": (answers(frame(b"a", b"1")), "a frame `TAKEN` within the output of the job"),
    "no frame": (answers(b"welcome\n"), "no frame begins with `w`"),
    "4 GiB": (
        answers(frame(b"o", length=2**32 - 1)),
        "a frame of 4294967295 bytes where at most 65536 are expected",
    ),
}
ATTACH: dict[str, tuple[list[Step], str]] = {
    "exit at once": (answers(EXIT), "a frame `EXIT` before it reported ready"),
    "new": (answers(HELLO), "it would start a job that it was asked to follow"),
    "exit before started": (answers(KNOWN, EXIT), "a frame `EXIT` before it reported the command as started"),
    "known twice": (answers(KNOWN, KNOWN), "a frame `READY` before it reported the command as started"),
    "exit inf": (answers(KNOWN, STARTED, frame(b"x", b"exit 0 inf")), "no exit code: `exit 0 inf`"),
}


def test_kill_with_invalid_answer_fails(crowd: HostileSlice) -> None:
    good = len(KILL)
    crowd.play({worker: [steps] for worker, steps in enumerate([*(steps for steps, _ in KILL.values()), signaled()])})

    _, err, code = crowd.tpuctl("kill", "pod", "a", "--worker", f"0-{good}")

    assert (errors(err, KILL), code) == (expected(KILL), 11)


def test_logs_with_unrequested_output_fails(crowd: HostileSlice) -> None:
    crowd.play({at: [answers(listing(SHARE)), [*steps, hold()]] for at, (steps, _) in enumerate(LOGS.values())})

    out, err, code = crowd.tpuctl("logs", "pod", "a", "--worker", f"0-{len(LOGS) - 1}")

    assert errors(err, LOGS) == expected(LOGS)
    assert (out.split(), code) == (["[1]", "xxxxxx"], 11)


def test_attach_with_protocol_violation_fails(crowd: HostileSlice) -> None:
    rows = ATTACH
    crowd.play({worker: [answers(listing(SHARE)), [*steps, hold()]] for worker, (steps, _) in enumerate(rows.values())})

    out, _, code = crowd.tpuctl("attach", "pod", "a", "-o", "json", "--worker", f"0-{len(rows) - 1}")

    report = json.loads(out)["workers"]
    assert {name: one.get("error") for name, one in zip(rows, report, strict=True)} == {
        name: f"unexpected answer: {what}" for name, (_, what) in rows.items()
    }
    assert code == 11


def test_jobs_remove_trusts_each_worker_about_its_own_jobs_only(pod: HostileSlice) -> None:
    jobs = pod.home(0) / ".tpuctl" / "jobs"
    for name in ("victim.0", "precious"):
        (jobs / name).mkdir(parents=True)
        for file, text in (("token", ""), ("about", "{}"), ("out", ""), ("exit", "exit 0 1.0")):
            (jobs / name / file).write_text(text)
    theirs = answers(frame(b"x", b'{"victim": "ended"}'))
    done = answers(frame(b"x", b'{"victim": "removed"}'))
    worse = answers(frame(b"x", b'{"../jobs/precious": "ended"}'))
    pod.play({1: [theirs, [*done, hold()]]})

    assert pod.tpuctl("jobs", "pod", "--prune", "--worker", "0-1") == ("victim\n", "", 0)
    # Only the worker that has named it is asked to remove it.
    assert (b"['victim']" in pod.received(1), len(pod.connections(1))) == (True, 2)
    pod.play({1: [worse]})
    assert pod.tpuctl("jobs", "pod", "--prune", "--worker", "0-1") == (
        "",
        said("error: unexpected answer from worker 1: a name: expected the name of a job, got `../jobs/precious`"),
        11,
    )
    assert sorted(path.name for path in jobs.iterdir()) == ["precious", "victim.0"]


def test_refusal_of_a_worker_is_shown_as_one_line(pod: HostileSlice) -> None:
    refusal = answers(frame(b"!", b"no\nerror: all is lost\x1b[2J\xff"))
    pod.play({0: [refusal], 1: [refusal]})

    _, err, code = pod.tpuctl("jobs", "pod", "--worker", "0")
    assert (err, code) == ("error: worker 0: no\\nerror: all is lost\\x1b[2J\ufffd\n", 11)
    _, err, code = pod.tpuctl("run", "pod", "--worker", "1", "--", "true")
    assert err.splitlines()[1:] == ["  hint: worker 1: no\\nerror: all is lost\\x1b[2J\ufffd"]


HOLDER: dict[str, Any] = {
    "pid": 7,
    "start": 5,
    "state": "S",
    "name": "python3",
    "user": "ada",
    "age": 1.0,
    "command": "python3 train.py",
    "container": None,
    "devices": ["accel0"],
    "hasLockFile": False,
    "mapsLibrary": True,
    "isProtected": False,
}
HELD: dict[str, Any] = {"holders": [HOLDER], "hidden": 0, "lockFile": None, "isRoot": True}


def tells(**changes: object) -> list[Step]:
    """Return a worker that reports what holds its TPU, with some of it changed."""
    return answers(frame(b"x", json.dumps(HELD | changes).encode()))


def holder(name: str, value: object, what: str) -> tuple[list[Step], str]:
    """Return a worker that reports a wrong value of a process."""
    return tells(holders=[HOLDER | {name: value}]), f"the answer.holders[0].{name}: {what}"


UNSTICK: dict[str, tuple[list[Step], str]] = {
    "pid 0": holder("pid", 0, "expected 1 to 4194304, got 0"),
    "pid -1": holder("pid", -1, "expected 1 to 4194304, got -1"),
    "pid text": holder("pid", "1; reboot", "expected an integer, got `1; reboot`"),
    "pid 10**400": (tells(holders=[HOLDER | {"pid": HUGE}]), "a number of 401 digits"),
    "start 1.5": holder("start", 1.5, "expected an integer, got 1.5"),
    "age inf": (tells(holders=[HOLDER | {"age": INF}]), NOT_FINITE),
    "age 1e300": holder("age", 1e300, "expected 0 to 3.1536e+10, got 1e+300"),
    "devices": holder("devices", "accel0", "expected a list, got `accel0`"),
    "name None": holder("name", None, "expected a string, got None"),
    "protected 0": holder("isProtected", 0, "expected true or false, got 0"),
    "holders": (tells(holders={}), "the answer.holders: expected a list, got an object"),
    "hidden": (tells(hidden="0"), "the answer.hidden: expected an integer, got `0`"),
    "lock file": (tells(lockFile=[]), "the answer.lockFile: expected an object, got a list"),
    "deep": (answers(frame(b"x", b'{"a":' * 100_000)), "JSON nested more than 32 deep"),
    "half": (answers(frame(b"x", b'{"holders": []')), 'not JSON: `{"holders": []`'),
    "without end": ([repeat(b"welcome\n", 8 << 20)], "more than 1048576 bytes before the program's first"),
}


def test_unstick_with_invalid_answer_fails(crowd: HostileSlice) -> None:
    workers = play(crowd, UNSTICK)

    _, err, code = crowd.tpuctl("unstick", "pod", "--worker", workers, "--dry-run")

    assert errors(err, UNSTICK) == expected(UNSTICK)
    assert code == 11


OUTCOMES: dict[str, tuple[list[Step], str]] = {
    "none": (
        tells(outcomes=[], lockOutcome="absent"),
        "the outcomes are not those of the requested processes",
    ),
    "of another": (
        tells(outcomes=[{"pid": 8, "start": 5, "outcome": "ended"}], lockOutcome="absent"),
        "the outcomes are not those of the requested processes",
    ),
    "unknown": (
        tells(outcomes=[{"pid": 7, "start": 5, "outcome": "fine"}], lockOutcome="absent"),
        "the answer.outcomes[0].outcome: expected ended or killed or survives or refused or gone, got `fine`",
    ),
    "of the lock file": (
        tells(outcomes=[{"pid": 7, "start": 5, "outcome": "ended"}], lockOutcome=None),
        "the answer.lockOutcome: expected removed or absent or held or refused, got None",
    ),
}


def test_unstick_with_outcome_of_another_process_fails(pod: HostileSlice) -> None:
    # Each is sent back what it reported itself.
    asked = until(b"'processes': [[7, 5]]")
    pod.play({worker: [tells(), [asked, *steps, hold()]] for worker, (steps, _) in enumerate(OUTCOMES.values())})

    _, err, code = pod.tpuctl("unstick", "pod", "--yes")

    assert errors(err, OUTCOMES) == expected(OUTCOMES)
    assert code == 11
    assert all(b"'processes': [[7, 5]]" in pod.received(worker) for worker in range(4))


def test_doctor_with_endless_output_reports_a_finding(pod: HostileSlice) -> None:
    pod.play(
        {
            0: [[stderr(b"x" * 100_000), repeat(b"x", 1 << 40)]],
            1: [answers(frame(b"x", b'{"a":' * 50_000))],
            2: [answers(frame(b"x", b"{"))],
            3: [answers(frame(b"x", b'{"began": 1e300, "ended": 1}'))],
        }
    )

    out, err, code = pod.tpuctl("doctor", "pod", "-o", "tsv")

    rows = [line.split("\t")[1:4] for line in out.splitlines()]
    whats = (
        "more than 1048576 bytes before the program's first",
        "JSON nested more than 32 deep",
        "not JSON: `{`",
        "the answer.began: expected 0 to 2.21845e+11, got 1e+300",
    )
    found = [
        ["TPU967", f"worker {at}", f"it sent no report: unexpected answer: {what}"] for at, what in enumerate(whats)
    ]
    assert [row for row in rows if row[0] == "TPU967"] == found
    assert ("Traceback" in err, code) == (False, 0)


@pytest.mark.parametrize(
    ("goal", "steps", "why"),
    [
        ("ssh", [stderr(b"x" * 100_000), repeat(b"x", 1 << 40)], "1 of 4 workers do not answer ssh (0)"),
        ("devices", [send(b"tpuctl-worker startup=done about=- chips=123456 holders=-\n")],
         "worker 0 has not reported its startup"),
    ],
    ids=["without end", "too many chips"],
)  # fmt: skip
def test_up_with_improper_answer_is_not_usable(pod: HostileSlice, goal: str, steps: list[Step], why: str) -> None:
    pod.play({0: [steps]})

    out, err, code = pod.tpuctl("wait", "pod", "--for", goal, "--timeout", "5s")

    assert (out, code) == ("", 5)
    assert why in err
