"""`tpuctl run --detach`: its time limit, and the options that it excludes."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.workers.running import Slice
from tests.workers.running.test_left_alone import until
from tpuctl.ssh.agent.job import AFTERWARDS


def test_detached_timed_out_is_terminated_by_its_worker(pod: Slice) -> None:
    """The start may take longer than the command: `--timeout` limits the command alone."""
    line = "exec 2>/dev/null; trap 'exit 0' TERM; echo x; sleep 60"
    started = pod.run("--worker", "0-1", "--detach", "--timeout", "2s", "--name", "late", "--", line)
    ends = [pod.home(worker) / ".tpuctl" / "jobs" / f"late.{worker}" / "exit" for worker in (0, 1)]
    until(lambda: all(end.exists() for end in ends))

    assert started == ("late\n", "", 0)
    (job,) = json.loads(pod.tpuctl("jobs", "pod", "--worker", "0-1", "-o", "json")[0])
    assert (job["state"], [one["timedOut"] for one in job["workers"]]) == ("timed out (exit 0)", [True, True])
    warning = "warning: timed out: the command was terminated on worker 0-1\n"
    error = "error: timed out: command terminated on 2 of 2 workers: 0-1\n"
    for follow, shown, ends_with in (((), warning, 0), (("--follow",), error, 5)):
        out, err, code = pod.tpuctl("logs", "pod", "late", "--worker", "0-1", *follow)
        assert (sorted(out.splitlines()), err, code) == (["[0] x", "[1] x"], shown, ends_with)
    assert pod.tpuctl("attach", "pod", "late", "--worker", "0") == (
        "x\n",
        "error: timed out: command terminated on 1 of 1 workers: 0\n",
        5,
    )
    (result,) = json.loads(pod.tpuctl("attach", "pod", "late", "--worker", "0", "-o", "json")[0])["workers"]
    assert (result["exitCode"], result["timedOut"]) == (0, True)


@pytest.mark.parametrize("flag", ["--batch=2", "--fail-fast", "--log-dir=logs"])
def test_detached_with_option_for_followed_commands_is_refused(pod: Slice, flag: str) -> None:
    assert pod.run("--detach", flag, "--", "touch began") == (
        "",
        (
            f"error: `{flag.partition('=')[0]}` needs a followed command, and `--detach` leaves it running\n"
            "  hint: leave one of them out; `tpuctl logs NODE JOB` shows the output, `tpuctl kill NODE JOB` ends the job\n"
        ),
        2,
    )
    assert pod.texts("began") == {}


def test_detached_with_data_on_stdin_is_refused(pod: Slice) -> None:
    (pod.root / "data").write_bytes(b"x")
    for options, code in (((), 2), (("--no-stdin",), 0)):
        command = ("--worker", "0", "--detach", "--name", "mine", *options, "--", "true")
        with (pod.root / "data").open("rb") as file, pod.start(*command, stdin=file) as program:
            out, err = program.communicate(timeout=60)
        assert (out, program.returncode) == (b"mine\n" if code == 0 else b"", code)
        told = ["error: a detached command cannot read stdin"] if code else []
        assert err.decode().splitlines()[:1] == told


def test_leftover_processes_are_waited_for_once_and_reported(pod: Slice) -> None:
    assert pod.run("--worker", "0", "--detach", "--name", "mine", "--", "sleep 20 & echo here")[2] == 0
    end = pod.home(0) / ".tpuctl" / "jobs" / "mine.0" / "exit"
    until(end.exists)
    os.utime(end, (time.time() - 5,) * 2)
    began = time.monotonic()

    out, err, code = pod.tpuctl("attach", "pod", "mine", "--worker", "0", "-o", "json")

    assert (err, code, json.loads(out)["workers"][0]["outlived"]) == (
        "here\nwarning: processes of the command still run on worker 0: their further output is not shown\n",
        0,
        True,
    )
    assert time.monotonic() - began < AFTERWARDS
