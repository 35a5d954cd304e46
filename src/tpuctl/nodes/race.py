"""Decide a race: one queued resource for the same node in each of several zones, of which the first ACTIVE one wins. Pure.

`decide_race` depends only on what was observed and recorded, never on what this run has done, so that the next run continues
a race that was killed at any moment. Rules:

- Each wanted zone without a request of the race asks once. A zone that refuses, or whose request FAILED, drops out.
- The first ACTIVE request wins. It is recorded before another request is cancelled, so that two that become ACTIVE at the same
  moment never cancel each other. It is reported only when every other request is gone: each of them could bill.
- A zone that does not answer is asked again. It has lost only when it says so itself. While one that may have the node from
  before does not answer, nothing is requested elsewhere: there would be two.
- A request is deleted by the rules of `request_steps`: SUSPENDING is waited for, FAILED and SUSPENDED go without `force`.
- After its deadline, and after all zones have dropped out, a race has no request left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_timestamp
from tpuctl.errors import ServiceUnavailableError, TimedOutError
from tpuctl.models.node import QueuedState
from tpuctl.nodes.queueing import CLEAN_UP_TIME
from tpuctl.nodes.request_steps import ObservedRequest, SendRequestDelete, decide_removal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.errors import TpuctlError
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName

# States in which a request has nodes, or gets some, unless it is cancelled.
_ALIVE = frozenset(
    {
        *(QueuedState.CREATING, QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES),
        *(QueuedState.PROVISIONING, QueuedState.ACTIVE),
    }
)


@dataclass(frozen=True, slots=True)
class ZoneRefusal:
    """Why and when a zone dropped out of a race."""

    error: TpuctlError = field(compare=False)
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceEntry:
    """One zone of a race."""

    name: NodeName
    # The request of a race for this node. None if the API said that there is none, or has never answered.
    request: QueuedResource | None = None
    # The zone did not answer: `request` is from its last answer.
    is_silent: bool = False
    # A create was sent, now or by an earlier run, so that a zone that does not answer may have a request.
    was_sent: bool = False
    # The journal has a node here that was not deleted since: it may be in use.
    may_have_node: bool = False
    # A create was sent so recently that it may not show yet.
    is_pending: bool = False
    # The user asks in this zone.
    is_wanted: bool = True
    # The request cannot win: its deletion has begun, or it is one of an earlier race or for another spec.
    is_leaving: bool = False
    # The time since the service accepted its deletion.
    since_cancel: timedelta | None = None
    refusal: ZoneRefusal | None = None
    # The journal has it as the winner.
    is_winner: bool = False

    @property
    def is_settled(self) -> bool:
        """Return whether it is certain that the race has no request in this zone."""
        return self.request is None and not self.is_pending and not (self.is_silent and self.was_sent)

    @property
    def is_unclear(self) -> bool:
        """Return whether the zone may have the node from before the race, and does not answer."""
        return self.is_silent and self.may_have_node


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRace:
    """All zones of a race, in the order of preference."""

    entries: tuple[RaceEntry, ...]
    # The time until the deadline, negative after it. None without one.
    left: timedelta | None = None
    # The node is not wanted any more, or exists elsewhere: every request is cancelled but that of the recorded winner.
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class EnterZone:
    """Request the node in this zone."""

    name: NodeName


@dataclass(frozen=True, slots=True)
class ChooseWinner:
    """Record the winner. Nothing is cancelled before."""

    name: NodeName


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Delete the request in this zone. `force` deletes its node first; never used while it is SUSPENDING."""

    name: NodeName
    reason: str
    force: bool


@dataclass(frozen=True, slots=True)
class EndRace:
    """Stop: every other request is gone, or `error` names what is left. `winner` is None if there is none."""

    winner: NodeName | None = None
    error: TpuctlError | None = field(default=None, compare=False)


RaceAction = EnterZone | ChooseWinner | CancelRequest | EndRace


_NOT_NEEDED = "it is not needed any more"


def decide_race(seen: ObservedRace) -> tuple[RaceAction, ...]:
    """Return what to do now, empty to look again later. The first rule that matches wins."""
    winner = _find_winner(seen)
    if winner is not None and not winner.is_winner:
        return (ChooseWinner(winner.name),)
    if winner is not None:
        reason = _NOT_NEEDED if seen.is_ending else f"{winner.name.zone} won the race"
        return _cancel_all(seen, reason) or _end(seen, EndRace(winner.name))
    if seen.is_ending:
        return _cancel_all(seen, _NOT_NEEDED) or _end(seen, EndRace())
    if _is_over(seen) or _has_failed(seen):
        # A passed deadline explains more than the zones that dropped out before it.
        error = _timeout_error(seen) if _is_over(seen) else _refused_error(seen)
        return _cancel_all(seen, "the race is over") or _end(seen, EndRace(error=error))
    may_enter = not any(entry.is_unclear for entry in seen.entries)
    actions = (action for entry in seen.entries if (action := _decide_zone(entry)))
    return tuple(action for action in actions if may_enter or not isinstance(action, EnterZone))


