"""Queries that may hang, each with a timeout."""

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
    """Sends one query after the other. `clock` is the real one: a network has no other."""

    def __init__(self, clock: Clock, until: timedelta, *, each: timedelta, grace: timedelta) -> None:
        """Limit each query to `each`, and all to `until`; `grace` is extra time for a query to end by itself."""
        self._clock, self._until, self._each, self._grace = clock, until, each, grace

    @property
    def left(self) -> timedelta:
        """The time limit for a query sent now; zero or negative if it is too late."""
        return min(self._each, self._until - self._clock.monotonic())

    def ask(self, call: Callable[[], T]) -> T:
        """Return the result. Raises what the call raises, and `ServiceUnavailableError` if it times out."""
        timeout, query = self.left, _Asking(call)
        # A daemon: the threads of a pool would keep the process alive.
        threading.Thread(target=query.run, daemon=True).start()
        if not query.is_over.wait(max(0.0, (timeout + self._grace).total_seconds())):
            raise ServiceUnavailableError(f"no answer within {format_duration(timeout)}")
        if query.failure is not None:
            raise query.failure
        return query.answer  # type: ignore[return-value]  # the call returned


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
