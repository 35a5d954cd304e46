"""What uses a node, for how long it is idle, and what happens to an idle one.

A node is in use if a job of tpuctl runs on it, if a process holds its TPU, if an ssh session is open, or if another run of
tpuctl holds its lease. Only complete answers of all workers make it idle: one that does not answer, refuses our key or cannot
examine itself makes the whole node unknown. Values and words come first; the functions that ask take the `App`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from tpuctl.app.ssh_options import present_connection_options
from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.decoding import Line, Most
from tpuctl.durations import format_duration
from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.escaping import one_line
from tpuctl.fan_out import FanOutTimeoutError
from tpuctl.models.node import NodeState
from tpuctl.nodes.garbage import Idleness
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer
from tpuctl.ssh.channel import AgentError, explain_agent_errors, on_each_worker, open_agent
from tpuctl.ssh.connection import Target, save_host_keys
from tpuctl.ssh.tpu_metrics import MetricsStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName

_TIMEOUT: Final = timedelta(seconds=30)
# A broken node must stay deletable: a question does not wait longer for its workers.
_LOOK_TIMEOUT: Final = timedelta(seconds=5)
_MOST_USES: Final = 64
_MOST_REASONS: Final = 16
_LONGEST_REASON: Final = 200
_LONGEST_NAME: Final = 100
_LONGEST_COMMAND: Final = 300
_SHOWN_COMMAND: Final = 60
# A question names this many; of the others it has the number.
_MOST_NAMED: Final = 3
# No program runs in these states.
_WITHOUT_PROGRAMS: Final = frozenset(
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
    name: Annotated[str, Line(_LONGEST_NAME)]
    command: Annotated[str, Line(_LONGEST_COMMAND)]
    user: Annotated[str, Line(_LONGEST_NAME)]
    age: timedelta


Reasons = Annotated[tuple[Annotated[str, Line(_LONGEST_REASON)], ...], Most(_MOST_REASONS)]


@dataclass(frozen=True, slots=True)
class WorkerIdleness:
    """The report of a worker: what uses it, what it cannot examine, and when and for what it was last used.

    `in_use` and `unknown` are lines, empty only for an idle worker; `uses` has the details of what uses it.
    """

    in_use: Reasons
    unknown: Reasons
    lasted: timedelta = field(metadata={"key": "age"})
    last: Annotated[str, Line(_LONGEST_REASON)]
    uses: Annotated[tuple[WorkerUse, ...], Most(_MOST_USES)]


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


def describe_use(node: Node, use: NodeUse) -> str:
    """Return who uses a node in one line; empty if it is idle."""
    if use.is_idle:
        return ""
    created = f" (created by {node.owner})" if node.owner else ""
    verb = "is in use" if use.uses else "may be in use"
    return f"`{node.name.node_id}`{created} {verb}: {use.words}"


def use_details(use: NodeUse | None) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of what uses a node; nothing if its workers were not asked and no other run holds it."""
    lines = [] if use is None else [*use.uses, *([use.unknown] if use.unknown and use.was_examined else [])]
    for index, line in enumerate(lines):
        yield "" if index else "in use", line, "yellow"


_CHIP_TIMEOUT: Final = timedelta(seconds=1)
_DUTY_TIMEOUT: Final = timedelta(seconds=5)


def find_chip_duties(app: App, nodes: Sequence[Node]) -> dict[NodeName, list[float]]:
    """Return the duty cycle of each chip that reports one, in percent, by node. Raises `SshProgramMissingError`."""
    targets = []
    for node in nodes:
        with suppress(TpuctlError):  # it is not reached: its cell is empty
            targets += _connect(app, node)
    duties: dict[NodeName, list[float]] = {}
    with MetricsStream(targets, present_connection_options(app), None) as stream:
        stream.collect(_DUTY_TIMEOUT)
    for worker in stream.workers:
        if worker.report and (figures := worker.report.values("duty")):
            duties.setdefault(worker.target.node.name, []).extend(figures)
    return duties


