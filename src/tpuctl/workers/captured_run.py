"""A command on workers for a program: its output is kept and passed on, and its results are values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.ssh.connection import Target
from tpuctl.workers.execution import (
    OutputTail,
    run_error,
    run_into,
    run_warnings,
    ssh_errors,
    why_gone,
    with_diagnosis,
    with_preemptions,
)
from tpuctl.workers.runner import RunResult, follow_on_workers
from tpuctl.workers.worker_jobs import choose_job, job_state, list_jobs, read_output
from tpuctl.workers.worker_session import WorkerOutcome, WorkerResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from tpuctl.app.app import App
    from tpuctl.errors import TpuctlError
    from tpuctl.names import NodeName
    from tpuctl.workers.copying import CopyResult
    from tpuctl.workers.execution import RunDiagnosis
    from tpuctl.workers.runner import RunRequest
    from tpuctl.workers.syncing import SyncChanges
    from tpuctl.workers.worker_jobs import Job, JobScope

# Bytes that are kept of each worker's stdout and of its stderr.
KEPT_OUTPUT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """Some bytes that a worker has just sent, as they are: they may end in the middle of a line or a character."""

    node: NodeName
    worker: int
    data: bytes
    is_stderr: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """How a command ended on one worker, and the end of its output."""

    node: NodeName
    worker: int
    outcome: WorkerOutcome
    exit_code: int | None  # as a shell reports it: 128 and the signal; None if it is unknown
    signal: int | None
    duration: timedelta | None
    stdout: str  # its last 1 MiB, as the worker sent it: control characters are not removed
    stderr: str  # the same
    is_cut: bool  # the beginning of stdout or stderr is missing
    is_good: bool  # the command exited with 0 in time


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The results of a command on all workers, in their order."""

    job: str  # the name of the job, for `tpuctl logs`
    workers: tuple[WorkerRun, ...]
    error: TpuctlError | None = field(compare=False)  # what failed, and where; None if it succeeded on all workers
    diagnosis: RunDiagnosis | None = None  # what the output of the failed command means, if that is known

    @property
    def is_good(self) -> bool:
        """Whether the command succeeded on all workers."""
        return self.error is None

    def check(self) -> CommandResult:
        """Return this result. Raises its `error` if there is one."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job of nodes, as their workers report it."""

    job: str
    nodes: tuple[str, ...]
    state: str  # in words: `running on 8 workers`, `exited 1 on worker 5, exited 0 on 7 workers`
    command: str  # empty if it is unknown
    started: datetime  # by the clock of its first worker
    duration: timedelta | None  # so far; None if it is unknown
    is_running: bool  # on any worker
    exit_codes: tuple[int | None, ...]  # of each worker; None while it runs, or if it is unknown

    @classmethod
    def of(cls, job: Job) -> JobInfo:
        """Return what a program needs to know of a job."""
        return cls(
            job=job.name,
            nodes=tuple(job.nodes),
            state=job_state(job.shares),
            command=job.command,
            started=job.began,
            duration=job.duration,
            is_running=job.is_running,
            exit_codes=tuple(share.result.code if share.result else None for share in job.shares),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFiles:
    """The files that were sent to one worker, or copied from it."""

    node: NodeName
    worker: int
    files: int
    size: int  # of these, in bytes
    folder: str  # of a sync: the absolute path on the worker; empty for a copy

    @classmethod
    def of_sync(cls, target: Target, changes: SyncChanges) -> WorkerFiles:
        """Return what a sync has sent."""
        name, folder = target.node.name, changes.folder
        return cls(node=name, worker=target.worker, files=len(changes.sent), size=changes.size, folder=folder)

    @classmethod
    def of_copy(cls, copied: CopyResult) -> WorkerFiles:
        """Return what was copied."""
        name, worker = copied.target.node.name, copied.target.worker
        return cls(node=name, worker=worker, files=copied.files, size=copied.size, folder="")


class CapturedOutput:
    """Keeps the end of each worker's output, and passes each piece on. An `OutputSink`."""

    failure: OSError | None = None

    def __init__(self, app: App, count: int, on_output: Callable[[OutputPiece], None] | None) -> None:
        self.tail = OutputTail(count, most=KEPT_OUTPUT)
        self._app, self._on_output = app, on_output

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Keep a piece, and pass it on. What the listener raises ends the run."""
        self.tail.add(target, data, is_error=is_error)
        if self._on_output is not None:
            self._on_output(OutputPiece(node=target.node.name, worker=target.worker, data=data, is_stderr=is_error))

    def ended(self, target: Target) -> None:
        """Do nothing: pieces are passed on as they arrive."""

    def connected(self, count: int, total: int) -> None:
        """Do nothing."""

    def interrupted(self) -> None:
        """Start a new line on a terminal, after its `^C`."""
        self._app.terminal.end_line()

    def note(self, target: Target | None, text: str) -> None:
        """Log information about a worker, or about all."""
        self._app.terminal.note(f"worker {target.label}: {text}" if target else text)


def run_captured(
    app: App,
    targets: Sequence[Target],
    request: RunRequest,
    *,
    on_output: Callable[[OutputPiece], None] | None = None,
) -> CommandResult:
    """Run a command on workers, keep its output, and return the results. Failures of the command are not raised."""
    sink = CapturedOutput(app, len(targets), on_output)
    return _command_result(app, sink, run_into(app, targets, request, sink, sink.tail))


def read_captured(
    app: App,
    scope: JobScope,
    *,
    tail: int | None,
    since: timedelta | None,
    follow: bool,
    on_output: Callable[[OutputPiece], None] | None,
) -> CommandResult:
    """Return the output of a job of a scope, by default of the newest; with `follow` at its end.

    On a worker where it still runs the outcome is `DETACHED`. Raises `NotFoundError`, and why a worker could not be read.
    """
    listing = list_jobs(scope, tail=tail, since=since)
    job = choose_job(scope, listing)
    sink = CapturedOutput(app, len(job.shares) + len(listing.silent), on_output)
    if follow:
        followed = follow_on_workers(
            job,
            listing.silent,
            sink,
            why_gone=lambda target: why_gone(app, target),
            ssh_options=scope.ssh_options,
        )
        return _command_result(app, sink, with_diagnosis(with_preemptions(app, followed), sink.tail))
    unread = explain_agent_errors([*listing.failures, *read_output(scope, job.shares, sink)])
    if unread:
        raise unread[0]
    results = [
        share.result or WorkerResult(target=share.target, outcome=WorkerOutcome.DETACHED, duration=share.duration)
        for share in job.shares
    ]
    return _command_result(app, sink, with_diagnosis(RunResult(job.name, tuple(results), None), sink.tail))


def _command_result(app: App, sink: CapturedOutput, result: RunResult) -> CommandResult:
    for text in run_warnings(result.results):
        app.terminal.warn(text)
    runs = []
    for one in result.results:
        (out, out_cut), (err, err_cut) = (sink.tail.kept(one.target, is_error=is_error) for is_error in (False, True))
        runs.append(
            WorkerRun(
                node=one.target.node.name,
                worker=one.target.worker,
                outcome=one.outcome,
                exit_code=one.code,
                signal=one.signal,
                duration=one.duration,
                stdout=out.decode("utf-8", "replace"),
                stderr=err.decode("utf-8", "replace"),
                is_cut=out_cut or err_cut,
                is_good=one.is_good,
            )
        )
    error, reasons = run_error(result), ssh_errors(result)
    if error is not None and len(reasons) == len(result.results) == 1:
        error = reasons[0]
    return CommandResult(job=result.job, workers=tuple(runs), error=error, diagnosis=result.diagnosis)
