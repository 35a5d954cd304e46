"""A command on workers, from the request to what is shown: for `run`, `attach` and `logs -f`, and `ssh` with several workers.

`diagnose_output` reads the end of the output of a command that failed; `run_json`, `run_warnings` and `run_error` describe the
results. `WorkerOutputStreams` writes the output while it comes.
"""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import re
import shlex
import signal
import stat
import struct
import termios
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Final

from tpuctl.app.seen_jobs import note_seen_jobs
from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration
from tpuctl.errors import ExitCode, InvalidInputError, PreemptedError, RemoteCommandError, TimedOutError, TpuctlError
from tpuctl.escaping import escape_unprintable
from tpuctl.explain.conclusion import Confidence, conclude, merge_scans
from tpuctl.explain.messages import Action, CheckFirst, MessageRole
from tpuctl.explain.scanner import LogReader
from tpuctl.fan_out import fan_out
from tpuctl.files import create_unlinked_file
from tpuctl.names import number_ranges
from tpuctl.nodes.conditions import check_login_state
from tpuctl.output.terminal import OutputFormat, StatusLine, View
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failures
from tpuctl.workers.environment import session_variables
from tpuctl.workers.runner import StdinSource, StopReason, follow_on_workers, run_on_workers
from tpuctl.workers.worker_session import WorkerOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tpuctl.app.app import App
    from tpuctl.explain.messages import Message
    from tpuctl.models.node import Node
    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.connection import Target
    from tpuctl.ssh.ssh_errors import SshFailedError
    from tpuctl.workers.runner import RunRequest, RunResult
    from tpuctl.workers.worker_jobs import Job, JobScope
    from tpuctl.workers.worker_session import OutputSink, WorkerResult


def shell_line(words: Sequence[str]) -> str:
    """Return the shell line for the words after `--`: one word unchanged, several as an argument vector."""
    return words[0] if len(words) == 1 else shlex.join(words)


def run_and_show(app: App, targets: Sequence[Target], request: RunRequest) -> int:
    """Run a command on workers, show its output, then its results; return the exit code."""
    return show_result(app, run_command(app, targets, request), detached=request.detach)


def run_command(app: App, targets: Sequence[Target], request: RunRequest) -> RunResult:
    """Run a command on workers, show its output, and return the results."""
    source = _stdin_source(app, targets, request)
    with WorkerOutputStreams(
        app.terminal, targets, to_stderr=_is_script(app), folder=request.log_folder, keeps_failure=True
    ) as streams:
        return run_into(app, targets, request, streams, streams.tail, source=source)


def run_into(
    app: App,
    targets: Sequence[Target],
    request: RunRequest,
    sink: OutputSink,
    tail: OutputTail,
    *,
    source: StdinSource | None = None,
) -> RunResult:
    """Run a command on workers and return the results; `sink` gets the output, and keeps its end in `tail`."""
    result = run_on_workers(
        targets,
        request,
        sink,
        environment=lambda one: session_variables(request.environment, one.node, one.worker),
        why_gone=lambda target: why_gone(app, target),
        ssh_options=shared_connection_options(app),
        source=source,
    )
    return with_diagnosis(result if request.detach else with_preemptions(app, result), tail)


def with_diagnosis(result: RunResult, tail: OutputTail) -> RunResult:
    """Return the result with the diagnosis of the failed command's output; Ctrl-C and TERM need no diagnosis."""
    if result.stopped in {StopReason.INTERRUPTED, StopReason.TERMINATED}:
        return result
    return replace(result, diagnosis=diagnose_output(result.results, tail))


