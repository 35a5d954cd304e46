"""Judge the result of a node: usable by the record of the sandbox, or an exit code that fits its faults, and in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from tests.nodes.simulation.run import RunResult
from tests.nodes.simulation.truth import DEAD, DEFECTIVE, Truth

_MOMENT = timedelta(seconds=1)
# The longest pause between two polls, and the longest time of a call that is refused repeatedly [tpuctl's own limits].
_INTERVAL = timedelta(seconds=16)
_CALL = timedelta(minutes=6)
_SOON = timedelta(minutes=3)


def wrong_ending(truth: Truth) -> Iterator[tuple[datetime, str]]:
    """Yield the faults of a result."""
    ending = truth.history.endings[truth.life.name]
    begin = truth.history.begun[-1]
    words = f"ended with {ending.code} ({ending.words})"
    if ending.is_over:
        check = _CHECKS.get(ending.code)
        fault = check(truth, ending) if check else "which nothing can lead to"
        if fault:
            yield ending.at, f"{words}: {fault}"
        if ending.code not in {0, 4} and (fault := _could_have_been_used(truth, ending)):
            yield ending.at, f"{words}: {fault}"
    yield from _late(truth, ending, begin)
    if not ending.is_over or ending.code == 5:
        yield from _neglected(truth, ending)
    yield from _leaked(truth, ending)


def _late(truth: Truth, ending: RunResult, begin: datetime) -> Iterator[tuple[datetime, str]]:
    timeout = truth.life.goal.timeout
    if timeout is None or not ending.is_over:
        return
    slack = _MOMENT if truth.was_calm(ending.at - _CALL, ending.at) and _no_spells(truth) else _CALL
    if ending.at - begin > timeout + slack:
        yield ending.at, f"ended {ending.at - begin - timeout} after its deadline"


def _no_spells(truth: Truth) -> bool:
    return not any(spell.kind == "slow" for spell in truth.history.plan.weather)


def _usable(truth: Truth, ending: RunResult) -> str | None:
    """Judge the result usable: the record says so at that moment, or at the poll before it."""
    if truth.is_usable(ending.at):
        record = truth.record(ending.at)
        number = record.number if record else None
        return (
            None if ending.node_id == number or not truth.was_calm(ending.at - _CALL, ending.at) else "of another node"
        )
    if truth.is_usable(ending.at - timedelta(milliseconds=1)):
        return None  # a fault hit it at that moment
    if _no_spells(truth) and truth.was_calm(ending.at - _CALL, ending.at):
        return f"but the world had it {truth.phase(ending.at)}"
    return (
        None
        if any(truth.is_usable(ending.at - timedelta(seconds=back)) for back in range(0, 361, 5))
        else "it never was"
    )


def _timed_out(truth: Truth, ending: RunResult) -> str | None:
    timeout, begin = truth.life.goal.timeout, truth.history.begun[-1]
    if timeout is None:
        return "it had no deadline"
    return None if ending.at - begin >= timeout - _MOMENT else f"{ending.at - begin} is before its deadline"


def _not_allowed(truth: Truth, ending: RunResult) -> str | None:
    return None if any(at <= ending.at for at in truth.history.ledger.refused_logins) else "the login was good"


def _not_found(truth: Truth, ending: RunResult) -> str | None:
    record, phase = truth.record(ending.at), truth.phase(ending.at)
    if phase is not None and phase.state != "DELETING" and not _recent(truth, ending.at):
        return f"there is one, {phase.state}"
    goal, begin = truth.life.goal, truth.history.begun[-1]
    deleted = any(h.kind == "delete" and h.at <= ending.at for h in truth.happenings)
    if deleted or not goal.may_change or truth.creation_failed_at(ending.at):
        return None
    was_there = truth.record(begin) is not None
    if not was_there and (not goal.has_spec or goal.command == "watch"):
        return None
    is_going = truth.life.found is not None and truth.life.found.state == "DELETING"
    return None if is_going else f"no client had deleted it: {record}"


def _no_capacity(truth: Truth, ending: RunResult) -> str | None:
    if truth.life.goal.patient:
        return "it was to be patient"
    return None if _failed(truth, ending, 8) else "there was capacity"


def _quota(truth: Truth, ending: RunResult) -> str | None:
    refused = any(c.verb in {"create", "start"} and c.status == 429 and c.at <= ending.at for c in truth.changes)
    return None if refused else "there was quota"


def _internal(truth: Truth, ending: RunResult) -> str | None:
    return None if _failed(truth, ending, 13) else "nothing had failed"


def _invalid(truth: Truth, ending: RunResult) -> str | None:
    return None if _failed(truth, ending, 3) else "nothing was wrong with the request"


def _failed(truth: Truth, ending: RunResult, code: int) -> bool:
    return any(op.error and op.error["code"] == code and op.ended and op.ended <= ending.at for op in truth.operations)


def _conflict(truth: Truth, ending: RunResult) -> str | None:
    """Judge a conflict: the state forbids it, another client interfered, or the node differs."""
    goal, life = truth.life.goal, truth.life
    refused = {400, 409}
    if any(c.status in refused and c.run == len(truth.history.begun) for c in truth.changes):
        return None
    if any(op.error and op.error["code"] == 10 for op in truth.operations):
        return None
    for at in (ending.at, ending.at - timedelta(seconds=30)):
        record, phase = truth.record(at), truth.phase(at)
        if record is None or phase is None:
            continue
        if truth.differs(record) and goal.may_change:
            return None
        if phase.state in DEAD | {"DELETING"} and not goal.may_change:
            return None
        if phase.state == "STOPPED" and (not goal.may_change or life.spot or life.workers > 1):
            return None
    return f"the world had it {truth.phase(ending.at)}"


def _broken(truth: Truth, ending: RunResult) -> str | None:
    limits = truth.life.goal.thresholds
    phase, record = truth.phase(ending.at), truth.record(ending.at)
    if phase is None or record is None:
        return "there is none"
    if phase.state in {"UNKNOWN", "HIDDEN"}:
        return None
    if phase.state != "READY":
        return f"it is {phase.state}"
    lasted = ending.at - truth.since(record, ending.at, with_health=True)
    if phase.health in DEFECTIVE and lasted >= min(limits.unhealthy, limits.recheck):
        return None
    silent = ending.at - truth.deaf_since(record, ending.at)
    if truth.is_deaf(ending.at) and silent >= min(limits.unanswered, limits.recheck):
        return None
    return f"it was READY {phase.health} for {lasted}, its workers {'silent' if truth.is_deaf(ending.at) else 'there'}"


def _recent(truth: Truth, at: datetime) -> bool:
    """Return whether another client changed it just before, so that the last read may not show that."""
    return any(timedelta() <= at - happening.at <= _INTERVAL for happening in truth.happenings)


def _could_have_been_used(truth: Truth, ending: RunResult) -> str | None:
    """Judge a failure: the node must not have been usable for long while the API answered."""
    begin = ending.at - timedelta(seconds=40)
    record = truth.record(ending.at)
    if begin < truth.history.begun[-1] or not truth.was_calm(begin - _CALL, ending.at) or not _no_spells(truth):
        return None
    if record is None or truth.differs(record) or not truth.usable_throughout(begin, ending.at):
        return None
    return "but the world had it usable"


def _neglected(truth: Truth, ending: RunResult) -> Iterator[tuple[datetime, str]]:
    """Judge a node that is not usable at the end of a run that had the time to repair it."""
    at, goal = ending.at, truth.life.goal
    record, phase = truth.record(at), truth.phase(at)
    begin = max(truth.history.begun[-1], at - _SOON)
    if not goal.may_change or not truth.was_calm(at - _CALL - _SOON, at) or begin > at - _SOON or not _no_spells(truth):
        return
    if (
        phase is not None
        and record is not None
        and phase.state in DEAD
        and at - truth.since(record, at, with_health=False) > _SOON
    ):
        yield at, f"a dead record, {phase.state}, was left as it was"
    if phase is None or record is None or phase.state != "READY" or goal.condition == "ready":
        return
    acted = [c.at for c in truth.changes] + [when for when, _ in truth.reboots] + [h.at for h in truth.happenings]
    lasted = at - max(truth.since(record, at, with_health=True), truth.history.begun[-1], *acted)
    if phase.health in DEFECTIVE and lasted > goal.thresholds.unhealthy + _SOON:
        yield at, f"it was {phase.health} for {lasted}, and nothing was done or said"


def _leaked(truth: Truth, ending: RunResult) -> Iterator[tuple[datetime, str]]:
    """Judge the remains: no node bills after a result that says that it does not exist."""
    if ending.code not in {3, 6, 7}:
        return
    record, phase = truth.record(ending.at), truth.phase(ending.at)
    ours = {change.after.number for change in truth.changes if change.verb == "create" and change.after}
    if record is None or phase is None or record.number not in ours or phase.state in DEAD | {"DELETING", "STOPPED"}:
        return
    if not truth.creation_failed(record, ending.at):
        yield ending.at, f"ended with {ending.code}, and left a node in {phase.state} that it had made"


_CHECKS: dict[int, Callable[[Truth, RunResult], str | None]] = {
    0: _usable,
    1: _internal,
    2: _invalid,
    3: _not_found,
    4: _not_allowed,
    5: _timed_out,
    6: _no_capacity,
    7: _quota,
    8: _conflict,
    10: _broken,
}
