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
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.clock import SystemClock
from tpuctl.errors import ExitCode
from tpuctl.nodes.usage import NodeUse, describe_worker_uses
from tpuctl.ssh.channel import AgentError
from tpuctl.workers.environment import EnvironmentOptions
from tpuctl.workers.worker_session import WorkerOutcome, WorkerPhase, WorkerResult, WorkerSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from tpuctl.names import NodeName
    from tpuctl.ssh.connection import Connection, Target
    from tpuctl.workers.execution import RunDiagnosis
    from tpuctl.workers.worker_jobs import Job
    from tpuctl.workers.worker_session import OutputSink

_RECONNECT_DELAYS = (0.5, 1.0, 2.0, 4.0)
_LONGEST_WAIT = timedelta(seconds=5)
# Most broken connections are back before that.
_PROBE_AFTER = timedelta(seconds=2)
_CLOSE_TIMEOUT = 2.0
# ssh reports its own timeouts first, with more detail.
_MARGIN = timedelta(seconds=1)
_ABSENT = (WorkerOutcome.UNREACHABLE, WorkerOutcome.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the user wants to run, and the limits. None means no limit."""

    line: str = ""  # goes to the login shells of the workers unchanged
    shown: str | None = None  # what `jobs` shows in place of a line that the user did not write
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    job: str | None = None  # a name from the time without it
    folder: str | None = None  # on the workers
    log_folder: Path | None = None
    detach: bool = False  # the command outlives this process
    takes_stdin: bool = True
    # SIGINT and SIGTERM are forwarded to the command, and this process waits until the command has ended.
    passes_signals: bool = True
    fanout: int = 64  # handshakes in progress at a time
    batch: int | None = None  # workers that run the command at a time
    allow_unreachable: bool = False  # start the command although some workers cannot be reached
    by_node: bool = False  # a node whose workers cannot all be reached does not keep the others from starting
    notes_uses: bool = True  # say what uses the workers before the command starts
    fail_fast: bool = False
    fail_fast_after: timedelta = timedelta()  # how long the other workers may continue after a failure
    stop_grace: timedelta = timedelta(seconds=10)  # between TERM and KILL
    notice_signal: int = 0  # sent to the command at the notice of a preemption; 0 for none
    token: str | None = None  # a worker starts the command at most once for one token; random without it
    timeout: timedelta | None = None
    connect_within: timedelta = timedelta(seconds=45)  # how long a worker may be unreachable before it is given up
    attach_within: timedelta = timedelta(minutes=5)  # the same after its command has started
    # How long the command continues after its last client has gone: long enough for a laptop that changes networks, short
    # enough for the next run to find the TPU free.
    linger: timedelta = timedelta(minutes=5)

    def worker_request(self, *, token: str, environment: Mapping[str, str], has_stdin: bool = False) -> dict[str, Any]:
        """Return the request for `ssh/agent/job.py` on one worker, without the name of the job."""
        # The client enforces the limit of a command that it follows, counted from the beginning of the run.
        limit = self.timeout if self.detach else None
        shown = self.line if self.shown is None else self.shown
        return {
            "token": token.encode(),
            "line": os.fsencode(self.line),
            "environment": {os.fsencode(key): os.fsencode(value) for key, value in environment.items()},
            "folder": self.folder,
            "about": json.dumps({"command": shown, "detached": self.detach}).encode(errors="surrogateescape"),
            "detach": self.detach,
            "merged": self.detach,
            "stdin": has_stdin,
            "linger": 0 if self.detach else self.linger.total_seconds(),
            "limit": limit.total_seconds() if limit else 0,
            "offsets": (0, 0),
            "notice": self.notice_signal,
            "must_exist": False,
        }


class RemoteRunner:
    """All workers of one run. `why_gone` returns why a node cannot be running any more, or None."""

    def __init__(
        self,
        sessions: Sequence[WorkerSession],
        request: RunRequest,
        streams: OutputSink,
        *,
        interrupts: SignalPipe,
        why_gone: Callable[[Target], str | None],
        source: StdinSource | None = None,
    ) -> None:
        self._sessions, self._request, self._streams = sessions, request, streams
        self._interrupts, self._liveness, self._source = interrupts, LivenessProbe(why_gone), source
        # Connections live in real time, although the clock of the cloud may be the sandbox's.
        self._clock = SystemClock()
        self._selector = selectors.DefaultSelector()
        self.stopping = StopPolicy(request, self._clock.monotonic())
        # The workers that start the command only together, and may not yet: not all of them have answered.
        self._held: list[list[WorkerSession]] = []
        if not all(session.only_follows for session in sessions):
            together: dict[object, list[WorkerSession]] = {}
            for session in sessions:
                together.setdefault(session.target.node.name if request.by_node else None, []).append(session)
            self._held = list(together.values())
        self._failed_since: timedelta | None = None
        # Why this loop itself ended connections, which it then replaces.
        self._dropped: dict[WorkerSession, str] = {}

    def run(self) -> tuple[WorkerResult, ...]:
        """Run the command to its end on all workers. Raises `SshProgramMissingError`."""
        self._selector.register(self._interrupts.fileno(), selectors.EVENT_READ, None)
        try:
            while self._are_any_left():
                now = self._clock.monotonic()
                self._stop(now)
                self._end_silent_connections(now)
                self._connect(now)
                self._start_commands()
                for session in self._sessions:
                    tried_for = now - (session.trying_since or now)
                    if session.may_run and session.has_no_answer and tried_for >= _PROBE_AFTER:
                        self._probe_node(session, now)
                if self._source is not None:
                    self._feed(self._source)
                self._wait_and_serve()
        except BaseException:
            # Do not keep the caller waiting.
            for session in self._sessions:
                if session.channel is not None:
                    session.channel.kill()
            raise
        finally:
            # Close all before waiting for the first.
            for session in self._sessions:
                if session.channel is not None:
                    session.channel.close_stdin()
            until = self._clock.monotonic() + timedelta(seconds=_CLOSE_TIMEOUT)
            for session in self._sessions:
                session.disconnect(max(0.0, (until - self._clock.monotonic()).total_seconds()))
            self._selector.close()
        return tuple(session.result for session in self._sessions if session.result is not None)

    def _are_any_left(self) -> bool:
        return any(session.phase is not WorkerPhase.ENDED for session in self._sessions)

    def _feed(self, source: StdinSource) -> None:
        """Read stdin for the one worker that receives it, and send it."""
        # Data that was received makes room, then the room is filled, then it is sent: no event would do the latter.
        source.serve(self._sessions[0])
        if not source.may_wait:
            while source.wants_more:
                source.fill()
        else:
            self._watch(source, selectors.EVENT_READ, source, wanted=source.wants_more)
        source.serve(self._sessions[0])

    def _watch(self, file: Any, events: int, data: object, *, wanted: bool) -> None:  # what a selector takes
        """Watch a file, or no longer."""
        is_watched = file in self._selector.get_map()
        if wanted and not is_watched:
            self._selector.register(file, events, data)
        elif is_watched and not wanted:
            self._selector.unregister(file)

    def _stop(self, now: timedelta) -> None:
        """Send the signals that are due."""
        failed = self._request.fail_fast and any(one.result and not one.result.is_good for one in self._sessions)
        if failed:
            self._failed_since = now if self._failed_since is None else self._failed_since
            failed = now - self._failed_since >= self._request.fail_fast_after
        signals = self._interrupts.take()
        if signal.SIGINT in signals:
            self._streams.interrupted()
        stop = self.stopping.due(now, signals, has_failed=failed, is_output_closed=self._streams.failure is not None)
        if stop is None:
            return
        left = [session for session in self._sessions if session.phase is not WorkerPhase.ENDED]
        if stop.text:
            if any(session.may_run for session in left):
                text = stop.text
            elif all(session.only_follows for session in self._sessions):
                text = "no signal was sent to the job: not connected to it yet"
            elif any(session.may_run for session in self._sessions):
                text = "not started on any further worker"
            else:
                text = "not started on any worker"
            self._streams.note(None, text)
        for session in left:
            if not session.may_run:
                session.end(WorkerOutcome.NOT_STARTED, stop.why)
            elif stop.number is None:
                session.end(WorkerOutcome.LOST, stop.why)
            else:
                session.signal(stop.number)

    def _end_silent_connections(self, now: timedelta) -> None:
        """End connections without an answer for too long: a login may hang although the connection is up."""
        within = self._request.connect_within
        for session in self._sessions:
            if session.phase is WorkerPhase.CONNECTING and now - session.since > within + _MARGIN:
                self._dropped[session] = f"no answer within {within.total_seconds():g} s"
                if session.channel is not None:
                    session.channel.kill()
                if not session.may_run:
                    session.end(WorkerOutcome.UNREACHABLE, self._dropped[session])

    def _connect(self, now: timedelta) -> None:
        """Connect to the next workers; `fanout` limits the handshakes in progress, not the running commands."""
        free = self._request.fanout - sum(session.phase is WorkerPhase.CONNECTING for session in self._sessions)
        due = [one for one in self._sessions if one.phase is WorkerPhase.WAITING and one.next_try <= now]
        for session in due[: max(0, free)]:
            if session.trying_since is None:
                session.trying_since = now
            session.since = now
            channel = session.connect(self._request.connect_within)
            self._selector.register(channel.stdout, selectors.EVENT_READ, session)

    def _start_commands(self) -> None:
        """Start the command once all workers that start it together are connected; on none of them if one is absent."""
        for group in list(self._held):
            if any(one.has_no_answer and not one.may_run for one in group):
                continue
            self._held.remove(group)
            absent = [one for one in group if one.result and one.result.outcome in _ABSENT]
            if absent and not self._request.allow_unreachable:
                # On a part of a slice the command would wait for the rest for ever.
                names = ", ".join(session.target.label for session in absent)
                for session in group:
                    if session.phase is not WorkerPhase.ENDED:
                        session.end(WorkerOutcome.NOT_STARTED, f"worker {names} cannot run it")
                continue
            if self._request.notes_uses:
                self._note_uses(group)
        held = [session for group in self._held for session in group]
        if awaited := sum(one.has_no_answer and not one.may_run for one in held):
            self._streams.connected(len(self._sessions) - awaited, len(self._sessions))
        ready = [one for one in self._sessions if one.phase is WorkerPhase.READY and one not in held]
        if self._request.batch is not None:
            running = sum(session.phase is WorkerPhase.RUNNING for session in self._sessions)
            ready = ready[: max(0, self._request.batch - running)]
        for session in ready:
            session.start()

    def _note_uses(self, group: Sequence[WorkerSession]) -> None:
        """Say what uses these workers before the command is started there."""
        nodes = {session.target.node.name: session.target.node for session in group}
        for name, node in nodes.items():
            mine = [session for session in group if session.target.node.name == name]
            uses = ((session.target.worker, use) for session in mine for use in session.uses)
            if words := NodeUse(describe_worker_uses(uses, node.workers)).words:
                self._streams.note(None, f"`{name.node_id}` is in use: {words}")

    def _wait_and_serve(self) -> None:
        """Wait for the next event, and serve it."""
        for session in self._sessions:
            channel = session.channel
            if channel is not None and not channel.stdin.closed:
                # Watch the stdin of ssh only while data waits to be sent.
                self._watch(channel.stdin, selectors.EVENT_WRITE, session, wanted=channel.has_unsent)
                if session.phase is WorkerPhase.ENDED and not channel.has_unsent:
                    channel.close_stdin()
        if not self._are_any_left():
            return
        now = self._clock.monotonic()
        # A worker whose turn has come waits for the handshake of another to end, not for a time.
        waits = [one.next_try for one in self._sessions if one.phase is WorkerPhase.WAITING and one.next_try > now]
        patience = self._request.connect_within + _MARGIN
        waits += [one.since + patience for one in self._sessions if one.phase is WorkerPhase.CONNECTING]
        waits += [now + _PROBE_POLL_INTERVAL] if self._liveness.is_pending else []
        until = min([now + _LONGEST_WAIT, *waits, *self.stopping.waits()])
        for key, mask in self._selector.select(max(0.0, (until - now).total_seconds())):
            session = key.data
            if isinstance(session, StdinSource):
                session.fill()
            elif isinstance(session, WorkerSession) and session.channel is not None:
                # Another stream of the session may just have reported the end of the connection.
                if mask & selectors.EVENT_WRITE and not session.channel.stdin.closed:
                    session.channel.flush()
                if mask & selectors.EVENT_READ:
                    self._read(session)

    def _read(self, session: WorkerSession) -> None:
        session.receive()
        channel = session.channel
        if channel is None or channel.is_open:
            return
        for stream in (channel.stdout, channel.stdin):
            # ValueError: it is closed, and was not registered.
            with suppress(KeyError, ValueError):
                self._selector.unregister(stream)
        if session.phase is not WorkerPhase.ENDED:
            self._reconnect_or_end(session, channel.failure(in_use=session.may_run))
        session.disconnect()

    def _reconnect_or_end(self, session: WorkerSession, error: AgentError) -> None:
        """Decide what the end of a connection means."""
        now = self._clock.monotonic()
        if dropped := self._dropped.pop(session, None):
            error = AgentError(session.target, dropped, is_retriable=True)
        session.trying_since = now if session.trying_since is None else session.trying_since
        within = self._request.attach_within if session.may_run else self._request.connect_within
        if not error.is_retriable or now - session.trying_since > within:
            outcome = WorkerOutcome.LOST if session.may_run else WorkerOutcome.UNREACHABLE
            why = error.what or "connection lost, and reconnecting failed"
            session.end(outcome, why, ssh_stderr=error.ssh_stderr)
            return
        if session.has_started and session.tries == 0:
            because = f" ({error.what})" if error.what else ""
            self._streams.note(session.target, f"connection lost{because}; reconnecting")
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
_PRESSED = (
    (signal.SIGINT, "Ctrl-C again sends QUIT, a third time KILL"),
    (signal.SIGQUIT, "Ctrl-C again sends KILL"),
    (signal.SIGKILL, "Ctrl-C again leaves them running"),
)
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

    def __init__(self, request: RunRequest, start: timedelta) -> None:
        self.reason: StopReason | None = None
        self._fails_fast, self._grace = request.fail_fast, request.stop_grace
        # The worker enforces the limit of a detached command.
        self._deadline = start + request.timeout if request.timeout is not None and not request.detach else None
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
            return self._begin(StopReason.TIMED_OUT, now, self._grace)
        if self._fails_fast and has_failed:
            return self._begin(StopReason.FAILED, now, self._grace)
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
        number, after = _PRESSED[pressed]
        if number is signal.SIGKILL:
            self._next = [(now + _GRACE, None)]
        return StopSignal(number, str(self.reason), f"{number.name.removeprefix('SIG')} sent; {after}")


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
_PROBE_POLL_INTERVAL = timedelta(seconds=0.25)


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
            session.feed(block)
            self._sent += len(block)
        if self._has_ended and not self._is_finished:
            self._is_finished = True
            session.feed(b"")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result on each worker, and why the run was stopped, if it was. `diagnosis`: what its output means.

    `preempted`: the nodes that the service had preempted when the command was over. `timeout`: the time limit, if any.
    """

    job: str
    results: tuple[WorkerResult, ...]
    stopped: StopReason | None
    diagnosis: RunDiagnosis | None = None
    preempted: tuple[NodeName, ...] = ()
    timeout: timedelta | None = None

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
    request: RunRequest,
    streams: OutputSink,
    *,
    environment: Callable[[Target], Mapping[str, str]],
    why_gone: Callable[[Target], str | None],
    ssh_options: Callable[[Connection], tuple[str, ...]],
    source: StdinSource | None = None,
) -> RunResult:
    """Run a command on workers.

    `why_gone` returns why a node cannot be running any more, or None. `ssh_options` returns the options of a shared connection.

    Raises `SshProgramMissingError`, and the failure that `streams` kept: `BrokenPipeError` if its reader has gone. The command
    has been terminated then, like a local one whose pipe closes.
    """
    job, token = request.job or job_name(SystemClock().now()), request.token or secrets.token_hex(16)
    sessions = []
    for target in targets:
        theirs = request.worker_request(token=token, environment=environment(target), has_stdin=source is not None)
        theirs["name"] = f"{job}.{target.worker}"
        sessions.append(WorkerSession(target, theirs, streams, shared=ssh_options(target.connection)))
    with forwarded_signals(catch=request.passes_signals) as interrupts:
        runner = RemoteRunner(sessions, request, streams, interrupts=interrupts, why_gone=why_gone, source=source)
        results = runner.run()
    if streams.failure is not None:
        raise streams.failure
    return RunResult(job, results, runner.stopping.reason, timeout=request.timeout)


