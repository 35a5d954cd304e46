"""What uses a node now, as its workers report it, and the words for it in questions, notes and errors. Pure.

A node is in use if a job of tpuctl runs on it, if a process holds its TPU, if an ssh session is open, or if another run of
tpuctl holds its lease. Only complete answers of all workers make it idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from tpuctl.durations import format_duration
from tpuctl.models.node import NodeState
from tpuctl.ssh.answers import JsonFields, one_line, parse_choice, parse_line, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.models.node import Node

MOST_USES: Final = 64
_LONGEST_NAME = 100
_LONGEST_COMMAND = 300
_SHOWN_COMMAND = 60
# A question names this many; of the others it has the number.
_MOST_NAMED = 3
# No program runs in these states.
_WITHOUT_PROGRAMS = frozenset(
    {NodeState.STOPPING, NodeState.STOPPED, NodeState.DELETING, NodeState.PREEMPTED, NodeState.TERMINATED}
)


class UseKind(StrEnum):
    """What uses a worker. A process `of-job` holds the TPU for a job, which is reported too."""

    JOB = "job"
    PROCESS = "process"
    PROCESS_OF_JOB = "of-job"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """One use of one worker. The texts are from the worker, as one line each; they are empty if it does not know them."""

    kind: UseKind
    name: str
    command: str
    user: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What uses a node, in words. `unknown`: why it may be used without that being known; None if all is known.

    `was_examined` is False if its workers were not asked, because this machine has no way to do that.
    """

    uses: tuple[str, ...] = ()
    unknown: str | None = None
    was_examined: bool = True

    @property
    def is_idle(self) -> bool:
        """Whether it is certain that the node is not used."""
        return not self.uses and self.unknown is None

    @property
    def words(self) -> str:
        """Who uses the node, what for and since when, or why that is unknown; empty for an idle node."""
        parts = list(self.uses[:_MOST_NAMED])
        if len(self.uses) > _MOST_NAMED:
            parts.append(f"and {len(self.uses) - _MOST_NAMED} more")
        return "; ".join([*parts, *([self.unknown] if self.unknown else [])])


def parse_use(value: Any, where: str) -> WorkerUse:
    """Parse one use in the report of a worker. Raises `UnexpectedAnswerError`."""
    fields = JsonFields(value, where)
    return WorkerUse(
        kind=UseKind(fields.get("kind", parse_choice, allowed=list(UseKind))),
        name=fields.get("name", parse_line, longest=_LONGEST_NAME),
        command=fields.get("command", parse_line, longest=_LONGEST_COMMAND),
        user=fields.get("user", parse_line, longest=_LONGEST_NAME),
        age=fields.get("age", parse_seconds),
    )


def use_by_state(node: Node) -> NodeUse | None:
    """Return what the state of a node says about its use; None for a READY node, whose workers know it."""
    if node.state is NodeState.READY:
        return None
    if node.state in _WITHOUT_PROGRAMS:
        return NodeUse()
    return NodeUse(unknown=f"its state is {node.state}", was_examined=False)


def describe_worker_uses(uses: Iterable[tuple[int, WorkerUse]], workers: int) -> tuple[str, ...]:
    """Return a line for each job, process and kind of session on the `workers` of a node, jobs first, longest first."""
    where: dict[tuple[UseKind, str, str, str], list[int]] = {}
    ages: dict[tuple[UseKind, str, str, str], timedelta] = {}
    for worker, use in uses:
        if use.kind is UseKind.PROCESS_OF_JOB:
            continue
        key = (use.kind, use.name, use.command, use.user)
        where.setdefault(key, []).append(worker)
        ages[key] = max(use.age, ages.get(key, timedelta()))
    order = list(UseKind)
    found = sorted(where, key=lambda key: (order.index(key[0]), -ages[key], key))
    return tuple(f"{_describe(*key, ages[key])}{_on_workers(where[key], workers)}" for key in found)


def _describe(kind: UseKind, name: str, command: str, user: str, age: timedelta) -> str:
    if kind is UseKind.SESSION:
        return "an ssh session is open"
    of = f" of {user}" if user else ""
    since = f", for {format_duration(age)}"
    shown = one_line(command, longest=_SHOWN_COMMAND)
    if kind is UseKind.JOB:
        return f"job `{name}`{of}{f' ({shown})' if shown else ''}{since}"
    return f"process `{shown or name}`{of} on the TPU{since}"


def _on_workers(numbers: list[int], workers: int) -> str:
    """Return the words for the workers of a use, which may be there several times; empty for the only worker."""
    distinct = sorted(set(numbers))
    if workers == 1:
        return ""
    if len(distinct) == workers:
        return f", on all {workers} workers"
    if len(distinct) > _MOST_NAMED:
        return f", on {len(distinct)} of {workers} workers"
    return f", on worker {', '.join(map(str, distinct))}"
