"""The loop that serves all workers of a run: connect, start the command, reconnect, stop.

`run_on_workers` starts a command, `follow_on_workers` joins a job that exists. `StopPolicy` decides which signal is due when;
it reads no clock and waits for nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import stat
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tpuctl.errors import ExitCode
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.workers.worker_session import (
    ClientFrame,
    JobRequest,
    RunLimits,
    SessionFailure,
    WorkerOutcome,
    WorkerPhase,
    WorkerResult,
    WorkerSession,
    explain_session_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Connection, Target
    from tpuctl.workers.execution import RunDiagnosis
    from tpuctl.workers.worker_jobs import Job
    from tpuctl.workers.worker_session import OutputSink

_RECONNECT_DELAYS = (0.5, 1.0, 2.0, 4.0)
_LONGEST_WAIT = timedelta(seconds=5)
# Most broken connections are back before that.
_PROBE_AFTER = timedelta(seconds=2)
_REPORT_AFTER = timedelta(seconds=1)
_CLOSE_TIMEOUT = timedelta(seconds=2)
# ssh reports its own timeouts first, with more detail.
_MARGIN = timedelta(seconds=1)
_ABSENT = (WorkerOutcome.UNREACHABLE, WorkerOutcome.REFUSED)


class SignalSource(Protocol):
    """The signals sent to this process."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""

    def take(self) -> list[int]:
        """Return the signals that have arrived since the last call."""


