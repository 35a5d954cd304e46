"""`TTLCache`: one thread fetches for all; a failure is raised in all waiting threads and not cached."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tpuctl.clock import ManualClock
from tpuctl.cloud.requests import TTLCache


def test_answer_is_cached_for_a_minute_by_its_key() -> None:
    clock = ManualClock()
    memory = TTLCache[int](clock)
    answers = iter(range(9))

    def ask() -> int:
        return memory.get_or_load("p", lambda: next(answers))

    first = (ask(), memory.get_or_load("other", lambda: next(answers)), ask())
    clock.sleep(timedelta(seconds=59))
    second = ask()
    clock.sleep(timedelta(seconds=1))

    assert (first, second, ask()) == ((0, 1, 0), 0, 2)


def test_failure_is_raised_in_waiting_threads_and_not_cached() -> None:
    memory = TTLCache[str](ManualClock())
    asks, may_end, has_begun = [], threading.Event(), threading.Event()
    raised: list[str] = []

    def fail() -> str:
        asks.append(threading.current_thread())
        has_begun.set()
        assert may_end.wait(10)
        raise LookupError("down")

    def work() -> None:
        try:
            memory.get_or_load("p", fail)
        except LookupError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    threads[0].start()
    assert has_begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    threading.Timer(0.05, may_end.set).start()
    with pytest.raises(LookupError):
        memory.get_or_load("p", fail)
    for thread in threads:
        thread.join()

    assert (raised, memory.get_or_load("p", lambda: "up")) == (["down"] * 3, "up")
    assert len(asks) in {1, 2}  # a thread that came after the end asks for itself
