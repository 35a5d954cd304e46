"""Jobs on workers: ask all workers in parallel, parse what they report, read output, signal, remove, and show.

Each question is one channel to `ssh/agent/job_queries.py`. A `Job` combines the shares of all its workers.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tpuctl.decoding import OneOf, Range, Text
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ConflictError, InvalidInputError, NotFoundError, TpuctlError
from tpuctl.escaping import one_line, preview
from tpuctl.names import parse_whole_number
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, View
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_decimal
from tpuctl.ssh.channel import (
    LONGEST_FRAME,
    MAX_CHANNELS,
    AgentError,
    WorkerFrame,
    explain_agent_errors,
    on_each_worker,
    open_agent,
)
from tpuctl.workers.runner import RunRequest
from tpuctl.workers.worker_session import WorkerOutcome, WorkerResult, parse_about, parse_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tpuctl.names import NodeName
    from tpuctl.nodes.kept_jobs import KeptJob
    from tpuctl.output.tables import TableLayout
    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.channel import AgentChannel
    from tpuctl.ssh.connection import Connection, Target
    from tpuctl.workers.worker_session import OutputSink

# Linux's numbers: those of this machine may differ.
LINUX_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
    "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CONT": 18, "STOP": 19, "XCPU": 24, "XFSZ": 25, "SYS": 31,
}  # fmt: skip
_HIGHEST_SIGNAL = 64
# kill(2) sends nothing for it, and reports whether the processes exist.
_NO_SIGNAL = 0
# With the worker's number it forms the name of a folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The longest record of a job that a worker sends (ssh/agent/job_files.py).
_LONGEST = 64 * 1024
# Clocks of workers may be wrong, but a date ends at the year 9000.
_LATEST = 221_845_392_000
_LONGEST_AGE = 100 * 365 * 86400
_TOGETHER = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """A job on one worker. `began` is by the worker's clock; `age`, at the moment `seen`, depends on no other clock.

    `result` is None while it runs. It is lost if it does not run and has no recorded exit code: the worker was rebooted, or out
    of memory. `command` is empty and `is_detached` None if the worker's record of them cannot be read. `is_followed`: a client
    streams its output now. `sizes` and `starts` are bytes of stdout and of stderr: their sizes, and the positions of the last
    lines that were requested.
    """

    target: Target
    job: str
    began: datetime
    age: timedelta
    result: WorkerResult | None
    command: str = ""
    is_detached: bool | None = None
    is_followed: bool = False
    sizes: tuple[int, int] = (0, 0)
    starts: tuple[int, int] = (0, 0)
    seen: timedelta = field(default_factory=lambda: timedelta(seconds=time.monotonic()))  # by our monotonic clock
    # Whether the worker knows when its output was written; otherwise `starts` disregards `since`.
    has_times: bool = True

    @property
    def state(self) -> str:
        """`running`, `exited`, `signaled` or `lost`."""
        return str(self.result.outcome) if self.result else "running"

    @property
    def duration(self) -> timedelta | None:
        """Its duration so far; None for a lost job."""
        return self.result.duration if self.result else self.age


def check_job_name(name: str) -> str:
    """Return the name of a job. Raises `InvalidInputError` for an invalid name: it becomes part of a folder's name."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"`{name}` cannot be the name of a job",
            hint="a job's name has letters, digits, `.`, `_` and `-`; list the jobs: `tpuctl jobs NODE`",
        )
    return name


def parse_signal(text: str) -> int:
    """Return the Linux number of a signal: `TERM`, `SIGTERM`, `15`. Raises `InvalidInputError`."""
    number = parse_whole_number(text) or LINUX_SIGNALS.get(text.upper().removeprefix("SIG"), 0)
    if not 0 < number <= _HIGHEST_SIGNAL:
        raise InvalidInputError(f"no signal `{text}`", hint="give TERM, INT, QUIT, KILL, …, or a number")
    return number


def signal_name(number: int) -> str:
    """Return the Linux name of a signal, without `SIG`."""
    return next((name for name, known in LINUX_SIGNALS.items() if known == number), str(number))


