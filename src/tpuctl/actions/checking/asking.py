"""Questions to the cloud, asked side by side, each once, and answered by one deadline: a fact each, whatever happens."""

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

# More than a typical check asks; each has a connection of its own, and services allow that many.
_AT_ONCE = 32
# What is refused for another reason than a missing permission.
_NO_PERMISSION_HELPS = frozenset(
    {"api-disabled", "auth-no-quota-project", "billing-disabled", "perimeter-violated", "project-suspended"}
)


class Question(Generic[T]):
    """One question; its answer comes from a thread."""

    def __init__(self, call: Callable[[], T], permission: str | None) -> None:
        self.permission = permission
        self.is_answered = threading.Event()
        self.value: T | None = None
        self.failure: BaseException | None = None
        self._call = call

    def put(self) -> None:
        """Get the answer, or what kept it from coming."""
        try:
            self.value = self._call()
        except BaseException as failure:  # noqa: BLE001  # handed to the thread that asked, which raises what is a bug
            self.failure = failure
        self.is_answered.set()


class Asking:
    """Asks, in threads that nobody waits for at the end. `clock` is the real one: a network knows no other."""

    def __init__(self, clock: Clock, timeout: timedelta) -> None:
        self._clock, self._timeout = clock, timeout
        self.begin()
        self._questions: dict[Hashable, Question[Any]] = {}
        self._waiting: deque[Question[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count the time from now on."""
        self._ends = self._clock.monotonic() + self._timeout

    def ask(self, key: Hashable, call: Callable[[], T], *, permission: str | None = None) -> Question[T]:
        """Put a question, unless the one with this key was put before; `permission` is what its answer takes."""
        if key in self._questions:
            return self._questions[key]
        question = self._questions[key] = Question(call, permission)
        with self._lock:
            self._waiting.append(question)
            if len(self._threads) >= _AT_ONCE:
                return question
            # Not a pool: its threads would keep an interrupted process alive until the last of them has its answer.
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)
        thread.start()
        return question

    @property
    def was_heard(self) -> bool:
        """Tell whether the cloud has answered anything at all, be it that it refuses to."""
        answered = [question for question in self._questions.values() if question.is_answered.is_set()]
        return not all(isinstance(question.failure, ServiceUnavailableError) for question in answered)

    def answer(self, question: Question[T]) -> Fact[T]:
        """Return the answer, at the deadline at the latest.

        Raises `CredentialsError`: who we are is not known, so that no question has an answer.
        """
        left = max(self._ends - self._clock.monotonic(), timedelta())
        if not question.is_answered.wait(left.total_seconds()):
            return Unknown(f"there was no answer within {format_duration(self._timeout)}", is_passing=True)
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
            question.put()


def fact_of(failure: BaseException, permission: str | None = None) -> Absent | Unknown:
    """Return what a failure says of the fact that was asked for. Raises `CredentialsError`, and what is a bug."""
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