class RemoteRunner:
    """All workers of one run. `why_gone` returns why a node cannot be running any more, or None.

    `is_output_closed` returns whether the output is no longer read; the commands are terminated then.
    """

    def __init__(
        self,
        sessions: Sequence[WorkerSession],
        limits: RunLimits,
        sink: OutputSink,
        clock: Clock,
        *,
        interrupts: SignalSource,
        why_gone: Callable[[Target], str | None],
        source: StdinSource | None = None,
        is_output_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sessions, self._limits, self._sink, self._clock = sessions, limits, sink, clock
        self._interrupts, self._liveness, self._source = interrupts, LivenessProbe(why_gone), source
        self._is_unheard = is_output_closed
        self._selector = selectors.DefaultSelector()
        self._stopping = StopPolicy(limits, clock.monotonic())
        # Whether the command may start: all workers that shall run it are connected, or need not be.
        self._may_start = all(session.request.must_exist for session in sessions)
        self._began, self._connected = clock.monotonic(), -1
        # Why this loop itself ended connections, which it then replaces.
        self._dropped: dict[WorkerSession, str] = {}

    @property
    def stopping(self) -> StopPolicy:
        """Why the commands were terminated, if they were."""
        return self._stopping

    def run(self) -> tuple[WorkerResult, ...]:
        """Run the command to its end on all workers. Raises `SshProgramMissingError`."""
        self._selector.register(self._interrupts.fileno(), selectors.EVENT_READ, None)
        try:
            while any(session.phase is not WorkerPhase.ENDED for session in self._sessions):
                now = self._clock.monotonic()
                self._stop(now)
                self._end_silent_connections(now)
                self._connect(now)
                self._start_commands()
                for session in self._sessions:
                    if (
                        session.may_run
                        and session.has_no_answer
                        and now - (session.trying_since or now) >= _PROBE_AFTER
                    ):
                        self._probe_node(session, now)
                if self._source is not None:
                    self._feed(self._source)
                self._wait_and_serve()
        except BaseException:
            # Do not keep the caller waiting.
            for session in self._sessions:
                session.kill()
            raise
        finally:
            # Close all before waiting for the first.
            for session in self._sessions:
                session.close_stdin()
            until = self._clock.monotonic() + _CLOSE_TIMEOUT
            for session in self._sessions:
                session.close(max(timedelta(), until - self._clock.monotonic()))
            self._selector.close()
        return tuple(session.result for session in self._sessions if session.result is not None)

    def _feed(self, source: StdinSource) -> None:
        """Read stdin for the one worker that receives it, and send it."""
        # Data that was received makes room, then the room is filled, then it is sent: no event would do the latter.
        source.serve(self._sessions[0])
        is_registered = source in self._selector.get_map()
        if not source.may_wait:
            while source.wants_more:
                source.fill()
        elif source.wants_more and not is_registered:
            self._selector.register(source, selectors.EVENT_READ, None)
        elif is_registered and not source.wants_more:
            self._selector.unregister(source)
        source.serve(self._sessions[0])

    def _stop(self, now: timedelta) -> None:
        """Send the signals that are due."""
        failed = self._limits.fail_fast and any(one.result and not one.result.is_good for one in self._sessions)
        signals = self._interrupts.take()
        if signal.SIGINT in signals:
            self._sink.interrupted()
        stop = self._stopping.due(now, signals, has_failed=failed, is_output_closed=self._is_unheard())
        if stop is None:
            return
        if stop.text:
            if any(session.may_run and session.phase is not WorkerPhase.ENDED for session in self._sessions):
                text = stop.text
            elif all(session.request.must_exist for session in self._sessions):
                text = "no signal was sent to the job: not connected to it yet"
            elif any(session.may_run for session in self._sessions):
                text = "not started on any further worker"
            else:
                text = "not started on any worker"
            self._sink.note(None, text)
        for session in self._sessions:
            if session.phase is WorkerPhase.ENDED:
                continue
            if not session.may_run:
                session.end(WorkerOutcome.NOT_STARTED, stop.why)
            elif stop.number is None:
                session.end(WorkerOutcome.LOST, stop.why)
            else:
                session.signal(stop.number)

    def _end_silent_connections(self, now: timedelta) -> None:
        """End connections without an answer for too long: a login may hang although the connection is up."""
        for session in self._sessions:
            if session.phase is WorkerPhase.CONNECTING and now - session.since > self._limits.connect_within + _MARGIN:
                self._dropped[session] = f"no answer within {self._limits.connect_within.total_seconds():g} s"
                if not session.may_run:
                    session.end(WorkerOutcome.UNREACHABLE, self._dropped[session])
                session.kill()

    def _connect(self, now: timedelta) -> None:
        """Connect to the next workers; `fanout` limits the handshakes in progress, not the running commands."""
        free = self._limits.fanout - sum(session.phase is WorkerPhase.CONNECTING for session in self._sessions)
        for session in self._sessions:
            if free <= 0:
                return
            if session.phase is WorkerPhase.WAITING and session.next_try <= now:
                if session.trying_since is None:
                    session.trying_since = now
                session.since = now
                session.connect(self._limits.connect_within)
                self._selector.register(session.stdout, selectors.EVENT_READ, session)
                free -= 1

    def _start_commands(self) -> None:
        """Start the command once all workers that shall run it are connected; on none if one of them is absent."""
        if not self._may_start:
            awaited = sum(one.has_no_answer and not one.may_run for one in self._sessions)
            if awaited:
                connected = len(self._sessions) - awaited
                if connected != self._connected and self._clock.monotonic() - self._began > _REPORT_AFTER:
                    self._connected = connected
                    self._sink.connected(connected, len(self._sessions))
                return
            absent = [one for one in self._sessions if one.result and one.result.outcome in _ABSENT]
            if absent and not self._limits.allow_unreachable:
                # On a part of a slice the command would wait for the rest for ever.
                names = ", ".join(session.target.label for session in absent)
                for session in self._sessions:
                    if session.phase is not WorkerPhase.ENDED:
                        session.end(WorkerOutcome.NOT_STARTED, f"worker {names} cannot run it")
                return
            self._may_start = True
        running = sum(session.phase is WorkerPhase.RUNNING for session in self._sessions)
        for session in self._sessions:
            if session.phase is WorkerPhase.READY and (self._limits.batch is None or running < self._limits.batch):
                session.start()
                running += 1

    def _wait_and_serve(self) -> None:
        """Wait for the next event, and serve it."""
        for session in self._sessions:
            if not session.can_write:
                continue
            # Watch the stdin of ssh only while data waits to be sent.
            is_registered = session.stdin in self._selector.get_map()
            if session.has_unsent and not is_registered:
                self._selector.register(session.stdin, selectors.EVENT_WRITE, session)
            elif not session.has_unsent:
                if is_registered:
                    self._selector.unregister(session.stdin)
                if session.phase is WorkerPhase.ENDED:
                    session.close_stdin()
        if all(session.phase is WorkerPhase.ENDED for session in self._sessions):
            return
        now = self._clock.monotonic()
        # A worker whose turn has come waits for the handshake of another to end, not for a time.
        waits = [one.next_try for one in self._sessions if one.phase is WorkerPhase.WAITING and one.next_try > now]
        patience = self._limits.connect_within + _MARGIN
        waits += [now + PROBE_POLL_INTERVAL] if self._liveness.is_pending else []
        waits += [one.since + patience for one in self._sessions if one.phase is WorkerPhase.CONNECTING]
        until = min([now + _LONGEST_WAIT, *waits, *self._stopping.waits()])
        for key, mask in self._selector.select(max(0.0, (until - now).total_seconds())):
            session = key.data
            if not isinstance(session, WorkerSession):
                if self._source is not None and key.fileobj is self._source:
                    self._source.fill()
                continue
            # Another stream of the session may just have reported the end of the connection.
            if mask & selectors.EVENT_WRITE and session.can_write:
                session.write()
            if mask & selectors.EVENT_READ and session.is_connected:
                self._read(session)

    def _read(self, session: WorkerSession) -> None:
        streams = (session.stdout, session.stdin)
        try:
            is_connected = session.read()
        except UnexpectedAnswerError as error:
            # Either a hostile worker, or a program there that prints into the session: none of its output counts.
            session.reject(error)
            return
        if not is_connected:
            for stream in streams:
                # ValueError: it is closed, and was not registered.
                with suppress(KeyError, ValueError):
                    self._selector.unregister(stream)
            self._reconnect_or_end(session)

    def _reconnect_or_end(self, session: WorkerSession) -> None:
        """Decide what the end of a connection means."""
        if session.phase is WorkerPhase.ENDED:
            return
        now = self._clock.monotonic()
        found = explain_session_end(session)
        if dropped := self._dropped.pop(session, None):
            found = SessionFailure(dropped, is_retriable=True)
        since = session.trying_since if session.trying_since is not None else now
        session.trying_since = since
        within = self._limits.attach_within if session.may_run else self._limits.connect_within
        if not found.is_retriable or now - since > within:
            outcome = WorkerOutcome.LOST if session.may_run else WorkerOutcome.UNREACHABLE
            session.end(outcome, found.why or "connection lost, and reconnecting failed", ssh_stderr=found.ssh_stderr)
            return
        if session.has_started and session.tries == 0:
            because = f" ({found.why})" if found.why else ""
            self._sink.note(session.target, f"connection lost{because}; reconnecting")
        session.phase = WorkerPhase.WAITING
        session.next_try = now + timedelta(seconds=_RECONNECT_DELAYS[min(session.tries, len(_RECONNECT_DELAYS) - 1)])

    def _probe_node(self, session: WorkerSession, now: timedelta) -> None:
        """Ask the API whether the node of an unreachable worker still exists; end its workers if not."""
        why = self._liveness.why_gone(session.target, now)
        if why is not None:
            for other in self._sessions:
                if other.target.node.name == session.target.node.name and other.has_no_answer:
                    other.end(WorkerOutcome.LOST, why)


# TensorFlow checks INT only at the end of its loop; QUIT ends Python at once (Cloud TPU's troubleshooting guide).
_PRESSED = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
_GRACE = timedelta(seconds=10)
# A CI runner kills a process that does not end soon after TERM.
_SHORT_GRACE = timedelta(seconds=4)


class StopReason(StrEnum):
    """Why the commands are terminated."""

    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    TIMED_OUT = "timed out"
    FAILED = "another worker failed"
    OUTPUT_CLOSED = "its output is no longer read"


@dataclass(frozen=True, slots=True)
class StopSignal:
    """A signal for every command; without a number, give the commands up. `text` is for the user, `why` for the results."""

    number: int | None
    why: str
    text: str = ""


class StopPolicy:
    """What was done so far to terminate the commands of one run, and what comes next."""

    def __init__(self, limits: RunLimits, start: timedelta) -> None:
        self.reason: StopReason | None = None
        self._fails_fast = limits.fail_fast
        self._deadline = start + limits.timeout if limits.timeout is not None else None
        self._presses = 0
        # The next signals if the commands do not end, and their times.
        self._next: list[tuple[timedelta, int | None]] = []

    def waits(self) -> list[timedelta]:
        """Return the times at which something is due without a signal."""
        deadline = [self._deadline] if self._deadline is not None and self.reason is None else []
        return [*deadline, *(at for at, _ in self._next[:1])]

    def due(
        self, now: timedelta, signals: Sequence[int], *, has_failed: bool, is_output_closed: bool = False
    ) -> StopSignal | None:
        """Return what is due now, None if nothing."""
        if signal.SIGTERM in signals and self.reason is not StopReason.TERMINATED:
            return self._begin(StopReason.TERMINATED, now, _SHORT_GRACE)
        if presses := signals.count(signal.SIGINT):
            return self._press(now, presses)
        if self._next and self._next[0][0] <= now:
            number = self._next.pop(0)[1]
            return StopSignal(number, str(self.reason), "" if number else "given up: the remote processes do not end")
        if self.reason is not None:
            return None
        if self._deadline is not None and now >= self._deadline:
            return self._begin(StopReason.TIMED_OUT, now, _GRACE)
        if self._fails_fast and has_failed:
            return self._begin(StopReason.FAILED, now, _GRACE)
        return self._begin(StopReason.OUTPUT_CLOSED, now, _SHORT_GRACE) if is_output_closed else None

    def _begin(self, reason: StopReason, now: timedelta, grace: timedelta) -> StopSignal:
        self.reason = reason
        self._next = [(now + grace, signal.SIGKILL), (now + 2 * grace, None)]
        # A local command that writes to a closed pipe ends quietly, too.
        text = "" if reason is StopReason.OUTPUT_CLOSED else f"{reason}: stopping the remote processes"
        return StopSignal(signal.SIGTERM, str(reason), text)

    def _press(self, now: timedelta, times: int) -> StopSignal:
        """Answer Ctrl-C: INT, then QUIT, then KILL, then leave the processes running."""
        if self.reason is not None and not self._presses:
            # TERM was sent already: INT is no stronger.
            self._presses = 1
        self.reason = self.reason or StopReason.INTERRUPTED
        self._presses += times
        pressed = self._presses - 1
        if pressed >= len(_PRESSED):
            return StopSignal(None, str(self.reason), "given up: the remote processes may continue")
        number = _PRESSED[pressed]
        after = (
            "Ctrl-C again sends QUIT, a third time KILL",
            "Ctrl-C again sends KILL",
            "Ctrl-C again leaves them running",
        )
        if number is signal.SIGKILL:
            self._next = [(now + _GRACE, None)]
        return StopSignal(number, str(self.reason), f"{number.name.removeprefix('SIG')} sent; {after[pressed]}")


_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class SignalPipe:
    """SIGINT and SIGTERM, in the order of their arrival.

    They are forwarded to the workers, not obeyed. Each signal is a byte in a pipe (`signal.set_wakeup_fd`): for several that
    arrive together Python calls a handler once.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        for end in (self._reader, self.writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""
        return self._reader

    def take(self) -> list[int]:
        """Return the signals that have arrived since the last call."""
        taken = b""
        with suppress(BlockingIOError):
            while data := os.read(self._reader, 64):
                taken += data
        return [number for number in taken if number in _CAUGHT]

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self.writer)


@contextmanager
def forwarded_signals(*, catch: bool = True) -> Iterator[SignalPipe]:
    """Collect SIGINT and SIGTERM instead of obeying them; without `catch` they keep their effect.

    Outside the main thread no signal arrives, and none is collected.
    """
    interrupts = SignalPipe()
    caught = _CAUGHT if catch and threading.current_thread() is threading.main_thread() else ()
    # A handler that does nothing: without one no byte is written to the pipe.
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in caught}
    woken = signal.set_wakeup_fd(interrupts.writer, warn_on_full_buffer=False) if caught else -1
    try:
        yield interrupts
    finally:
        if caught:
            signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupts.close()


_EVERY = timedelta(seconds=15)
PROBE_POLL_INTERVAL = timedelta(seconds=0.25)


class LivenessProbe:
    """Asks about nodes, each in a thread: with the network down an answer takes minutes, and the run does not wait for it.

    `ask` returns why a node cannot be running any more, or None.
    """

    def __init__(self, ask: Callable[[Target], str | None]) -> None:
        self._ask = ask
        self._asked: dict[str, timedelta] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._answers: dict[str, str | None] = {}

    @property
    def is_pending(self) -> bool:
        """Whether an answer may arrive at any moment."""
        return any(thread.is_alive() for thread in self._threads.values())

    def why_gone(self, target: Target, now: timedelta) -> str | None:
        """Return why the node cannot be running any more, None if that is not known; ask again every 15 seconds."""
        name = str(target.node.name)
        thread = self._threads.get(name)
        is_asking = thread is not None and thread.is_alive()
        if not is_asking and now - self._asked.get(name, -_EVERY) >= _EVERY:

            def ask() -> None:
                self._answers[name] = self._ask(target)

            self._asked[name] = now
            self._threads[name] = threading.Thread(target=ask, daemon=True)
            self._threads[name].start()
        return self._answers.get(name)


_BLOCK = 64 * 1024
_WINDOW = 4 * _BLOCK


class StdinSource:
    """The stdin of this process, read as fast as the worker receives it; what it has not received is kept, to send it again."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._data = bytearray()
        self._base = 0  # bytes that the worker has received; `_data` begins there
        self._sent = 0
        self._is_linked = False
        self._has_ended = False
        self._is_finished = False

    def fileno(self) -> int:
        """Return the descriptor to read, for a selector, if `may_wait`."""
        return self._file

    @property
    def may_wait(self) -> bool:
        """Whether a read may block: true for pipes, sockets and terminals, false for plain files."""
        mode = os.fstat(self._file).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(self._file)

    @property
    def wants_more(self) -> bool:
        """Whether the buffer has room and the file has not ended."""
        return not self._has_ended and len(self._data) < _WINDOW

    def fill(self) -> None:
        """Read more."""
        data = os.read(self._file, _BLOCK)
        self._has_ended = not data
        self._data += data

    def serve(self, session: WorkerSession) -> None:
        """Send the buffered data to a worker; over a new connection, again what the worker did not receive."""
        if session.phase is not WorkerPhase.RUNNING or session.taken is None:
            self._is_linked = False
            return
        del self._data[: session.taken - self._base]
        self._base = session.taken
        if not self._is_linked:
            self._is_linked, self._is_finished = True, False
            self._sent = self._base
        while self._sent - self._base < len(self._data):
            at = self._sent - self._base
            block = bytes(self._data[at : at + _BLOCK])
            session.send(ClientFrame.IN, block)
            self._sent += len(block)
        if self._has_ended and not self._is_finished:
            self._is_finished = True
            session.send(ClientFrame.FINAL)


class GuardedSink:
    """Passes output and events on until the sink fails. `failure` is the error: its reader has gone, or a disk is full.

    After a failure the commands are terminated; the note on the error says so.
    """

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self.failure: OSError | None = None

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Pass on output of a command."""
        if self.failure is None:
            try:
                self._sink.output(target, data, is_error=is_error)
            except OSError as error:
                self._fail(error)

    def ended(self, result: WorkerResult) -> None:
        """Pass on the result of one worker."""
        if self.failure is None:
            try:
                self._sink.ended(result)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        # A local command that writes to a closed pipe ends quietly, too.
        if not isinstance(error, BrokenPipeError):
            error.add_note("the command was terminated on the workers where it was still running")

    def connected(self, count: int, total: int) -> None:
        """Pass on how many workers are connected."""
        self._sink.connected(count, total)

    def interrupted(self) -> None:
        """Pass on a Ctrl-C."""
        self._sink.interrupted()

    def note(self, target: Target | None, text: str) -> None:
        """Pass on a note for the user."""
        self._sink.note(target, text)


# Long enough for a laptop that changes networks, short enough for the next run to find the TPU free.
DEFAULT_LINGER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCommand:
    """A line for the login shells, its working directory and its stdin; `detach`: it outlives this process.

    `passes_signals`: SIGINT and SIGTERM are forwarded to the command, and this process waits until the command has ended.
    """

    line: str
    folder: str | None = None
    detach: bool = False
    source: StdinSource | None = None
    passes_signals: bool = True


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result on each worker, and why the run was stopped, if it was. `diagnosis`: what its output means."""

    job: str
    results: tuple[WorkerResult, ...]
    stopped: StopReason | None
    diagnosis: RunDiagnosis | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the run (docs/reference/exit-codes.md)."""
        match self.stopped:
            case StopReason.INTERRUPTED:
                return ExitCode.INTERRUPTED
            case StopReason.TERMINATED:
                return ExitCode.TERMINATED
            case StopReason.TIMED_OUT:
                return ExitCode.TIMED_OUT
            case _:
                return ExitCode.OK if all(result.is_good for result in self.results) else ExitCode.REMOTE_FAILED


def run_on_workers(
    targets: Sequence[Target],
    command: RemoteCommand,
    limits: RunLimits,
    *,
    job: str,
    environment: Callable[[Target], Mapping[str, str]],
    clock: Clock,
    sink: OutputSink,
    why_gone: Callable[[Target], str | None],
    ssh_options: Callable[[Connection], tuple[str, ...]],
    linger: timedelta = DEFAULT_LINGER,
) -> RunResult:
    """Run a command on workers.

    `why_gone` returns why a node cannot be running any more, or None. `ssh_options` returns additional options of ssh for a
    connection. `linger`: how long the command continues after its last client has gone.

    Raises `SshProgramMissingError`, and the `OSError` of a sink that failed: `BrokenPipeError` if its reader has gone. The
    command has been terminated then, like a local one whose pipe closes.
    """
    guarded = GuardedSink(sink)
    request = JobRequest(
        job=job,
        token=secrets.token_hex(16),
        line=command.line,
        folder=command.folder,
        detach=command.detach,
        merged=command.detach,
        stdin=command.source is not None,
        linger=None if command.detach else linger,
        # This process enforces the limit of a command that it follows, counted from the beginning of the run.
        limit=limits.timeout if command.detach else None,
        about=json.dumps({"command": command.line, "detached": command.detach}),
    )
    if command.detach:
        limits = replace(limits, timeout=None)
    sessions = [
        WorkerSession(
            target, replace(request, environment=environment(target)), guarded, options=ssh_options(target.connection)
        )
        for target in targets
    ]
    with forwarded_signals(catch=command.passes_signals) as interrupts:
        runner = RemoteRunner(
            sessions,
            limits,
            guarded,
            clock,
            interrupts=interrupts,
            why_gone=why_gone,
            source=command.source,
            is_output_closed=lambda: guarded.failure is not None,
        )
        results = runner.run()
    if guarded.failure is not None:
        raise guarded.failure
    return RunResult(job, results, runner.stopping.reason)


def job_name(now: datetime) -> str:
    """Return a unique name for a job: the time of its start and four random letters."""
    return f"{now:%m%d-%H%M%S}-{secrets.token_hex(2)}"


def follow_on_workers(
    job: Job,
    others: Sequence[Target] = (),
    *,
    clock: Clock,
    sink: OutputSink,
    why_gone: Callable[[Target], str | None],
    ssh_options: Callable[[Connection], tuple[str, ...]],
    passes_signals: bool = False,
) -> RunResult:
    """Pass on the output of a job until it has ended on all its workers, from the `starts` of its shares on.

    `others` are workers that may have the job too; their output is passed on from its beginning. Broken connections are
    replaced. With `passes_signals` SIGINT and SIGTERM are sent to the job, as in `tpuctl run`; otherwise the job is left
    alone, a signal has its usual effect here, and the connections are closed. Raises `SshProgramMissingError`.
    """
    places = [(share.target, share.starts) for share in job.shares]
    places += [(target, (0, 0)) for target in others]
    sessions = [
        WorkerSession(
            target,
            JobRequest(job=job.name, token="", must_exist=True, start=start),
            sink,
            options=ssh_options(target.connection),
        )
        for target, start in places
    ]
    with forwarded_signals(catch=passes_signals) as interrupts:
        runner = RemoteRunner(sessions, RunLimits(), sink, clock, interrupts=interrupts, why_gone=why_gone)
        everywhere = runner.run()
    # An additional worker without the job is no part of the result.
    results = [one for one in everywhere if one.outcome is not WorkerOutcome.MISSING or one.target not in others]
    return RunResult(job.name, tuple(results), runner.stopping.reason)
