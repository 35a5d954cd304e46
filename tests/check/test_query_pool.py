"""Queries: each is sent once, in parallel, with one deadline; every answer and every failure becomes a fact."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.gathering import ApiCall, QueryPool
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


@dataclass(frozen=True)
class Named:
    """A call that equals another of the same key."""

    key: object
    call: Callable[[], Any] = field(compare=False)

    def __call__(self) -> Any:
        return self.call()


def ask(pool: QueryPool, key: object, call: Callable[[], Any], *, permission: str | None = None) -> ApiCall:
    asked = ApiCall.of(permission, Named(key, call))
    pool.start(asked)
    return asked


TIMEOUT = timedelta(seconds=15)
LATE = Unknown("no answer within 15s", is_passing=True)
# Longer than anything here takes: a test that waits for so long has failed.
LONG = 10


@pytest.fixture
def pool(clock: ManualClock) -> QueryPool:
    return QueryPool(clock, TIMEOUT)


def failing(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def test_query_answer_is_known(pool: QueryPool) -> None:
    assert pool.result(ask(pool, "one", lambda: 1)) == Known(1)
    # Nothing is an answer too.
    assert pool.result(ask(pool, "none", lambda: None)) == Known(None)


def test_query_with_same_key_runs_once(pool: QueryPool) -> None:
    calls: list[str] = []

    first = ask(pool, ("bucket", "a"), lambda: calls.append("a"))
    again = ask(pool, ("bucket", "a"), lambda: calls.append("again"))
    other = ask(pool, ("bucket", "b"), lambda: calls.append("b"))
    for query in (first, again, other, first):
        pool.result(query)

    assert sorted(calls) == ["a", "b"]


def test_query_failure_is_not_repeated(pool: QueryPool) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        raise NotFoundError("there is no such thing")

    answers = [pool.result(ask(pool, "one", call)) for _ in range(2)]

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
def test_query_failure_becomes_fact(pool: QueryPool, failure: TpuctlError, fact: Absent | Unknown) -> None:
    assert pool.result(ask(pool, "one", failing(failure), permission="a.b.get")) == fact


class Halt(BaseException):
    """An exception that ends a program, such as an interrupt, and is no `Exception`."""


@pytest.mark.parametrize("failure", [CredentialsError("who are you?"), ZeroDivisionError("a bug"), Halt()])
def test_query_bug_is_raised_with_traceback(pool: QueryPool, failure: BaseException) -> None:
    def the_call_that_broke() -> None:
        raise failure

    query = ask(pool, "one", the_call_that_broke)
    with pytest.raises(type(failure)) as raised:
        pool.result(query)

    assert raised.value is failure
    assert "the_call_that_broke" in {frame.name for frame in traceback.extract_tb(raised.tb)}
    # Its thread goes on with what else was asked.
    assert pool.result(ask(pool, "two", lambda: 2)) == Known(2)


def test_query_pool_runs_at_most_32(pool: QueryPool) -> None:
    begun, all_begun, release = list[int](), threading.Event(), threading.Event()

    def call(number: int) -> int:
        begun.append(number)
        if len(begun) >= 32:
            all_begun.set()
        release.wait(LONG)
        return number

    queries = [ask(pool, number, lambda number=number: call(number)) for number in range(40)]  # type: ignore[misc]  # a default binds it now
    assert all_begun.wait(LONG)
    # Later threads get time to start.
    release.wait(0.05)
    at_once = sorted(begun)
    release.set()

    assert at_once == list(range(32))
    assert [pool.result(query) for query in queries] == [Known(number) for number in range(40)]


def test_query_pool_keeps_order(pool: QueryPool) -> None:
    """One thread is free and takes one query after another; the others are blocked."""
    free, release, begun = threading.Event(), threading.Event(), list[int]()
    ask(pool, "free", lambda: free.wait(LONG))
    for number in range(31):
        ask(pool, f"held up {number}", lambda: release.wait(LONG))
    waiting = [ask(pool, number, lambda number=number: begun.append(number)) for number in range(20)]  # type: ignore[misc]  # as above

    free.set()
    for query in waiting:
        pool.result(query)
    release.set()

    assert begun == list(range(20))


def test_query_pool_replaces_ended_threads(pool: QueryPool) -> None:
    for number in range(100):
        assert pool.result(ask(pool, number, lambda: "said")) == Known("said")


def test_query_pool_does_not_block_exit(pool: QueryPool) -> None:
    release, before = threading.Event(), set(threading.enumerate())
    query = ask(pool, "one", lambda: release.wait(LONG))

    threads = set(threading.enumerate()) - before
    assert threads
    assert all(thread.daemon for thread in threads)
    release.set()
    pool.result(query)


def test_query_pool_deadline_keeps_answers(pool: QueryPool, clock: ManualClock) -> None:
    """All queries share one deadline, counted from `begin` and not from each call of `answer`."""
    release = threading.Event()
    here, pending = ask(pool, "here", lambda: 1), ask(pool, "pending", lambda: release.wait(LONG))
    pool.result(here)
    clock.sleep(TIMEOUT)
    # A caller that waits beyond the deadline gets an answer.
    timer = threading.Timer(0.2, release.set)
    timer.start()

    assert [pool.result(query) for query in (pending, here, pending)] == [LATE, Known(1), LATE]
    timer.join()


def test_query_after_deadline_does_not_wait(pool: QueryPool, clock: ManualClock) -> None:
    release = threading.Event()
    pending = ask(pool, "pending", lambda: release.wait(LONG))
    clock.sleep(TIMEOUT * 100)

    assert pool.result(pending) == LATE
    release.set()


def test_query_pool_begin_resets_deadline(pool: QueryPool, clock: ManualClock) -> None:
    """A late answer may have arrived by the next call, and the query is not sent again."""
    release, calls = threading.Event(), list[int]()

    def call() -> bool:
        calls.append(1)
        return release.wait(LONG)

    query = ask(pool, "one", call)
    clock.sleep(TIMEOUT)
    late = pool.result(query)
    pool.begin()
    threading.Timer(0.05, release.set).start()

    assert (late, pool.result(ask(pool, "one", call)), len(calls)) == (LATE, Known(value=True), 1)


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
    pool: QueryPool, failures: tuple[TpuctlError | None, ...], expected: bool
) -> None:
    release = threading.Event()
    ask(pool, "pending", lambda: release.wait(LONG))
    for number, failure in enumerate(failures):
        pool.result(ask(pool, number, failing(failure) if failure else lambda: 1))

    assert pool.has_answer is expected
    release.set()
