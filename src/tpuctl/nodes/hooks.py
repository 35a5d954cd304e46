"""Run hooks: shell commands of the user for events of a node, on this machine.

They come only from the command line, never from a file. Only `wait` and `finish` wait for hooks. A hook that fails is
retried after a pause; its last failure runs the hook for `gave-up`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.events import EventKind, NodeEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.names import NodeName

# Hooks of a node that wait for a running one. More mean that it hangs: the oldest event is dropped.
MAX_WAITING = 16
# Hooks that run at the same time. The preemption of a whole zone must not overload this machine.
MAX_RUNNING = 64
# How long waiting hooks may wait when a run ends, and how often the running ones are checked.
HOOK_PATIENCE = timedelta(minutes=1)
_HOOK_POLL_INTERVAL = timedelta(milliseconds=50)
# A variable may have 128 KiB [execve(2), MAX_ARG_STRLEN]. The JSON has the whole text.
_MAX_TEXT = 4000
# Pauses before a failed hook is retried, by the clock of the cloud: its cause may pass (a full disk, ssh).
RETRY_PAUSES = (timedelta(seconds=10), timedelta(minutes=1))
# Names the file (device and inode) with the event, so that `tpuctl` in a hook does not read it as its own input.
STDIN_VARIABLE = "TPUCTL_HOOK_STDIN"
# Events that supersede earlier ones of the same node.
_OUTDATING = frozenset({EventKind.PREEMPTED, EventKind.GAVE_UP})
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


@dataclass(frozen=True, slots=True)
class HookFailure:
    """The failure of a hook."""

    node: NodeName
    kind: EventKind
    command: str
    # The exit code of the shell, negative for a signal; None if it never ran.
    exit_code: int | None
    reason: str
    # False if it is retried.
    is_final: bool = True

    def __str__(self) -> str:
        return f"the hook for `{self.kind}` {self.reason}: {self.command}"


class _RunningHook(NamedTuple):
    """A running hook. `out` is the file of its output, if that is forwarded."""

    pid: int
    event: NodeEvent
    attempt: int
    out: int | None


class _HookRetry(NamedTuple):
    """A failed hook that is retried at `due` (monotonic)."""

    event: NodeEvent
    attempt: int
    due: timedelta


class Hooks:
    """A listener that runs the user's command for each kind of event: one at a time for each node, in order.

    A failed hook is retried after each of `pauses`, by `clock`, unless a later event supersedes its own. After the last
    failure the hook for `gave-up` runs, with the failure as its reason.

    A hook gets the event as a JSON object on stdin, and `TPUCTL_*` variables. `TPUCTL_STATE`, `TPUCTL_HEALTH` and
    `TPUCTL_NODE_ID` are `state`, `health` and `id` of the event's data, or empty. `TPUCTL_PROJECT` and `TPUCTL_ZONE` are
    also settings, so that `tpuctl` in a hook finds the same node. A hook runs in its own session, so that Ctrl-C does not
    terminate it, and may outlive this process. `extra` are variables that select the cloud of this run. The output of a
    hook goes to our stderr or, line by line with the name of the node, to `print_lines`, which is called from another thread.
    """

    def __init__(
        self,
        commands: Mapping[EventKind, str],
        environ: Mapping[str, str],
        *,
        extra: Mapping[str, str],
        print_lines: Callable[..., None] | None = None,
        pauses: Sequence[timedelta] = (),
        clock: Clock | None = None,
    ) -> None:
        self._commands = commands
        self._pauses, self._clock = tuple(pauses), clock or SystemClock()
        self._retries: dict[NodeName, _HookRetry] = {}
        self._environ = {**environ, **extra}
        self._waiting: dict[NodeName, deque[NodeEvent]] = {}
        self._running: dict[NodeName, _RunningHook] = {}
        self._failures: list[HookFailure] = []
        self._output = HookOutput(print_lines) if print_lines else None

    def __call__(self, event: NodeEvent) -> None:
        """Start the hook for an event, or queue it behind the running one of the node. Does not wait."""
        retry = self._retries.get(event.node)
        if retry and (event.kind in _OUTDATING or event.kind is retry.event.kind):
            del self._retries[event.node]
        if event.kind in self._commands:
            self._enqueue(event)

    def _enqueue(self, event: NodeEvent) -> None:
        queue = self._waiting.setdefault(event.node, deque())
        queue.append(event)
        if len(queue) > MAX_WAITING:
            self._record_failure(queue.popleft(), None, f"was skipped, because {MAX_WAITING} hooks are already waiting")
        self._advance()

    def poll(self) -> tuple[HookFailure, ...]:
        """Collect the hooks that have ended, start waiting ones, and return the new failures."""
        self._advance()
        failures, self._failures = self._failures, []
        return tuple(failures)

    def wait(self, warn: Callable[[HookFailure], None] = lambda _: None) -> tuple[HookFailure, ...]:
        """Wait without a limit until no hook runs or waits. Return the failures that `poll` has not returned.

        `warn` is called for each as soon as it happens.
        """
        found: list[HookFailure] = []
        while True:
            new = self.poll()
            found += new
            for failure in new:
                warn(failure)
            if self._running:
                node, running = next(iter(self._running.items()))
                self._reap(node, running, 0)
            elif self._retries:
                due = min(retry.due for retry in self._retries.values())
                self._clock.sleep(max(due - self._clock.monotonic(), timedelta()))
            else:
                return tuple(found)

    def finish(self, clock: Clock, *, patience: timedelta = HOOK_PATIENCE) -> tuple[HookFailure, ...]:
        """Wait up to `patience` until the waiting hooks have started, and return the new failures.

        Hooks that were not started count as failures. Running hooks are not terminated. The clock must be a real one,
        because hooks run in real time.
        """
        end = clock.monotonic() + patience
        self._advance()
        while self._waiting and (left := end - clock.monotonic()) > timedelta():
            clock.sleep(min(_HOOK_POLL_INTERVAL, left))
            self._advance()
        for queue in self._waiting.values():
            for event in queue:
                self._record_failure(
                    event, None, "was skipped, because other hooks were still running when the run ended"
                )
        self._waiting.clear()
        for retry in self._retries.values():
            self._record_failure(retry.event, None, "was not retried, because the run ended")
        self._retries.clear()
        return self.poll()

    @property
    def are_waiting(self) -> bool:
        """Return whether a hook waits for another."""
        return bool(self._waiting)

    @property
    def are_running(self) -> bool:
        """Return whether a hook was running at the last `poll`."""
        return bool(self._running)

    def _advance(self) -> None:
        for node, running in tuple(self._running.items()):
            self._reap(node, running, os.WNOHANG)
        now = self._clock.monotonic()
        for node, retry in tuple(self._retries.items()):
            if retry.due <= now and node not in self._running and len(self._running) < MAX_RUNNING:
                del self._retries[node]
                self._start(retry.event, attempt=retry.attempt)
        for node in tuple(self._waiting):
            while node not in self._running and len(self._running) < MAX_RUNNING and (queue := self._waiting.get(node)):
                self._start(queue.popleft())
                if not queue:
                    del self._waiting[node]

    def _reap(self, node: NodeName, running: _RunningHook, options: int) -> None:
        try:
            ended, status = os.waitpid(running.pid, options)
        except ChildProcessError:
            # Our parent ignores SIGCHLD: the system has discarded the process and its exit code.
            ended, status = running.pid, 0
        if ended == 0:
            return
        del self._running[node]
        if self._output and running.out is not None:
            self._output.close(running.out)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            self._retry_or_escalate(running.event, running.attempt, code)

    def _retry_or_escalate(self, event: NodeEvent, attempt: int, code: int) -> None:
        """Schedule the retry of a failed hook, or run the one for `gave-up`."""
        is_last = attempt > len(self._pauses)
        waiting = self._waiting.get(event.node, ())
        if any(later.kind in _OUTDATING or later.kind is event.kind for later in waiting):
            self._record_failure(
                event, code, f"{_describe_exit(code)}, and is not retried: a later event supersedes it"
            )
        elif not is_last:
            pause, tries = self._pauses[attempt - 1], len(self._pauses) + 1
            self._retries[event.node] = _HookRetry(event, attempt + 1, self._clock.monotonic() + pause)
            reason = f"{_describe_exit(code)}; try {attempt + 1} of {tries} in {format_duration(pause)}"
            self._record_failure(event, code, reason, is_final=False)
        else:
            reason = _describe_exit(code) + (f", also on try {attempt}" if attempt > 1 else "")
            failure = self._record_failure(event, code, reason)
            if event.kind is not EventKind.GAVE_UP and EventKind.GAVE_UP in self._commands:
                data = {**event.data, "hook": str(event.kind), "exitCode": code}
                self._enqueue(NodeEvent(EventKind.GAVE_UP, self._clock.now(), event.node, str(failure), data))

    def _start(self, event: NodeEvent, *, attempt: int = 1) -> None:
        argv = ("/bin/sh", "-c", self._commands[event.kind])
        out = None
        try:
            stdin = _stdin_with(json.dumps(event.to_json()).encode() + b"\n")
            try:
                out = self._output.open(event.node.node_id) if self._output else None
                target = _stderr() if out is None else out
                # Without a stderr of ours, the streams of the hook are discarded.
                discard = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
                forward = [(os.POSIX_SPAWN_DUP2, target, stream) for stream in (1, 2) if target is not None]
                # In its own session, with default handlers for the signals that Python ignores or we handle.
                pid = os.posix_spawn(
                    argv[0],
                    argv,
                    {**self._environ, **hook_variables(event), STDIN_VARIABLE: _identity(stdin)},
                    file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), *(forward or discard)],
                    setsid=True,
                    setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
                )
            finally:
                os.close(stdin)
        except (OSError, ValueError) as error:
            if self._output and out is not None:
                self._output.close(out)
            self._record_failure(event, None, f"could not be started ({getattr(error, 'strerror', None) or error})")
            return
        self._running[event.node] = _RunningHook(pid, event, attempt, out)

    def _record_failure(self, event: NodeEvent, code: int | None, reason: str, *, is_final: bool = True) -> HookFailure:
        failure = HookFailure(event.node, event.kind, self._commands[event.kind], code, reason, is_final)
        self._failures.append(failure)
        return failure


def holds_event(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return whether a descriptor is the stdin of a hook: it has an event for the hook, and no input for `tpuctl`."""
    try:
        return environ.get(STDIN_VARIABLE) == _identity(descriptor)
    except OSError:
        return False


