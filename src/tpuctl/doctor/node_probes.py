"""Gather the facts about a node from the API and the journal, and about its workers over ssh.

One ssh session per worker, all in parallel, runs a program with the worker's own Python: it reports disks, memory, processes,
variables, Python environments and the clock. Its answer is parsed strictly: an invalid part becomes unknown, and the other
parts count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tpuctl.check.facts import Absent, Fact, Known, Unknown
from tpuctl.check.gathering import fact_from_failure
from tpuctl.cloud.errors import operation_error
from tpuctl.doctor.doctor_facts import (
    AllWorkersFacts,
    ClockOffset,
    FileSystemUsage,
    InstalledPackage,
    LastFailure,
    LogFolder,
    LogFolderState,
    NodeFacts,
    NodeOperation,
    OomKills,
    PythonEnvironment,
    StartupResult,
    TpuHolder,
    TpuUse,
    TpuVariables,
    UnreachableWorkers,
    WorkerMemory,
    WorkerReport,
)
from tpuctl.durations import parse_timestamp
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.models.operation import Operation
from tpuctl.nodes.inspection import InspectionReport, inspection_script, parse_inspection
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.answers import (
    MAX_BYTES,
    JsonFields,
    UnexpectedAnswerError,
    one_line,
    parse_answer,
    parse_array,
    parse_boolean,
    parse_choice,
    parse_integer,
    parse_line,
    parse_number,
    parse_object,
    parse_seconds,
    parse_string,
)
from tpuctl.ssh.channel import on_each_worker
from tpuctl.ssh.connection import SSH_FAILED, last_printed_line, run_ssh_command
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failure, significant_line
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES
from tpuctl.ssh.tpu_holders import parse_holders

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.journal import Journal
    from tpuctl.ssh.connection import Target

EXAMINATION_TIMEOUT = timedelta(seconds=30)
# The programs on the worker get less time, so that it can report one that hangs.
_PROGRAM_TIMEOUT = timedelta(seconds=8)
_MARK = "tpuctl-examination "
_HOLDERS_MARK = "tpuctl-holders "
_NO_PYTHON = 127
_MAX_ANSWER = 1 << 20
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_MAX_VALUES, _MAX_REQUIREMENT = 100, 300
_PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
# Both become part of suggested commands.
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,60}")
_T = TypeVar("_T")
Parser = Callable[[Any, str], _T]


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The answer of one worker, or why there is none."""

    target: Target
    # The JSON of the worker; None without an answer.
    text: str | None
    # Why there is no answer.
    why: str = ""
    # The stderr of an ssh that could not log in, or lost its connection; else None.
    ssh_stderr: str | None = None
    # When the program was sent and the answer received, by the given clock.
    sent: datetime | None = None
    received: datetime | None = None
    # The timeout after which ssh was terminated; None if it ended on its own.
    waited: timedelta | None = None

    @property
    def facts(self) -> Known[WorkerReport] | Unknown:
        """The parsed answer."""
        if self.text is None or self.sent is None or self.received is None:
            return Unknown(self.why, is_passing=True)
        return parse_examination(self.text, self.sent, self.received)


def examine_worker(target: Target, clock: Clock, *, timeout: timedelta = EXAMINATION_TIMEOUT) -> WorkerAnswer:
    """Run the program on a worker. `clock` must be the real clock, as on workers. Raises `SshProgramMissingError`."""
    command, program = examination_program(min(_PROGRAM_TIMEOUT, timeout / 2))
    sent = clock.now()
    try:
        ended = run_ssh_command(target.connection, command, text=program, timeout=timeout)
    except UnexpectedAnswerError as error:
        return WorkerAnswer(target, None, f"unexpected answer: {error.what}")
    received = clock.now()
    for output in reversed(ended.output.splitlines()):
        if output.startswith(_MARK) and len(output) < _MAX_ANSWER:
            return WorkerAnswer(target, output.removeprefix(_MARK), sent=sent, received=received)
    if ended.code is None:
        why = f"no answer within {timeout.total_seconds():g} s"
        # Output means that the login succeeded.
        has_begun = bool(last_printed_line(ended.output))
        return (
            WorkerAnswer(target, None, why)
            if has_begun
            else WorkerAnswer(target, None, why, ended.errors, waited=timeout)
        )
    if ended.code == SSH_FAILED:
        return WorkerAnswer(target, None, significant_line(ended.errors) or "ssh failed", ended.errors)
    if ended.code == _NO_PYTHON:
        return WorkerAnswer(target, None, "it has no `python3`, which the examination needs")
    said = last_printed_line(ended.errors) or last_printed_line(ended.output)
    return WorkerAnswer(target, None, f"the examination failed: {said or f'exit {ended.code}'}")


