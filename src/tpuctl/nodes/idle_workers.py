"""Ask the workers of nodes what uses them, and what they were last used for. Nothing is changed on them or on the nodes.

A node is idle only as far as every worker shows it: one that does not answer, refuses our key or cannot examine itself makes
the whole node unknown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.durations import format_duration
from tpuctl.errors import TpuctlError
from tpuctl.fan_out import FanOutTimeoutError
from tpuctl.nodes.garbage import Idleness
from tpuctl.nodes.node_use import MOST_USES, NodeUse, WorkerUse, describe_worker_uses, parse_use, use_by_state
from tpuctl.ssh.answers import JsonFields, UnexpectedAnswerError, parse_line, parse_seconds
from tpuctl.ssh.channel import AgentError, explain_agent_errors, on_each_worker, open_agent
from tpuctl.ssh.connection import Connection, Target, save_host_keys
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, LOG_FOLDER, VFIO_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.ssh_workers import SshWorkers

_TIMEOUT: Final = timedelta(seconds=30)
_MOST_REASONS: Final = 16
_LONGEST_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class WorkerIdleness:
    """The report of a worker: what uses it, what it cannot examine, and when and for what it was last used.

    `in_use` and `unknown` are lines, empty only for an idle worker; `uses` has the details of what uses it.
    """

    in_use: tuple[str, ...]
    unknown: tuple[str, ...]
    lasted: timedelta
    last: str
    uses: tuple[WorkerUse, ...] = ()


# The report of each worker or why there is none; only a text if no worker was asked.
_NodeAnswers = dict[int, "WorkerIdleness | TpuctlError"] | str


def examine_nodes(workers: SshWorkers, nodes: Sequence[Node], now: datetime) -> Mapping[NodeName, Idleness]:
    """Ask all workers of the nodes, several at a time. Raises `SshProgramMissingError`."""
    found = _ask_workers(workers, nodes, fetch_idleness)
    return {
        node.name: Idleness(None, answers) if isinstance(answers, str) else combine_idleness(node, answers, now)
        for node, answers in zip(nodes, found, strict=True)
    }


def examine_uses(
    workers: SshWorkers,
    nodes: Sequence[Node],
    within: timedelta,
    *,
    ssh_options: Callable[[Connection], tuple[str, ...] | None] = lambda _: None,
) -> Mapping[NodeName, NodeUse]:
    """Ask the workers of READY nodes what uses them now; a worker without an answer `within` this time is unknown.

    `ssh_options` returns the options of the shared connection, None without one.
    """
    found = {node.name: known for node in nodes if (known := use_by_state(node))}
    ready = [node for node in nodes if node.name not in found]
    if not ready:
        return found
    if why := workers.obstacle() or (None if workers.has_key else "there is no ssh key on this machine"):
        unknown = NodeUse(unknown=f"its workers cannot be examined: {why}", was_examined=False)
        return found | {node.name: unknown for node in ready}

    def ask(target: Target) -> WorkerIdleness:
        shared = ssh_options(target.connection)
        return fetch_idleness(target, has_programs=False, has_logins=False, within=within, shared=shared)

    until = timedelta(seconds=time.monotonic()) + within
    with limit_cloud_calls(SystemClock(), within):
        answers = _ask_workers(workers, ready, ask, until=until)
    for node, answer in zip(ready, answers, strict=True):
        if isinstance(answer, str):
            found[node.name] = NodeUse(unknown=f"its workers cannot be examined: {answer}")
        else:
            found[node.name] = combine_uses(node, answer, within)
    return found


def _ask_workers(
    workers: SshWorkers,
    nodes: Sequence[Node],
    ask: Callable[[Target], WorkerIdleness],
    *,
    until: timedelta | None = None,
) -> list[_NodeAnswers]:
    """Ask all workers of the nodes, several at a time, `until` a moment of `time.monotonic()`.

    Raises `SshProgramMissingError`.
    """
    targets: list[Target] = []
    found: list[_NodeAnswers] = []
    for node in nodes:
        if obstacle := workers.obstacle(node):
            found.append(obstacle)
            continue
        try:
            targets += _connect(workers, node)
            found.append({})
        except TpuctlError as error:
            found.append(error.message)
    save_host_keys([target.connection for target in targets])
    of_node = {node.name: answers for node, answers in zip(nodes, found, strict=True)}
    for outcome in on_each_worker(ask, targets, deadline=until):
        answers = of_node[outcome.item.node.name]
        if not isinstance(answers, str):
            answers[outcome.item.worker] = outcome.error or outcome.get()
    return found


def _connect(workers: SshWorkers, node: Node) -> list[Target]:
    """Return a target for each worker. Raises `TpuctlError` if one has no route; no key is made or authorized."""
    for worker in range(node.workers):
        workers.check_way(node, worker)
    workers.learn_host_keys(node)
    return [
        Target(node, worker, workers.connection(node, worker, makes_key=False), f"{node.name.node_id}-{worker}")
        for worker in range(node.workers)
    ]


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
    logs = LOG_FOLDER if has_programs else None
    request = {"devices": [ACCEL_FILES, VFIO_FILES], "lockFile": LOCK_FILE, "logs": logs, "logins": has_logins}
    with open_agent(target, "worker_use", request, as_root=True, connect_within=within, shared=shared) as channel:
        return parse_idleness(channel.read(within))


def parse_idleness(value: Any) -> WorkerIdleness:
    """Parse the report of a worker. Raises `UnexpectedAnswerError`."""
    fields = JsonFields(value, "the answer")
    return WorkerIdleness(
        in_use=fields.each("inUse", parse_line, most=_MOST_REASONS, longest=_LONGEST_REASON),
        unknown=fields.each("unknown", parse_line, most=_MOST_REASONS, longest=_LONGEST_REASON),
        lasted=fields.get("age", parse_seconds),
        last=fields.get("last", parse_line, longest=_LONGEST_REASON),
        uses=fields.each("uses", parse_use, most=MOST_USES),
    )


def combine_uses(node: Node, answers: Mapping[int, WorkerIdleness | TpuctlError], within: timedelta) -> NodeUse:
    """Return what uses a node according to its workers. One without a complete answer makes the rest unknown."""
    reports = {worker: answer for worker, answer in answers.items() if isinstance(answer, WorkerIdleness)}
    found = describe_worker_uses(((worker, use) for worker, one in reports.items() for use in one.uses), node.workers)
    # A report in words alone counts as much.
    found = found or tuple(f"worker {worker}: {why}" for worker, one in reports.items() for why in one.in_use)
    silent = [worker for worker in range(node.workers) if worker not in reports]
    if silent:
        problem = answers.get(silent[0])
        error = problem if isinstance(problem, TpuctlError) else None
        is_late = isinstance(error, FanOutTimeoutError) or (isinstance(error, AgentError) and error.waited)
        why = f"no answer within {format_duration(within)}" if is_late else _problem(silent[0], error)
        who = "its worker" if node.workers == 1 else f"{len(silent)} of its {node.workers} workers"
        return NodeUse(found, f"{who} cannot be examined: {why}")
    blind = next((f"worker {worker}: {why}" for worker, one in reports.items() for why in one.unknown), None)
    return NodeUse(found, blind)


def combine_idleness(node: Node, answers: Mapping[int, WorkerIdleness | TpuctlError], now: datetime) -> Idleness:
    """Return whether all workers of a node are idle: since the last use of any, and at most since its creation."""
    reports: dict[int, WorkerIdleness] = {}
    for worker in range(node.workers):
        answer = answers.get(worker)
        if isinstance(answer, WorkerIdleness):
            reports[worker] = answer
        else:
            return Idleness(None, _problem(worker, answer))
    for worker, report in reports.items():
        for reason in (*report.in_use, *report.unknown):
            return Idleness(None, f"worker {worker}: {reason}")
    worker, last = min(reports.items(), key=lambda one: one[1].lasted)
    if node.created is None:
        return Idleness(None, "the time of its creation is unknown")
    if now - node.created <= last.lasted:
        return Idleness(max(now - node.created, timedelta()), "it was created then")
    return Idleness(last.lasted, f"worker {worker}: {last.last} {format_duration(last.lasted)} ago")


def _problem(worker: int, error: TpuctlError | None) -> str:
    if error is None:
        return f"worker {worker} was not asked"
    if isinstance(error, UnexpectedAnswerError):
        return f"worker {worker}: unexpected answer: {error.what}"
    return next(iter(explain_agent_errors([error])), error).message