def with_preemptions(app: App, result: RunResult) -> RunResult:
    """Return the result with the nodes that were preempted, also if the command succeeded.

    Only nodes that can be are read, and those with workers whose result is unknown. A node that cannot be read is not
    preempted as far as is known.
    """
    if result.stopped in {StopReason.INTERRUPTED, StopReason.TERMINATED}:
        return result
    nodes = {one.target.node.name: one.target.node for one in result.results}
    unknown = {one.target.node.name for one in result.results if one.code is None}
    asked = [
        node for name, node in nodes.items() if name in unknown or node.queued_resource or not node.tier.can_start_again
    ]
    until = SystemClock().monotonic() + _PREEMPTION_CHECK_TIMEOUT
    outcomes = fan_out(lambda node: _is_preempted(app, node), asked, limit=_MAX_PREEMPTION_CHECKS, deadline=until)
    return replace(result, preempted=tuple(one.item.name for one in outcomes if one.value))


def _is_preempted(app: App, node: Node) -> bool:
    """Return whether the service has preempted a node, or the queued resource that owned it."""
    now = app.services.client.find_node(node.name)
    if now is not None and now.id == node.id:
        return now.is_preempted
    return node.queued_resource is not None and (
        app.services.client.get_queued_resource(node.queued_resource).was_suspended_by_service
    )


def show_result(app: App, result: RunResult, *, detached: bool = False, again: str | None = None) -> int:
    """Show the results of a run, failures last. Return the exit code.

    `again`: the command that runs it on a new node, None if the node must be recreated first.
    """
    is_detached = detached and any(one.is_good for one in result.results)
    if is_detached:
        nodes = dict.fromkeys(one.target.node.name for one in result.results if one.is_good)
        note_seen_jobs(app.invocation.environ, nodes, [result.job])

    def show(terminal: Terminal) -> None:
        if is_detached:
            terminal.write(result.job)
            nodes = " ".join(dict.fromkeys(one.target.node.name.node_id for one in result.results))
            if terminal.is_interactive:
                terminal.note(f"the job continues: `tpuctl logs {nodes} {result.job} -f`, `tpuctl jobs {nodes}`")

    app.show(View(value=lambda: run_json(result), text=show))
    for text in run_warnings(result.results):
        app.terminal.warn(text)
    error = run_error(result)
    if isinstance(error, PreemptedError) and again is not None:
        error.hint = f"run it again: `{again}`"
    if not isinstance(error, PreemptedError):
        _warn_of_preemptions(app, result)
    reasons = [] if isinstance(error, PreemptedError) else ssh_errors(result)
    if reasons and len(result.results) == 1:
        raise reasons[0]
    for reason in reasons:
        app.show_error(reason)
    if error:
        app.show_error(error)
        show_diagnosis(app, result.diagnosis)
        return error.exit_code
    if result.stopped in {StopReason.INTERRUPTED, StopReason.TERMINATED}:
        app.terminal.note(str(result.stopped))
    return result.exit_code if result.stopped else ExitCode.OK


def _warn_of_preemptions(app: App, result: RunResult) -> None:
    """Warn of nodes that are PREEMPTED although the command did not fail there."""
    for name in result.preempted:
        text = f"`{name.node_id}` was PREEMPTED about when the command ended, and its boot disk is lost"
        app.terminal.warn(text)
        if app.summary:
            app.summary.note(f"warning: {text}")


def show_diagnosis(app: App, diagnosis: RunDiagnosis | None) -> None:
    """Show a diagnosis in one line, unless it is part of the JSON."""
    if diagnosis is not None and not _is_script(app):
        app.terminal.note(diagnosis.line)
    if diagnosis is not None and app.summary:
        app.summary.note(diagnosis.line)


def _is_script(app: App) -> bool:
    """Return whether stdout gets a document at the end, so that the output of workers goes to stderr."""
    return app.format in {OutputFormat.JSON, OutputFormat.YAML}


def why_gone(app: App, target: Target) -> str | None:
    """Return why a worker cannot be running any more according to the API; None if it may, or if the API fails."""
    try:
        node = app.services.client.find_node(target.node.name)
    except TpuctlError:
        return None
    if node is None or node.id != target.node.id:
        return "the node is gone"
    try:
        check_login_state(node)
    except TpuctlError as error:
        return error.message
    return None


