"""Hooks: shell commands of the user that run on this machine when something happened to a node.

They come from the command line only, never from a file. Nothing here waits for a hook, but `wait` and `finish`.
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

from tpuctl.clock import format_timestamp
from tpuctl.hooks.output import HookOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.clock import Clock
    from tpuctl.events import Event, EventKind
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
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A hook that did not do its work. `exit_code` is that of the shell, negative for a signal, nothing if it never ran."""

    node: NodeName
    kind: EventKind
    command: str
    exit_code: int | None
    reason: str

    def __str__(self) -> str:
        return f"the hook for `{self.kind}` {self.reason}: {self.command}"


class _Running(NamedTuple):
    """A hook that runs, and what it writes to where that is told."""

    pid: int
    event: Event
    out: int | None


class Hooks:
    """A listener for events that runs the user's command for their kind; at most one at a time for each node, in order.

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
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._commands = commands
        self._environ = {**environ, **extra}
        self._waiting: dict[NodeName, deque[Event]] = {}
        self._running: dict[NodeName, _Running] = {}
        self._failures: list[HookFailure] = []
        self._output = HookOutput(tell) if tell else None

    def __call__(self, event: Event) -> None:
        """Start the hook for such an event, or put it behind the one of its node that runs. Returns at once."""
        if event.kind not in self._commands:
            return
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

    def wait(self) -> tuple[HookFailure, ...]:
        """Return the failures not told yet when no hook runs or waits any more, however long that takes."""
        while self._running:
            node, running = next(iter(self._running.items()))
            self._reap(node, running, 0)
            self._go_on()
        return self.poll()

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
        return self.poll()

    @property
    def are_waiting(self) -> bool:
        """Tell whether a hook waits for another to end."""
        return bool(self._waiting)

    @property
    def are_running(self) -> bool:
        """Tell whether a hook runs or waits, as far as the last `poll` saw."""
        return bool(self._running)

    def _go_on(self) -> None:
        for node, running in tuple(self._running.items()):
            self._reap(node, running, os.WNOHANG)
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
        event = self._running.pop(node).event
        if self._output and running.out is not None:
            self._output.close(running.out)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            self._fail(event, code, _ending(code))

    def _start(self, event: Event) -> None:
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
                    {**self._environ, **variables(event)},
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
        self._running[event.node] = _Running(pid, event, out)

    def _fail(self, event: Event, code: int | None, reason: str) -> None:
        self._failures.append(HookFailure(event.node, event.kind, self._commands[event.kind], code, reason))


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
    """Return our stderr, or nothing where it was closed when we began (`2>&-`)."""
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
