"""Hooks: shell commands of the user that run on this machine when something happened to a node.

They come from the command line only, never from a file. Nothing here waits for a hook, but `wait` and `finish`.
A hook that fails is run again after a pause; the last failure runs the hook for `gave-up`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.clock import SystemClock, format_duration, format_timestamp
from tpuctl.events import Event, EventKind
from tpuctl.hooks.output import HookOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.names import NodeName

# Hooks that wait for one of their node to end. More are a hook that hangs: the oldest news is worth least.
MAX_WAITING = 16
# Hooks that run at once. A zone that takes all nodes back must not take this machine down too.
MAX_RUNNING = 64
# How long, when a run ends, hooks may wait for those before them, and how often it is looked whether these have ended.
PATIENCE = timedelta(minutes=1)
_LOOK = timedelta(milliseconds=50)
# One variable may hold 128 KiB [execve(2), MAX_ARG_STRLEN]; a person reads less. The JSON has it all.
_MAX_TEXT = 4000
# Pauses before a failed hook is run again, in the time of the cloud: what it starts may need a moment (a full disk, ssh).
RETRY_PAUSES = (timedelta(seconds=10), timedelta(minutes=1))
# Names the file (device and inode) that holds the event, so that `tpuctl` in a hook can tell it from input meant for it.
STDIN_VARIABLE = "TPUCTL_HOOK_STDIN"
# Events after which an earlier one of the same node is out of date.
_OUTDATING = frozenset({EventKind.PREEMPTED, EventKind.GAVE_UP})
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A hook that did not do its work.

    `exit_code` is that of the shell, negative for a signal, None if it never ran. `is_final` is false where it runs again.
    """

    node: NodeName
    kind: EventKind
    command: str
    exit_code: int | None
    reason: str
    is_final: bool = True

    def __str__(self) -> str:
        return f"the hook for `{self.kind}` {self.reason}: {self.command}"


class _Running(NamedTuple):
    """A hook that runs: its process, its event, which try it is, and the file of its output where that is shown."""

    pid: int
    event: Event
    attempt: int
    out: int | None


class _Retry(NamedTuple):
    """A hook that failed and runs again at `due` (monotonic)."""

    event: Event
    attempt: int
    due: timedelta


