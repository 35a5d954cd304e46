"""Answers that several threads want at the same moment, and that stay true for a while: one asks, all have it."""

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
    """What one thread asks for, and others wait for. `came` is by the clock's `monotonic`."""

    is_there: threading.Event = field(default_factory=threading.Event)
    value: T | None = None
    failure: BaseException | None = None
    came: timedelta | None = None


class ShortMemory(Generic[T]):
    """Answers by a key, kept for a minute. A failure is that of all who wait for the answer, and is not kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer[T]] = {}

    def recall(self, key: str, ask: Callable[[], T]) -> T:
        """Return what is known by a key, else what `ask` returns. Raises what `ask` raises."""
        with self._lock:
            answer = self._answers.get(key)
            is_mine = answer is None or self._is_old(answer)
            if answer is None or is_mine:
                answer = self._answers[key] = _Answer()
        if is_mine:
            self._ask(key, answer, ask)
        answer.is_there.wait()
        if answer.failure is not None:
            raise answer.failure
        assert answer.value is not None  # noqa: S101  # guides mypy: it is there, or a failure is
        return answer.value

    def _is_old(self, answer: _Answer[T]) -> bool:
        return answer.came is not None and self._clock.monotonic() - answer.came >= _KEPT

    def _ask(self, key: str, answer: _Answer[T], ask: Callable[[], T]) -> None:
        try:
            answer.value = ask()
            answer.came = self._clock.monotonic()
        except BaseException as failure:  # noqa: BLE001  # raised by all who wait, in their own threads
            answer.failure = failure
            with self._lock:
                del self._answers[key]
        finally:
            answer.is_there.set()
