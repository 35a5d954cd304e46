"""Deletions that the service did not accept for now are sent again until the deadline: until then the node may be billed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import OutcomeUnknownError, QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.models.events import EventKind
from tpuctl.nodes.polling import poll_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext


@dataclass(frozen=True, slots=True)
class RefusedDeletion:
    """A deletion that failed. `send` sends it again, after it has checked that the same node has the name."""

    name: NodeName
    error: TpuctlError
    send: Callable[[], None]


def repeat_deletions(
    context: ActionContext, failed: Sequence[RefusedDeletion], *, until: timedelta | None
) -> list[TpuctlError | None]:
    """Send failed deletions again, in rounds, until each is accepted or finally refused, or until `until`.

    Return the last error of each, None of those that were accepted.
    """
    clock = context.clock
    started = clock.monotonic()
    errors: list[TpuctlError | None] = [one.error for one in failed]
    waiting = {number: one for number, one in enumerate(failed) if is_passing(one.error)}
    while waiting:
        waited = clock.monotonic() - started
        pause = max([poll_interval(waited), *(one.error.retry_after or timedelta() for one in waiting.values())])
        left = None if until is None else until - clock.monotonic()
        if left is not None and left <= pause:
            break
        for one in waiting.values():
            text = f"its deletion was not accepted, and is sent again: {one.error.lines[0]}"
            context.report(EventKind.WAIT, one.name, text, in_state=waited.total_seconds())
        clock.sleep(pause)
        for number, one in tuple(waiting.items()):
            left = None if until is None else until - clock.monotonic()
            try:
                with limit_cloud_calls(clock, left, grace=DEADLINE_GRACE):
                    one.send()
            except TpuctlError as error:
                errors[number], waiting[number] = error, replace(one, error=error)
                if not is_passing(error):
                    del waiting[number]
            else:
                errors[number] = None
                del waiting[number]
    return errors


def add_what_is_left(error: TpuctlError, node: Node | None) -> None:
    """Say in the hint of a failed deletion that its node still exists, if that is certain."""
    if node is None or isinstance(error, OutcomeUnknownError) or not is_passing(error):
        return
    name = node.name
    bills = "" if node.state.is_dead else " and bills while it runs"
    left = f"`{name.node_id}` was left {node.state}{bills}; delete it with `tpuctl down {name.zone}/{name.node_id}`"
    error.hint = f"{error.hint}\n{left}" if error.hint else left


def is_passing(error: TpuctlError) -> bool:
    """Return whether the service did not answer, or limits requests: a deletion needs no quota."""
    return isinstance(error, ServiceUnavailableError | QuotaError)
