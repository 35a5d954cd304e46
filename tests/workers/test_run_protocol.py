"""Decisions and forms of a run: frames in pieces, and when commands are told to end."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from tpuctl.ssh.agent.link import AGENT_MARK
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.channel import FrameDecoder, WorkerFrame
from tpuctl.workers.runner import RunRequest, StopPolicy, StopReason, StopSignal

FRAMES = [
    (WorkerFrame.READY, b"new"),
    (WorkerFrame.STARTED, b""),
    (WorkerFrame.OUT, b"\n\0tpuctl-agent\n"),
    (WorkerFrame.EXIT, b"exit 0 1.0"),
]
STREAM = b"".join(kind.value + len(payload).to_bytes(4, "big") + payload for kind, payload in FRAMES)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("noise", [b"", b"welcome\n", b"\n\0tpuctl-agen", b"\n\n\0\n\0tpuctl-agen"])
def test_frames_in_pieces_of_any_size_are_decoded(size: int, noise: bytes) -> None:
    decoder, data = FrameDecoder(), noise + AGENT_MARK + STREAM

    assert [found for at in range(0, len(data), size) for found in decoder.feed(data[at : at + size])] == FRAMES


def test_frames_invalid_are_rejected() -> None:
    decoder = FrameDecoder()
    decoder.feed(AGENT_MARK + STREAM)

    with pytest.raises(UnexpectedAnswerError, match="no frame begins with `B`"):
        decoder.feed(b"Broadcast message\n")


INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
PRESSED, ENDED = "interrupted", "terminated"


@pytest.mark.parametrize(
    ("wanted", "course", "reason"),
    [
        (
            RunRequest(),
            [
                (0, [], None),
                (1, [INT], StopSignal(INT, PRESSED, "INT sent; Ctrl-C again sends QUIT, a third time KILL")),
                (60, [], None),
                (61, [INT], StopSignal(signal.SIGQUIT, PRESSED, "QUIT sent; Ctrl-C again sends KILL")),
                (62, [INT], StopSignal(KILL, PRESSED, "KILL sent; Ctrl-C again leaves them running")),
                (71, [], None),
                (72, [], StopSignal(None, PRESSED, "given up: the remote processes do not end")),
            ],
            StopReason.INTERRUPTED,
        ),
        (
            RunRequest(),
            [
                (1, [INT, INT, INT], StopSignal(KILL, PRESSED, "KILL sent; Ctrl-C again leaves them running")),
                (2, [INT], StopSignal(None, PRESSED, "given up: the remote processes may continue")),
            ],
            StopReason.INTERRUPTED,
        ),
        (
            RunRequest(timeout=timedelta(seconds=1)),
            [
                (0, [TERM, TERM], StopSignal(TERM, ENDED, "terminated: stopping the remote processes")),
                (2, [TERM], None),
                (3, [INT], StopSignal(signal.SIGQUIT, ENDED, "QUIT sent; Ctrl-C again sends KILL")),
                (4, [], StopSignal(KILL, ENDED)),
                (8, [], StopSignal(None, ENDED, "given up: the remote processes do not end")),
            ],
            StopReason.TERMINATED,
        ),
        (
            RunRequest(timeout=timedelta(seconds=5)),
            [
                (4.9, [], None),
                (5, [], StopSignal(TERM, "timed out", "timed out: stopping the remote processes")),
                (15, [], StopSignal(KILL, "timed out")),
                (25, [], StopSignal(None, "timed out", "given up: the remote processes do not end")),
                (99, [], None),
            ],
            StopReason.TIMED_OUT,
        ),
    ],
    ids=["one press after the other", "three at once", "terminated, then interrupted", "timed out"],
)
def test_stop_after_signals_and_times_is_due(
    wanted: RunRequest, course: list[tuple[float, list[int], StopSignal | None]], reason: StopReason
) -> None:
    stopping = StopPolicy(wanted, timedelta())

    seen = [stopping.due(timedelta(seconds=at), signals, has_failed=False) for at, signals, _ in course]

    assert seen == [expected for _, _, expected in course]
    assert stopping.reason is reason


@pytest.mark.parametrize(
    ("fail_fast", "has_failed", "is_output_closed", "expected"),
    [
        (False, True, False, None),
        (True, False, False, None),
        (
            True,
            True,
            False,
            StopSignal(TERM, "another worker failed", "another worker failed: stopping the remote processes"),
        ),
        (False, False, True, StopSignal(TERM, "its output is no longer read")),
    ],
)
def test_stop_without_signal_has_a_reason(
    fail_fast: bool, has_failed: bool, is_output_closed: bool, expected: StopSignal | None
) -> None:
    stopping = StopPolicy(RunRequest(fail_fast=fail_fast), timedelta())

    assert stopping.due(timedelta(), [], has_failed=has_failed, is_output_closed=is_output_closed) == expected
    assert stopping.due(timedelta(), [], has_failed=has_failed, is_output_closed=is_output_closed) is None
