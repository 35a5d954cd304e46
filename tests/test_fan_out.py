"""One result or one error for each item, side by side."""

from __future__ import annotations

import signal
import threading
import time
from datetime import timedelta

import pytest

from tpuctl.errors import NotFoundError
from tpuctl.fan_out import FanOutTimeoutError, fan_out


def test_outcomes_have_the_order_of_their_items() -> None:
    """Whatever ends first."""

    def double(number: int) -> int:
        time.sleep(0.02 * (3 - number))
        return number * 2

    outcomes = fan_out(double, [0, 1, 2], limit=3)

    assert [(one.item, one.get()) for one in outcomes] == [(0, 0), (1, 2), (2, 4)]


def test_an_error_belongs_to_its_item() -> None:
    """The others have their results, and `get` raises it."""

    def find(name: str) -> str:
        if name == "b":
            raise NotFoundError("no b")
        return name

    outcomes = fan_out(find, ["a", "b", "c"], limit=2)

    assert [one.value for one in outcomes] == ["a", None, "c"]
    with pytest.raises(NotFoundError, match="no b"):
        outcomes[1].get()


def test_no_more_than_the_limit_run_at_once() -> None:
    """Counted inside the function."""
    running, most, lock = 0, 0, threading.Lock()

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    fan_out(work, range(12), limit=3)

    assert most == 3


def test_an_item_that_misses_the_deadline_has_a_timeout_error() -> None:
    """The caller goes on at the deadline, without the thread."""
    release = threading.Event()

    def wait(number: int) -> int:
        if number == 1:
            release.wait(30)
        return number

    outcomes = fan_out(wait, [0, 1], limit=2, deadline=timedelta(seconds=time.monotonic() + 2))
    release.set()

    assert outcomes[0].get() == 0
    assert isinstance(outcomes[1].error, FanOutTimeoutError)


def test_a_bug_is_raised_and_no_further_item_begins() -> None:
    """It is not the outcome of an item."""
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fan_out(work, range(100), limit=1)
    assert begun == [0]


def test_threads_have_ended_when_the_outcomes_are_returned() -> None:
    """Their connections can be used again."""
    threads: set[threading.Thread] = set()

    fan_out(lambda _: threads.add(threading.current_thread()), range(5), limit=2)

    assert not any(thread.is_alive() for thread in threads)


def test_a_signal_that_another_thread_receives_ends_the_wait() -> None:
    """The kernel chooses the thread, and only the waiting one runs the handler."""
    released, ends = threading.Event(), []

    class ArrivedError(Exception):
        pass

    def arrive(_number: int, _frame: object) -> None:
        raise ArrivedError

    def receive(index: int) -> None:
        if index == 1:
            time.sleep(0.05)  # until the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        released.wait(20)
        ends.append("not interrupted")

    before = signal.signal(signal.SIGUSR1, arrive)
    try:
        with pytest.raises(ArrivedError):
            fan_out(receive, [0, 1], limit=2)
        assert ends == []
    finally:
        signal.signal(signal.SIGUSR1, before)
        released.set()
