"""Do the same for many items at once: one result or one error for each, in their order."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

from tpuctl.clock import with_current_deadlines
from tpuctl.errors import TimedOutError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The kernel may deliver a signal to any thread. One that runs on another thread does not end a wait of the main thread, so
# that Ctrl-C would have to wait for the slowest item.
_SIGNAL_POLL = 0.2

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class FanOutTimeoutError(TimedOutError):
    """The deadline passed before the function returned for this item. It may still run, and its result is dropped."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[ItemT, ResultT]):
    """What the function returned for one item, or the error that it raised."""

    item: ItemT
    value: ResultT | None = None
    error: TpuctlError | None = None

    def get(self) -> ResultT:
        """Return the value. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # without an error it is what the function returned


def fan_out(
    function: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    *,
    limit: int,
    deadline: timedelta | None = None,
) -> list[Outcome[ItemT, ResultT]]:
    """Call `function` for each item, at most `limit` at once, and return the outcomes in the order of the items.

    A `TpuctlError` belongs to its item; any other exception is raised here at once, and no further item begins. `deadline` is
    a moment of `time.monotonic()`: an item without a result by then has a `FanOutTimeoutError`. Limits of cloud calls in this
    thread apply in the others.
    """
    all_items = list(items)
    if not all_items:
        return []
    if len(all_items) == 1 and deadline is None:
        return [_outcome(function, all_items[0])]
    waiting = deque(enumerate(all_items))
    outcomes: dict[int, Outcome[ItemT, ResultT]] = {}
    bugs: list[BaseException] = []
    progress = threading.Condition()

    @with_current_deadlines
    def work() -> None:
        try:
            while waiting:
                try:
                    index, item = waiting.popleft()
                except IndexError:  # another thread took it
                    break
                outcome = _outcome(function, item)
                with progress:
                    outcomes[index] = outcome
                    progress.notify()
        except BaseException as bug:  # noqa: BLE001  # raised by the calling thread
            with progress:
                bugs.append(bug)
                progress.notify()

    # Daemon threads, not a pool: a pool would keep an interrupted process alive until the last answer.
    threads = [threading.Thread(target=work, name="fan-out", daemon=True) for _ in range(min(limit, len(all_items)))]
    for thread in threads:
        thread.start()
    try:
        with progress:
            until = inf if deadline is None else deadline.total_seconds()
            while not (is_complete := bool(bugs) or len(outcomes) == len(all_items)):
                if (left := until - time.monotonic()) <= 0:
                    break
                progress.wait(min(left, _SIGNAL_POLL))
            found = dict(outcomes)
    finally:
        waiting.clear()
    if bugs:
        raise bugs[0]
    if is_complete:
        for thread in threads:  # so that their connections can be used again
            thread.join()
    late = FanOutTimeoutError("timed out")
    return [found.get(index) or Outcome(item, error=late) for index, item in enumerate(all_items)]


def _outcome(function: Callable[[ItemT], ResultT], item: ItemT) -> Outcome[ItemT, ResultT]:
    try:
        return Outcome(item, function(item))
    except TpuctlError as error:
        return Outcome(item, error=error)
