"""The output of hooks is shown line by line, and never blocks or terminates a hook."""

from __future__ import annotations

import io
import os
from pathlib import Path

from tests.nodes.test_hooks import event, hooks_for, until
from tpuctl.app.app import App, Invocation
from tpuctl.models.events import EventKind
from tpuctl.nodes.commands.policy_options import build_hooks
from tpuctl.output.terminal import StandardStreams


def test_hook_output_is_shown_by_lines_while_hooks_run(tmp_path: Path) -> None:
    shown: list[str] = []
    go = tmp_path / "go"
    command = f"echo begun; echo half >&2; printf no; until [ -e {go} ]; do sleep 0.01; done; printf 'w\\377'"
    run = hooks_for(command, show=lambda *lines: shown.extend(lines))

    run(event())
    until(lambda: run.poll() == () and len(shown) == 2)
    go.touch()

    assert (run.wait(), shown) == ((), ["trainer: begun", "trainer: half", "trainer: now\ufffd"])


def test_hook_output_on_a_redrawn_screen_is_escaped(tmp_path: Path) -> None:
    screen = io.StringIO()
    streams = StandardStreams(io.StringIO(), io.StringIO(), screen, stderr_is_terminal=True)
    app = App(Invocation((), {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm"}, streams, tmp_path))
    app.set_options({})
    run = build_hooks(app, {EventKind.PREEMPTED: "echo 'hel\033[2Jlo'; echo two"})

    run(event())

    assert (run.wait(), screen.getvalue()) == ((), "trainer: hel\\x1b[2Jlo\ntrainer: two\n")