def examination_program(timeout: timedelta) -> tuple[str, str]:
    """Return the shell line and the stdin that run the program on a worker. Each step there times out after `timeout`."""
    _, holders = bootstrap("holders", f"print_holders({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r})")
    inspecting = inspection_script(None, timeout)
    call = f"examine({inspecting!r}, {holders.decode()!r}, {timeout.total_seconds()!r})"
    command, program = bootstrap("worker_facts", call)
    return command, program.decode()


def parse_examination(text: str, sent: datetime, received: datetime) -> Known[WorkerReport] | Unknown:
    """Parse the JSON of a worker. `sent` and `received` are the times before and after, by the clock of this machine.

    An invalid fact is Unknown, and the others count.
    """
    try:
        answer = JsonFields(parse_answer(text), "the answer")
        version = answer.get("version", parse_integer)
        if version != 1:
            return Unknown(f"its answer has version {version}, which this tpuctl does not support")
        began, ended = (answer.get(name, parse_number, low=0, high=_LATEST) for name in ("began", "ended"))
        low, high = ended - received.timestamp(), began - sent.timestamp()
        return Known(
            WorkerReport(
                offset=ClockOffset(timedelta(seconds=low), timedelta(seconds=high)),
                kernel=answer.get("kernel", parse_line),
                **{name: _parse_fact(answer, name, parse) for name, parse in _FACTS.items()},
            )
        )
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")


def _parse_fact(answer: JsonFields, name: str, parse: Parser[Any]) -> Fact[Any]:
    try:
        part = answer.get(name, JsonFields)
        if "ok" in part:
            return Known(part.get("ok", parse))
        if "absent" in part:
            return Absent(part.get("absent", parse_line))
        return Unknown(part.get("error", parse_line))
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")


def _record(cls: Callable[..., _T], **fields: Parser[Any]) -> Parser[_T]:
    """Return the parser of an object with these fields, each with the name of a field of the class."""

    def parse(value: Any, where: str) -> _T:
        found = JsonFields(value, where)
        return cls(**{name: found.get(name, parser) for name, parser in fields.items()})

    return parse


def _each(parser: Parser[_T], *, most: int) -> Parser[tuple[_T, ...]]:
    """Return the parser of an array of at most `most` values."""
    return lambda value, where: tuple(
        parser(one, f"{where}[{at}]") for at, one in enumerate(parse_array(value, where, most=most))
    )


def _nullable(parser: Parser[_T]) -> Parser[_T | None]:
    return lambda value, where: None if value is None else parser(value, where)


def _tpu_use(value: Any, where: str) -> TpuUse:
    found = parse_holders(parse_string(value, where, longest=_MAX_ANSWER).removeprefix(_HOLDERS_MARK))
    holding = [one for one in found.holders if one.holds]
    return TpuUse(
        tuple(TpuHolder(one.pid, one.user, one.name, one.age, one.state == "D") for one in holding),
        lock_owner=found.lock_file.user if found.lock_file else None,
        is_lock_held=any(one.has_lock_file for one in holding),
        hidden=0 if found.is_root else found.hidden,
    )


def _inspection(value: Any, where: str) -> InspectionReport:
    report = parse_inspection(parse_string(value, where, longest=_MAX_ANSWER), probe=None, timeout=_PROGRAM_TIMEOUT)
    if report is None:
        raise UnexpectedAnswerError(f"{where}: not a report")
    return report


