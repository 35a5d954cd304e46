"""Decisions and forms of a run: frames in pieces, and when commands are told to end."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.running.frames import MARK, Decoder, Said, Told, frame
from tpuctl.remote.running.stopping import Reason, Stop, Stopping
from tpuctl.remote.running.values import Limits

FRAMES = [(Told.READY, b"new"), (Told.STARTED, b""), (Told.OUT, b"\n\0tpuctl-job\n"), (Told.EXIT, b"exit 0 1.0")]
STREAM = b"".join(kind.value + len(payload).to_bytes(4, "big") + payload for kind, payload in FRAMES)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("noise", [b"", b"welcome\n", b"\n\0tpuctl-jo", b"\n\n\0\n\0tpuctl-jo"])
def test_frames_in_pieces_of_any_size_are_decoded(size: int, noise: bytes) -> None:
    decoder, data = Decoder(), noise + MARK + STREAM

    assert [found for at in range(0, len(data), size) for found in decoder.feed(data[at : at + size])] == FRAMES


def test_frames_invalid_are_rejected() -> None:
    decoder = Decoder()
    decoder.feed(MARK + STREAM)

    with pytest.raises(UnexpectedAnswerError, match="no frame begins with `B`"):
        decoder.feed(b"Broadcast message\n")


def test_frame_contains_its_length() -> None:
    assert [frame(Said.GO), frame(Said.KILL, b"15")] == [b"g\0\0\0\0", b"k\0\0\0\x0215"]


INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
PRESSED, ENDED = "interrupted", "terminated"


@pytest.mark.parametrize(
    ("limits", "course", "reason"),
    [
        (
            Limits(),
            [
                (0, [], None),
                (1, [INT], Stop(INT, PRESSED, "INT sent; Ctrl-C again sends QUIT, a third time KILL")),
                (60, [], None),
                (61, [INT], Stop(signal.SIGQUIT, PRESSED, "QUIT sent; Ctrl-C again sends KILL")),
                (62, [INT], Stop(KILL, PRESSED, "KILL sent; Ctrl-C again leaves them running")),
                (71, [], None),
                (72, [], Stop(None, PRESSED, "given up: the remote processes do not end")),
            ],
            Reason.INTERRUPTED,
        ),
        (
            Limits(),
            [
                (1, [INT, INT, INT], Stop(KILL, PRESSED, "KILL sent; Ctrl-C again leaves them running")),
                (2, [INT], Stop(None, PRESSED, "given up: the remote processes may continue")),
            ],
            Reason.INTERRUPTED,
        ),
        (
            Limits(timeout=timedelta(seconds=1)),
            [
                (0, [TERM, TERM], Stop(TERM, ENDED, "terminated: stopping the remote processes")),
                (2, [TERM], None),
                (3, [INT], Stop(signal.SIGQUIT, ENDED, "QUIT sent; Ctrl-C again sends KILL")),
                (4, [], Stop(KILL, ENDED)),
                (8, [], Stop(None, ENDED, "given up: the remote processes do not end")),
            ],
            Reason.TERMINATED,
        ),
        (
            Limits(timeout=timedelta(seconds=5)),
            [
                (4.9, [], None),
                (5, [], Stop(TERM, "timed out", "timed out: stopping the remote processes")),
                (15, [], Stop(KILL, "timed out")),
                (25, [], Stop(None, "timed out", "given up: the remote processes do not end")),
                (99, [], None),
            ],
            Reason.TIMED_OUT,
        ),
    ],
    ids=["one press after the other", "three at once", "terminated, then interrupted", "timed out"],
)
def test_stop_after_signals_and_times_is_due(
    limits: Limits, course: list[tuple[float, list[int], Stop | None]], reason: Reason
) -> None:
    stopping = Stopping(limits, timedelta())

    seen = [stopping.due(timedelta(seconds=at), signals, has_failed=False) for at, signals, _ in course]

    assert seen == [expected for _, _, expected in course]
    assert stopping.reason is reason


@pytest.mark.parametrize(
    ("fail_fast", "has_failed", "is_unheard", "expected"),
    [
        (False, True, False, None),
        (True, False, False, None),
        (
            True,
            True,
            False,
            Stop(TERM, "another worker failed", "another worker failed: stopping the remote processes"),
        ),
        (False, False, True, Stop(TERM, "its output is no longer read")),
    ],
)
def test_stop_without_signal_has_a_reason(
    fail_fast: bool, has_failed: bool, is_unheard: bool, expected: Stop | None
) -> None:
    stopping = Stopping(Limits(fail_fast=fail_fast), timedelta())

    assert stopping.due(timedelta(), [], has_failed=has_failed, is_unheard=is_unheard) == expected
    assert stopping.due(timedelta(), [], has_failed=has_failed, is_unheard=is_unheard) is None
