"""Questions that may hang, each with its time: an answer, a failure, or none; nobody waits for longer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from tpuctl.clock import format_duration
from tpuctl.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from tpuctl.clock import Clock

T = TypeVar("T")


class Questions:
    """Asks one after the other. `clock` is the real one: a network knows no other."""

    def __init__(self, clock: Clock, until: timedelta, *, each: timedelta, grace: timedelta) -> None:
        """Give each question so much time, and none any after `until`, but for the `grace` to end by itself."""
        self._clock, self._until, self._each, self._grace = clock, until, each, grace

    @property
    def left(self) -> timedelta:
        """How much time a question has that is asked now; nothing where it is too late to ask."""
        return min(self._each, self._until - self._clock.monotonic())

    def ask(self, call: Callable[[], T]) -> T:
        """Return the answer. Raises what the call raises, and `ServiceUnavailableError` where none has come in time."""
        patience, asking = self.left, _Asking(call)
        # Nobody waits for it at the end: a pool's threads would keep the process alive.
        threading.Thread(target=asking.run, daemon=True).start()
        if not asking.is_over.wait(max(0.0, (patience + self._grace).total_seconds())):
            raise ServiceUnavailableError(f"there was no answer within {format_duration(patience)}")
        if asking.failure is not None:
            raise asking.failure
        return asking.answer  # type: ignore[return-value]  # the call returned


class _Asking(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.is_over = threading.Event()
        self.answer: T | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as failure:  # noqa: BLE001  # handed to the thread that asked
            self.failure = failure
        self.is_over.set()