JobName = Annotated[str, Text(100, _NAME.pattern, "the name of a job")]
# One number for stdout and one for stderr.
_Sizes = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _JobReport:
    """A worker's report of one job. The clock may have been set back since the start."""

    name: JobName
    began: Annotated[datetime, Range(0, _LATEST)]
    age: Annotated[timedelta, Range(-_LONGEST_AGE, _LONGEST_AGE)]
    about: Annotated[str, Text(_LONGEST)]
    end: Annotated[str, Text(_LONGEST)]
    state: Annotated[str, OneOf(("running", "ended", "lost"))]
    sizes: _Sizes
    starts: _Sizes
    followed: bool
    timed: bool = True


def parse_worker_job(target: Target, value: Any, where: str) -> WorkerJob:
    """Parse a worker's report of one job. Raises `UnexpectedAnswerError`."""
    report = decode_answer(_JobReport, value, where)
    return _worker_job(target, report, where)


def _worker_job(target: Target, report: _JobReport, where: str) -> WorkerJob:
    result = None if report.state == "running" else WorkerResult(target=target, outcome=WorkerOutcome.LOST)
    if report.state == "ended":
        with suppress(UnexpectedAnswerError):  # unreadable, because the disk was full
            result = parse_result(target, report.end.encode(errors="replace"))
    for stream, (start, size) in enumerate(zip(report.starts, report.sizes, strict=True)):
        if start > size:
            raise UnexpectedAnswerError(f"{where}.starts[{stream}]: expected 0 to {size}, got {start}")
    command, is_detached = parse_about(report.about)
    return WorkerJob(
        target=target,
        job=report.name,
        began=report.began,
        age=max(timedelta(), report.age),
        result=result,
        command=command,
        is_detached=is_detached,
        is_followed=report.followed,
        sizes=report.sizes,
        starts=report.starts,
        has_times=report.timed,
    )


JOB_QUERY_TIMEOUT = timedelta(seconds=30)
# As long as `run` tries to connect to a worker, and as often.
_RETRY_FOR = RunRequest().connect_within.total_seconds()
_PAUSES = (0.5, 1, 2, 4)
# No home directory has more jobs than this.
_MOST_JOBS = 100_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class JobScope:
    """The workers to ask, the nodes as written on a command line, and the job named by the user, if any.

    `ssh_options` returns the options of a shared connection.
    """

    targets: Sequence[Target]
    ssh_options: Callable[[Connection], tuple[str, ...]]
    nodes: str = ""
    job: str | None = None

    def open(self, target: Target, request: Mapping[str, Any], **options: Any) -> AbstractContextManager[AgentChannel]:
        """Open a channel to a worker for a request."""
        shared = self.ssh_options(target.connection)
        return open_agent(target, "job_queries", request, **{"shared": shared, **options})

    def ask(
        self,
        target: Target,
        request: Mapping[str, Any],
        parse: Callable[[Any], _T],
        *,
        within: timedelta = JOB_QUERY_TIMEOUT,
        until: float = 0,
    ) -> _T:
        """Ask one worker. A question that changes nothing is repeated `until` a time if the worker does not accept ssh yet.

        Raises `AgentError`, `UnexpectedAnswerError` and `SshProgramMissingError`.
        """
        options: dict[str, Any] = {}
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while True:
            try:
                with self.open(target, request, **options) as channel:
                    return parse(channel.read(within))
            except AgentError as error:
                pause = next(pauses)
                if not options and error.ssh_stderr == "" and not error.has_begun:
                    # A shared connection hides the messages of its ProxyCommand; the program has not begun.
                    pause = 0
                elif not error.is_retriable or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            # A shared connection may be what broke.
            options = {"shared": None}


def read_output(scope: JobScope, shares: Sequence[WorkerJob], streams: OutputSink) -> list[TpuctlError]:
    """Pass on the output of jobs from `starts` to `sizes`; return why workers could not be read.

    Memory is bounded: a worker waits for its turn with a full pipe. Raises `SshProgramMissingError`.
    """
    readers = [_OutputReader(scope, share, streams) for share in shares]
    errors: list[TpuctlError] = []
    with ExitStack() as stack:
        channels: list[AgentChannel] = []
        for index, reader in enumerate(readers):
            ahead = readers[len(channels) : index + MAX_CHANNELS]
            channels += [stack.enter_context(one.open()) for one in ahead]
            try:
                reader.read(channels[index])
            except UnexpectedAnswerError as error:
                errors.append(error.of(reader.target.label))
            except AgentError as error:
                errors.append(error)
            streams.ended(reader.target)
    return errors


