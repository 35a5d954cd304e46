"""A command on workers for a program: its output is kept and passed on, and its results are values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpuctl.ssh.connection import Target
from tpuctl.workers.execution import OutputTail, run_error, run_into, run_warnings, ssh_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.errors import TpuctlError
    from tpuctl.names import NodeName
    from tpuctl.workers.execution import RunDiagnosis
    from tpuctl.workers.runner import RunRequest
    from tpuctl.workers.worker_session import WorkerOutcome

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
    result = run_into(app, targets, request, sink, sink.tail)
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