class Hooks:
    """A listener for events that runs the user's command for their kind; at most one at a time for each node, in order.

    A hook that fails runs again after each of `pauses`, by `clock`, unless a later event makes its own out of date. Then the
    hook for `gave-up` runs, with the failure as its reason.

    A hook gets the event as one JSON object on stdin, and `TPUCTL_*` variables. `TPUCTL_STATE`, `TPUCTL_HEALTH` and
    `TPUCTL_NODE_ID` are `state`, `health` and `id` of the event's data, empty where it has none. `TPUCTL_PROJECT` and
    `TPUCTL_ZONE` are settings too: `tpuctl` in a hook finds the same node. It has a session of its own, so that Ctrl-C does
    not end it, and outlives us. `extra` are variables that say which cloud this run talks to. What a hook writes goes to our
    stderr; or, line by line and with the node's name, to `tell`, which any thread may call, as long as we live.
    """

    def __init__(
        self,
        commands: Mapping[EventKind, str],
        environ: Mapping[str, str],
        *,
        extra: Mapping[str, str],
        tell: Callable[..., None] | None = None,
        pauses: Sequence[timedelta] = (),
        clock: Clock | None = None,
    ) -> None:
        self._commands = commands
        self._pauses, self._clock = tuple(pauses), clock or SystemClock()
        self._retries: dict[NodeName, _Retry] = {}
        self._environ = {**environ, **extra}
        self._waiting: dict[NodeName, deque[Event]] = {}
        self._running: dict[NodeName, _Running] = {}
        self._failures: list[HookFailure] = []
        self._output = HookOutput(tell) if tell else None

    def __call__(self, event: Event) -> None:
        """Start the hook for such an event, or put it behind the one of its node that runs. Returns at once."""
        retry = self._retries.get(event.node)
        if retry and (event.kind in _OUTDATING or event.kind is retry.event.kind):
            del self._retries[event.node]
        if event.kind in self._commands:
            self._enqueue(event)

    def _enqueue(self, event: Event) -> None:
        queue = self._waiting.setdefault(event.node, deque())
        queue.append(event)
        if len(queue) > MAX_WAITING:
            self._fail(queue.popleft(), None, f"was left out, because {MAX_WAITING} others wait for one to end")
        self._go_on()

    def poll(self) -> tuple[HookFailure, ...]:
        """Let go of the hooks that have ended, start those that waited for them, and return the failures not told yet."""
        self._go_on()
        failures, self._failures = self._failures, []
        return tuple(failures)

    def wait(self, warn: Callable[[HookFailure], None] = lambda _: None) -> tuple[HookFailure, ...]:
        """Return when no hook runs or waits any more, however long that takes, with the failures that `poll` has not returned.

        `warn` gets each of them as soon as it happens.
        """
        found: list[HookFailure] = []
        while self._running or self._retries:
            if self._running:
                node, running = next(iter(self._running.items()))
                self._reap(node, running, 0)
            else:
                due = min(retry.due for retry in self._retries.values())
                self._clock.sleep(max(due - self._clock.monotonic(), timedelta()))
            new = self.poll()
            found += new
            for failure in new:
                warn(failure)
        last = self.poll()
        for failure in last:
            warn(failure)
        return (*found, *last)

    def finish(self, clock: Clock, *, patience: timedelta = PATIENCE) -> tuple[HookFailure, ...]:
        """Give the hooks that wait that long to be started, and return the failures not told yet.

        Those that were not started are failures, and are forgotten. Those that run are left to themselves. Hooks run in
        real time: so must the clock.
        """
        end = clock.monotonic() + patience
        self._go_on()
        while self._waiting and (left := end - clock.monotonic()) > timedelta():
            clock.sleep(min(_LOOK, left))
            self._go_on()
        for queue in self._waiting.values():
            for event in queue:
                self._fail(event, None, "was left out, because others had not ended when the run did")
        self._waiting.clear()
        for retry in self._retries.values():
            self._fail(retry.event, None, "was not run again, because the run ended")
        self._retries.clear()
        return self.poll()

    @property
    def are_waiting(self) -> bool:
        """Return whether a hook waits for another to end."""
        return bool(self._waiting)

    @property
    def are_running(self) -> bool:
        """Return whether a hook runs or waits, as far as the last `poll` saw."""
        return bool(self._running)

    def _go_on(self) -> None:
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

    def _reap(self, node: NodeName, running: _Running, options: int) -> None:
        try:
            ended, status = os.waitpid(running.pid, options)
        except ChildProcessError:
            # Who started us ignores SIGCHLD: the system has let go of it, and its exit code with it.
            ended, status = running.pid, 0
        if ended == 0:
            return
        del self._running[node]
        if self._output and running.out is not None:
            self._output.close(running.out)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            self._failed(running.event, running.attempt, code)

    def _failed(self, event: Event, attempt: int, code: int) -> None:
        """Run a hook again that has failed, later, or run the one for `gave-up`."""
        is_last = attempt > len(self._pauses)
        waiting = self._waiting.get(event.node, ())
        if any(later.kind in _OUTDATING or later.kind is event.kind for later in waiting):
            self._fail(event, code, f"{_ending(code)}, and is not run again: a later event follows")
        elif not is_last:
            pause, tries = self._pauses[attempt - 1], len(self._pauses) + 1
            self._retries[event.node] = _Retry(event, attempt + 1, self._clock.monotonic() + pause)
            reason = f"{_ending(code)}; try {attempt + 1} of {tries} in {format_duration(pause)}"
            self._fail(event, code, reason, is_final=False)
        else:
            reason = _ending(code) + (f", also on try {attempt}" if attempt > 1 else "")
            failure = self._fail(event, code, reason)
            if event.kind is not EventKind.GAVE_UP and EventKind.GAVE_UP in self._commands:
                data = {**event.data, "hook": str(event.kind), "exitCode": code}
                self._enqueue(Event(EventKind.GAVE_UP, self._clock.now(), event.node, str(failure), data))

    def _start(self, event: Event, *, attempt: int = 1) -> None:
        argv = ("/bin/sh", "-c", self._commands[event.kind])
        out = None
        try:
            stdin = _stdin_with(json.dumps(event.to_json()).encode() + b"\n")
            try:
                out = self._output.open(event.node.node_id) if self._output else None
                # In a session of its own, and with the signals that Python ignores or we handle as they are by default.
                pid = os.posix_spawn(
                    argv[0],
                    argv,
                    {**self._environ, **variables(event), STDIN_VARIABLE: _identity(stdin)},
                    file_actions=_streams(stdin, _stderr() if out is None else out),
                    setsid=True,
                    setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
                )
            finally:
                os.close(stdin)
        except (OSError, ValueError) as error:
            if self._output and out is not None:
                self._output.close(out)
            self._fail(event, None, f"could not be started ({getattr(error, 'strerror', None) or error})")
            return
        self._running[event.node] = _Running(pid, event, attempt, out)

    def _fail(self, event: Event, code: int | None, reason: str, *, is_final: bool = True) -> HookFailure:
        failure = HookFailure(event.node, event.kind, self._commands[event.kind], code, reason, is_final)
        self._failures.append(failure)
        return failure


def holds_event(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return whether a descriptor is the stdin that a hook was started with: an event for the hook, no input of `tpuctl`."""
    try:
        return environ.get(STDIN_VARIABLE) == _identity(descriptor)
    except OSError:
        return False


def _identity(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f"{found.st_dev}:{found.st_ino}"


def variables(event: Event) -> dict[str, str]:
    """Return what a hook finds of an event in its environment."""
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
    # The service's words are among it; no variable can hold a zero byte, or half of a pair of surrogates.
    return {name: text.replace("\0", " ").encode("utf-8", "replace").decode() for name, text in found.items()}


def _ending(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"
    meaning = {_NOT_FOUND: ", which means: command not found", _NOT_EXECUTABLE: ", which means: not executable"}
    return f"ended with exit code {code}{meaning.get(code, '')}"


def _stdin_with(data: bytes) -> int:
    """Return a descriptor from which all of the data can be read, whether or not anybody reads it; the caller closes it.

    A pipe holds an event as it usually is, and needs no disk; a file holds any.
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
    """Return our stderr, or None if it was closed when we began (`2>&-`)."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ else None
    except (OSError, ValueError):
        return None


def _streams(stdin: int, out: int | None) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
    """Return how a hook's streams are laid: both that it writes go to one place, or nowhere."""
    if out is None:
        nowhere = [(os.POSIX_SPAWN_OPEN, target, os.devnull, os.O_WRONLY, 0) for target in (1, 2)]
        return [(os.POSIX_SPAWN_DUP2, stdin, 0), *nowhere]
    return [(os.POSIX_SPAWN_DUP2, source, target) for source, target in ((stdin, 0), (out, 1), (out, 2))]
