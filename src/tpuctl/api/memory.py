"""A cache for answers that several threads need at the same time: one thread fetches, the others wait for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.clock import Clock

T = TypeVar("T")

_KEPT = timedelta(minutes=1)


@dataclass(slots=True)
class _Answer(Generic[T]):
    """An answer that one thread fetches and others wait for. `received_at` is a monotonic time."""

    is_there: threading.Event = field(default_factory=threading.Event)
    value: T | None = None
    failure: BaseException | None = None
    received_at: timedelta | None = None


class ShortMemory(Generic[T]):
    """Answers by key, kept for a minute. A failure is raised in all waiting threads, and is not kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer[T]] = {}

    def get_or_load(self, key: str, load: Callable[[], T]) -> T:
        """Return the cached answer, else the result of `load`. Raises what `load` raises."""
        with self._lock:
            answer = self._answers.get(key)
            came = answer.received_at if answer else None
            is_mine = answer is None or (came is not None and self._clock.monotonic() - came >= _KEPT)
            if answer is None or is_mine:
                answer = self._answers[key] = _Answer()
        if is_mine:
            try:
                answer.value = load()
                answer.received_at = self._clock.monotonic()
            except BaseException as failure:  # noqa: BLE001  # raised in each waiting thread
                answer.failure = failure
                with self._lock:
                    del self._answers[key]
            finally:
                answer.is_there.set()
        answer.is_there.wait()
        if answer.failure is not None:
            raise answer.failure
        assert answer.value is not None  # noqa: S101  # guides mypy: it is there, or a failure is
        return answer.value