def _identity(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f"{found.st_dev}:{found.st_ino}"


def hook_variables(event: NodeEvent) -> dict[str, str]:
    """Return the environment variables of a hook for an event."""
    found = {
        "TPUCTL_EVENT": str(event.kind),
        "TPUCTL_NODE": event.node.node_id,
        "TPUCTL_ZONE": event.node.zone,
        "TPUCTL_PROJECT": event.node.project,
        "TPUCTL_STATE": str(event.data.get("state") or ""),
        "TPUCTL_HEALTH": str(event.data.get("health") or ""),
        "TPUCTL_NODE_ID": str(event.data.get("id") or ""),
        "TPUCTL_REASON": event.text[:_MAX_TEXT],
        "TPUCTL_AT": format_timestamp(event.at),
    }
    # It includes messages of the service. A variable cannot contain a zero byte or a lone surrogate.
    return {name: text.replace("\0", " ").encode("utf-8", "replace").decode() for name, text in found.items()}


def _describe_exit(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was terminated by {signal.Signals(-code).name}"
        return f"was terminated by signal {-code}"
    meaning = {_NOT_FOUND: " (command not found)", _NOT_EXECUTABLE: " (not executable)"}
    return f"ended with exit code {code}{meaning.get(code, '')}"


def _stdin_with(data: bytes) -> int:
    """Return a descriptor from which the data can be read, without a writer that blocks. The caller closes it.

    A pipe has room for most events, and needs no disk; a file has room for any.
    """
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        if os.write(writer, data) == len(data):
            return reader
    except BlockingIOError:
        pass
    finally:
        os.close(writer)
    os.close(reader)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())


def _stderr() -> int | None:
    """Return our stderr, or None if it was closed at the start (`2>&-`)."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ else None
    except (OSError, ValueError):
        return None


# How often the files are read, in real seconds: no decision depends on it.
_RATE_PERIOD = 0.2
_MOST_LINES = 65536  # the maximum number of bytes of one read, and of a line


@dataclass(slots=True)
class _HookStream:
    """The file that a hook writes to, and the part of an unfinished line that was read."""

    node: str
    device: int
    offset: int = 0
    rest: bytes = b""

    def read(self, *, has_ended: bool) -> list[str]:
        """Return the new lines."""
        found = []
        while chunk := os.pread(self.device, _MOST_LINES, self.offset):
            self.offset += len(chunk)
            *whole, self.rest = (self.rest + chunk).split(b"\n")
            found += whole
            if len(self.rest) >= _MOST_LINES or not has_ended:
                break
        if self.rest and (has_ended or len(self.rest) >= _MOST_LINES):
            found.append(self.rest)
            self.rest = b""
        return [f"{self.node}: {line.decode(errors='replace')}" for line in found]


class HookOutput:
    """Forwards the output of hooks: they must not write to a screen that is redrawn.

    A thread calls `print_lines` with whole lines, each as an argument. A hook writes to an unnamed file, not to a pipe: it
    never blocks on us, and can outlive us. Its later output is lost.
    """

    def __init__(self, print_lines: Callable[..., None]) -> None:
        self._print_lines = print_lines
        self._sources: dict[int, _HookStream] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, node: str) -> int:
        """Return a descriptor for the output of a hook. Raises `OSError` if there is no room for a file."""
        with tempfile.TemporaryFile(buffering=0) as file:
            device = os.dup(file.fileno())
        with self._lock:
            self._sources[device] = _HookStream(node, device)
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="hook-output", daemon=True)
            self._thread.start()
            atexit.register(self._end)  # a thread that writes while Python exits would crash it
        return device

    def close(self, device: int) -> None:
        """Forward the remaining output of a hook that has ended."""
        with self._lock:
            source = self._sources.pop(device)
        try:
            self._forward(source.read(has_ended=True))
        finally:
            os.close(device)

    def _follow(self) -> None:
        while not self._ended.wait(_RATE_PERIOD):
            with self._lock:
                lines = [line for source in self._sources.values() for line in source.read(has_ended=False)]
            try:
                self._forward(lines)
            except OSError:
                return  # the screen is gone; other writers report that

    def _end(self) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join(1)

    def _forward(self, lines: list[str]) -> None:
        if lines:
            self._print_lines(*lines)
