"""A session on a worker that outlives its connection: when that is lost, attach again until the user ends it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import RemoteCommandError, ServiceUnavailableError
from tpuctl.remote.ssh import ProbeOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.clock import Clock
    from tpuctl.remote.foreground import Ran
    from tpuctl.remote.ssh import ProbeResult

_DELAYS = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8, 15))
# So many knocks without an answer, and the node itself is looked at: it may be gone.
_KNOCKS = 3
_REFUSALS = frozenset({ProbeOutcome.KEY_REFUSED, ProbeOutcome.HOST_KEY_CHANGED})


def stay_attached(
    enter: Callable[[], Ran],
    *,
    knock: Callable[[], ProbeResult],
    check: Callable[[], None],
    clock: Clock,
    tell: Callable[[str], None],
) -> Ran:
    """Enter a session, again after each loss of a connection that had been there, and return how it ended for good.

    `enter` attaches, `knock` tries the way quietly, `check` raises where the node is no longer what it was. Waits without
    end for the worker. Raises what `check` raises, and `RemoteCommandError` where the worker refuses us now.
    """
    ran = enter()
    if not ran.has_connected:
        return ran
    while ran.was_lost:
        tell("the connection is lost; the session goes on, and is attached to again as soon as the worker answers")
        _await_answer(knock, check, clock)
        ran = enter()
    return ran


def _await_answer(knock: Callable[[], ProbeResult], check: Callable[[], None], clock: Clock) -> None:
    silent = 0
    while True:
        clock.sleep(_DELAYS[min(silent, len(_DELAYS) - 1)])
        result = knock()
        if result.outcome in _REFUSALS:
            raise RemoteCommandError(f"the worker does not let us in any more: {result.detail}")
        if result.outcome is not ProbeOutcome.UNREACHABLE:
            return
        silent += 1
        if silent % _KNOCKS == 0:
            try:
                check()
            except ServiceUnavailableError:
                continue  # the network is away here: nothing is known of the node
