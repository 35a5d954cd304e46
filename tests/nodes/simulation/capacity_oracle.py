"""Judge a life that looks for capacity by the record of its sandbox. Imports nothing of the code that it judges."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.nodes.simulation.capacity_life import NODE
from tests.nodes.simulation.capacity_run import CapacityHistory, CommandResult
from tests.nodes.simulation.capacity_world import ResourceKey, SentWrite, moments
from tests.nodes.simulation.clock import BEGIN

_NODE_ENDS = frozenset({"PREEMPTED", "TERMINATED", "DELETING"})
_REQUEST_ENDS = frozenset({"SUSPENDING", "SUSPENDED", "FAILED", "DELETING"})
# How long a run may go on after its deadline: to delete the record of its request, and for one call that is refused repeatedly.
_GRACE = timedelta(minutes=9)
# A preempted node comes back within this time in a world with capacity.
_RECOVERY = timedelta(minutes=20)


def judge_capacity(history: CapacityHistory) -> list[str]:
    """Return the violations, each with its time; empty if there are none."""
    found = (*_crowds(history), *_wrong_writes(history), *_results(history), *_ends(history))
    return [f"at +{(at - BEGIN).total_seconds():.1f}s: {fault}" for at, fault in found]


def claims(history: CapacityHistory, states: dict[ResourceKey, str]) -> set[str]:
    """Return the zones in which tpuctl has, or waits for, a node of the name."""
    return {
        key.zone
        for key, state in states.items()
        if key not in history.world.foreign
        and key.resource_id == NODE
        and state not in (_NODE_ENDS if key.kind == "nodes" else _REQUEST_ENDS)
    }


def _crowds(history: CapacityHistory) -> Iterator[tuple[datetime, str]]:
    """Yield the moments with more than one node of the name, requested or there."""
    for at, states in moments(history.world.snapshots):
        zones = claims(history, states)
        if len(zones) > 1:
            yield at, f"`{NODE}` is in {', '.join(sorted(zones))} at the same time"
            return


def _wrong_writes(history: CapacityHistory) -> Iterator[tuple[datetime, str]]:
    seen: dict[str, SentWrite] = {}
    for write in history.world.writes:
        state = write.target()
        if write.is_forced and state == "SUSPENDING":
            yield write.at, f"{write.verb} of a SUSPENDING request with force"
        if write.is_forced and state in {"FAILED", "SUSPENDED"}:
            yield write.at, f"{write.verb} of a {state} request with force"
        if write.verb != "create":
            continue
        if write.request_id:
            first = seen.setdefault(write.request_id, write)
            if first.zone != write.zone or first.run != write.run:
                yield write.at, "one requestId for two requests"
            if first is not write:
                continue
        elif write.kind == "queuedResources":
            yield write.at, "create of a queued resource without a requestId"
        own = {key: state for key, state in write.before.items() if key not in history.world.foreign}
        if zones := claims(history, own):
            yield write.at, f"create in {write.zone} while {', '.join(sorted(zones))} has or requests the node"


def _results(history: CapacityHistory) -> Iterator[tuple[datetime, str]]:
    """Judge the exit codes by what can lead to them, and the time that each command took."""
    kinds = {event.kind for event in history.life.events}
    for number, result in enumerate(history.results, 1):
        if result.code is None:
            continue
        before = history.results[number - 2] if number > 1 else None
        words = f"{result.plan.command} ended with {result.code} ({result.words})"
        took = result.ended - result.begun
        if took > result.plan.timeout + _GRACE:
            yield result.ended, f"{words} after {took}, {took - result.plan.timeout} after its deadline"
        if result.plan.command == "watch" and result.code == 3 and not (before and _is_anything_left(before)):
            continue  # there was no node to watch
        if fault := _wrong_code(history, result, kinds, took) or _left_behind(history, number, result, kinds):
            yield result.ended, f"{words}: {fault}"


# What can lead to an exit code, and what is wrong without it.
_ALL_CALLS = frozenset({"http-error", "drop-before", "drop-after", "slow", "unreachable"})
_OTHERS = frozenset({"delete-node", "delete-request", "create-node", "suspend"})
_CAUSES = {
    1: (_ALL_CALLS | {"fails"}, "the API answered"),
    3: (_OTHERS, "no other client deleted it"),
    6: (frozenset({"stock", "fails"}), "there was capacity"),
    7: (frozenset({"quota", "http-error"}), "there was quota"),
    8: (_OTHERS, "no other client did anything"),
}


def _wrong_code(history: CapacityHistory, result: CommandResult, kinds: set[str], took: timedelta) -> str | None:
    """Return why an exit code is wrong."""
    if result.code == 0:
        return _false_success(history, result)
    if result.code == 5:
        # A request with a limit of its own, from an earlier run, ends before; a rest of a minute is too short for another.
        is_late = history.life.queue_for or took >= result.plan.timeout - timedelta(minutes=2)
        # A request of an earlier run may fall back in the calm world too.
        may_expire = result.begun < history.calm_since or "fall-back" in kinds
        return None if is_late and may_expire else f"too early, after {took}"
    if result.code == 6 and history.life.is_queued and len(history.life.zones) > 1:
        return None  # its share of the time was too short for each zone
    causes, words = _CAUSES.get(result.code or 0, (frozenset(), "nothing can lead to that"))
    return None if kinds & causes else words


def _is_anything_left(result: CommandResult) -> bool:
    return any(state != "DELETING" for state in result.left.values())


def _left_behind(history: CapacityHistory, number: int, result: CommandResult, kinds: set[str]) -> str | None:
    """Return what an `up` without success left of the request that it made, which could still get a node."""
    if result.plan.command != "up" or result.code not in {5, 6, 7} or history.life.queue_for:
        return None
    runs = [write.run for write in history.world.writes if (write.verb, write.kind) == ("create", "queuedResources")]
    made_by = max((run for run in runs if run <= number), default=None)
    was_hindered = any(result.ended - _GRACE <= at <= result.ended for at in history.world.troubles)
    if "survives-delete" in kinds or was_hindered or made_by != number:
        return None
    waiting = {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED"}
    left = {key: state for key, state in result.left.items() if key.kind == "queuedResources" and state in waiting}
    return f"it left {left}" if left else None


def _false_success(history: CapacityHistory, result: CommandResult) -> str | None:
    """Return why a success is none."""
    if result.plan.command == "up":
        ready = [key for key, state in result.left.items() if key.kind == "nodes" and state == "READY"]
        return None if ready else f"but there was {result.left}"
    if result.plan.command == "down":
        left = {key: state for key, state in result.left.items() if key not in history.world.foreign}
        return f"but there was {left}" if left else None
    return None


def _ends(history: CapacityHistory) -> Iterator[tuple[datetime, str]]:
    """Judge the last `up`, the last `down`, and the watch before them."""
    *_, last_up, last_down = history.results
    if last_up.code != 0:
        yield last_up.ended, f"the last up ended with {last_up.code} ({last_up.words}) in a calm world"
    else:
        nodes = [state for key, state in last_up.left.items() if key.kind == "nodes"]
        requests = [(key.zone, state) for key, state in last_up.left.items() if key.kind == "queuedResources"]
        zones = {key.zone for key in last_up.left}
        if nodes != ["READY"] or len(zones) != 1 or requests not in ([], [(*zones, "ACTIVE")]):
            yield last_up.ended, f"the last up left {last_up.left}"
    if last_down.code != 0:
        yield last_down.ended, f"the last down ended with {last_down.code} ({last_down.words})"
    if history.usage:
        yield last_down.ended, f"{history.usage} chips still count against the quota"
    if history.aftermath:
        yield last_down.ended, f"later there was {history.aftermath}"
    for result in history.results:
        if result.plan.command == "watch":
            yield from _watched(history, result)


def _watched(history: CapacityHistory, result: CommandResult) -> Iterator[tuple[datetime, str]]:
    """Judge a watch that had the time to bring the node back."""
    kinds = {event.kind for event in history.life.events}
    if result.code != 0 or result.ended - BEGIN < history.life.calm_from + _RECOVERY:
        return
    if kinds & {"delete-node", "delete-request", "create-node"}:
        return
    if not any(key.kind == "nodes" and state == "READY" for key, state in result.left.items()):
        yield result.ended, f"the watch ended without a node: {result.left}"
