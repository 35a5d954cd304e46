"""Hooks that wait for others when the run ends."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, put
from tests.nodes.test_hooks import NAME, OTHER, event, hooks_for, until


def test_waiting_hooks_at_the_end_are_started_or_reported_as_skipped(tmp_path: Path) -> None:
    command = (
        f"echo $TPUCTL_REASON >> {tmp_path}/log; [ $TPUCTL_NODE = other ] || echo $$ > {tmp_path}/pid; exec sleep "
    )
    run = hooks_for(command + "$TPUCTL_REASON")
    for node, seconds in ((OTHER, "0.2"), (OTHER, "0.1"), (NAME, "60"), (NAME, "61")):
        run(event(node=node, text=seconds))

    left_out = run.finish(patience=timedelta(seconds=3))

    reason = "the hook for `preempted` was skipped, because other hooks were still running when the run ended: "
    assert [(failure.node, failure.text) for failure in left_out] == [(NAME, f"{reason}{command}$TPUCTL_REASON")]
    until(lambda: (tmp_path / "log").read_text().count("\n") == 3)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    assert (sorted((tmp_path / "log").read_text().split()), run.are_waiting) == (["0.1", "0.2", "60"], False)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    run.wait()


def test_hook_that_waits_for_another_at_the_end_is_started(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path
) -> None:
    put(sandbox)
    sandbox.fault("preempt")
    log, near_the_end = tmp_path / "log", tmp_path / "near the end"
    clock.after(timedelta(minutes=14, seconds=30), near_the_end.touch)
    first = f"until [ -e '{near_the_end}' ]; do sleep 0.1; done; sleep 2; echo taken >> {log}"
    hooks = ("--on-preempt", first, "--on-recover", f"echo back >> {log}")

    _, err, code = tpuctl("watch", "demo", "--until", "15m", *hooks)

    assert ("the watch ends; waiting hooks have up to 1m to start" in err.splitlines(), code) == (True, 0)
    assert log.read_text().startswith("taken\n")


def test_hook_that_outlives_the_watch_is_named(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    put(sandbox)
    sandbox.fault("preempt")

    _, err, code = tpuctl("watch", "demo", "--until", "10m", "--on-preempt", f"echo $$ > {tmp_path}/pid; exec sleep 60")

    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    named = f"demo: the hook for `preempted` (process {pid}) continues, and its further output is lost"
    assert (err.splitlines()[-1], code) == (named, 0)


def test_failed_hook_of_up_is_a_warning_an_event_and_exit_code_1(
    tpuctl: Console, sandbox: Sandbox, tmp_path: Path
) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")
    events, command = tmp_path / "events", "echo begun; echo no disk >&2; exit 3"

    _, err, code = tpuctl(
        "up", "demo", "--yes", "--events", str(events), "--on-recover", command, TPUCTL_UNHEALTHY_AFTER="1m"
    )

    text = f"the hook for `recovered` ended with exit code 3: {command}"
    assert (err.splitlines()[-3:], code) == ([f"warning: demo: {text}", "  begun", "  no disk"], 1)
    last = json.loads(events.read_text().splitlines()[-1])
    assert {key: last[key] for key in ("event", "text", "hook", "exit_code", "output")} == {
        "event": "hook-failed",
        "text": text,
        "hook": "recovered",
        "exit_code": 3,
        "output": ["begun", "no disk"],
    }
