"""When the commands of a run are told to end, and how firmly. The time and the signals go in; nothing here waits."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.remote.running.values import Limits

# TensorFlow looks at INT only at the end of its loop; QUIT ends Python at once (Cloud TPU's troubleshooting guide).
_PRESSED = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
_GRACE = timedelta(seconds=10)
# A CI runner kills what does not end soon after it was asked to.
_SHORT_GRACE = timedelta(seconds=4)


class Reason(StrEnum):
    """Why the commands were told to end."""

    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    TIMED_OUT = "timed out"
    FAILED = "another worker failed"
    UNHEARD = "nobody reads its output"


@dataclass(frozen=True, slots=True)
class Stop:
    """A signal to send to every command; without a number they are given up. `text` is for the user, `why` for the endings."""

    number: int | None
    why: str
    text: str = ""


class Stopping:
    """What has been done so far to end the commands of one run."""

    def __init__(self, limits: Limits, start: timedelta) -> None:
        self.reason: Reason | None = None
        self._fails_fast = limits.fail_fast
        self._deadline = start + limits.timeout if limits.timeout is not None else None
        self._presses = 0
        # What comes next if they do not end, and when.
        self._next: list[tuple[timedelta, int | None]] = []

    def waits(self) -> list[timedelta]:
        """Return when something is due without a signal."""
        deadline = [self._deadline] if self._deadline is not None and self.reason is None else []
        return [*deadline, *(at for at, _ in self._next[:1])]

    def due(self, now: timedelta, signals: Sequence[int], *, has_failed: bool, is_unheard: bool = False) -> Stop | None:
        """Return what is to be done now, if anything."""
        if signal.SIGTERM in signals and self.reason is not Reason.TERMINATED:
            return self._begin(Reason.TERMINATED, now, _SHORT_GRACE)
        if presses := signals.count(signal.SIGINT):
            return self._pressed(now, presses)
        if self._next and self._next[0][0] <= now:
            number = self._next.pop(0)[1]
            return Stop(number, str(self.reason), "" if number else "given up: they do not end")
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
        # A local command in a pipe that closes ends quietly, too.
        text = "" if reason is Reason.UNHEARD else f"{reason}: ending the remote processes"
        return Stop(signal.SIGTERM, str(reason), text)

    def _pressed(self, now: timedelta, times: int) -> Stop:
        if self.reason is not None and not self._presses:
            # They were told TERM: INT is no more than that.
            self._presses = 1
        self.reason = self.reason or Reason.INTERRUPTED
        self._presses += times
        pressed = self._presses - 1
        if pressed >= len(_PRESSED):
            return Stop(None, str(self.reason), "given up: the remote processes may go on")
        number = _PRESSED[pressed]
        after = ("Ctrl-C again sends QUIT, a third time KILL", "Ctrl-C again sends KILL", "Ctrl-C again leaves them")
        if number is signal.SIGKILL:
            self._next = [(now + _GRACE, None)]
        return Stop(number, str(self.reason), f"{number.name.removeprefix('SIG')} sent; {after[pressed]}")