def decide_cancel(entry: RaceEntry, reason: str) -> CancelRequest | None:
    """Return how to cancel the request of a zone; None if it is gone, unknown, or ends by itself."""
    if entry.request is None or entry.is_silent:
        return None
    step = decide_removal(ObservedRequest(request=entry.request, since_delete=entry.since_cancel))
    return CancelRequest(entry.name, reason, force=step.force) if isinstance(step, SendRequestDelete) else None


def _decide_zone(entry: RaceEntry) -> RaceAction | None:
    """Decide about one zone while no request has won."""
    request = entry.request
    if request is None:
        is_open = entry.is_wanted and entry.refusal is None and not (entry.is_silent or entry.is_pending)
        return EnterZone(entry.name) if is_open else None
    if entry.is_leaving or not entry.is_wanted or request.state.is_dead:
        return decide_cancel(entry, "it cannot win")
    return None


def _find_winner(seen: ObservedRace) -> RaceEntry | None:
    """Return the recorded winner if it is alive, else the first ACTIVE request."""
    for entry in seen.entries:
        if entry.is_winner and entry.request is not None and entry.request.state in _ALIVE:
            return entry
    if seen.is_ending:
        return None
    return next((entry for entry in seen.entries if _has_won(entry)), None)


def _has_won(entry: RaceEntry) -> bool:
    is_active = entry.request is not None and entry.request.state is QueuedState.ACTIVE
    return is_active and entry.is_wanted and not (entry.is_leaving or entry.is_silent or entry.refusal)


def _is_over(seen: ObservedRace) -> bool:
    return seen.left is not None and seen.left <= timedelta()


def _has_failed(seen: ObservedRace) -> bool:
    """Return whether every zone that the user asks in has dropped out."""
    return all(entry.refusal is not None for entry in seen.entries if entry.is_wanted)


def _cancel_all(seen: ObservedRace, reason: str) -> tuple[RaceAction, ...]:
    """Return the cancellations of all requests but the winner's."""
    others = (entry for entry in seen.entries if not _is_kept(entry))
    return tuple(action for entry in others if (action := decide_cancel(entry, reason)))


def _is_kept(entry: RaceEntry) -> bool:
    return entry.is_winner and entry.request is not None and entry.request.state in _ALIVE


def _end(seen: ObservedRace, result: EndRace) -> tuple[RaceAction, ...]:
    """Return the end of the race once no request is left; an error if one is left long after the deadline."""
    others = [entry for entry in seen.entries if not _is_kept(entry)]
    rest = [entry for entry in others if not entry.is_settled or (result.winner and entry.is_unclear)]
    if not rest:
        return (result,)
    if seen.left is not None and -seen.left >= CLEAN_UP_TIME:
        return (EndRace(result.winner, left_error(rest)),)
    return ()


def _timeout_error(seen: ObservedRace) -> TimedOutError:
    node_id, zones = seen.entries[0].name.node_id, sum(entry.is_wanted for entry in seen.entries)
    return TimedOutError(
        f"{f'none of {zones} zones had a' if zones > 1 else 'there was no'} TPU for `{node_id}` in time; "
        "every request is cancelled",
        details=_answers(seen),
        hint=f"wait longer with `tpuctl up {node_id} --timeout 12h`, or ask in more zones with `--zone any`",
    )


def _refused_error(seen: ObservedRace) -> TpuctlError:
    """Return the error of the zone that dropped out first, with those of the others as details."""
    refusals = [entry.refusal for entry in seen.entries if entry.is_wanted and entry.refusal]
    first = min(refusals, key=lambda refusal: refusal.at).error
    node_id = seen.entries[0].name.node_id
    return type(first)(
        f"no zone is left in the race for `{node_id}`:",
        details=_answers(seen),
        hint=first.hint,
        error_id=first.error_id,
    )


def _answers(seen: ObservedRace) -> list[str]:
    """Return the refusals of the zones, and which zones do not answer."""
    lines = []
    for entry in seen.entries:
        if entry.is_wanted and entry.refusal:
            at = format_timestamp(entry.refusal.at)
            lines.append(f"  {entry.name.zone} at {at}: {entry.refusal.error.lines[0]}")
        elif entry.is_wanted and entry.is_silent:
            lines.append(f"  {describe_entry(entry)}")
    return lines


def left_error(rest: Sequence[RaceEntry]) -> ServiceUnavailableError:
    """Return the error that names the requests that are left, and the command that cancels them."""
    node_id = rest[0].name.node_id
    return ServiceUnavailableError(
        f"{len(rest)} of the requests for `{node_id}` may still get a TPU that bills:",
        details=[f"  {describe_entry(entry)}" for entry in rest],
        hint=f"`tpuctl down {node_id}` cancels them",
    )


def is_being_deleted(entry: RaceEntry) -> bool:
    """Return whether the service deletes the request already."""
    return entry.request is not None and not entry.is_silent and entry.request.state is QueuedState.DELETING


def describe_entry(entry: RaceEntry) -> str:
    """Return the zone and the state of its request in words."""
    if entry.is_silent:
        return f"{entry.name.zone} does not answer"
    if entry.request is not None:
        return f"{entry.name.zone} {entry.request.state}"
    return f"{entry.name.zone} {'requested' if entry.is_pending else 'has no request'}"
