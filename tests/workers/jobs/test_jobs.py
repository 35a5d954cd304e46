"""`tpuctl jobs`: the combined reports of workers, and the removal of jobs that have ended."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.conftest import Console, Sandbox
from tests.json_contract import check_documents
from tests.lifecycle import ZONE, put, said
from tests.workers.jobs import ADDRESS, Slice, timeless
from tpuctl.names import NodeName
from tpuctl.workers.worker_jobs import Job, WorkerJob, job_json, job_state
from tpuctl.workers.worker_session import WorkerOutcome, WorkerResult

if TYPE_CHECKING:
    from tpuctl.ssh.connection import Target


def on(worker: int, state: str, code: int | None, number: int | None, out: int) -> dict[str, Any]:
    return {
        "nodeId": "demo", "zone": ZONE, "worker": worker, "state": state, "started": "…", "exitCode": code,
        "signal": number, "seconds": "…", "followed": False, "stdoutBytes": out, "stderrBytes": 0,
    }  # fmt: skip


def completed(tpuctl: Console) -> list[str]:
    """Return the jobs that the Tab key offers."""
    out, _, _ = tpuctl(_TPUCTL_COMPLETE="line", COMP_LINE="tpuctl logs demo n")
    return [line.split("\t")[1] for line in out.splitlines()]


def test_detached_job_is_listed_read_signaled_and_removed(tpuctl: Console, demo: Slice) -> None:
    line = 'echo "on $TPUCTL_WORKER_ID"; echo oops >&2; [ $TPUCTL_WORKER_ID = 1 ] && exit 3; sleep 60'
    demo.run("nightly", line)
    assert completed(tpuctl) == ["nightly"]
    demo.until_ended("nightly", 1)
    listed, _, _ = tpuctl("jobs", "demo", "-o", "json")
    (job,) = timeless(listed)
    assert job == {
        "job": "nightly",
        "command": line,
        "started": "…",
        "state": "running on worker 0, exited 3 on worker 1",
        "seconds": "…",
        "detached": True,
        "workers": [on(0, "running", None, None, 10), on(1, "exited", 3, None, 10)],
        "sandbox": True,
    }
    # A detached job's stdout and stderr are one.
    assert tpuctl("logs", "demo") == (said("[0] on 0", "[0] oops", "[1] on 1", "[1] oops"), "", 0)
    assert tpuctl("logs", "demo", "nightly", "--tail", "1", "--worker", "1") == ("oops\n", "", 0)
    assert tpuctl("jobs", "demo", "--remove", "nightly") == (
        "",
        (
            "error: job `nightly` runs on worker 0; nothing was removed\n"
            "  hint: terminate it: `tpuctl kill demo nightly`\n"
        ),
        8,
    )
    assert tpuctl("jobs", "demo", "--prune", "--older-than", "0s") == ("", "no jobs to remove\n", 0)

    ended = "nightly\tended by TERM on worker 0, exited 3 on worker 1\n"
    assert tpuctl("kill", "demo", "--wait") == (
        ended,
        "TERM sent to job `nightly` on worker 0\n",
        0,
    )
    assert tpuctl("kill", "demo", "nightly") == (
        ended,
        "job `nightly` is not running: no signal was sent\n",
        0,
    )
    assert tpuctl("jobs", "demo", "--remove", "nightly") == ("nightly\n", "", 0)
    assert tpuctl("jobs", "demo", terminal=True)[1].splitlines()[-1] == "no jobs on `demo`"
    assert completed(tpuctl) == []


def test_jobs_on_a_terminal_have_age_and_shortened_command(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true\n" + "x" * 100 + "=1")
    demo.until_ended("a")

    out, err, code = tpuctl("jobs", "demo", terminal=True, width=70, NO_COLOR="1")

    header, row = out.splitlines()
    assert (header.split(), code) == (["JOB", "STARTED", "STATE", "DURATION", "KIND", "COMMAND"], 0), err
    assert re.fullmatch(r"a    \d+s ago +exited 0  \d\.\ds +detached  true\\nx+…", row)
    assert len(row) == 70


def test_jobs_lost_are_shown_and_other_folders_ignored(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true", "--worker", "0")
    demo.until_ended("a", 0)
    jobs = demo.jobs(0)
    (jobs / "a.0" / "exit").write_text("exit 0 1.5")
    for name, about, end in (("lost", '{"command": "x", "detached": true}', None), ("full", "{", "")):
        shutil.copytree(jobs / "a.0", jobs / f"{name}.0")
        (jobs / f"{name}.0" / "about").write_text(about)
        (jobs / f"{name}.0" / "exit").unlink()
        if end is not None:
            (jobs / f"{name}.0" / "exit").write_text(end)
    # A shared home has the jobs of other workers, too.
    shutil.copytree(jobs / "a.0", jobs / "a.1")
    (jobs / "stray.0").write_text("")
    (jobs / "empty.0").mkdir()
    for age, name in enumerate(("a", "lost", "full")):
        os.utime(jobs / f"{name}.0" / "token", times=(1000 - age, 1000 - age))

    rows = [line.split("\t") for line in tpuctl("jobs", "demo", "--worker", "0")[0].splitlines()]
    assert rows == [
        ["a", "1970-01-01T00:16:40Z", "exited 0", "1.500", "detached", "true"],
        ["lost", "1970-01-01T00:16:39Z", "lost", "", "detached", "x"],
        ["full", "1970-01-01T00:16:38Z", "lost", "", "", ""],
    ]
    assert tpuctl("jobs", "demo", "--last", "1", "-o", "name") == (
        "a\n",
        "2 older jobs not shown: list more with `--last N`, remove old ones with `--prune`\n",
        0,
    )
    out, err, code = tpuctl("attach", "demo", "lost")
    assert (out, err.splitlines()[1:], code) == (
        "",
        ["  hint: worker 0: no exit code was recorded there: the worker was rebooted, or out of memory"],
        11,
    )
    assert tpuctl("kill", "demo", "lost")[1] == "job `lost` is not running: no signal was sent\n"
    for name in ("lost", "full"):
        os.utime(jobs / f"{name}.0" / "out", times=(1000, 1000))
        (jobs / f"{name}.0" / "exit").unlink(missing_ok=True)
    assert tpuctl("jobs", "demo", "--prune") == ("full\nlost\n", "", 0)
    assert tpuctl("jobs", "demo", "--prune", "-o", "json") == ("[]\n", "no jobs to remove\n", 0)
    assert sorted(path.name for path in jobs.iterdir()) == ["a.0", "a.1", "empty.0", "stray.0"]


def test_jobs_without_answer_name_the_worker(tpuctl: Console, demo: Slice) -> None:
    demo.run("a", "true")
    demo.until_ended("a")
    demo.ssh(f'case $host in {ADDRESS}2) echo "Permission denied (publickey)." >&2; exit 255;; esac')

    out, err, code = tpuctl("jobs", "demo")
    assert (out.split("\t")[2], code) == ("exited 0", 11)
    assert err.startswith("error: worker 1 of `demo`: ")

    # Whether there is a job of that name is not known.
    out, err, code = tpuctl("kill", "demo", "b")
    assert (out, code) == ("", 11)
    assert err.startswith("error: worker 1 of `demo`: ")

    shutil.rmtree(demo.jobs(0))
    demo.jobs(0).write_text("")
    assert tpuctl("jobs", "demo", "--worker", "0") == (
        "",
        f"error: worker 0: {demo.jobs(0)}: not a directory\n",
        11,
    )
    demo.ssh("exit 127")
    assert tpuctl("jobs", "demo", "--worker", "0")[1] == "error: worker 0: `python3` is not installed there\n"
    demo.ssh("echo welcome; exit 0")
    assert tpuctl("jobs", "demo", "--worker", "0")[1] == "error: worker 0: the login shell exited with 0\n"


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (("logs", "demo"), "no jobs on `demo`", 3),
        (("logs", "demo", "a", "-f"), "no job `a` on `demo`", 3),
        (("attach", "demo", "a"), "no job `a` on `demo`", 3),
        (("kill", "demo", "a"), "no job `a` on `demo`", 3),
        (("jobs", "demo", "--remove", "a"), "no job `a` on `demo`", 3),
        (("logs", "demo", "../a"), "`../a` cannot be the name of a job", 2),
        (("jobs", "demo", "--remove", "a/b"), "`a/b` cannot be the name of a job", 2),
        (("kill", "demo", "a", "-s", "NO"), "no signal `NO`", 2),
        (
            ("kill", "demo", "a", "--wait", "--timeout", "forever"),
            "`--timeout forever` is longer than a session may last",
            2,
        ),
        (("jobs", "demo", "--older-than", "1d"), "`--older-than` needs `--prune`", 2),
        (("logs",), "no node given", 2),
        (("logs", "demo", "--worker", "2"), "`demo` has no worker 2", 2),
        (("logs", "stopped", "-f"), "`stopped` is STOPPED: ssh cannot reach it", 8),
        (("attach", "-l", "team=none", "a"), "no node of project sandbox matches: -l team=none", 3),
    ],
)
def test_jobs_with_invalid_arguments_are_refused(
    tpuctl: Console, sandbox: Sandbox, demo: Slice, *, arguments: tuple[str, ...], error: str, code: int
) -> None:
    put(sandbox, "stopped", state="STOPPED")

    out, err, ended = tpuctl(*arguments)

    assert (out, err.splitlines()[0], ended) == ("", f"error: {error}", code)
    assert err.splitlines()[1].startswith("  hint: ")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (((None, None),) * 8, "running on 8 workers"),
        (((None, None),), "running"),
        (((WorkerOutcome.EXITED, 0),) * 8, "exited 0"),
        ((*((WorkerOutcome.EXITED, 0),) * 7, (WorkerOutcome.EXITED, 1)), "exited 1 on worker 7, exited 0 on 7 workers"),
        (
            ((WorkerOutcome.LOST, None), (WorkerOutcome.EXITED, 0), (WorkerOutcome.LOST, None)),
            "lost on workers 0, 2, exited 0 on worker 1",
        ),
        (
            ((WorkerOutcome.SIGNALED, 137), (WorkerOutcome.SIGNALED, 143)),
            "ended by KILL on worker 0, ended by TERM on worker 1",
        ),
        (((WorkerOutcome.LOST, None), (None, None)), "running on worker 1, lost on worker 0"),
    ],
)
def test_job_state_is_described(states: tuple[tuple[WorkerOutcome | None, int | None], ...], expected: str) -> None:
    shares = []
    for worker, (outcome, code) in enumerate(states):
        target = cast("Target", SimpleNamespace(label=str(worker), worker=worker))
        number = code - 128 if code and outcome is WorkerOutcome.SIGNALED else None
        result = WorkerResult(target=target, outcome=outcome, code=code, signal=number) if outcome else None
        shares.append(
            WorkerJob(target=target, job="a", began=datetime(2026, 4, 12, tzinfo=UTC), age=timedelta(), result=result)
        )
    assert job_state(shares) == expected


def test_job_whose_output_was_cut_by_a_full_disk_says_so() -> None:
    node = SimpleNamespace(name=NodeName("p", ZONE, "demo"))
    target = cast("Target", SimpleNamespace(label="0", worker=0, node=node))
    result = WorkerResult(target=target, outcome=WorkerOutcome.EXITED, code=3, disk_was_full=True)
    began = datetime(2026, 4, 12, tzinfo=UTC)

    shown = job_json(Job("a", (WorkerJob(target=target, job="a", began=began, age=timedelta(), result=result),)))

    check_documents("jobs", json.dumps([shown]))
    assert [share.get("diskFull") for share in shown["workers"]] == [True]


def test_jobs_without_a_node_lists_those_of_all_nodes(tpuctl: Console, sandbox: Sandbox, demo: Slice) -> None:
    put(sandbox, "other", zone="us-central1-a", acceleratorType="v5litepod-8")
    put(sandbox, "stopped", state="STOPPED")
    demo.run("train", "exit $TPUCTL_WORKER_ID")
    demo.until_ended("train", 0, 1)
    tpuctl("run", "us-central1-a/other", "--detach", "--name", "train", "--", "exit 4")
    put(sandbox, "hidden", networkConfig={"enableExternalIps": False}, networkEndpoints=[{"ipAddress": "10.0.0.9"}])
    before = sandbox.changes()

    out, err, code = tpuctl("jobs")

    rows = [line.split("\t") for line in out.splitlines()]
    assert sorted((row[0], row[1], row[3]) for row in rows) == [
        ("demo", "train", "exited 1 on worker 1, exited 0 on worker 0"),
        ("other", "train", "exited 4"),
    ]
    reason = "its workers have no external address (use `--iap` or `--internal-ip`)"
    assert (err, code) == (f"hidden: its jobs are unknown: {reason}\n", 0)
    assert sandbox.changes() == before
    assert len(json.loads(tpuctl("jobs", "--zone", ZONE, "-o", "json")[0])) == 1
    assert tpuctl("jobs", "-o", "name", "--columns", "job,node")[0] == "train\ntrain\n"
