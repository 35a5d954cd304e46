"""Judge changes and results by the record of the sandbox and the rules of the design. Imports nothing of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.nodes.simulation.ledger import Change
from tests.nodes.simulation.outcomes import wrong_ending
from tests.nodes.simulation.run import History
from tests.nodes.simulation.truth import DEAD, DEFECTIVE, STUCK, Truth
from tpuctl.sandbox.lifecycle import phase_at
from tpuctl.sandbox.state_session import NodeRecord

# A change may be sent again for this long [tpuctl's own limit for changes]; older answers are too old to act on.
_STALE = timedelta(seconds=90)
_LOGIN = timedelta(minutes=7)


def judge(history: History) -> list[str]:
    """Return the violations, each with the node and the time; empty if there are none."""
    found = [*_login(history)]
    for life in history.plan.lives:
        truth = Truth(history, life)
        for moment, fault in (*_faults(truth), *wrong_ending(truth)):
            found.append(f"{life.node_id} at {_offset(history, moment)}: {fault}")
    return found


def _offset(history: History, moment: datetime) -> str:
    return f"+{(moment - history.begun[0]).total_seconds():.1f}s"


def _faults(truth: Truth) -> Iterator[tuple[datetime, str]]:
    for change in truth.changes:
        if not truth.life.goal.may_change:
            yield change.at, f"{change.verb} by a command that only waits"
        if change.blind:
            yield change.at, f"{change.verb} although the last read had failed"
        if change.look is not None and change.at - change.look.at > _STALE:
            yield change.at, f"{change.verb} on an answer {change.at - change.look.at} ago"
        match change.verb:
            case "create":
                yield from _wrong_create(truth, change)
            case "delete":
                yield from _wrong_delete(truth, change)
            case "stop":
                yield from _wrong_stop(truth, change)
            case "start":
                yield from _wrong_start(truth, change)
    for at, run in truth.reboots:
        record = truth.record(at)
        if record and (fault := _not_repairable(truth, record, at, rung="reboot")):
            yield at, f"rebooted in run {run} although {fault}"
    yield from _budgets(truth)


def _wrong_create(truth: Truth, change: Change) -> Iterator[tuple[datetime, str]]:
    life, goal = truth.life, truth.life.goal
    look = change.look
    if look is not None and look.node_id is not None and not _repeated(truth, change):
        yield change.at, f"create although the last read showed a node in {look.state}"
    if not goal.has_spec and goal.command == "up" and not _has_seen(truth, change):
        yield change.at, "create without a spec"
    ended = _end_of_last(truth, change)
    if change.is_accepted and ended == "another client" and not goal.recreate_deleted:
        yield change.at, "create after another client had deleted the node"
    scheduling = change.after.document["schedulingConfig"] if change.is_accepted and change.after else {}
    if change.is_accepted and bool(scheduling.get("spot")) != life.spot:
        yield change.at, "created with another tier than asked for"


def _repeated(truth: Truth, change: Change) -> bool:
    """Return whether this repeats a create whose answer was lost."""
    earlier = [other for other in truth.changes if other.verb == "create" and other.answered <= change.at]
    return any(other is not change and other.status != 200 and change.at - other.at < _STALE for other in earlier)


def _has_seen(truth: Truth, change: Change) -> bool:
    """Return whether an earlier node is recreated with its spec."""
    return any(at < change.at and record for at, record in truth.history.ledger.snapshots[truth.life.name])


def _end_of_last(truth: Truth, change: Change) -> str | None:
    """Return who ended the node that this run saw before: `us`, `another client`, or the failed creation; None if none did."""
    begin = truth.history.begun[change.run - 1]
    known = [(other.at, "us") for other in truth.changes if other.verb == "delete" and other.is_accepted]
    known += [
        (happening.at, "another client")
        for happening in truth.happenings
        if happening.kind == "delete" and _was_seen_alive(truth, happening.at, begin)
    ]
    known += [(op.ended, "failed") for op in truth.operations if op.verb == "create" and op.error and op.ended]
    ends = sorted(entry for entry in known if begin <= entry[0] <= change.at)
    if any(who == "us" for _, who in ends) and ends[-1][1] == "another client":
        # Two deletions of one node: the first counts.
        numbers = {op.incarnation for op in truth.operations if op.verb == "create" and op.created <= ends[-1][0]}
        return ends[-1][1] if len(numbers) > len(ends) - 1 else "us"
    return ends[-1][1] if ends else None


def _was_seen_alive(truth: Truth, at: datetime, begin: datetime) -> bool:
    """Return whether a run had the time to observe the node before its deletion."""
    record = truth.record(at - timedelta(milliseconds=1))
    phase = phase_at(record.timeline, at - timedelta(milliseconds=1)) if record else None
    if record is None or phase is None or phase.state in DEAD | {"DELETING"}:
        return False
    if any(op.error and op.error["code"] != 10 for op in truth.operations if op.verb == "create"):
        return False
    about = {truth.life.name, truth.life.name.partition("/nodes/")[0]}
    first = max(begin, record.timeline[0].at)
    return any(
        read.status == 200 and first <= read.at < at and read.about in about for read in truth.history.ledger.reads
    )


def _wrong_delete(truth: Truth, change: Change) -> Iterator[tuple[datetime, str]]:
    record, look = change.before, change.look
    if record is None or not change.is_accepted or change.met_others:
        return
    if look is None or look.node_id != record.number:
        yield change.at, f"deleted {record.number}, which the last read did not show"
        return
    reason = _why_delete(truth, record, change.at) or _why_delete(truth, record, look.at)
    phase = phase_at(record.timeline, change.at)
    if reason is None and phase is not None:
        yield (
            change.at,
            f"deleted a node in {phase.state} {phase.health}: {_not_repairable(truth, record, change.at, rung='recreate')}",
        )


def _why_delete(truth: Truth, record: NodeRecord, at: datetime) -> str | None:
    """Return what allows a delete at that time: it is dead, its creation failed, it differs, or needs repair."""
    phase, goal = phase_at(record.timeline, at), truth.life.goal
    if phase is None:
        return None
    if phase.state in DEAD:
        return "dead"
    if phase.state == "DELETING":
        return "going anyway"
    if phase.state == "CREATING":
        return "failed" if truth.creation_failed(record, at) else None
    if goal.replace and truth.differs(record):
        return "differs"
    return None if _not_repairable(truth, record, at, rung="recreate") else "repair"


def _wrong_stop(truth: Truth, change: Change) -> Iterator[tuple[datetime, str]]:
    if truth.life.workers > 1:
        yield change.at, "stop of a slice, which the service refuses"
    if truth.life.spot:
        yield change.at, "stop of a spot node, which cannot be started again"
    look, record = change.look, change.before
    if record is None or not change.is_accepted or change.met_others:
        return
    if look is None or look.node_id != record.number:
        yield change.at, f"stopped {record.number}, which the last read did not show"
    elif (fault := _not_repairable(truth, record, change.at, rung="restart")) and _not_repairable(
        truth, record, look.at, rung="restart"
    ):
        yield change.at, f"stopped although {fault}"


def _wrong_start(truth: Truth, change: Change) -> Iterator[tuple[datetime, str]]:
    if not change.is_accepted or truth.life.goal.command != "watch":
        return
    stops = [other for other in truth.changes if other.verb == "stop" and other.is_accepted and other.at < change.at]
    if not stops:
        yield change.at, "a watch started a node that it had not stopped"


_LADDER = ("none", "reboot", "restart", "recreate")


def _not_repairable(truth: Truth, record: NodeRecord, at: datetime, *, rung: str) -> str | None:
    """Return why that repair is not allowed at a time; None if it is."""
    goal, phase = truth.life.goal, phase_at(record.timeline, at)
    limits = goal.thresholds
    if phase is None:
        return "there is none"
    if _LADDER.index(goal.repair) < _LADDER.index(rung):
        return f"repair goes as far as {goal.repair}"
    if phase.state in STUCK:
        lasted = at - truth.since(record, at, with_health=False)
        return None if lasted >= limits.stuck and rung != "reboot" else f"it has been {phase.state} for only {lasted}"
    if phase.state != "READY":
        return f"it is {phase.state}"
    if goal.condition == "ready":
        return "all that was asked for is there"
    lasted = at - truth.since(record, at, with_health=True)
    is_deaf, is_sick = truth.is_deaf(at, record), phase.health in DEFECTIVE
    if not is_sick and not (is_deaf and truth.history.plan.can_ask):
        return f"nothing is wrong with it, {phase.health or 'no health'}"
    if not is_sick and phase.health not in {"HEALTHY", ""}:
        return f"it is {phase.health}"
    if is_sick and lasted < min(limits.unhealthy, limits.recheck):
        return f"it has been {phase.health} for only {lasted}"
    silent_for = at - truth.deaf_since(record, at)
    if not is_sick and silent_for < min(limits.unanswered, limits.recheck):
        return f"its workers have been silent for only {silent_for}"
    return _untouchable(truth, record, at, is_deaf=is_deaf)


def _untouchable(truth: Truth, record: NodeRecord, at: datetime, *, is_deaf: bool) -> str | None:
    """Return why a defective node must not be repaired: it may be in use."""
    goal, found, life = truth.life.goal, truth.life.found, truth.life
    if goal.forced:
        return None
    first = truth.history.ledger.snapshots[life.name][0][1]
    is_first = first is not None and first.number == record.number
    if is_first and found and found.in_use and truth.history.plan.can_ask and not (is_deaf and life.workers == 1):
        return "a process holds its TPU"
    is_ours = any(
        change.after and change.after.number == record.number and change.verb in {"create", "start", "stop"}
        for change in truth.changes
        if change.at <= at
    )
    was_young = any(phase.state == "CREATING" for phase in record.timeline)
    is_silent = is_deaf and life.workers == 1 and truth.history.plan.can_ask
    if goal.command == "watch" and truth.history.plan.can_ask:
        return None  # a keeper repairs a node that is not in use
    if not is_ours and not was_young and not is_silent:
        return "it was there before, and a worker answers"
    return None


def _budgets(truth: Truth) -> Iterator[tuple[datetime, str]]:
    """Count repairs: for each run of `up`, and over all runs of a watch."""
    goal = truth.life.goal
    runs = range(1, len(truth.history.begun) + 1)
    groups = [set(runs)] if goal.command == "watch" else [{run} for run in runs]
    recreated = [happening.at for happening in truth.happenings if happening.kind in {"recreate", "interlope"}]
    for group in groups:
        reboots = [at for at, run in truth.reboots if run in group]
        stops = [c.at for c in truth.changes if c.verb == "stop" and c.is_accepted and c.run in group]
        deletes = [c.at for c in truth.changes if c.run in group and _is_repair(truth, c)]
        for what, times, limit in (
            ("reboots", reboots, goal.max_reboots),
            ("restarts", stops, goal.max_restarts),
            ("recreations", deletes, goal.max_recreates),
        ):
            # A recreated node has full budgets.
            if len(times) > limit * (1 + len(recreated)):
                yield times[-1], f"{len(times)} {what} where {limit} are allowed"


def _is_repair(truth: Truth, change: Change) -> bool:
    if change.verb != "delete" or not change.is_accepted or change.before is None or change.look is None:
        return False
    why = _why_delete(truth, change.before, change.look.at) or _why_delete(truth, change.before, change.at)
    return why == "repair"


def _login(history: History) -> Iterator[str]:
    """Judge the time after credentials expired: no change, and a prompt end with exit code 4."""
    refused = history.ledger.refused_logins
    if not refused:
        return
    begin = refused[0]
    for change in history.ledger.changes:
        if change.at > begin and change.status not in {401, 403}:
            yield f"{change.verb} of {change.name} after the login had ended"
    for life in history.plan.lives:
        ending = history.endings[life.name]
        if ending.at > begin and ending.code != 4:
            yield f"{life.node_id} ended with {ending.code} after the login had ended"
    if history.ended - begin > _LOGIN:
        yield f"it went on for {history.ended - begin} after the login had ended"