def chip_details(app: App, node: Node, use: NodeUse | None) -> Iterator[tuple[str, str, str]]:
    """Yield memory and duty cycle of the chips of a node in use, of the workers that answer within a second."""
    if use is None or not use.uses or not use.was_examined or node.state is not NodeState.READY:
        return
    with MetricsStream(_connect(app, node), present_connection_options(app), None) as stream:
        stream.collect(_CHIP_TIMEOUT)
    reports = [worker.report for worker in stream.workers if worker.report]
    shares = [
        100 * device.hbm_used / device.hbm_total
        for report in reports
        for device in report.devices
        if device.hbm_used is not None and device.hbm_total
    ]
    duties = [duty for report in reports for duty in report.values("duty")]
    asked = f" of {len(reports)} of {node.workers} workers" if len(reports) < node.workers else ""
    if shares:
        yield "HBM", f"{min(shares):.0f}-{max(shares):.0f}% used{asked}", ""
    if duties:
        yield "duty cycle", f"{min(duties):.0f}-{max(duties):.0f}%{asked}", "" if max(duties) else "yellow"


def require_idle(nodes: Sequence[Node], uses: Mapping[NodeName, NodeUse]) -> None:
    """Raise `ConflictError`, which says who uses them, unless all nodes are known to be idle."""
    busy = [text for node in nodes if (text := describe_use(node, uses[node.name]))]
    if busy:
        hint = "nothing was done; leave out `--if-idle` to do it all the same"
        raise ConflictError(busy[0], details=busy[1:], hint=hint)


def combine_idleness(node: Node, answers: Mapping[int, WorkerIdleness | TpuctlError], now: datetime) -> Idleness:
    """Return whether all workers of a node are idle: since the last use of any, and at most since its creation."""
    reports: dict[int, WorkerIdleness] = {}
    for worker in range(node.workers):
        answer = answers.get(worker)
        if not isinstance(answer, WorkerIdleness):
            return Idleness(None, _problem(worker, answer))
        reports[worker] = answer
    for worker, report in reports.items():
        for reason in (*report.in_use, *report.unknown):
            return Idleness(None, f"worker {worker}: {reason}")
    worker, last = min(reports.items(), key=lambda one: one[1].lasted)
    if node.created is None:
        return Idleness(None, "the time of its creation is unknown")
    if now - node.created <= last.lasted:
        return Idleness(max(now - node.created, timedelta()), "it was created then")
    return Idleness(last.lasted, f"worker {worker}: {last.last} {format_duration(last.lasted)} ago")


def _combine_uses(node: Node, answers: Mapping[int, WorkerIdleness | TpuctlError]) -> NodeUse:
    """Return what uses a node according to its workers. One without a complete answer makes the rest unknown."""
    reports = {worker: answer for worker, answer in answers.items() if isinstance(answer, WorkerIdleness)}
    found = describe_worker_uses(((worker, use) for worker, one in reports.items() for use in one.uses), node.workers)
    # A report in words alone counts as much.
    found = found or tuple(f"worker {worker}: {why}" for worker, one in reports.items() for why in one.in_use)
    silent = [worker for worker in range(node.workers) if worker not in reports]
    if silent:
        problem = answers.get(silent[0])
        why = _problem(silent[0], None if isinstance(problem, WorkerIdleness) else problem, within=_LOOK_TIMEOUT)
        who = "its worker" if node.workers == 1 else f"{len(silent)} of its {node.workers} workers"
        return NodeUse(found, f"{who} cannot be examined: {why}")
    blind = next((f"worker {worker}: {why}" for worker, one in reports.items() for why in one.unknown), None)
    return NodeUse(found, blind)


