"""Run queries to the cloud in parallel, each once, with one deadline. Every query returns a fact, also on failure."""

from __future__ import annotations

import threading
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tpuctl.clock import format_duration
from tpuctl.errors import AccessError, CredentialsError, NotFoundError, QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tpuctl.clock import Clock

T = TypeVar("T")

# More than a typical check needs; each thread has its own connection, and the services allow that many.
_AT_ONCE = 32
# Refusals for another reason than a missing permission.
_NO_PERMISSION_HELPS = frozenset(
    {"api-disabled", "auth-no-quota-project", "billing-disabled", "perimeter-violated", "project-suspended"}
)


class Question(Generic[T]):
    """One query, answered by a thread."""

    def __init__(self, call: Callable[[], T], permission: str | None) -> None:
        self.permission = permission
        self.is_answered = threading.Event()
        self.value: T | None = None
        self.failure: BaseException | None = None
        self._call = call

    def run(self) -> None:
        """Call the API and keep its answer, or the exception."""
        try:
            self.value = self._call()
        except BaseException as failure:  # noqa: BLE001  # handed to the waiting thread, which raises bugs
            self.failure = failure
        self.is_answered.set()


class Asking:
    """Runs queries in daemon threads. `clock` is the real clock, as a network takes real time."""

    def __init__(self, clock: Clock, timeout: timedelta) -> None:
        self._clock, self._timeout = clock, timeout
        self.begin()
        self._questions: dict[Hashable, Question[Any]] = {}
        self._waiting: deque[Question[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the deadline now."""
        self._ends = self._clock.monotonic() + self._timeout

    def ask(self, key: Hashable, call: Callable[[], T], *, permission: str | None = None) -> Question[T]:
        """Start a query; return the earlier one with the same key, if any. `permission` is what the answer takes."""
        if key in self._questions:
            return self._questions[key]
        question = self._questions[key] = Question(call, permission)
        with self._lock:
            self._waiting.append(question)
            if len(self._threads) >= _AT_ONCE:
                return question
            # Not a pool: its threads would keep an interrupted process alive until the last answer.
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)
        thread.start()
        return question

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query, even with a refusal."""
        answered = [question for question in self._questions.values() if question.is_answered.is_set()]
        return not all(isinstance(question.failure, ServiceUnavailableError) for question in answered)

    def answer(self, question: Question[T]) -> Fact[T]:
        """Wait for the answer and return it, at the deadline at the latest.

        Raises `CredentialsError`, as no query can be answered without credentials.
        """
        left = max(self._ends - self._clock.monotonic(), timedelta())
        if not question.is_answered.wait(left.total_seconds()):
            return Unknown(f"no answer within {format_duration(self._timeout)}", is_passing=True)
        if question.failure is None:
            return Known(question.value)  # type: ignore[arg-type]  # the answer of a call that returned
        return fact_of(question.failure, question.permission)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads.remove(threading.current_thread())
                    return
                question = self._waiting.popleft()
            question.run()


def fact_of(failure: BaseException, permission: str | None = None) -> Absent | Unknown:
    """Return the fact that an exception stands for. Raises `CredentialsError`, and exceptions that are bugs."""
    match failure:
        case CredentialsError():
            raise failure
        case NotFoundError():
            return Absent(failure.message)
        case AccessError():
            helps = failure.error_id not in _NO_PERMISSION_HELPS
            return Unknown(failure.message, permission if helps else None, error_id=failure.error_id)
        case TpuctlError():
            is_passing = isinstance(failure, ServiceUnavailableError | QuotaError)
            return Unknown(failure.message, is_passing=is_passing, error_id=failure.error_id)
        case _:
            raise failure
