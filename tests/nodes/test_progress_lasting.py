"""Progress of a watch: nodes that were given up stay on screen, a full disk does not end it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.nodes.test_progress import creating, err, event, terminal, workers
from tests.output.screen import on_screen
from tpuctl.clock import ManualClock
from tpuctl.models.events import EventKind
from tpuctl.output.progress import EventFile, Progress
from tpuctl.output.terminal import StandardStreams, Terminal

_needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")


def test_given_up_node_stays_on_screen_until_it_recovers() -> None:
    written = terminal(is_terminal=True)
    seen = []
    with Progress(written, ManualClock(), lasting=True) as progress:
        for item in (
            creating(),
            event(EventKind.GAVE_UP, "it is broken", state="READY", health="TIMEOUT", error="broken"),
            event(EventKind.STATE, "READY UNHEALTHY", state="READY", health="UNHEALTHY"),
            event(EventKind.ACTION, "restarting it"),
            event(EventKind.RECOVERED, "usable"),
        ):
            progress(item)
            seen.append(on_screen(err(written))[-1])

    assert ([line[2:] for line in seen[:3]], seen[4]) == (
        [
            "demo  CREATING  1m",
            "demo  READY TIMEOUT  given up: it is broken",
            "demo  READY UNHEALTHY  0s  given up: it is broken",
        ],
        "     0s ✓ demo usable",
    )
    assert [line[0] for line in seen[1:3]] == ["✗", "✗"]


def test_worker_results_stay_if_only_the_health_changes() -> None:
    written = terminal(is_terminal=True)
    with Progress(written, ManualClock()) as progress:
        progress(event(EventKind.WAIT, "x", state="READY", health="HEALTH_UNSPECIFIED", workers=workers(2, {1})))
        progress(event(EventKind.STATE, "READY HEALTHY", state="READY", health="HEALTHY"))
        during = on_screen(err(written))
        progress(event(EventKind.STATE, "STOPPING", state="STOPPING", health="HEALTHY"))
        after = on_screen(err(written))

    assert during[-1] == "  1 of 2 workers missing: 1 (ssh: does not answer)"
    assert after[-1][2:] == "demo  STOPPING HEALTHY  0s"


@_needs_full
@pytest.mark.parametrize("is_terminal", [False, True])
def test_full_log_does_not_end_the_watch(*, is_terminal: bool) -> None:
    full = Path("/dev/full").open("w", buffering=1, encoding="utf-8")  # noqa: SIM115  # closed by what fails
    shown = Terminal(StandardStreams(io.StringIO(), io.StringIO(), full, stderr_is_terminal=is_terminal), {})
    events = io.StringIO()
    with Progress(shown, ManualClock(), events=events, lasting=True) as progress:
        for item in (creating(), event(EventKind.NOTE, "by the way"), event(EventKind.REACHED, "usable")):
            progress(item)
            shown.warn("a hook failed")

    assert len(events.getvalue().splitlines()) == 3
    with pytest.raises(OSError, match="No space"):
        full.close()


@_needs_full
def test_full_event_file_warns_once_and_the_watch_continues(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    out, err, code = tpuctl("watch", "demo", "--until", "10m", "--events", "/dev/full")

    full = "warning: cannot write events to /dev/full: No space left on device; continuing without them"
    assert (out, err.splitlines(), code) == ("", [full, "demo: READY HEALTHY", "demo: usable (ssh)"], 0)


def test_event_pipe_without_a_reader_warns_once(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED")
    os.mkfifo(tpuctl.folder / "pipe")

    out, err, code = tpuctl("start", "demo", "--events", "pipe")

    unread = "warning: cannot write events to pipe: no program reads this pipe; continuing without them"
    assert (out, err.splitlines().count(unread), code) == ("demo\tREADY\n", 1, 0)


def test_event_pipe_with_a_late_reader_gets_all_events(tmp_path: Path) -> None:
    path, written = tmp_path / "pipe", terminal()
    os.mkfifo(path)
    with Progress(written, ManualClock(), events=EventFile(path, "pipe")) as progress:
        progress(creating())
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        progress(event(EventKind.REACHED, "usable"))
    with os.fdopen(reader) as lines:
        assert [json.loads(line)["event"] for line in lines] == ["wait", "reached"]


def test_event_pipe_with_a_slow_or_closed_reader_ends_nothing(tmp_path: Path) -> None:
    path, written = tmp_path / "pipe", terminal()
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with Progress(written, ManualClock(), events=EventFile(path, "pipe")) as progress:
        for _ in range(3):
            progress(event(EventKind.NOTE, "x" * 40_000))  # more than a pipe holds
        os.close(reader)
        progress(event(EventKind.REACHED, "usable"))

    ended = "warning: cannot write events to pipe: the program that read this pipe has ended; continuing without them"
    assert err(written).splitlines().count(ended) == 1
