"""The output of hooks on a redrawn screen is forwarded line by line, and never blocks or terminates a hook."""

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


def test_hook_output_is_forwarded_by_lines_while_hooks_run(tmp_path: Path) -> None:
    lines_shown: list[str] = []
    go = tmp_path / "go"
    command = f"echo begun; echo half >&2; printf no; until [ -e {go} ]; do sleep 0.01; done; printf 'w\\377'"
    run = Hooks(
        {EventKind.PREEMPTED: command}, os.environ, extra={}, print_lines=lambda *lines: lines_shown.extend(lines)
    )

    run(event())
    until(lambda: len(lines_shown) == 2)
    go.touch()

    assert (run.wait(), lines_shown) == ((), ["trainer: begun", "trainer: half", "trainer: now\ufffd"])


def test_hook_with_forwarded_output_outlives_us(tmp_path: Path) -> None:
    code = """
import os, sys
from datetime import UTC, datetime
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.nodes.hooks import Hooks
from tpuctl.names import NodeName
run = Hooks({EventKind.GAVE_UP: sys.argv[1]}, os.environ, extra={}, print_lines=print)
run(NodeEvent(EventKind.GAVE_UP, datetime.now(UTC), NodeName("p", "z", "n"), "why"))
"""
    command = f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; seq 100000 && echo done > {tmp_path}/done"
    program = subprocess.run([sys.executable, "-c", code, command], capture_output=True, timeout=30, check=True)
    (tmp_path / "go").touch()
    until((tmp_path / "done").exists)

    assert (program.stdout, program.stderr) == (b"", b"")


def test_hook_output_on_a_redrawn_screen_is_forwarded(tmp_path: Path) -> None:
    screen = io.StringIO()
    streams = StandardStreams(io.StringIO(), io.StringIO(), screen, stderr_is_terminal=True)
    app = App(Invocation((), {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm"}, streams, tmp_path))
    app.set_options({})
    run = build_hooks(app, {EventKind.PREEMPTED: "echo 'hel\033[2Jlo'; echo two"})

    run(event())

    assert (run.wait(), screen.getvalue()) == ((), "trainer: hel\\x1b[2Jlo\ntrainer: two\n")
