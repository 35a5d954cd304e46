"""Run hooks: shell commands of the user for events of a node, on this machine.

They come only from the command line, never from a file. Only `wait` and `finish` wait for hooks. A hook that fails is
an event of its own, and runs the hook for `gave-up`.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock
from tpuctl.durations import format_timestamp
from tpuctl.models.events import EventKind, NodeEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

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
# The last lines of a failed hook, which its event has.
_MAX_TAIL = 10
_MAX_READ = 1024 * 1024  # the maximum number of bytes of one read, and of a line
# Names the file (device and inode) with the event, so that `tpuctl` in a hook does not read it as its own input.
STDIN_VARIABLE = "TPUCTL_HOOK_STDIN"
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


@dataclass(frozen=True, slots=True)
class _Hook:
    """A command to run for an event."""

    event: NodeEvent
    command: str


@dataclass(slots=True)
class _RunningHook:
    """A running hook, and the unnamed file of its output: no pipe, on which it could block, or which ends with us."""

    pid: int
    hook: _Hook
    output: int
    offset: int = 0  # of the first line that was not read
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_TAIL))

    def read(self, *, has_ended: bool) -> list[str]:
        """Return new lines, up to a limit and without an unfinished one unless the hook has ended."""
        found: list[str] = []
        while chunk := os.pread(self.output, _MAX_READ, self.offset):
            size = chunk.rfind(b"\n") + 1
            if not size and not has_ended and len(chunk) < _MAX_READ:
                break
            whole = chunk[: size or len(chunk)]
            self.offset += len(whole)
            found += [line.decode(errors="replace") for line in whole.removesuffix(b"\n").split(b"\n")]
            if not has_ended:
                break
        self.tail.extend(found)
        return found


class Hooks:
    """A listener that runs the user's commands for each kind of event: one at a time for each node, in order.

    A hook that fails becomes an event `hook-failed` with its last lines, and runs the hook for `gave-up`, which gets the
    failure as its reason.

    A hook gets the event as a JSON object on stdin, and `TPUCTL_*` variables. `TPUCTL_STATE`, `TPUCTL_HEALTH` and
    `TPUCTL_NODE_ID` are `state`, `health` and `id` of the event's data, or empty. `TPUCTL_PROJECT` and `TPUCTL_ZONE` are
    also settings, so that `tpuctl` in a hook finds the same node. A hook runs in its own session, so that Ctrl-C does not
    terminate it, and may outlive this process. `extra` are variables that select the cloud of this run, `clock` is its
    clock. `show` gets the output of hooks, line by line with the name of the node, whenever hooks are polled.
    """

    def __init__(
        self,
        commands: Mapping[EventKind, Sequence[str]],
        environ: Mapping[str, str],
        *,
        extra: Mapping[str, str],
        show: Callable[..., None],
        clock: Clock,
    ) -> None:
        self._commands = commands
        self._environ = {**environ, **extra}
        self._show, self._clock = show, clock
        self._waiting: dict[NodeName, deque[_Hook]] = {}
        self._running: dict[NodeName, _RunningHook] = {}
        self._failures: list[NodeEvent] = []

    def __call__(self, event: NodeEvent) -> None:
        """Start the hooks for an event, or queue them behind the running one of the node. Does not wait."""
        for command in self._commands.get(event.kind, ()):
            queue = self._waiting.setdefault(event.node, deque())
            queue.append(_Hook(event, command))
            if len(queue) > MAX_WAITING:
                self._record_failure(
                    queue.popleft(), None, f"was skipped, because {MAX_WAITING} hooks are already waiting"
                )
        self._advance()

    def poll(self) -> tuple[NodeEvent, ...]:
        """Show new output, collect the hooks that have ended, start waiting ones, and return the new failures."""
        self._advance()
        return self._take_failures()

    def wait(self, report: Callable[[NodeEvent], object] = lambda _: None) -> tuple[NodeEvent, ...]:
        """Wait without a limit until no hook runs or waits. Return the failures that `poll` has not returned.

        `report` is called for each as soon as it happens.
        """
        found: list[NodeEvent] = []
        while True:
            new = self.poll()
            found += new
            for failure in new:
                report(failure)
            if not self._running:
                return tuple(found)
            SystemClock().sleep(_HOOK_POLL_INTERVAL)  # hooks run in real time

    def finish(self, *, patience: timedelta = HOOK_PATIENCE) -> tuple[NodeEvent, ...]:
        """Wait up to `patience` until the waiting hooks have started, and return the new failures.

        Hooks that were not started count as failures. Running hooks are not terminated.
        """
        clock = SystemClock()  # hooks run in real time
        end = clock.monotonic() + patience
        self._advance()
        while self._waiting and (left := end - clock.monotonic()) > timedelta():
            clock.sleep(min(_HOOK_POLL_INTERVAL, left))
            self._advance()
        for queue in self._waiting.values():
            for hook in queue:
                self._record_failure(
                    hook, None, "was skipped, because other hooks were still running when the run ended"
                )
        self._waiting.clear()
        return self._take_failures()

    @property
    def are_waiting(self) -> bool:
        """Return whether a hook waits for another."""
        return bool(self._waiting)

    @property
    def running(self) -> tuple[str, ...]:
        """Return a description of each hook that was running at the last `poll`."""
        return tuple(
            f"{node.node_id}: the hook for `{running.hook.event.kind}` (process {running.pid})"
            for node, running in self._running.items()
        )

    def _take_failures(self) -> tuple[NodeEvent, ...]:
        failures, self._failures = self._failures, []
        return tuple(failures)

    def _advance(self) -> None:
        for node, running in tuple(self._running.items()):
            self._reap(node, running)
        for node in tuple(self._waiting):
            while node not in self._running and len(self._running) < MAX_RUNNING and (queue := self._waiting.get(node)):
                self._start(queue.popleft())
                if not queue:
                    del self._waiting[node]

    def _reap(self, node: NodeName, running: _RunningHook) -> None:
        try:
            ended, status = os.waitpid(running.pid, os.WNOHANG)
        except ChildProcessError:
            # Our parent ignores SIGCHLD: the system has discarded the process and its exit code.
            ended, status = running.pid, 0
        lines, code = running.read(has_ended=bool(ended)), os.waitstatus_to_exitcode(status)
        if ended:
            del self._running[node]
            os.close(running.output)
            if code != 0:
                self._fail(running.hook, code, _describe_exit(code), [*running.tail])
                lines = lines[:-_MAX_TAIL]  # the event has the others
        if lines:
            self._show(*(f"{node.node_id}: {line}" for line in lines))

    def _start(self, hook: _Hook) -> None:
        event, argv = hook.event, ("/bin/sh", "-c", hook.command)
        output = None
        try:
            stdin = _stdin_with(json.dumps(event.to_json()).encode() + b"\n")
            try:
                with tempfile.TemporaryFile(buffering=0) as file:
                    output = os.dup(file.fileno())
                # In its own session, with default handlers for the signals that Python ignores or we handle.
                pid = os.posix_spawn(
                    argv[0],
                    argv,
                    {**self._environ, **hook_variables(event), STDIN_VARIABLE: _identity(stdin)},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, source, stream) for stream, source in enumerate((stdin, output, output))
                    ],
                    setsid=True,
                    setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
                )
            finally:
                os.close(stdin)
        except (OSError, ValueError) as error:
            if output is not None:
                os.close(output)
            self._fail(hook, None, f"could not be started ({getattr(error, 'strerror', None) or error})", [])
            return
        self._running[event.node] = _RunningHook(pid, hook, output)

    def _fail(self, hook: _Hook, code: int | None, reason: str, output: list[str]) -> None:
        """Record a failure, and queue the hooks for `gave-up`."""
        failure, event = self._record_failure(hook, code, reason, output), hook.event
        if event.kind is EventKind.GAVE_UP:
            return
        given_up = NodeEvent(EventKind.GAVE_UP, failure.at, event.node, failure.text, {**event.data, **failure.data})
        for command in self._commands.get(EventKind.GAVE_UP, ()):
            self._waiting.setdefault(event.node, deque()).append(_Hook(given_up, command))

    def _record_failure(self, hook: _Hook, code: int | None, reason: str, output: Sequence[str] = ()) -> NodeEvent:
        event = hook.event
        text = f"the hook for `{event.kind}` {reason}: {hook.command}"
        data = {"hook": str(event.kind), "exit_code": code, "output": [*output]}
        failure = NodeEvent(EventKind.HOOK_FAILED, self._clock.now(), event.node, text, data)
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
    """Return a descriptor from which the data can be read, without a writer that blocks. The caller closes it."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())


class GroupHooks:
    """Passes events on to hooks: the recovery of a slice only once for its group, when all slices are usable."""

    def __init__(self, hooks: Hooks, groups: Mapping[NodeName, tuple[NodeName, ...]]) -> None:
        # The slices of the group of each node, itself among them.
        self._hooks, self._groups = hooks, groups
        self._held: dict[tuple[NodeName, ...], NodeEvent] = {}

    def __call__(self, event: NodeEvent) -> None:
        """Pass an event on, or hold it until `release`."""
        slices = self._groups.get(event.node, ())
        if event.kind is EventKind.RECOVERED and len(slices) > 1:
            self._held[slices] = event
        else:
            self._hooks(event)

    def release(self, usable: Collection[NodeName]) -> None:
        """Pass on the recovery of each group of which all slices are usable now."""
        for slices, event in tuple(self._held.items()):
            if set(slices) <= set(usable):
                del self._held[slices]
                ids = [name.node_id for name in slices]
                self._hooks(
                    replace(event, text=f"{event.text}; all {len(ids)} slices are", data={**event.data, "slices": ids})
                )