def check_no_stdin(app: App) -> None:
    """Raise `InvalidInputError` for data on stdin."""
    found = _stdin(app)
    if found is not None and _has_data(*found):
        raise InvalidInputError(
            "a detached command cannot read stdin",
            hint="ignore stdin with `--no-stdin`; `tpuctl scp` copies a file to all workers",
        )


def _stdin_source(app: App, targets: Sequence[Target], request: RunRequest) -> StdinSource | None:
    """Return stdin for the command of a single worker, which ssh passes on too; None if it reads none.

    Raises `InvalidInputError` if there is data on stdin and several workers.
    """
    found = _stdin(app) if request.takes_stdin and not request.detach else None
    if found is None:
        return None
    if len(targets) == 1:
        return StdinSource(found[0])
    if _has_data(*found):
        raise InvalidInputError(
            f"stdin can be passed to one worker, not to {len(targets)}",
            hint="choose one with `--worker`, or ignore stdin with `--no-stdin`; `tpuctl scp` copies a file to all",
        )
    return None


def _stdin(app: App) -> tuple[int, int] | None:
    """Return descriptor and mode of stdin; None for a terminal, a device or a closed stdin."""
    streams = app.terminal.streams
    if streams.stdin_is_terminal:
        return None
    try:
        file = streams.stdin.fileno()
        mode = os.fstat(file).st_mode
    except (io.UnsupportedOperation, ValueError, OSError):  # there is none, or it is closed
        return None
    return None if stat.S_ISCHR(mode) else (file, mode)