def _problem(worker: int, error: TpuctlError | None, *, within: timedelta | None = None) -> str:
    """Return why a worker gave no report; if that is the limit `within` which all were asked, only that."""
    is_late = isinstance(error, FanOutTimeoutError) or (isinstance(error, AgentError) and error.waited)
    if within is not None and is_late:
        return f"no answer within {format_duration(within)}"
    if error is None:
        return f"worker {worker} was not asked"
    if isinstance(error, UnexpectedAnswerError):
        return f"worker {worker}: unexpected answer: {error.what}"
    return next(iter(explain_agent_errors([error])), error).message


def fetch_idleness(
    target: Target,
    *,
    has_programs: bool = True,
    has_logins: bool = True,
    within: timedelta = _TIMEOUT,
    shared: tuple[str, ...] | None = None,
) -> WorkerIdleness:
    """Ask one worker. Of past use, programs with the TPU and logins can be left out; jobs of tpuctl always count.

    Raises `AgentError` and `UnexpectedAnswerError`, and `SshProgramMissingError` without an ssh client.
    """
    request = {"programs": has_programs, "logins": has_logins}
    with open_agent(target, "worker_use", request, as_root=True, connect_within=within, shared=shared) as channel:
        return decode_answer(WorkerIdleness, channel.read(within))


def find_idleness(app: App, nodes: Sequence[Node]) -> Mapping[NodeName, Idleness]:
    """Ask all workers of the nodes for how long they are idle. Raises `SshProgramMissingError`."""
    found = _ask_workers(app, nodes, fetch_idleness)
    now = app.now()
    return {
        node.name: Idleness(None, answers)
        if isinstance(answers := found[node.name], str)
        else combine_idleness(node, answers, now)
        for node in nodes
    }


def find_node_uses(app: App, nodes: Sequence[Node], *, counts_leases: bool = True) -> Mapping[NodeName, NodeUse]:
    """Return what uses the nodes: what their workers report within 5 s, and other runs of tpuctl that hold their leases.

    A run that only keeps a node alive, such as `watch`, is no obstacle for one more command: see `counts_leases`.
    """
    found = {node.name: use for node in nodes if (use := _use_by_state(node))}
    if ready := [node for node in nodes if node.name not in found]:
        found |= _ask_for_uses(app, ready)
    return {node.name: _with_lease(app, node.name, found[node.name]) for node in nodes} if counts_leases else found


def _use_by_state(node: Node) -> NodeUse | None:
    """Return what the state of a node says about its use; None for a READY node, whose workers know it."""
    if node.state is NodeState.READY:
        return None
    if node.state in _WITHOUT_PROGRAMS:
        return NodeUse()
    return NodeUse(unknown=f"its state is {node.state}", was_examined=False)


def _ask_for_uses(app: App, nodes: Sequence[Node]) -> dict[NodeName, NodeUse]:
    """Ask the workers of READY nodes what uses them now; a worker without an answer within 5 s is unknown."""
    workers = app.services.workers
    if why := workers.obstacle() or (None if workers.has_key else "there is no ssh key on this machine"):
        unknown = NodeUse(unknown=f"its workers cannot be examined: {why}", was_examined=False)
        return {node.name: unknown for node in nodes}
    shared = present_connection_options(app)

    def ask(target: Target) -> WorkerIdleness:
        options = shared(target.connection)
        return fetch_idleness(target, has_programs=False, has_logins=False, within=_LOOK_TIMEOUT, shared=options)

    until = timedelta(seconds=time.monotonic()) + _LOOK_TIMEOUT
    with limit_cloud_calls(SystemClock(), _LOOK_TIMEOUT):
        found = _ask_workers(app, nodes, ask, until=until)
    return {
        node.name: NodeUse(unknown=f"its workers cannot be examined: {answers}")
        if isinstance(answers := found[node.name], str)
        else _combine_uses(node, answers)
        for node in nodes
    }


