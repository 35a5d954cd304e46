"""The end of a node's time that the user named, and the question before a node's limits change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp, local_time
from tpuctl.errors import InvalidInputError, NotConfirmedError
from tpuctl.nodes.expiry import LONGEST_TIME, SHORTEST_TIME, NodeEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.expiry import LimitChange


# A smaller difference of two clocks does not matter to a time limit.
_CLOCK_TOLERANCE = timedelta(minutes=1)
# A question about several nodes names this many.
_MOST_NAMED = 4


def next_moment(value: timedelta | time | datetime, now: datetime) -> datetime:
    """Return the time that is a duration from now, or the next time of day by the local time zone."""
    if isinstance(value, timedelta):
        return now + value
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    local = local_time(now)
    moment = local.replace(hour=value.hour, minute=value.minute, second=0, microsecond=0)
    return (moment if moment > local else moment + timedelta(days=1)).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The end that the user named for a node's time; None for none."""

    until: timedelta | time | datetime | None = None
    # `--ttl forever`: a new node has no end, whatever the settings say.
    is_unlimited: bool = False

    def end(self, now: datetime) -> NodeEnd | None:
        """Return the end that the user named, None if that of a node stays as it is. `now` is the service's time.

        Raises `InvalidInputError` if it has passed by that clock, which decides: a node would be deleted at once.
        """
        if self.until is None:
            return NodeEnd(None) if self.is_unlimited else None
        end = next_moment(self.until, now)
        check_time_left(f"--until {format_timestamp(end)}", end - now)
        return NodeEnd(end.replace(microsecond=0))

    def applied(self, spec: NodeSpec, now: datetime) -> NodeSpec:
        """Return the spec of a new node with this limit; without one, that of the settings stays."""
        end = self.end(now)
        if end is None:
            return spec
        return replace(spec, ttl=None if end.at is None else end.at - now, expires=end.at)


def check_time_left(what: str, left: timedelta) -> None:
    """Raise `InvalidInputError` unless the time left is at least `SHORTEST_TIME` and at most a year."""
    if left <= timedelta():
        raise InvalidInputError(f"`{what}` is not in the future", hint="name a later time, such as 8h")
    if left < SHORTEST_TIME:
        raise InvalidInputError(
            f"`{what}` is too short: a time limit is at least {format_duration(SHORTEST_TIME)}",
            hint="name a later time, such as 8h; `tpuctl down NODE` deletes a node now",
        )
    if left > LONGEST_TIME:
        raise InvalidInputError(
            f"`{what}` is too long: a time limit is at most {format_duration(LONGEST_TIME)}",
            hint="name a shorter time, or none for a node without a time limit",
        )


def confirm_limits(app: App, changes: Sequence[tuple[Node, LimitChange]], *, yes: bool) -> None:
    """Ask before limits change of a node that would end earlier than it does now and may be in use, or has another owner.

    Raises `NotConfirmedError` if the user refuses, `InvalidInputError` if a question cannot be answered.
    """
    if yes:
        return
    from tpuctl.nodes.usage import find_node_uses  # noqa: PLC0415  # few commands ask

    reasons = {node.name: [*change.objections(node, app.services.owner_label)] for node, change in changes}
    # Only of a node that gets an earlier end does it matter what it does, and not if the question cannot be answered.
    ending = [
        node for node, change in changes if change.shortens(node) and (app.terminal.may_ask or not reasons[node.name])
    ]
    for name, use in find_node_uses(app, ending, counts_leases=False).items() if ending else ():
        if use.uses or (use.unknown and use.was_examined):
            reasons[name].append(f"it {'is' if use.uses else 'may be'} in use: {use.words}")
    asked = [(node, change) for node, change in changes if reasons[node.name]]
    texts = [f"{change.describe(node.name.node_id)} ({'; '.join(reasons[node.name])})" for node, change in asked]
    more = f", and {len(texts) - _MOST_NAMED} more nodes" if len(texts) > _MOST_NAMED else ""
    if texts and not app.terminal.confirm(f"{', '.join(texts[:_MOST_NAMED])}{more}?", yes=False):
        raise NotConfirmedError


def note_clock_difference(app: App) -> None:
    """Say that the clock of this machine differs from the service's by more than a minute. Call it right after an answer."""
    server = None if app.is_sandbox else app.services.client.server_time
    if server is None:
        return
    ahead = app.clock.now() - server
    if abs(ahead) > _CLOCK_TOLERANCE:
        side = "ahead of" if ahead > timedelta() else "behind"
        app.terminal.warn(
            f"the clock of this machine is {format_duration(abs(ahead))} {side} the service's, which decides"
        )