def _has_data(file: int, mode: int) -> bool:
    if stat.S_ISREG(mode):
        return os.fstat(file).st_size > os.lseek(file, 0, os.SEEK_CUR)
    try:
        return bool(struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0\0\0\0"))[0])
    except OSError:
        return False


_SHOWN = 8
# The results are known: an API that does not answer must not hold them back.
_PREEMPTION_CHECK_TIMEOUT = timedelta(seconds=10)
_MAX_PREEMPTION_CHECKS = 16
# What TPU users see behind these exit codes of a shell (128 and the signal).
_MEANINGS = {
    126: "cannot be executed",
    127: "no such command",
    134: "aborted; often a failed check in libtpu",
    137: "killed; often out of memory",
    139: "segmentation fault",
    143: "terminated by TERM",
}
# The signals that --fail-fast sends to the other workers.
_OURS = (signal.SIGTERM, signal.SIGKILL)
_ABSENT = (WorkerOutcome.UNREACHABLE, WorkerOutcome.REFUSED)


def run_json(result: RunResult) -> dict[str, Any]:
    """Return the report for scripts."""
    return {
        "job": result.job,
        **({"stopped": str(result.stopped)} if result.stopped else {}),
        "workers": [
            {
                "nodeId": one.target.node.name.node_id,
                "zone": one.target.node.name.zone,
                "worker": one.target.worker,
                "outcome": str(one.outcome),
                "exitCode": one.code,
                "signal": one.signal,
                "seconds": one.duration.total_seconds() if one.duration is not None else None,
                "stdoutBytes": one.out_size,
                "stderrBytes": one.err_size,
                **({"error": f"unexpected answer: {one.why}" if one.is_unexpected else one.why} if one.why else {}),
                **{name: True for name, is_so in _remarks(one).items() if is_so},
            }
            for one in result.results
        ],
        **({"preempted": [name.node_id for name in result.preempted]} if result.preempted else {}),
        "diagnosis": result.diagnosis.to_json() if result.diagnosis else None,
    }


def run_warnings(results: Sequence[WorkerResult], *, tells_ends: bool = True) -> list[str]:
    """Return what the user has to know about commands that have ended, one line for all workers that share it.

    Without `tells_ends` also that the workers terminated them, for callers that do not show it elsewhere.
    """
    texts = {
        "diskFull": "the disk of {} was full: output may be incomplete",
        "outlived": "processes of the command still run on {}: their further output is not shown",
        **({} if tells_ends else {"timedOut": "timed out: the command was terminated on {}"}),
    }
    found = {name: [result for result in results if _remarks(result)[name]] for name in texts}
    return [text.format(f"worker {worker_labels(found[name])}") for name, text in texts.items() if found[name]]


def _remarks(result: WorkerResult) -> dict[str, bool]:
    return {"timedOut": result.timed_out, "diskFull": result.disk_was_full, "outlived": result.left_processes}


def run_error(result: RunResult) -> TpuctlError | None:
    """Return what failed and on which workers; None if the run succeeded or the user stopped it."""
    error = _command_error(result)
    failed = {one.target.node.name for one in result.results if not one.is_good}
    names = [name.node_id for name in result.preempted if name in failed]
    if not names or not isinstance(error, RemoteCommandError):
        return error
    subject = " and ".join([", ".join(f"`{name}`" for name in names[:-1]), f"`{names[-1]}`"]).removeprefix(" and ")
    hint = f"recreate what is lost with `tpuctl up {' '.join(names)}`, then run the command again"
    return PreemptedError(f"{subject} {'were' if len(names) > 1 else 'was'} PREEMPTED: {error.message}", hint=hint)


def _command_error(result: RunResult) -> TpuctlError | None:
    """Return what failed as the workers show it, whatever happened to their nodes."""
    bad = [one for one in result.results if not one.is_good]
    if not bad or result.stopped in {StopReason.INTERRUPTED, StopReason.TERMINATED}:
        return None
    total = len(result.results)
    if result.stopped is StopReason.TIMED_OUT or all(one.timed_out for one in bad):
        never_started = all(one.outcome is WorkerOutcome.NOT_STARTED for one in bad)
        what = "command not started on" if never_started else "command terminated on"
        after = f" after {format_duration(result.timeout)} (`--timeout`)" if result.timeout else ""
        text = f"timed out{after}: {what} {_count(bad, total)}: {worker_labels(bad)}"
        return TimedOutError(text, hint=_reasons(one for one in bad if not one.timed_out))
    absent = [one for one in bad if one.outcome in _ABSENT]
    if absent and all(not one.is_good and one.code is None for one in result.results):
        cannot = "be reached" if all(one.outcome is WorkerOutcome.UNREACHABLE for one in absent) else "run it"
        text = f"{_count(absent, total)} cannot {cannot}, so the command was not started on any worker: {worker_labels(absent)}"
        if total == 1:
            text = f"worker {worker_labels(absent)} cannot {cannot}; the command was not started"
        partial = "start it on the others: `--allow-unreachable`" if total > len(absent) else None
        return RemoteCommandError(text, hint="\n".join(filter(None, [_reasons(absent), partial])) or None)
    stopped = [
        one
        for one in bad
        if result.stopped is StopReason.FAILED and (one.signal in _OURS or one.outcome is WorkerOutcome.NOT_STARTED)
    ]
    if stopped and len(stopped) < len(bad):
        bad = [one for one in bad if one not in stopped]
    groups: defaultdict[str, list[WorkerResult]] = defaultdict(list)
    for one in bad:
        groups[_describe_result(one)].append(one)
    what = "; ".join(f"{worker_labels(group)} ({how})" for how, group in groups.items())
    # The workers on which --fail-fast stopped it.
    spared = [one for one in stopped if one.outcome is WorkerOutcome.NOT_STARTED]
    terminated = [one for one in stopped if one.outcome is not WorkerOutcome.NOT_STARTED]
    what += f"; terminated on {worker_labels(terminated)}" if terminated else ""
    what += f"; not started on {worker_labels(spared)}" if spared else ""
    where = f"{_count(bad, total)}: {what}" if total > 1 else f"worker {what}"
    return RemoteCommandError(f"the command failed on {where}", hint=_reasons(bad))


def ssh_errors(result: RunResult) -> list[SshFailedError]:
    """Return why ssh failed on workers, one error for all that share a cause."""
    failed = [(one.target, one.ssh_stderr) for one in result.results if one.ssh_stderr is not None]
    if not failed:
        return []
    got_in = len(failed) < len(result.results)
    return explain_ssh_failures(failed, collect_failure_context(failed[0][0], accepted_elsewhere=got_in))


def worker_labels(results: Iterable[WorkerResult]) -> str:
    """Return the labels of workers, consecutive numbers as a range: `0-3,5`."""
    return label_ranges([result.target.label for result in results])


def label_ranges(names: Sequence[str]) -> str:
    """Return labels of workers, consecutive numbers as a range."""
    if not all(name.isdigit() for name in names):
        return ", ".join(names)
    return ",".join(number_ranges(map(int, names)))


def _count(results: Sequence[WorkerResult], total: int) -> str:
    return f"{len(results)} of {total} workers"


def _describe_result(result: WorkerResult) -> str:
    """Return how the command ended on a worker, in a few words."""
    if result.is_unexpected:
        return "unexpected answer"
    if result.code is None:
        return {WorkerOutcome.NOT_STARTED: "not started", WorkerOutcome.LOST: "lost"}.get(
            result.outcome, str(result.outcome)
        )
    if result.timed_out:
        return "timed out"
    meaning = _MEANINGS.get(result.code)
    return f"exit {result.code}: {meaning}" if meaning else f"exit {result.code}"


def _reasons(results: Iterable[WorkerResult]) -> str | None:
    """Return the reasons, one line for each with the workers that share it."""
    whys: defaultdict[tuple[bool, str], list[WorkerResult]] = defaultdict(list)
    for result in results:
        if result.why and result.ssh_stderr is None and result.outcome is not WorkerOutcome.NOT_STARTED:
            whys[result.is_unexpected, result.why].append(result)
    lines = [group[0].explain(worker_labels(group)) for group in list(whys.values())[:_SHOWN]]
    return "\n".join(map(escape_unprintable, lines)) or None


# In a large slice only the workers that failed first are read: the others mostly report that those are missing.
_MAX_DIAGNOSED: Final = 16
_FAILED: Final = frozenset({WorkerOutcome.EXITED, WorkerOutcome.SIGNALED, WorkerOutcome.LOST})


@dataclass(frozen=True, slots=True)
class RunDiagnosis:
    """The most likely cause, in one line for people and as JSON for scripts.

    `id` is that of a known message, `worker` the label of the first worker that printed it. `blames_machine`: it says that the
    machine is bad, if the node is well by the API; `action` has that only if there is no doubt. `blames_peer`: it says that
    another worker was lost, and no log says why.
    """

    id: str
    worker: str
    action: str
    confidence: str
    meaning: str
    remedy: tuple[str, ...]
    blames_machine: bool = False
    blames_peer: bool = False

    @property
    def line(self) -> str:
        """One line: the message, the worker, the meaning and the best remedy."""
        advice = f"; {self.remedy[0]}" if self.remedy else ""
        return (
            f"diagnosis: {self.id} on worker {self.worker}: {self.meaning}{advice} (more: `tpuctl explain {self.id}`)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form for scripts."""
        fields = {name: value for name, value in asdict(self).items() if not name.startswith("blames_")}
        return {**fields, "remedy": list(self.remedy)}


def diagnose_output(results: Sequence[WorkerResult], tail: OutputTail) -> RunDiagnosis | None:
    """Return the most likely cause of a failed command; None if it printed no known message, or only quoted one.

    Reads only the kept output, and never fails.
    """
    failed = [result for result in results if not result.is_good and result.outcome in _FAILED]
    if not failed:
        return None
    try:
        return _conclude(failed, tail)
    except Exception:  # noqa: BLE001  # it only accompanies the failure, which has to be shown in any case
        return None


def _conclude(failed: Sequence[WorkerResult], tail: OutputTail) -> RunDiagnosis | None:
    first = sorted(failed, key=lambda one: (one.duration is None, one.duration.total_seconds() if one.duration else 0))
    logs = {}
    for result in first[:_MAX_DIAGNOSED]:
        words = [text for text in tail.of(result.target) if text.strip()]
        if words:
            reader = LogReader()
            for text in words:
                reader.feed(text if text.endswith(b"\n") else text + b"\n")
            logs[result.target.label] = reader.so_far()
    nodes = {result.target.node.name.node_id: result.target.node for result in failed}
    known: dict[str, str] = {}
    if len(nodes) == 1:
        ((known["node"], node),) = nodes.items()
        if node.service_account:
            known["service_account"] = node.service_account
    explained = conclude(merge_scans(logs), known=known, has_failed=True)
    for conclusion in explained.conclusions:
        if conclusion.confidence in {Confidence.HIGH, Confidence.MEDIUM}:
            place, message = conclusion.sighting.first, conclusion.sighting.message
            is_doubtful = message.check_first is CheckFirst.SEVERAL_CAUSES
            return RunDiagnosis(
                id=conclusion.id,
                worker=place.source or place.worker or "",
                action=str(conclusion.action),
                confidence=str(conclusion.confidence),
                meaning=conclusion.meaning,
                remedy=conclusion.remedy,
                blames_machine=message.action in {Action.RESTART_NODE, Action.RECREATE_NODE} and not is_doubtful,
                blames_peer=_blames_peer(message),
            )
    return None


def _blames_peer(message: Message) -> bool:
    """Return whether a message only says that another worker was lost."""
    is_seen_from_outside = message.check_first in {CheckFirst.NODE_STATE, CheckFirst.OTHER_WORKERS_LOG}
    has_remedy = message.action not in {Action.NONE, Action.WAIT}
    return message.role is MessageRole.SYMPTOM and is_seen_from_outside and not has_remedy


_LASTING = {True: "continues", False: "continues as long as a client follows it", None: "is left running"}


def follow_job(
    app: App, scope: JobScope, job: Job, others: Sequence[Target], *, passes_signals: bool = False
) -> RunResult:
    """Show the output of a job until it has ended, also of `others` that may have it.

    When a signal ends this process, say what happens to the job and how to follow it again.
    """
    what = f"job `{job.name}` {_LASTING[job.is_detached]}"
    resume, undo = f"tpuctl logs {scope.nodes} {job.name} -f", f"tpuctl kill {scope.nodes} {job.name}"
    with (
        WorkerOutputStreams(app.terminal, [*job.targets, *others], to_stderr=_is_script(app)) as streams,
        app.in_flight(what, resume=resume, undo=undo),
    ):
        result = follow_on_workers(
            job,
            others,
            streams,
            why_gone=lambda target: why_gone(app, target),
            ssh_options=scope.ssh_options,
            passes_signals=passes_signals,
        )
    return with_diagnosis(with_preemptions(app, result), streams.tail)


# A progress line appears after this time.
_REPORT_AFTER = timedelta(seconds=1)
# Bytes that are kept of each worker's stdout and of its stderr, and of all workers together.
_TAIL_BYTES: Final = 64 * 1024
_TOTAL_TAIL_BYTES: Final = 8 * 1024 * 1024
_MIN_TAIL_BYTES: Final = 4 * 1024
# A longer line is written in parts.
_LONGEST_LINE = 64 * 1024
_HUES = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# A terminal gets colors, tabs, newlines and carriage returns of a worker's output. All other sequences are removed: those that
# move the cursor, query the terminal or set its title, and single control characters.
_COLOR = r"\x1b\[[0-9;:]*m"
_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
_UNSAFE_SEQUENCE = re.compile(rf"(?!{_COLOR})(?:{_SEQUENCE}|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f])")
# The beginning of a sequence that continues in the next piece, up to a limit of length.
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$")
_LONGEST_SEQUENCE = 4096
_BREAKS = re.compile(rb"(?<!\r)(?:\r*\n|\r+(?=[^\r\n]))")


class WorkerOutputStreams:
    """Writes the output of the workers of one run. `to_stderr` keeps stdout free for a report at the end.

    With `folder` the bytes of each worker, stdout and stderr in the order of arrival, are also written to a file there. A
    failure to write is raised; with `keeps_failure` it is kept in `failure`, and no more is written: the caller then terminates
    the commands first. Raises `InvalidInputError` if the files cannot be created.
    """

    def __init__(
        self,
        terminal: Terminal,
        targets: Sequence[Target],
        *,
        to_stderr: bool = False,
        folder: Path | None = None,
        keeps_failure: bool = False,
    ) -> None:
        self.tail = OutputTail(len(targets))
        self.failure: OSError | None = None
        self._terminal, self._keeps_failure = terminal, keeps_failure
        self._status = StatusLine(terminal, SystemClock(), delay=_REPORT_AFTER)
        self._files: dict[str, IO[bytes]] = {}
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._files = {one.label: create_unlinked_file(folder / log_name(one)) for one in targets}
            except OSError as error:
                text = f"cannot write logs to `{folder}`: {(error.strerror or str(error)).lower()}"
                raise InvalidInputError(text, hint="name another directory with `--log-dir`") from error
        streams = terminal.streams
        err = (streams.stderr, streams.stderr_is_terminal, terminal.colors_err)
        out = err if to_stderr else (streams.stdout, streams.stdout_is_terminal, terminal.colors_out)
        self._writers: dict[tuple[str, bool], _LineWriter | _RawWriter] = {}
        width = max((len(target.label) for target in targets), default=0)
        for index, target in enumerate(targets):
            for is_error, (stream, is_terminal, has_colors) in ((False, out), (True, err)):
                writer: _LineWriter | _RawWriter
                if len(targets) == 1:
                    writer = _RawWriter(_writer(stream), is_terminal=is_terminal)
                else:
                    hue = _HUES[index % len(_HUES)] if has_colors else None
                    writer = _LineWriter(_writer(stream), _prefix(target.label, width, hue), is_terminal=is_terminal)
                self._writers[target.label, is_error] = writer

    def __enter__(self) -> WorkerOutputStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.clear()
        for file in self._files.values():
            # The output of each worker was flushed when it ended.
            with suppress(OSError):
                file.close()

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Write a piece of a worker's output."""
        self.tail.add(target, data, is_error=is_error)
        if self.failure is None:
            with self._kept_failure():
                self._status.clear()
                if file := self._files.get(target.label):
                    with _named(file):
                        file.write(data)
                self._writers[target.label, is_error].write(data)

    def ended(self, target: Target) -> None:
        """Write the rest of a worker's output: a line without a newline."""
        if self.failure is None:
            with self._kept_failure():
                for is_error in (False, True):
                    self._writers[target.label, is_error].finish()
                if file := self._files.get(target.label):
                    with _named(file):
                        file.flush()

    def connected(self, count: int, total: int) -> None:
        """Show on a terminal how many workers answer so far. The next output replaces that line."""
        if total > 1:
            self._status.show(lambda: f"reaching the workers: {count} of {total}")

    def interrupted(self) -> None:
        """Start a new line on a terminal, after its `^C`."""
        self._status.clear()
        self._terminal.end_line()

    def note(self, target: Target | None, text: str) -> None:
        """Print information about a worker, or about all for None."""
        self._status.clear()
        self._terminal.note(f"worker {target.label}: {text}" if target else text)

    @contextmanager
    def _kept_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._keeps_failure:
                raise
            self.failure = error
            # A local command that writes to a closed pipe ends quietly, too.
            if not isinstance(error, BrokenPipeError):
                error.add_note("the command was terminated on the workers where it was still running")


class OutputTail:
    """The end of each worker's output, in bounded memory."""

    def __init__(self, count: int, *, most: int | None = None) -> None:
        """`count` is the number of workers, `most` the bytes to keep of each stream instead of a share of all memory."""
        self._most = most or max(_MIN_TAIL_BYTES, min(_TAIL_BYTES, _TOTAL_TAIL_BYTES // (2 * max(count, 1))))
        self._tails: dict[tuple[str, bool], bytearray] = {}
        self._cut: set[tuple[str, bool]] = set()

    def add(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Keep output of a worker."""
        key = target.label, is_error
        tail = self._tails.setdefault(key, bytearray())
        tail += data
        # Cut rarely: each byte is moved at most once.
        if len(tail) > 2 * self._most:
            del tail[: -self._most]
            self._cut.add(key)

    def kept(self, target: Target, *, is_error: bool) -> tuple[bytes, bool]:
        """Return the kept bytes of a worker's stdout or stderr, and whether its beginning is missing."""
        tail = bytes(self._tails.get((target.label, is_error), b""))
        is_cut = (target.label, is_error) in self._cut or len(tail) > self._most
        return tail[-self._most :], is_cut

    def of(self, target: Target) -> Iterable[bytes]:
        """Return the last whole lines of a worker's stdout, then of its stderr."""
        for is_error in (False, True):
            tail = bytes(self._tails.get((target.label, is_error), b""))
            # The first line of a cut tail is not whole.
            yield tail.partition(b"\n")[2] if (target.label, is_error) in self._cut else tail


def log_name(target: Target) -> str:
    """Return the name of the log file of a worker."""
    return f"worker-{target.label}.log" if target.label.isdigit() else f"{target.label}.log"


@contextmanager
def _named(file: IO[bytes]) -> Iterator[None]:
    """Add the name of the file to an error."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from error


class _RawWriter:
    """Writes the raw output of one worker; for a terminal without unsafe control sequences."""

    def __init__(self, write: Callable[[bytes], None], *, is_terminal: bool) -> None:
        self._write, self._is_terminal = write, is_terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def write(self, data: bytes) -> None:
        if self._is_terminal:
            text = self._held + self._decoder.decode(data)
            found = _UNFINISHED.search(text, max(0, len(text) - _LONGEST_SEQUENCE))
            self._held = text[found.start() :] if found else ""
            data = _without_control_sequences(text[: found.start()] if found else text).encode()
        self._write(data)

    def finish(self) -> None:
        """Do nothing: no line is held back."""


class _LineWriter:
    """Writes the lines of one worker with a prefix, each when it is complete, so that no two workers share a line."""

    def __init__(self, write: Callable[[bytes], None], prefix: bytes, *, is_terminal: bool) -> None:
        self._write, self._prefix, self._is_terminal = write, prefix, is_terminal
        self._pending = b""

    def write(self, data: bytes) -> None:
        data = self._pending + data
        # Progress bars rewrite their line: on a terminal each state becomes a line.
        if self._is_terminal:
            data = _BREAKS.sub(b"\n", data if self._pending else data.lstrip(b"\r"))
        whole, found, self._pending = data.rpartition(b"\n")
        if found:
            self._emit(whole)
        if len(self._pending) > _LONGEST_LINE:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, b""
            self._emit(pending)

    def _emit(self, lines: bytes) -> None:
        if self._is_terminal:
            lines = _without_control_sequences(lines.decode("utf-8", "replace")).encode()
        self._write(self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n")


def _without_control_sequences(text: str) -> str:
    return text if text.isprintable() else _UNSAFE_SEQUENCE.sub("", text)


def _prefix(label: str, width: int, hue: int | None) -> bytes:
    text = f"[{label}]".ljust(width + 2)
    return (f"\x1b[{hue}m{text}\x1b[0m " if hue else f"{text} ").encode()


def _writer(stream: Any) -> Callable[[bytes], None]:  # a text stream, of bytes or of text alone
    """Return a function that writes bytes to a stream and flushes it, so that a pipe's reader gets each line at once."""
    raw = getattr(stream, "buffer", None)
    if raw is None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda data: stream.write(decoder.decode(data))

    def write(data: bytes) -> None:
        stream.flush()
        raw.write(data)
        raw.flush()

    return write
