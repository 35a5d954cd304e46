"""The pager: for results that are longer than the screen, on a terminal only; quitting it early is no error."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest

from tpuctl.output.terminal import OutputFormat, StandardStreams, Terminal, View, show_view

if TYPE_CHECKING:
    from pathlib import Path

LINES = [f"line {number}" for number in range(20)]
ALL = "".join(f"{line}\n" for line in LINES)


def shown(
    folder: Path, environ: dict[str, str], *, lines: int = 20, height: int = 10, is_terminal: bool = True
) -> tuple[str, str]:
    """Return what a result with a note writes to stdout, which is a file here, and to stderr."""
    stderr = io.StringIO()

    def write(terminal: Terminal) -> None:
        terminal.note("a note")
        terminal.names(LINES[:lines])

    with (folder / "stdout").open("w+", encoding="utf-8") as stdout:
        streams = StandardStreams(io.StringIO(), stdout, stderr, False, is_terminal, is_terminal, 80, height)
        terminal = Terminal(streams, {"PATH": os.environ["PATH"], **environ})
        show_view(View(value=list, text=write), terminal, OutputFormat.TABLE, sandbox=False)
        stdout.flush()
        return (folder / "stdout").read_text("utf-8"), stderr.getvalue()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"PAGER": "sed 's/^/| /'"}, "".join(f"| {line}\n" for line in LINES), id="command-of-the-shell"),
        pytest.param({"PAGER": "head -n 1"}, "line 0\n", id="quit-early"),
        pytest.param({"PAGER": "cat >/dev/null; exit 3"}, "", id="fails-after-it-was-shown"),
        pytest.param({"PAGER": "echo $LESS $LV; cat >/dev/null"}, "FRX -c\n", id="defaults-of-git"),
        pytest.param({"PAGER": "echo $LESS; cat >/dev/null", "LESS": "S"}, "S\n", id="own-options-of-less"),
        pytest.param({"PAGER": "exec /no/such/program 2>/dev/null"}, ALL, id="cannot-be-started"),
        pytest.param({"PAGER": ""}, ALL, id="empty"),
        pytest.param({"PAGER": " cat "}, ALL, id="cat"),
        pytest.param({"PAGER": "head -n 1", "TERM": "dumb"}, ALL, id="dumb-terminal"),
        pytest.param({"PATH": "/nowhere"}, ALL, id="no-less"),
    ],
)
def test_long_result_goes_to_the_pager(tmp_path: Path, environ: dict[str, str], expected: str) -> None:
    assert shown(tmp_path, environ) == (expected, "a note\n")


@pytest.mark.parametrize(
    ("lines", "height", "is_terminal"),
    [
        pytest.param(9, 10, True, id="fits-the-screen"),
        pytest.param(20, 10, False, id="pipe"),
        pytest.param(20, 0, True, id="unknown-height"),
    ],
)
def test_other_results_are_written_at_once(tmp_path: Path, lines: int, height: int, is_terminal: bool) -> None:
    out, _ = shown(tmp_path, {"PAGER": "head -n 1"}, lines=lines, height=height, is_terminal=is_terminal)

    assert out == "".join(f"{line}\n" for line in LINES[:lines])


def test_pager_is_used_from_a_full_screen_on(tmp_path: Path) -> None:
    assert shown(tmp_path, {"PAGER": "head -n 1"}, lines=10, height=10)[0] == "line 0\n"
