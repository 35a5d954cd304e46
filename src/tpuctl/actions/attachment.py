"""A session on a worker that outlives its connection: reconnect until the user ends it."""

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
# After so many probes without an answer the node itself is checked: it may be gone.
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
    """Enter a session, reconnect after each lost connection, and return how it ended in the end.

    `enter` attaches to the session, `knock` probes the connection, `check` raises if the node has changed. Waits for the worker
    without a time limit. Raises what `check` raises, and `RemoteCommandError` if the worker no longer accepts the key.
    """
    ran = enter()
    if not ran.has_connected:
        return ran
    while ran.was_lost:
        tell("connection lost; the session continues: reconnecting as soon as the worker answers")
        _await_answer(knock, check, clock)
        ran = enter()
    return ran


def _await_answer(knock: Callable[[], ProbeResult], check: Callable[[], None], clock: Clock) -> None:
    silent = 0
    while True:
        clock.sleep(_DELAYS[min(silent, len(_DELAYS) - 1)])
        result = knock()
        if result.outcome in _REFUSALS:
            raise RemoteCommandError(f"the worker no longer accepts ssh: {result.detail}")
        if result.outcome is not ProbeOutcome.UNREACHABLE:
            return
        silent += 1
        if silent % _KNOCKS == 0:
            try:
                check()
            except ServiceUnavailableError:
                continue  # this machine is offline: the state of the node is unknown