class _OutputReader:
    """Reads the output of one worker. A broken connection is replaced, and reading continues where it broke."""

    def __init__(self, scope: JobScope, share: WorkerJob, streams: OutputSink) -> None:
        self.target = share.target
        self._scope, self._share, self._streams = scope, share, streams
        # The position in stdout and in stderr, in bytes.
        self._at = list(share.starts)

    def open(self, **options: Any) -> AbstractContextManager[AgentChannel]:
        """Request what is left to read."""
        parts = list(zip(self._at, self._share.sizes, strict=True))
        request = {"do": "read", "name": self._share.job, "parts": parts}
        return self._scope.open(self.target, request, longest=LONGEST_FRAME, **options)

    def read(self, channel: AgentChannel) -> None:
        """Read to the end, over several connections if they break. Raises `AgentError`, `UnexpectedAnswerError`."""
        pauses = iter(_READ_PAUSES)
        with ExitStack() as stack:
            while True:
                before = sum(self._at)
                try:
                    return self._pass_on(channel)
                except AgentError as error:
                    # No limit as long as each connection brings something.
                    if sum(self._at) > before:
                        pauses = iter(_READ_PAUSES)
                    pause = next(pauses, None)
                    if not error.is_retriable or pause is None:
                        raise
                    time.sleep(pause)
                    channel = stack.enter_context(self.open(shared=None))

    def _pass_on(self, channel: AgentChannel) -> None:
        """Pass on the output of one connection and advance the position."""
        for kind, payload in channel.frames(JOB_QUERY_TIMEOUT):
            is_error = kind in {WorkerFrame.ERR, WorkerFrame.ERR_GONE}
            match kind:
                case WorkerFrame.OUT | WorkerFrame.ERR:
                    self._move(len(payload), is_error=is_error)
                    self._streams.output(self.target, payload, is_error=is_error)
                case WorkerFrame.OUT_GONE | WorkerFrame.ERR_GONE:
                    gone = parse_decimal(payload, "bytes that are not stored", low=1)
                    self._move(gone, is_error=is_error)
                    self._streams.note(self.target, f"{gone} bytes of its output are no longer stored")
                case WorkerFrame.EXIT if not payload:
                    return
                case WorkerFrame.MISSING if not payload:
                    raise AgentError(self.target, "the job no longer exists")
                case WorkerFrame.REFUSED:
                    raise AgentError(self.target, one_line(payload.decode(errors="replace")))
                case _:
                    raise UnexpectedAnswerError(f"a frame `{kind.name}` within the output of the job")
        raise channel.failure()

    def _move(self, size: int, *, is_error: bool) -> None:
        """Advance the position. Raises `UnexpectedAnswerError` beyond the requested end."""
        self._at[is_error] += size
        end = self._share.sizes[is_error]
        if not size or self._at[is_error] > end:
            raise UnexpectedAnswerError(f"{size} bytes of output, to {self._at[is_error]} of {end}")


# Before reconnecting to a worker.
_READ_PAUSES = (0.5, 2, 5)


# Jobs to request from each worker: enough for all to name the same newest one, although it runs on some of them only.
_NEWEST = 20


