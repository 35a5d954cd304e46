"""Questions to a cloud: each once, side by side, by one deadline, and what becomes of each answer and each failure."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.gathering import QueryPool
from tpuctl.clock import ManualClock
from tpuctl.errors import (
    AccessError,
    ConflictError,
    CredentialsError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TpuctlError,
)

TIMEOUT = timedelta(seconds=15)
LATE = Unknown("no answer within 15s", is_passing=True)
# Longer than anything here takes: a test that waits for so long has failed.
LONG = 10


@pytest.fixture
def asking(clock: ManualClock) -> QueryPool:
    return QueryPool(clock, TIMEOUT)


def failing(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def test_query_answer_is_known(asking: QueryPool) -> None:
    assert asking.answer(asking.ask("one", lambda: 1)) == Known(1)
    # Nothing is an answer too.
    assert asking.answer(asking.ask("none", lambda: None)) == Known(None)


def test_query_with_same_key_runs_once(asking: QueryPool) -> None:
    calls: list[str] = []

    first = asking.ask(("bucket", "a"), lambda: calls.append("a"))
    again = asking.ask(("bucket", "a"), lambda: calls.append("again"))
    other = asking.ask(("bucket", "b"), lambda: calls.append("b"))
    for question in (first, again, other, first):
        asking.answer(question)

    assert (first is again, sorted(calls)) == (True, ["a", "b"])


def test_query_failure_is_not_repeated(asking: QueryPool) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        raise NotFoundError("there is no such thing")

    answers = [asking.answer(asking.ask("one", call)) for _ in range(2)]

    assert (answers, len(calls)) == ([Absent("there is no such thing")] * 2, 1)


@pytest.mark.parametrize(
    ("failure", "fact"),
    [
        (NotFoundError("no bucket"), Absent("no bucket")),
        (AccessError("refused"), Unknown("refused", "a.b.get")),
        (AccessError("refused", error_id="iam-x"), Unknown("refused", "a.b.get", error_id="iam-x")),
        *(
            (AccessError("refused", error_id=id_), Unknown("refused", None, error_id=id_))
            for id_ in (
                "api-disabled",
                "auth-no-quota-project",
                "billing-disabled",
                "perimeter-violated",
                "project-suspended",
            )
        ),
        (ServiceUnavailableError("down"), Unknown("down", is_passing=True)),
        (OutcomeUnknownError("lost"), Unknown("lost", is_passing=True)),
        (QuotaError("too often", error_id="rate"), Unknown("too often", is_passing=True, error_id="rate")),
        (InvalidRequestError("odd", error_id="odd-id"), Unknown("odd", error_id="odd-id")),
        (ConflictError("two of them"), Unknown("two of them")),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'error_id', '')}",
)
def test_query_failure_becomes_fact(asking: QueryPool, failure: TpuctlError, fact: Absent | Unknown) -> None:
    assert asking.answer(asking.ask("one", failing(failure), permission="a.b.get")) == fact


class Halt(BaseException):
    """What ends a program, such as an interrupt, and is no `Exception`."""


@pytest.mark.parametrize("failure", [CredentialsError("who are you?"), ZeroDivisionError("a bug"), Halt()])
def test_query_bug_is_raised_with_traceback(asking: QueryPool, failure: BaseException) -> None:
    def the_call_that_broke() -> None:
        raise failure

    question = asking.ask("one", the_call_that_broke)
    with pytest.raises(type(failure)) as raised:
        asking.answer(question)

    assert raised.value is failure
    assert "the_call_that_broke" in {frame.name for frame in traceback.extract_tb(raised.tb)}
    # Its thread goes on with what else was asked.
    assert asking.answer(asking.ask("two", lambda: 2)) == Known(2)


def test_query_pool_runs_at_most_32(asking: QueryPool) -> None:
    begun, all_begun, release = list[int](), threading.Event(), threading.Event()

    def call(number: int) -> int:
        begun.append(number)
        if len(begun) >= 32:
            all_begun.set()
        release.wait(LONG)
        return number

    questions = [asking.ask(number, lambda number=number: call(number)) for number in range(40)]  # type: ignore[misc]  # a default binds it now
    assert all_begun.wait(LONG)
    # Later threads get time to start.
    release.wait(0.05)
    at_once = sorted(begun)
    release.set()

    assert at_once == list(range(32))
    assert [asking.answer(question) for question in questions] == [Known(number) for number in range(40)]


def test_query_pool_keeps_order(asking: QueryPool) -> None:
    """One thread is free, and takes one after another; the others are held up."""
    free, release, begun = threading.Event(), threading.Event(), list[int]()
    asking.ask("free", lambda: free.wait(LONG))
    for number in range(31):
        asking.ask(f"held up {number}", lambda: release.wait(LONG))
    waiting = [asking.ask(number, lambda number=number: begun.append(number)) for number in range(20)]  # type: ignore[misc]  # as above

    free.set()
    for question in waiting:
        asking.answer(question)
    release.set()

    assert begun == list(range(20))


def test_query_pool_replaces_ended_threads(asking: QueryPool) -> None:
    for number in range(100):
        assert asking.answer(asking.ask(number, lambda: "said")) == Known("said")


def test_query_pool_does_not_block_exit(asking: QueryPool) -> None:
    release, before = threading.Event(), set(threading.enumerate())
    question = asking.ask("one", lambda: release.wait(LONG))

    threads = set(threading.enumerate()) - before
    assert threads
    assert all(thread.daemon for thread in threads)
    release.set()
    asking.answer(question)


def test_query_pool_deadline_keeps_answers(asking: QueryPool, clock: ManualClock) -> None:
    """The deadline is one for all, counted from the beginning and not from the look at each answer."""
    release = threading.Event()
    here, pending = asking.ask("here", lambda: 1), asking.ask("pending", lambda: release.wait(LONG))
    asking.answer(here)
    clock.sleep(TIMEOUT)
    # A caller that waits beyond the deadline gets an answer.
    timer = threading.Timer(0.2, release.set)
    timer.start()

    assert [asking.answer(question) for question in (pending, here, pending)] == [LATE, Known(1), LATE]
    timer.join()


def test_query_after_deadline_does_not_wait(asking: QueryPool, clock: ManualClock) -> None:
    release = threading.Event()
    pending = asking.ask("pending", lambda: release.wait(LONG))
    clock.sleep(TIMEOUT * 100)

    assert asking.answer(pending) == LATE
    release.set()


def test_query_pool_begin_resets_deadline(asking: QueryPool, clock: ManualClock) -> None:
    """What was late the first time may have come by the next, and is not asked for again."""
    release, calls = threading.Event(), list[int]()

    def call() -> bool:
        calls.append(1)
        return release.wait(LONG)

    question = asking.ask("one", call)
    clock.sleep(TIMEOUT)
    late = asking.answer(question)
    asking.begin()
    threading.Timer(0.05, release.set).start()

    assert (late, asking.answer(asking.ask("one", call)), len(calls)) == (LATE, Known(value=True), 1)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ((), False),
        ((None,), True),
        ((ServiceUnavailableError("down"), ServiceUnavailableError("down")), False),
        ((ServiceUnavailableError("down"), None), True),
        ((ServiceUnavailableError("down"), AccessError("refused")), True),
        ((NotFoundError("no bucket"),), True),
        ((QuotaError("too often"),), True),
    ],
)
def test_query_refusal_counts_as_answer(
    asking: QueryPool, failures: tuple[TpuctlError | None, ...], expected: bool
) -> None:
    release = threading.Event()
    asking.ask("pending", lambda: release.wait(LONG))
    for number, failure in enumerate(failures):
        asking.answer(asking.ask(number, failing(failure) if failure else lambda: 1))

    assert asking.has_answer is expected
    release.set()