def _startup_result(value: Any, where: str) -> StartupResult:
    report = _inspection(value, where)
    return StartupResult(report.startup, report.detail)


def _variables(value: Any, where: str) -> dict[str, str]:
    values = parse_object(value, where)
    if len(values) > _MAX_VALUES:
        raise UnexpectedAnswerError(f"{where}: {len(values)} values where at most {_MAX_VALUES} are expected")
    return {one_line(name): parse_line(one, f"{where}.{one_line(name)}") for name, one in values.items()}


def _packages(value: Any, where: str) -> dict[str, InstalledPackage]:
    found = {
        name: _PACKAGE(one, f"{where}.{one_line(name)}")
        for name, one in parse_object(value, where).items()
        if _PACKAGE_NAME.fullmatch(name)
    }
    return {name: package for name, package in found.items() if _VERSION.fullmatch(package.version)}


def _log_state(value: Any, where: str) -> LogFolderState:
    return LogFolderState(parse_choice(value, where, allowed=tuple(LogFolderState)))


def _requirement(value: Any, where: str) -> str:
    return parse_line(value, where, longest=_MAX_REQUIREMENT)


_PACKAGE = _record(InstalledPackage, version=parse_line, requires=_each(_requirement, most=_MAX_VALUES))
# The facts of a worker by name, as ssh/agent/worker_facts.py reports them; the limits are above its own.
_FACTS: dict[str, Parser[Any]] = {
    "uptime": parse_seconds,
    "disks": _each(
        _record(
            FileSystemUsage,
            mount=parse_line,
            available=partial(parse_integer, low=-MAX_BYTES),
            used=parse_integer,
            inodes=_nullable(parse_integer),
        ),
        most=20,
    ),
    "logs": _record(
        LogFolder,
        path=parse_line,
        state=_log_state,
        size=parse_integer,
        files=parse_integer,
        is_complete=parse_boolean,
    ),
    "memory": _record(WorkerMemory, total=parse_integer, available=parse_integer),
    "oom_kills": _record(OomKills, count=parse_integer, last=parse_line),
    "tpu_use": _tpu_use,
    "chips": lambda value, where: _inspection(value, where).chips,
    "startup_result": _startup_result,
    "variables": _record(
        TpuVariables,
        session=_variables,
        login=_variables,
        jobs=_each(_variables, most=10),
        login_unread=_nullable(parse_line),
    ),
    "environments": _each(
        _record(PythonEnvironment, kind=parse_line, path=parse_line, python=parse_line, packages=_packages), most=16
    ),
    "is_synchronized": parse_boolean,
}


_OPERATIONS = 10
_SUCCESSES = frozenset({"usable", "create", "restart", "start"})


class NodeApi(Protocol):
    """The API methods that are called. Each raises `TpuctlError` if the API does not answer."""

    def get_queued_resource(self, name: str) -> QueuedResource:
        """Return a queued resource by its full name."""

    def guest_attributes(self, name: NodeName, worker: int | None = None) -> tuple[Mapping[str, str], ...]:
        """Return the guest attributes of each worker."""


