"""The notice of a slow check: one line, only on a terminal."""

from __future__ import annotations

import io
import threading
from datetime import timedelta

import pytest

from tpuctl.check.report_rendering import waiting_notice
from tpuctl.output.terminal import StandardStreams, Terminal


class Heard(io.StringIO):
    """A stream with an event that is set by the first write."""

    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def flush(self) -> None:
        self.was_written.set()


@pytest.mark.parametrize(
    ("person", "quiet", "after", "expected"),
    [
        (True, False, timedelta(), "still waiting for the cloud …\n"),
        (True, False, timedelta(hours=1), ""),
        (True, True, timedelta(), ""),
        (False, False, timedelta(), ""),
    ],
)
def test_waiting_notice_is_shown_once(person: bool, quiet: bool, after: timedelta, expected: str) -> None:
    err = Heard()
    terminal = Terminal(
        StandardStreams(io.StringIO(), io.StringIO(), err, stderr_is_terminal=person), {"NO_COLOR": "1"}, quiet=quiet
    )

    with waiting_notice(terminal, after=after):
        err.was_written.wait(5 if expected else 0)

    assert err.getvalue() == expected