def _ask_workers(
    app: App, nodes: Sequence[Node], ask: Callable[[Target], WorkerIdleness], *, until: timedelta | None = None
) -> dict[NodeName, dict[int, WorkerIdleness | TpuctlError] | str]:
    """Ask all workers of the nodes, several at a time, `until` a moment of `time.monotonic()`.

    Return by node the report of each worker, or why there is none; only a text if no worker of it could be asked. Raises
    `SshProgramMissingError`.
    """
    targets: list[Target] = []
    found: dict[NodeName, dict[int, WorkerIdleness | TpuctlError] | str] = {}
    for node in nodes:
        try:
            obstacle = app.services.workers.obstacle(node)
            targets += () if obstacle else _connect(app, node)
            found[node.name] = obstacle or {}
        except TpuctlError as error:
            found[node.name] = error.message
    save_host_keys([target.connection for target in targets])
    for outcome in on_each_worker(ask, targets, deadline=until):
        answers = found[outcome.item.node.name]
        if not isinstance(answers, str):
            answers[outcome.item.worker] = outcome.error or outcome.get()
    return found


def _connect(app: App, node: Node) -> list[Target]:
    """Return a target for each worker. Raises `TpuctlError` if one has no route; no key is made or authorized."""
    workers, numbers = app.services.workers, range(node.workers)
    for worker in numbers:
        workers.check_route(node, worker)
    workers.learn_host_keys(node)
    return [
        Target(node, worker, workers.connection(node, worker, makes_key=False), f"{node.name.node_id}-{worker}")
        for worker in numbers
    ]


def _with_lease(app: App, name: NodeName, use: NodeUse) -> NodeUse:
    """Return the use with the run of tpuctl that holds the lease; without an answer of its store that is unknown."""
    try:
        lease = app.services.leases.holder(name)
    except TpuctlError as error:
        return replace(use, unknown=use.unknown or f"the holder of its lease is unknown: {error.message}")
    return replace(use, uses=(*use.uses, str(lease))) if lease and not lease.record.ended else use


def use_in_question(app: App, nodes: Sequence[Node], *, if_idle: bool, yes: bool) -> str:
    """Return the beginning of a question about nodes in use; empty if they are idle, or if the user is not asked.

    Of several nodes it has their number, after a line for each one in use, those of others first.

    Raises `ConflictError` with `if_idle` unless all of them are known to be idle.
    """
    if not nodes or not (if_idle or (app.terminal.may_ask and not yes)):
        return ""
    uses = find_node_uses(app, nodes)
    if if_idle:
        require_idle(nodes, uses)
    examined = [node for node in nodes if uses[node.name].uses or uses[node.name].was_examined]
    busy = [node for node in examined if not uses[node.name].is_idle]
    if len(nodes) == 1:
        return "".join(f"{describe_use(node, uses[node.name])}; " for node in busy)
    for node in sorted(busy, key=lambda node: node.owner == app.services.owner_label):
        app.terminal.note(describe_use(node, uses[node.name]))
    sure = sum(bool(uses[node.name].uses) for node in busy)
    counts = [f"{sure} in use"] * bool(sure) + [f"{len(busy) - sure} that may be in use"] * (sure < len(busy))
    return f"{' and '.join(counts)}: " if counts else ""


def require_free(app: App, nodes: Sequence[Node]) -> None:
    """Raise `ConflictError` if a node is known to be in use, is another user's, or is kept by its label.

    A node whose workers do not answer counts as free: a broken one must stay deletable.
    """
    if not nodes:
        return
    uses, mine = find_node_uses(app, nodes), app.services.owner_label
    reasons = []
    for node in nodes:
        if uses[node.name].uses:
            reasons.append(describe_use(node, uses[node.name]))
        elif not node.owner or node.owner != mine:
            creator = f"was created by {node.owner}" if node.owner else "has no label that says who created it"
            reasons.append(f"`{node.name.node_id}` {creator}")
        elif node.is_kept:
            reasons.append(f"`{node.name.node_id}` is kept by its label `tpuctl-keep`")
    if reasons:
        raise ConflictError(
            reasons[0], details=reasons[1:], hint="nothing was done; pass `yes=True` to do it all the same"
        )