@dataclass(frozen=True, slots=True)
class Job:
    """A job on all workers that have it, in their order."""

    name: str
    shares: tuple[WorkerJob, ...]

    @property
    def targets(self) -> list[Target]:
        """Its workers."""
        return [share.target for share in self.shares]

    @property
    def nodes(self) -> list[str]:
        """Its nodes."""
        return list(dict.fromkeys(share.target.node.name.node_id for share in self.shares))

    @property
    def age(self) -> timedelta:
        """Time since its start on its first worker. The workers compute it, so no two clocks are compared."""
        return max((share.age for share in self.shares), default=timedelta())

    @property
    def delays(self) -> dict[str, timedelta]:
        """How much later than on its first worker it started on each, by label. No two clocks are compared."""
        starts = {share.target.label: share.seen - share.age for share in self.shares}
        first = min(starts.values(), default=timedelta())
        delays = {label: start - first for label, start in starts.items()}
        # They started together: how long each ran is known better than how long each took to answer.
        return {label: delay if delay > _TOGETHER else timedelta() for label, delay in delays.items()}

    @property
    def began(self) -> datetime:
        """Its start, by the clock of its first worker."""
        return max(self.shares, key=lambda share: share.age).began

    @property
    def duration(self) -> timedelta | None:
        """Its longest duration so far on any worker; None if no worker knows."""
        return max((share.duration for share in self.shares if share.duration is not None), default=None)

    @property
    def command(self) -> str:
        """Its command; empty if no worker's record of it can be read."""
        return next((share.command for share in self.shares if share.command), "")

    @property
    def is_detached(self) -> bool | None:
        """Whether it continues without a client; None if no worker's record of that can be read."""
        return next((share.is_detached for share in self.shares if share.is_detached is not None), None)

    @property
    def is_followed(self) -> bool:
        """Whether a client streams its output now."""
        return any(share.is_followed for share in self.shares)

    @property
    def is_running(self) -> bool:
        """Whether it runs on any worker."""
        return any(share.result is None for share in self.shares)


@dataclass(frozen=True, slots=True)
class JobListing:
    """All jobs, the newest first; the workers that did not answer, and why; how many jobs were left out, at least."""

    jobs: tuple[Job, ...]
    silent: tuple[Target, ...]
    failures: tuple[TpuctlError, ...]
    left_out: int

    @property
    def errors(self) -> list[TpuctlError]:
        """Why workers did not answer, one error for each cause."""
        return explain_agent_errors(self.failures)


@dataclass(frozen=True, slots=True)
class _JobList:
    jobs: tuple[_JobReport, ...]
    total: Annotated[int, Range(0, _MOST_JOBS)]


@dataclass(frozen=True, slots=True)
class _Signaled:
    job: _JobReport
    sent: bool


def list_jobs(
    scope: JobScope,
    *,
    limit: int = _NEWEST,
    tail: int | None = None,
    since: timedelta | None = None,
    within: timedelta | None = None,
) -> JobListing:
    """Ask all workers for their newest jobs, or for the one that the user named. Raises `SshProgramMissingError`.

    With `tail` a share's `starts` is the position of its last lines, with `since` of what was printed since that time ago. With
    `within` each worker is asked once, and may answer within that time; a job is then listed for each node that has it.
    """
    names = [scope.job] if scope.job else []
    ago = None if since is None else since.total_seconds()
    request = {"do": "list", "names": names, "limit": limit, "tail": tail, "since": ago}

    def parse(target: Target, value: Any) -> tuple[tuple[WorkerJob, ...], int]:
        answer = decode_answer(_JobList, value, "the list")
        if len(answer.jobs) > limit or answer.total < len(answer.jobs):
            raise UnexpectedAnswerError(f"the list: {len(answer.jobs)} jobs, {answer.total} in all, of at most {limit}")
        shares = tuple(
            _worker_job(target, report, f"the list.jobs[{index}]") for index, report in enumerate(answer.jobs)
        )
        found = [share.job for share in shares]
        for at, name in enumerate(found):
            if names and name not in names:
                raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` was not requested")
            if name in found[:at]:
                raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` a second time")
        return shares, answer.total

    now = time.monotonic()
    until = now + _RETRY_FOR if within is None else 0
    outcomes = on_each_worker(
        lambda target: scope.ask(target, request, partial(parse, target), until=until),
        scope.targets,
        deadline=None if within is None else timedelta(seconds=now) + within,
    )
    answers = [one.get() for one in outcomes if one.error is None]
    grouped: dict[tuple[str, NodeName | None], list[WorkerJob]] = {}
    for shares, _ in answers:
        for share in shares:
            grouped.setdefault((share.job, share.target.node.name if within else None), []).append(share)
    jobs = sorted((Job(name, tuple(found)) for (name, _), found in grouped.items()), key=lambda job: job.age)
    left_out = max([0, len(jobs) - limit, *(total - len(shares) for shares, total in answers)])
    silent = [one for one in outcomes if one.error is not None]
    return JobListing(
        jobs=tuple(jobs[:limit]),
        silent=tuple(one.item for one in silent),
        failures=tuple(one.error for one in silent if one.error is not None),
        left_out=left_out,
    )