class OperationsApi(Protocol):
    """The API method that lists operations."""

    def operations(
        self, project: str, zone: str, targets: Collection[str], *, limit: int
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the newest operations on some resources as the API's JSON. Raises `TpuctlError` if it does not answer."""


def gather_node_facts(
    node: Node,
    cloud: NodeApi,
    operations: OperationsApi,
    journal: Journal,
    *,
    now: datetime,
    obstacle: str | None = None,
    remedy: str | None = None,
) -> NodeFacts:
    """Return the facts about a node that was just fetched. A failed read raises nothing: the fact is unknown."""
    owner = node.queued_resource
    return NodeFacts(
        node=node,
        now=now,
        request=_read_fact(lambda: cloud.get_queued_resource(owner)) if owner else None,
        published=_read_fact(lambda: cloud.guest_attributes(node.name)),
        failure=_last_failure(node, journal),
        operations=_read_fact(lambda: _list_operations(node, operations)),
        obstacle=obstacle,
        remedy=remedy,
    )


def _read_fact(read: Callable[[], _T]) -> Fact[_T]:
    try:
        return Known(read())
    except TpuctlError as error:
        return _fact_of_error(error)


def _fact_of_error(error: TpuctlError) -> Absent | Unknown:
    # The credentials work: the node was just fetched.
    return Unknown(error.message) if isinstance(error, CredentialsError) else fact_from_failure(error)


def _list_operations(node: Node, operations: OperationsApi) -> tuple[NodeOperation, ...]:
    targets = {str(node.name)} | ({node.queued_resource} if node.queued_resource else set())
    found = operations.operations(node.name.project, node.name.zone, targets, limit=_OPERATIONS)
    parsed = []
    for raw in found:
        about, operation = raw.get("metadata") or {}, Operation.from_api(raw)
        failed = operation_error(operation.error) if operation.error else None
        parsed.append(
            NodeOperation(
                verb=str(about.get("verb") or "a change"),
                began=parse_timestamp(about.get("createTime")),
                is_done=operation.done,
                error=failed.message if failed else None,
                error_id=failed.error_id if failed else None,
            )
        )
    return tuple(parsed)


def _last_failure(node: Node, journal: Journal) -> Fact[LastFailure]:
    """Return the last failure in the journal without a later success. Entries with another node id are ignored."""
    try:
        entries = journal.entries(node.name, rotated=False)
    except TpuctlError as error:
        return _fact_of_error(error)
    found: LastFailure | None = None
    for entry in entries:
        event, text = entry.get("event"), entry.get("text") or entry.get("reason")
        if event in _SUCCESSES:
            found = None
        elif entry.get("error") and entry.get("id") in {None, "", node.id}:
            found = LastFailure(str(text or entry["error"]), str(entry["error"]), parse_timestamp(entry.get("at")))
    return Absent() if found is None else Known(found)


def examine_workers(
    targets: Sequence[Target], clock: Clock, *, timeout: timedelta = EXAMINATION_TIMEOUT
) -> list[WorkerAnswer]:
    """Examine the workers in parallel. Return for each, in order, its JSON text (`text`), or `why` there is none.

    Nothing is changed on them. `clock` is the real one, which the workers' clocks are compared with; `timeout` is the timeout
    for each worker. Raises `SshProgramMissingError`.
    """
    return [one.get() for one in on_each_worker(lambda target: examine_worker(target, clock, timeout=timeout), targets)]


def workers_facts(
    node: Node,
    examined: Sequence[WorkerAnswer],
    now: datetime,
    *,
    without_route: Mapping[int, TpuctlError],
    has_own_key: bool = False,
) -> AllWorkersFacts:
    """Return the facts about the workers of a node; unreachable ones with the same cause stand together.

    `without_route` are the workers without an ssh route, and why.
    """
    some_accept_ssh = any(one.ssh_stderr is None for one in examined)
    failed: dict[int, TpuctlError] = {}
    for one in examined:
        if one.ssh_stderr is not None:
            evidence = collect_failure_context(one.target, accepted_elsewhere=some_accept_ssh, waited=one.waited)
            failed[one.target.worker] = explain_ssh_failure(one.ssh_stderr, one.target, evidence)
    failed |= without_route
    causes: dict[tuple[str, str | None], list[tuple[int, TpuctlError]]] = {}
    for worker, error in failed.items():
        # The message begins with the worker, followed by the cause.
        _, _, why = error.message.partition(f"of `{node.name.node_id}`")
        causes.setdefault((why.lstrip(": ") or error.message, error.error_id), []).append((worker, error))
    unreachable = tuple(
        UnreachableWorkers(
            workers=tuple(sorted(worker for worker, _ in group)),
            why=why,
            hints=tuple((group[0][1].hint or "").splitlines()),
            error_id=error_id,
            is_passing=getattr(group[0][1], "retriable", False),
        )
        for (why, error_id), group in causes.items()
    )
    return AllWorkersFacts(
        node=node,
        now=now,
        answers={one.target.worker: one.facts for one in examined if one.ssh_stderr is None},
        unreachable=unreachable,
        has_own_key=has_own_key,
    )
