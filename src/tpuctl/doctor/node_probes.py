"""Gather the facts about a node from the API and the journal, and about its workers over ssh.

One ssh session per worker, all in parallel, runs a program with the worker's own Python: it reports disks, memory, processes,
variables, Python environments and the clock. Its answer is parsed strictly: an invalid part becomes unknown, and the other
parts count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    WorkerFacts,
    WorkerMemory,
    WorkerReport,
)
from tpuctl.durations import parse_timestamp
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.models.operation import Operation
from tpuctl.nodes.inspection import InspectionReport, inspection_script, parse_inspection
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.answers import (
    JsonFields,
    UnexpectedAnswerError,
    one_line,
    parse_answer,
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
    from collections.abc import Callable, Collection, Mapping, Sequence

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
_MEMORY = re.compile(r"^(\w{1,40}): +([0-9]{1,15}) kB$", re.MULTILINE | re.ASCII)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
# Twice the limits of the program on a worker (ssh/agent/worker_facts.py).
_MAX_JOBS, _MAX_ENVIRONMENTS, _MAX_VALUES, _MAX_LINES = 10, 16, 100, 20
_MAX_REQUIREMENT = 300
_DF = re.compile(
    r"^\S.* (?P<size>[0-9]{1,15}|-) +(?:[0-9]{1,15}|-) +(?P<free>-?[0-9]{1,15}|-) +(?P<used>[0-9]{1,3}%|-) +(?P<mount>/.*)$"
)
_SYNCHRONIZED = re.compile(r"^NTPSynchronized=(yes|no)$", re.MULTILINE)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
# Both become part of suggested commands.
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,60}")
_T = TypeVar("_T")


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
    """Parse the JSON of a worker. `sent` and `received` are the times before and after, by the clock of this machine."""
    try:
        answer = JsonFields(parse_answer(text), "the answer")
        version = answer.get("version", parse_integer)
        if version != 1:
            return Unknown(f"its answer has version {version}, which this tpuctl does not support")
        began, ended = (answer.get(name, parse_number, low=0, high=_LATEST) for name in ("began", "ended"))
        offset = ClockOffset(
            timedelta(seconds=ended - received.timestamp()), timedelta(seconds=began - sent.timestamp())
        )
        kernel, python = answer.get("kernel", parse_line), answer.get("python", parse_line)
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")

    def printed_by(name: str) -> JsonFields:
        return answer.get("said", JsonFields).get(name, JsonFields)

    def startup_result() -> Fact[StartupResult]:
        report = _inspected(printed_by("inspection"))
        return Known(StartupResult(report.startup, report.detail))

    def environments() -> Fact[tuple[PythonEnvironment, ...]]:
        part = _require_ok(answer.get("environments", JsonFields))
        return Known(part.each("ok", _environment, most=_MAX_ENVIRONMENTS))

    return Known(
        WorkerReport(
            offset=offset,
            kernel=kernel,
            python=python,
            uptime=_part(answer, "uptime", _uptime),
            disks=_fact(lambda: _disks(printed_by("space"), printed_by("inodes"))),
            logs=_part(answer, "logs", _logs),
            memory=_part(answer, "memory", _memory),
            oom_kills=_part(answer, "killed", _kills),
            tpu_use=_fact(lambda: _hold(printed_by("holders"))),
            chips=_fact(lambda: Known(_inspected(printed_by("inspection")).chips)),
            startup_result=_fact(startup_result),
            variables=_fact(lambda: _variables(answer)),
            environments=_fact(environments),
            is_synchronized=_fact(lambda: _synchronized(printed_by("synchronized"))),
        )
    )


class _PartMissingError(ValueError):
    """A part of the answer is missing; the text is the reason."""


def _part(answer: JsonFields, name: str, parse: Callable[[Any, str], _T]) -> Fact[_T]:
    return _fact(lambda: Known(_require_ok(answer.get(name, JsonFields)).get("ok", parse)))


def _require_ok(part: JsonFields) -> JsonFields:
    """Return a part of the answer. Raises if it has an error instead."""
    if "ok" not in part:
        raise _PartMissingError(part.get("error", parse_line))
    return part


def _fact(find: Callable[[], Fact[_T]]) -> Fact[_T]:
    try:
        return find()
    except _PartMissingError as error:
        return Unknown(str(error))
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")


def _output(printed: JsonFields) -> str:
    return printed.get("out", parse_string, longest=_MAX_ANSWER)


def _code(printed: JsonFields) -> int | None:
    return printed.optional("code", parse_integer, low=-64, high=255)


def _printed(printed: JsonFields, name: str) -> str:
    """Return the output of a program. Raises if it failed, timed out, or is missing."""
    out, code = _output(printed), _code(printed)
    if code is None:
        raise _PartMissingError(f"`{name}` did not end in time")
    if code != 0:
        raise _PartMissingError(f"`{name}` failed: {last_printed_line(out) or f'exit {code}'}")
    return out


def _uptime(value: Any, where: str) -> timedelta:
    """Parse the uptime that the kernel prints as text."""
    try:
        return parse_seconds(float(parse_string(value, where, longest=40)), where)
    except ValueError as error:
        raise UnexpectedAnswerError(f"{where}: not a number") from error


def _disks(space: JsonFields, inodes: JsonFields) -> Fact[tuple[FileSystemUsage, ...]]:
    # `df` fails if one of several folders is missing, but still prints the others.
    found = {row["mount"]: row for row in map(_DF.match, _output(space).splitlines()) if row}
    if not found:
        _printed(space, "df")
        raise _PartMissingError("`df` printed no file system")
    used = {row["mount"]: row["used"] for row in map(_DF.match, _output(inodes).splitlines()) if row}
    return Known(
        tuple(
            FileSystemUsage(
                mount=one_line(mount),
                size=int(row["size"]) * 1024,
                available=int(row["free"]) * 1024,
                used=int(row["used"].rstrip("%")),
                inodes=int(inodes_used.rstrip("%")) if (inodes_used := used.get(mount, "-")) != "-" else None,
            )
            for mount, row in found.items()
            if "-" not in {row["used"], row["size"], row["free"]}
        )
    )


def _logs(value: Any, where: str) -> LogFolder:
    fields = JsonFields(value, where)
    return LogFolder(
        fields.get("path", parse_line),
        LogFolderState(fields.get("state", parse_choice, allowed=tuple(LogFolderState))),
        fields.get("bytes", parse_integer),
        fields.get("files", parse_integer),
        fields.get("isComplete", parse_boolean),
    )


def _memory(value: Any, where: str) -> WorkerMemory:
    lines = dict(_MEMORY.findall(parse_string(value, where, longest=_MAX_ANSWER)))
    if not {"MemTotal", "MemAvailable"} <= set(lines):
        raise UnexpectedAnswerError(f"{where}: no memory")
    return WorkerMemory(int(lines["MemTotal"]) * 1024, int(lines["MemAvailable"]) * 1024)


def _kills(value: Any, where: str) -> OomKills:
    fields = JsonFields(value, where)
    lines = fields.each("lines", parse_line, most=_MAX_LINES)
    return OomKills(fields.get("count", parse_integer), lines[-1] if lines else "")


def _hold(printed: JsonFields) -> Fact[TpuUse]:
    lines = [one for one in _output(printed).splitlines() if one.startswith(_HOLDERS_MARK)]
    if not lines:
        _printed(printed, "python3")
        raise _PartMissingError("the worker did not report which processes hold its TPU")
    found = parse_holders(lines[-1].removeprefix(_HOLDERS_MARK))
    all_of_them = [one for one in found.holders if one.holds]
    holders = tuple(
        TpuHolder(
            pid=one.pid,
            user=one.user,
            name=one.name,
            age=one.age,
            is_waiting_in_kernel=one.state == "D",
        )
        for one in all_of_them
    )
    return Known(
        TpuUse(
            holders,
            found.lock_file.user if found.lock_file else None,
            any(one.has_lock_file for one in all_of_them),
            0 if found.is_root else found.hidden,
        )
    )


def _inspected(printed: JsonFields) -> InspectionReport:
    report = parse_inspection(_output(printed), probe=None, timeout=_PROGRAM_TIMEOUT)
    if report is None:
        _printed(printed, "sh")
        raise _PartMissingError("the worker did not report its startup and its chips")
    return report


def _variables(answer: JsonFields) -> Fact[TpuVariables]:
    login = answer.get("login", JsonFields)
    has_login = "ok" in login
    return Known(
        TpuVariables(
            session=answer.get("session", _text_values),
            login=login.get("ok", _text_values) if has_login else {},
            jobs=answer.each("jobs", _text_values, most=_MAX_JOBS),
            login_unread=None if has_login else login.get("error", parse_line),
        )
    )


def _text_values(value: Any, where: str) -> dict[str, str]:
    values = parse_object(value, where)
    if len(values) > _MAX_VALUES:
        raise UnexpectedAnswerError(f"{where}: {len(values)} values where at most {_MAX_VALUES} are expected")
    return {one_line(name): parse_line(one, f"{where}.{one_line(name)}") for name, one in values.items()}


def _environment(value: Any, where: str) -> PythonEnvironment:
    fields = JsonFields(value, where)
    packages = {}
    for name, one in fields.get("packages", parse_object).items():
        package = JsonFields(one, f"{where}.packages.{one_line(name)}")
        version = package.get("version", parse_line)
        requires = package.each("requires", parse_line, most=_MAX_VALUES, longest=_MAX_REQUIREMENT)
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version):
            packages[name] = InstalledPackage(version, requires)
    return PythonEnvironment(
        fields.get("kind", parse_line), fields.get("path", parse_line), fields.get("python", parse_line), packages
    )


def _synchronized(printed: JsonFields) -> Fact[bool]:
    if _code(printed) == _NO_PYTHON:
        return Absent("`timedatectl` is missing")
    found = _SYNCHRONIZED.search(_printed(printed, "timedatectl"))
    if found is None:
        return Unknown("`timedatectl` printed no state")
    return Known(found[1] == "yes")


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
        expected=tuple(sorted([*(one.target.worker for one in examined), *without_route])),
        workers=tuple(WorkerFacts(one.target.worker, one.facts) for one in examined if one.ssh_stderr is None),
        unreachable=unreachable,
        has_own_key=has_own_key,
    )