def choose_job(scope: JobScope, listing: JobListing, *, running_first: bool = False) -> Job:
    """Return the job that the user named, or the newest; with `running_first` the newest that runs, if any does.

    Raises `NotFoundError`; if workers did not answer, their error instead, because their jobs are unknown.
    """
    running = [job for job in listing.jobs if job.is_running] if running_first else []
    if listing.jobs:
        return (running or listing.jobs)[0]
    if listing.failures:
        raise listing.errors[0]
    raise job_not_found(scope, scope.job)


def job_not_found(scope: JobScope, name: str | None) -> NotFoundError:
    """Return the error for a job that no worker has."""
    nodes = scope.nodes
    if name is None:
        return NotFoundError(f"no jobs on `{nodes}`", hint=f"start one: `tpuctl run {nodes} --detach -- COMMAND`")
    hint = f"list them: `tpuctl jobs {nodes}`; the last of several words is the job"
    return NotFoundError(f"no job `{name}` on `{nodes}`", hint=hint)


@dataclass(frozen=True, slots=True)
class JobSignalResult:
    """The job after the signal, the workers that received it, and why workers did not answer."""

    job: Job
    sent: tuple[Target, ...]
    errors: Sequence[TpuctlError]


def signal_job(scope: JobScope, name: str, number: int, *, wait: timedelta) -> JobSignalResult:
    """Send a signal to all processes of a job on all workers where it runs; then wait up to `wait` for its end.

    All workers get the signal before one is waited for: a handler may wait for the other workers, as a collective checkpoint
    does. Raises `NotFoundError` if no worker has the job; if workers did not answer, their error instead.
    """

    def parse(target: Target, value: Any) -> tuple[WorkerJob, bool] | None:
        if value is None:
            return None
        answer = decode_answer(_Signaled, value)
        share = _worker_job(target, answer.job, "the answer.job")
        if share.job != name:
            raise UnexpectedAnswerError(f"the answer.job: `{share.job}` was not requested")
        return share, answer.sent

    def send(target: Target, number: int, wait: timedelta) -> tuple[WorkerJob, bool] | None:
        request = {"do": "signal", "name": name, "number": number, "wait": wait.total_seconds()}
        return scope.ask(target, request, partial(parse, target), within=JOB_QUERY_TIMEOUT + wait)

    outcomes = on_each_worker(lambda target: send(target, number, timedelta()), scope.targets)
    answered = [one.value for one in outcomes if one.value is not None]
    sent = tuple(share.target for share, was_sent in answered if was_sent)
    until = time.monotonic() + wait.total_seconds()

    def await_end(target: Target) -> tuple[WorkerJob, bool] | None:
        left = timedelta(seconds=max(0.0, until - time.monotonic()))
        return send(target, _NO_SIGNAL, left)

    waited = on_each_worker(await_end, [share.target for share, was_sent in answered if was_sent and not share.result])
    ended = {one.item.label: one.value[0] for one in waited if one.value is not None}
    errors = explain_agent_errors(one.error for one in (*outcomes, *waited) if one.error is not None)
    if not answered:
        raise errors[0] if errors else job_not_found(scope, name)
    return JobSignalResult(
        Job(name, tuple(ended.get(share.target.label, share) for share, _ in answered)), sent, errors
    )