def job_name(now: datetime) -> str:
    """Return a unique name for a job: the time of its start and four random letters."""
    return f"{now:%m%d-%H%M%S}-{secrets.token_hex(2)}"


def follow_on_workers(
    job: Job,
    others: Sequence[Target],
    streams: OutputSink,
    *,
    why_gone: Callable[[Target], str | None],
    ssh_options: Callable[[Connection], tuple[str, ...]],
    passes_signals: bool = False,
    request: RunRequest | None = None,
) -> RunResult:
    """Pass on the output of a job until it has ended on all its workers, from the `starts` of its shares on.

    `others` are workers that may have the job too; their output is passed on from its beginning. Broken connections are
    replaced. With `passes_signals` SIGINT and SIGTERM are sent to the job, as in `tpuctl run`; otherwise the job is left
    alone, a signal has its usual effect here, and the connections are closed. `request` has the limits; None has none.
    Raises `SshProgramMissingError`.
    """
    places = [(share.target, share.starts) for share in job.shares]
    places += [(target, (0, 0)) for target in others]
    request = request or RunRequest()
    # Without a token it is any job of that name.
    common = request.worker_request(token="", environment={}) | {"must_exist": True}  # not a secret
    sessions = [
        WorkerSession(
            target,
            common | {"name": f"{job.name}.{target.worker}", "offsets": start},
            streams,
            shared=ssh_options(target.connection),
        )
        for target, start in places
    ]
    with forwarded_signals(catch=passes_signals) as interrupts:
        runner = RemoteRunner(sessions, request, streams, interrupts=interrupts, why_gone=why_gone)
        everywhere = runner.run()
    # An additional worker without the job is no part of the result.
    results = [one for one in everywhere if one.outcome is not WorkerOutcome.MISSING or one.target not in others]
    return RunResult(job.name, tuple(results), runner.stopping.reason)
