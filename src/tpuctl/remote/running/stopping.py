"""When to terminate the commands of a run, and by which signal. Time and signals are passed in; nothing here waits."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.remote.running.values import Limits

# TensorFlow checks INT only at the end of its loop; QUIT ends Python at once (Cloud TPU's troubleshooting guide).
_PRESSED = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
_GRACE = timedelta(seconds=10)
# A CI runner kills a process that does not end soon after TERM.
_SHORT_GRACE = timedelta(seconds=4)


class Reason(StrEnum):
    """Why the commands are terminated."""

    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    TIMED_OUT = "timed out"
    FAILED = "another worker failed"
    UNHEARD = "its output is no longer read"


@dataclass(frozen=True, slots=True)
class Stop:
    """A signal for every command; without a number, give the commands up. `text` is for the user, `why` for the results."""

    number: int | None
    why: str
    text: str = ""


class Stopping:
    """What was done so far to terminate the commands of one run, and what comes next."""

    def __init__(self, limits: Limits, start: timedelta) -> None:
        self.reason: Reason | None = None
        self._fails_fast = limits.fail_fast
        self._deadline = start + limits.timeout if limits.timeout is not None else None
        self._presses = 0
        # The next signals if the commands do not end, and their times.
        self._next: list[tuple[timedelta, int | None]] = []

    def waits(self) -> list[timedelta]:
        """Return the times at which something is due without a signal."""
        deadline = [self._deadline] if self._deadline is not None and self.reason is None else []
        return [*deadline, *(at for at, _ in self._next[:1])]

    def due(self, now: timedelta, signals: Sequence[int], *, has_failed: bool, is_unheard: bool = False) -> Stop | None:
        """Return what is due now, None if nothing."""
        if signal.SIGTERM in signals and self.reason is not Reason.TERMINATED:
            return self._begin(Reason.TERMINATED, now, _SHORT_GRACE)
        if presses := signals.count(signal.SIGINT):
            return self._press(now, presses)
        if self._next and self._next[0][0] <= now:
            number = self._next.pop(0)[1]
            return Stop(number, str(self.reason), "" if number else "given up: the remote processes do not end")
        if self.reason is not None:
            return None
        if self._deadline is not None and now >= self._deadline:
            return self._begin(Reason.TIMED_OUT, now, _GRACE)
        if self._fails_fast and has_failed:
            return self._begin(Reason.FAILED, now, _GRACE)
        return self._begin(Reason.UNHEARD, now, _SHORT_GRACE) if is_unheard else None

    def _begin(self, reason: Reason, now: timedelta, grace: timedelta) -> Stop:
        self.reason = reason
        self._next = [(now + grace, signal.SIGKILL), (now + 2 * grace, None)]
        # A local command that writes to a closed pipe ends quietly, too.
        text = "" if reason is Reason.UNHEARD else f"{reason}: stopping the remote processes"
        return Stop(signal.SIGTERM, str(reason), text)

    def _press(self, now: timedelta, times: int) -> Stop:
        """Answer Ctrl-C: INT, then QUIT, then KILL, then leave the processes running."""
        if self.reason is not None and not self._presses:
            # TERM was sent already: INT is no stronger.
            self._presses = 1
        self.reason = self.reason or Reason.INTERRUPTED
        self._presses += times
        pressed = self._presses - 1
        if pressed >= len(_PRESSED):
            return Stop(None, str(self.reason), "given up: the remote processes may continue")
        number = _PRESSED[pressed]
        after = (
            "Ctrl-C again sends QUIT, a third time KILL",
            "Ctrl-C again sends KILL",
            "Ctrl-C again leaves them running",
        )
        if number is signal.SIGKILL:
            self._next = [(now + _GRACE, None)]
        return Stop(number, str(self.reason), f"{number.name.removeprefix('SIG')} sent; {after[pressed]}")