def remove_jobs(
    scope: JobScope, names: Sequence[str], *, older: timedelta
) -> tuple[Sequence[str], Sequence[TpuctlError]]:
    """Remove the jobs in `names`, or all that ended longer ago than `older`, with their output.

    A job that runs on any worker is removed from none. If a worker does not answer, nothing is removed. Returns the jobs that
    were removed; why others that were named were not, and why workers did not answer. Raises `SshProgramMissingError`.
    """
    until = time.monotonic() + _RETRY_FOR

    def ask(target: Target, asked: Sequence[str], done: str) -> dict[str, str]:
        """Return the outcome of each job by name: `done`, `missing`, `running`, or `followed` by a client."""
        only_looks = done == "ended"
        request = {"do": "remove", "names": list(asked), "older": older.total_seconds(), "only_looks": only_looks}
        parse = partial(_parse_outcomes, names=asked, allowed=(done, "missing", "running", "followed"))
        return scope.ask(target, request, parse, until=until if only_looks else 0)

    looked = on_each_worker(lambda target: ask(target, names, "ended"), scope.targets)
    if errors := explain_agent_errors(one.error for one in looked if one.error is not None):
        return (), errors
    places: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    for one in looked:
        for name, outcome in one.get().items():
            places.setdefault(name, {}).setdefault(outcome, []).append(one.item.label)
    ended = []
    for name, found in places.items():
        in_use = next((outcome for outcome in _IN_USE if outcome in found), None)
        if in_use is None and "ended" in found:
            ended.append(name)
        elif name in names and in_use is not None:
            what, hint = _IN_USE[in_use]
            text = f"job `{name}` {what} on worker {', '.join(found[in_use])}; nothing was removed"
            errors.append(ConflictError(text, hint=hint.format(nodes=scope.nodes, name=name)))
        elif name in names:
            errors.append(job_not_found(scope, name))
    # Each worker removes only what it reported itself: the answer of one changes nothing on another.
    theirs = {one.item.label: [name for name in ended if one.get().get(name) == "ended"] for one in looked}
    asked = [target for target in scope.targets if theirs[target.label]]
    removed = on_each_worker(lambda target: ask(target, theirs[target.label], "removed"), asked)
    return sorted(ended), [*errors, *explain_agent_errors(one.error for one in removed if one.error is not None)]


def set_aside(scope: JobScope, name: str, new_name: str) -> tuple[Sequence[Target], Sequence[TpuctlError]]:
    """Rename a job that has ended, on all workers that have it.

    Returns the workers on which it still runs, and why workers did not answer.
    """
    request = {"do": "rename", "name": name, "to": new_name}
    parse = partial(decode_answer, _RENAMED)
    outcomes = on_each_worker(lambda target: scope.ask(target, request, parse), scope.targets)
    errors = explain_agent_errors(one.error for one in outcomes if one.error is not None)
    return [one.item for one in outcomes if one.value == "running"], errors


_RENAMED: Any = Annotated[str, OneOf(("missing", "running", "renamed"))]

# Why a job is not removed.
_IN_USE = {
    "running": ("runs", "terminate it: `tpuctl kill {nodes} {name}`"),
    "followed": ("is being followed", "try again when its client has ended"),
}


