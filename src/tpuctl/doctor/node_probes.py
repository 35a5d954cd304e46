"""Gather the facts about the workers of a node over ssh.

One ssh session per worker, all in parallel, runs a program with the worker's own Python: it reports disks, memory, processes,
variables, Python environments and the clock. Its answer is parsed strictly: an invalid fact becomes unknown, and the others
count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.check.facts import Absent, Fact, Known, Unknown, value_or_none
from tpuctl.check.gathering import fact_from_failure
from tpuctl.clock import SystemClock
from tpuctl.decoding import By, Most, Range, ShapeError, Text, decode, decoder_of
from tpuctl.doctor.doctor_facts import (
    AllWorkersFacts,
    ClockOffset,
    FileSystemUsage,
    LogFolder,
    OomKills,
    PythonEnvironment,
    TpuVariables,
    UnreachableWorkers,
    WorkerMemory,
    WorkerReport,
)
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.models.worker_ports import RAY_PORTS, WORKER_PORTS
from tpuctl.nodes.inspection import InspectionReport, inspection_script, parse_inspection
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer
from tpuctl.ssh.channel import AgentError, on_each_worker, open_agent
from tpuctl.ssh.connection import Target, save_host_keys
from tpuctl.ssh.port_probe import PortProbe, probe_ports
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failure
from tpuctl.ssh.tpu_guard import GuardReport
from tpuctl.ssh.tpu_holders import HoldersFound

if TYPE_CHECKING:
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.ssh.connection import Connection

# A worker may be slow to accept ssh without being broken.
WORKER_TIMEOUT = timedelta(seconds=30)
# The programs on the worker get less time, so that it can report one that hangs.
_PROGRAM_TIMEOUT = timedelta(seconds=8)
_MAX_TEXT = 1 << 20
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


def read_guest_attributes(cloud: TpuClient, name: NodeName) -> Fact[tuple[Mapping[str, str], ...]]:
    """Return the guest attributes of each worker, or why they could not be read."""
    try:
        return Known(cloud.guest_attributes(name))
    except CredentialsError as error:  # they work: the node was just fetched
        return Unknown(error.message)
    except TpuctlError as error:
        return fact_from_failure(error)


def gather_workers_facts(
    node: Node, connect: Callable[[int], Connection], *, now: datetime, timeout: timedelta, has_own_key: bool
) -> AllWorkersFacts:
    """Return the facts about the workers of a node. Nothing is changed on them; their host keys are saved on this machine.

    `connect` returns the connection to a worker; `timeout` is the timeout for each. Raises `SshProgramMissingError`.
    """
    targets: list[Target] = []
    failed: dict[int, TpuctlError] = {}
    for worker in range(node.workers):
        try:
            targets.append(Target(node, worker, connect(worker), str(worker)))
        except TpuctlError as error:
            failed[worker] = error
    # Without known host keys ssh would refuse to connect, or trust any host that answers.
    save_host_keys([target.connection for target in targets])
    answers: dict[int, Known[WorkerReport] | Unknown] = {}
    refused: list[AgentError] = []
    for outcome in on_each_worker(partial(examine_worker, timeout=timeout), targets):
        worker, problem = outcome.item.worker, outcome.error
        if isinstance(problem, UnexpectedAnswerError):
            answers[worker] = Unknown(f"unexpected answer: {problem.what}")
        elif not isinstance(problem, AgentError):
            answers[worker] = Known(outcome.get())
        elif problem.ssh_stderr is None:
            answers[worker] = Unknown(problem.what, is_passing=True)
        else:
            refused.append(problem)
    for one in refused:
        context = collect_failure_context(one.target, accepted_elsewhere=bool(answers), waited=one.waited)
        failed[one.target.worker] = explain_ssh_failure(one.ssh_stderr or "", one.target, context)
    unreachable = _group_by_cause(node, failed)
    return AllWorkersFacts(node=node, now=now, answers=answers, unreachable=unreachable, has_own_key=has_own_key)


def probe_ports_between(
    examined: Sequence[AllWorkersFacts], connect: Callable[[Node, int], Connection], *, timeout: timedelta
) -> Fact[PortProbe]:
    """Let the first worker listen at the ports that workers need, and the others connect; Absent for a single worker."""
    named = len(examined) > 1
    targets = [
        Target(
            one.node, worker, connect(one.node, worker), f"{one.node.name.node_id}/{worker}" if named else str(worker)
        )
        for one in examined
        for worker in sorted(one.reports)
    ]
    address = targets[0].node.endpoints[targets[0].worker].internal if targets else None
    if len(targets) < 2 or address is None:
        return Absent()
    environments = [value_or_none(report.environments) or () for one in examined for report in one.reports.values()]
    has_ray = any("ray" in environment.packages for each in environments for environment in each)
    try:
        return Known(probe_ports(targets, address, (*WORKER_PORTS, *(RAY_PORTS if has_ray else ())), timeout=timeout))
    except AgentError as error:
        return Unknown(error.what, is_passing=True)
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")


def _group_by_cause(node: Node, failed: Mapping[int, TpuctlError]) -> tuple[UnreachableWorkers, ...]:
    causes: dict[tuple[str, str | None], dict[int, TpuctlError]] = {}
    for worker, error in sorted(failed.items()):
        # The message begins with the worker, followed by the cause.
        _, _, why = error.message.partition(f"of `{node.name.node_id}`")
        causes.setdefault((why.lstrip(": ") or error.message, error.error_id), {})[worker] = error
    return tuple(
        UnreachableWorkers(
            workers=tuple(group),
            why=why,
            hints=tuple((next(iter(group.values())).hint or "").splitlines()),
            error_id=error_id,
            is_passing=getattr(next(iter(group.values())), "retriable", False),
        )
        for (why, error_id), group in causes.items()
    )


def examine_worker(target: Target, *, timeout: timedelta) -> WorkerReport:
    """Run the program on a worker, and return its report.

    Raises `AgentError`, `UnexpectedAnswerError` and `SshProgramMissingError`.
    """
    clock = SystemClock()  # workers use the real one, in the sandbox too
    sent = clock.now()
    request = examination_request(min(_PROGRAM_TIMEOUT, timeout / 2))
    with open_agent(target, "worker_facts", request, connect_within=timeout) as channel:
        return parse_examination(channel.read(timeout), sent, clock.now())


def examination_request(timeout: timedelta) -> dict[str, Any]:
    """Return the request to the program on a worker. Each step there times out after `timeout`."""
    return {
        "inspection": inspection_script(None, timeout),
        "seconds": timeout.total_seconds(),
    }


def parse_examination(value: Any, sent: datetime, received: datetime) -> WorkerReport:  # JSON
    """Parse the report of a worker. `sent` and `received` are the times before and after, by the clock of this machine.

    An invalid fact is Unknown, and the others count. Raises `UnexpectedAnswerError` for another invalid value.
    """
    times = decode_answer(_Times, value)
    low, high = times.ended - received.timestamp(), times.began - sent.timestamp()
    return WorkerReport(
        offset=ClockOffset(timedelta(seconds=low), timedelta(seconds=high)),
        kernel=times.kernel,
        **{name: _parse_fact(value, name, kind) for name, kind in _FACTS.items()},
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """When the program began and ended, by the clock of the worker, and its kernel."""

    began: Annotated[float, Range(0, _LATEST)]
    ended: Annotated[float, Range(0, _LATEST)]
    kernel: str


def _parse_fact(answer: Mapping[str, Any], name: str, kind: Any) -> Fact[Any]:  # JSON; a type
    places: tuple[str, ...] = (name,)
    try:
        part = decoder_of(Mapping[str, Any])(answer.get(name))
        state = next((state for state in ("ok", "absent", "error") if state in part), "error")
        places = (state, name)
        decoded = decoder_of(kind if state == "ok" else str)(part.get(state))
    except ShapeError as error:
        for place in places:
            error = error.below(place)  # the same one, further out
        return Unknown(f"unexpected answer: the answer.{error.path}: {error.shown}")
    return Known(decoded) if state == "ok" else Absent(decoded) if state == "absent" else Unknown(decoded)


def _holders(value: Any) -> HoldersFound:  # JSON
    return decode(HoldersFound, value, outcomes={}, lock_outcome=None)


def _inspection(value: Any) -> InspectionReport:  # JSON
    text = decoder_of(Annotated[str, Text(_MAX_TEXT)])(value)
    report = parse_inspection(text, probe=None, timeout=_PROGRAM_TIMEOUT)
    if report is None:
        raise ShapeError("not a report")
    return report


# The facts of a worker by name, as ssh/agent/worker_facts.py reports them; the limits are above its own.
_FACTS: dict[str, Any] = {  # types
    "uptime": timedelta,
    "disks": Annotated[tuple[FileSystemUsage, ...], Most(20)],
    "logs": LogFolder,
    "memory": WorkerMemory,
    "oom_kills": OomKills,
    "tpu_use": Annotated[HoldersFound, By(_holders)],
    "guard": GuardReport,
    "inspection": Annotated[InspectionReport, By(_inspection)],
    "variables": TpuVariables,
    "environments": Annotated[tuple[PythonEnvironment, ...], Most(16)],
    "is_synchronized": bool,
}
