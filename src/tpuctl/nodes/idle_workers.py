"""Ask the workers of nodes what uses them, and what they were last used for. Nothing is changed on them or on the nodes.

A node is idle only as far as every worker shows it: one that does not answer, refuses our key or cannot examine itself makes
the whole node unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tpuctl.durations import format_duration
from tpuctl.errors import TpuctlError
from tpuctl.nodes.garbage import Idleness
from tpuctl.ssh.answers import JsonFields, UnexpectedAnswerError, parse_line, parse_seconds
from tpuctl.ssh.channel import explain_agent_errors, on_each_worker, open_agent
from tpuctl.ssh.connection import Target, save_host_keys
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, LOG_FOLDER, VFIO_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.ssh_workers import SshWorkers

_TIMEOUT: Final = timedelta(seconds=30)
_MOST_REASONS: Final = 16
_LONGEST_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class WorkerIdleness:
    """The report of a worker: what uses it, what it cannot examine, and when and for what it was last used."""

    in_use: tuple[str, ...]
    unknown: tuple[str, ...]
    lasted: timedelta
    last: str


def examine_nodes(workers: SshWorkers, nodes: Sequence[Node], now: datetime) -> Mapping[NodeName, Idleness]:
    """Ask all workers of the nodes, several at a time. Raises `SshProgramMissingError`."""
    targets: list[Target] = []
    found: dict[NodeName, Idleness] = {}
    for node in nodes:
        if obstacle := workers.obstacle(node):
            found[node.name] = Idleness(None, obstacle)
            continue
        try:
            targets += _connect(workers, node)
        except TpuctlError as error:
            found[node.name] = Idleness(None, error.message)
    save_host_keys([target.connection for target in targets])
    outcomes = on_each_worker(fetch_idleness, targets)
    for node in nodes:
        if node.name not in found:
            answers = {one.item.worker: one.error or one.get() for one in outcomes if one.item.node is node}
            found[node.name] = combine_idleness(node, answers, now)
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


def fetch_idleness(target: Target, *, has_programs: bool = True, has_logins: bool = True) -> WorkerIdleness:
    """Ask one worker. Of past use, programs with the TPU and logins can be left out; jobs of tpuctl always count.

    Raises `AgentError` and `UnexpectedAnswerError`, and `SshProgramMissingError` without an ssh client.
    """
    logs = LOG_FOLDER if has_programs else None
    request = {"devices": [ACCEL_FILES, VFIO_FILES], "lockFile": LOCK_FILE, "logs": logs, "logins": has_logins}
    with open_agent(target, "worker_use", request, as_root=True, connect_within=_TIMEOUT) as channel:
        return parse_idleness(channel.read(_TIMEOUT))


def parse_idleness(value: Any) -> WorkerIdleness:
    """Parse the report of a worker. Raises `UnexpectedAnswerError`."""
    fields = JsonFields(value, "the answer")
    return WorkerIdleness(
        in_use=fields.each("inUse", parse_line, most=_MOST_REASONS, longest=_LONGEST_REASON),
        unknown=fields.each("unknown", parse_line, most=_MOST_REASONS, longest=_LONGEST_REASON),
        lasted=fields.get("age", parse_seconds),
        last=fields.get("last", parse_line, longest=_LONGEST_REASON),
    )


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