def _parse_outcomes(value: Any, *, names: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
    """Parse an answer about these jobs; without names, about any."""
    outcomes: dict[str, str] = decode_answer(dict[str, str], value)
    for name, outcome in outcomes.items():
        if names and name not in names:
            raise UnexpectedAnswerError(f"{preview(name)} was not requested")
        decode_answer(JobName, name, "a name")
        if outcome not in allowed:
            raise UnexpectedAnswerError(f"{name}: expected {' or '.join(allowed)}, got {preview(outcome)}")
    return outcomes


# More workers than these are counted, not named.
_NAMED = 3
_ORDER = ("running", "lost", "signaled", "exited")


# Names and order are a contract with scripts (docs/nodes.md).
JOB_COLUMNS = (
    Column("job", Kind.NAME),
    Column("started", Kind.TIME),
    Column("state", Kind.STATE),
    Column("duration", Kind.TIME),
    Column("kind", Kind.WORD),
    Column("command", Kind.TEXT),
    Column("node", Kind.NAME, is_on_request=True),
)


def jobs_view(listing: JobListing, nodes: str, layout: TableLayout, *, kept: Mapping[tuple[str, str], KeptJob]) -> View:
    """Return the view of a list of jobs; `kept` are those of `run --keep`, by node and name."""
    jobs, rows = layout.sort(listing.jobs, [job_row(job) for job in listing.jobs])

    def show(terminal: Terminal) -> None:
        if rows or listing.silent or not terminal.is_interactive:
            layout.write(terminal, rows)
        else:
            terminal.note(f"no jobs on `{nodes}`")

    def value() -> list[dict[str, Any]]:
        records = [next((kept[node, job.name] for node in job.nodes if (node, job.name) in kept), None) for job in jobs]
        return [
            job_json(job) | ({"kept": record.to_json()} if record else {})
            for job, record in zip(jobs, records, strict=True)
        ]

    return View(value=value, names=lambda: [job.name for job in jobs], text=show)


def job_row(job: Job) -> tuple[Cell, ...]:
    """Return the row of one job."""
    states = {share.state for share in job.shares}
    style = "green" if "running" in states else ""
    if states & {"lost", "signaled"} or any(share.result and share.result.code for share in job.shares):
        style = "red"
    duration = Cell("")
    if job.duration is not None:
        seconds = job.duration.total_seconds()
        text = f"{seconds:.1f}s" if seconds < 10 else format_duration(job.duration)  # below it tenths matter
        duration = Cell(text, f"{seconds:.3f}", rank=seconds)
    return (
        Cell(job.name),
        Cell(f"{format_duration(job.age)} ago", format_timestamp(job.began), rank=job.age.total_seconds()),
        Cell(job_state(job.shares), style=style),
        duration,
        Cell({True: "detached", False: "followed", None: ""}[job.is_detached]),
        Cell(job.command),
        Cell(", ".join(job.nodes)),
    )


def job_state(shares: Sequence[WorkerJob]) -> str:
    """Return the state of a job: `running on 8 workers`, `exited 0`, `exited 1 on worker 5, exited 0 on 7 workers`."""
    groups: dict[str, list[WorkerJob]] = {}

    def rank(share: WorkerJob) -> tuple[int, bool, int]:
        """Sort running ones first, then failures."""
        code = share.result.code if share.result else None
        return _ORDER.index(share.state), code == 0, code or 0

    for share in sorted(shares, key=rank):
        groups.setdefault(_share_state(share), []).append(share)
    if len(groups) == 1 and (len(shares) == 1 or shares[0].result is not None):
        return next(iter(groups))
    where = {how: worker_names([share.target for share in group], len(shares)) for how, group in groups.items()}
    return ", ".join(f"{how} on {place}" for how, place in where.items())


def job_json(job: Job) -> dict[str, Any]:
    """Return the form for scripts. Times of day are by the workers' clocks."""
    return {
        "job": job.name,
        "started": format_timestamp(job.began),
        "state": job_state(job.shares),
        "seconds": _total(job.duration),
        "detached": job.is_detached,
        "command": job.command,
        "workers": [
            {
                "nodeId": share.target.node.name.node_id,
                "zone": share.target.node.name.zone,
                "worker": share.target.worker,
                "state": share.state,
                "started": format_timestamp(share.began),
                "exitCode": share.result.code if share.result else None,
                "signal": share.result.signal if share.result else None,
                "seconds": _total(share.duration),
                "followed": share.is_followed,
                "stdoutBytes": share.sizes[0],
                "stderrBytes": share.sizes[1],
                **({"timedOut": True} if share.result and share.result.timed_out else {}),
                **({"diskFull": True} if share.result and share.result.disk_was_full else {}),
            }
            for share in job.shares
        ],
    }


def _share_state(share: WorkerJob) -> str:
    result = share.result
    if result is None or result.outcome is WorkerOutcome.LOST:
        return share.state
    if result.timed_out:
        return f"timed out (exit {result.code})"
    if result.outcome is WorkerOutcome.EXITED:
        return f"exited {result.code}"
    by = f"ended by {signal_name(result.signal or 0)}"
    return f"{by}: no client followed it" if result.orphaned else by


def worker_names(targets: Sequence[Target], total: int) -> str:
    """Return the workers by name if they are few, else their number: `worker 5`, `workers 2, 3`, `8 workers`."""
    if len(targets) > 1 and (len(targets) == total or len(targets) > _NAMED):
        return f"{len(targets)} workers"
    return f"worker{'s' if len(targets) > 1 else ''} {', '.join(target.label for target in targets)}"


def _total(duration: timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), 3)
