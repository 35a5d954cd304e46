"""What hooks write where a screen is drawn anew: told by us, line by line, and never a reason for a hook to wait or die."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from tests.nodes.test_hooks import event, until
from tpuctl.app.app import App, Invocation
from tpuctl.models.events import EventKind
from tpuctl.nodes.commands.policy_options import build_hooks
from tpuctl.nodes.hooks import Hooks
from tpuctl.output.terminal import StandardStreams


def test_what_hooks_write_can_be_told_line_by_line_while_they_run(tmp_path: Path) -> None:
    told: list[str] = []
    go = tmp_path / "go"
    command = f"echo begun; echo half >&2; printf no; until [ -e {go} ]; do sleep 0.01; done; printf 'w\\377'"
    run = Hooks({EventKind.PREEMPTED: command}, os.environ, extra={}, tell=lambda *lines: told.extend(lines))

    run(event())
    until(lambda: len(told) == 2)
    go.touch()

    assert (run.wait(), told) == ((), ["trainer: begun", "trainer: half", "trainer: now\ufffd"])


def test_a_hook_whose_output_is_told_outlives_us_unharmed(tmp_path: Path) -> None:
    code = """
import os, sys
from datetime import UTC, datetime
from tpuctl.models.events import Event, EventKind
from tpuctl.nodes.hooks import Hooks
from tpuctl.names import NodeName
run = Hooks({EventKind.GAVE_UP: sys.argv[1]}, os.environ, extra={}, tell=print)
run(Event(EventKind.GAVE_UP, datetime.now(UTC), NodeName("p", "z", "n"), "why"))
"""
    command = f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; seq 100000 && echo done > {tmp_path}/done"
    program = subprocess.run([sys.executable, "-c", code, command], capture_output=True, timeout=5, check=True)
    (tmp_path / "go").touch()
    until((tmp_path / "done").exists)

    assert (program.stdout, program.stderr) == (b"", b"")


def test_on_a_screen_that_is_drawn_anew_what_hooks_write_is_told(tmp_path: Path) -> None:
    screen = io.StringIO()
    streams = StandardStreams(io.StringIO(), io.StringIO(), screen, stderr_is_terminal=True)
    app = App(Invocation((), {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm"}, streams, tmp_path))
    app.set_options({})
    run = build_hooks(app, {"on_preempt": "echo 'hel\033[2Jlo'; echo two"})

    run(event())

    assert (run.wait(), screen.getvalue()) == ((), "trainer: hel\\x1b[2Jlo\ntrainer: two\n")
