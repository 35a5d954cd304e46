"""`tpuctl watch`: keep nodes usable, until told to stop.

It keeps nothing but the journal: a run that was killed is continued by the next one, from what it finds.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.actions.ensure_ready import arrived, given_up
from tpuctl.actions.fleet import Fleet
from tpuctl.actions.history import is_being_made_anew
from tpuctl.actions.holding import EndedError
from tpuctl.errors import AccessError, ConflictError, NodeNotFoundError, NotFoundError, TpuctlError
from tpuctl.events import EventKind
from tpuctl.model import NodeState
from tpuctl.readiness import Create, Delete, GiveUp, Goal, Reached, Reboot, Restart, Start, Wait
from tpuctl.timing import budget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.actions.cloud import Context
    from tpuctl.actions.observation import Task
    from tpuctl.actions.pursuit import Pursuit
    from tpuctl.names import NodeName

# How often a node that is usable is looked at: one list call serves all of a zone.
_AT_REST = timedelta(seconds=15)


def watch(
    context: Context, tasks: Sequence[Task], *, until: timedelta | None, each_round: Callable[[], None]
) -> list[TpuctlError]:
    """Keep nodes usable until `until` has passed, or nothing more can be done for any. Returns why each was given up.

    A node that was given up is looked at as long as there are others: it may be mended by hand. `each_round` is called
    after each look. Raises `AccessError` as soon as the credentials do not work any more, and
    `ConflictError` where somebody else looks after a node already.
    """
    started = context.clock.monotonic()
    end = None if until is None else started + until
    fleet = Fleet(context, [_continued(context, task) for task in tasks])
    errors: dict[NodeName, TpuctlError] = {}
    try:
        for pursuit in fleet:
            _begin(pursuit)
        while any(pursuit.name not in errors for pursuit in fleet) and (end is None or context.clock.monotonic() < end):
            for pursuit, failure in fleet.looked_at():
                error = failure or _step(context, pursuit)
                if error is None:
                    errors.pop(pursuit.name, None)
                else:
                    _resign(pursuit, error, is_news=pursuit.name not in errors)
                    errors[pursuit.name] = error
                if isinstance(error, NotFoundError | EndedError):
                    fleet.end(pursuit)
            each_round()
            fleet.rest(until=end)
    finally:
        fleet.close()
    return list(errors.values())


def _resign(pursuit: Pursuit, error: TpuctlError, *, is_news: bool) -> None:
    """Say, once, that nothing more is done for a node as it is, and leave it so. Raises `AccessError`: that ends all."""
    if is_news:
        given_up(pursuit, error)
    if isinstance(error, AccessError):
        raise error
    pursuit.falter()
    pursuit.rest(_AT_REST)


def _continued(context: Context, task: Task) -> Task:
    """Return the task with what earlier runs have used up of its budgets, and with the spec of a node they were making anew."""
    entries = context.journal.entries(task.name)
    spec = task.spec
    if spec is None and is_being_made_anew(context.journal, task.name):
        remembered = context.journal.last_spec(task.name)
        spec = remembered.spec if remembered else None
    tried = budget(entries, refill=task.policy.refill, now=context.clock.now())
    return replace(task, tried=tried, spec=spec)


def _begin(pursuit: Pursuit) -> None:
    """Take the node's lease. Raises `ConflictError` where somebody else has it."""
    if other := pursuit.take():
        name = pursuit.name.node_id
        raise ConflictError(
            f"`{name}` is looked after already: {other}",
            hint="two watches would fight over one node; end that one, or take the node over: `--steal`",
        )


def _step(context: Context, pursuit: Pursuit) -> TpuctlError | None:
    """Do the next thing for one node; returns why nothing more can be done for it, or nothing."""
    try:
        pursuit.let_in()
        was_usable = pursuit.is_usable
        decision = pursuit.decide()
        match decision:
            case Reached(level, note):
                _rest(pursuit, level, note, was_usable=was_usable)
            case Wait():
                # What an earlier run has made and not handed over is news too once it is usable.
                if (was_usable or pursuit.seen.is_ours) and not pursuit.seen.silence:
                    pursuit.falter()
                pursuit.wait(decision)
            case GiveUp(error):
                return error
            case Start() if not pursuit.was_stopped_by_us:
                pursuit.wait(Wait(_AT_REST, f"it is {NodeState.STOPPED}, not by our doing: it is left so"))
            case Create() if not pursuit.seen.was_there and not _may_make(context, pursuit):
                return _absent(pursuit)
            case Create() | Start() | Restart() | Reboot() | Delete():
                pursuit.falter()
                pursuit.act(decision)
            case _:
                assert_never(decision)
    except TpuctlError as error:
        return error
    return None


def _may_make(context: Context, pursuit: Pursuit) -> bool:
    """Tell whether a node that this run has never seen may be made: only where an earlier run was about to."""
    return pursuit.policy.recreate_deleted or is_being_made_anew(context.journal, pursuit.name)


def _absent(pursuit: Pursuit) -> NodeNotFoundError:
    error = NodeNotFoundError(pursuit.name.node_id, pursuit.name.zone)
    error.hint = (
        f"`tpuctl up {pursuit.name.node_id}` makes it; with `--recreate-deleted` watch does so where the journal or a "
        "file knows what it is to be"
    )
    return error


def _rest(pursuit: Pursuit, level: Goal, note: str | None, *, was_usable: bool) -> None:
    """Leave a node alone that is usable, after what is to be done when it has just become so."""
    if not was_usable:
        pursuit.set_up()
    pursuit.arrive(level)
    if not was_usable:
        text = arrived(pursuit.policy, level).rstrip(",") + (f"; {note}" if note else "")
        if pursuit.has_faltered:
            pursuit.note_down(EventKind.RECOVERED, text)
        else:
            pursuit.tell(EventKind.REACHED, text, goal=str(level))
        pursuit.recover()
    pursuit.rest(_AT_REST)
