"""The channel to a program of `ssh/agent` on a worker: start ssh, send the program, exchange frames, classify the end.

A frame is a letter, four bytes of length, and the payload; the worker's end is `ssh/agent/link.py`. Workers are not trusted:
bytes that are no frame, a frame that is too long and an answer that the caller cannot parse raise `UnexpectedAnswerError`.
`open_agent` is for queries; `workers/runner.py` serves many channels with one selector.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import Enum
from functools import cache
from importlib import resources
from math import ceil, inf
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.errors import RemoteCommandError, TpuctlError
from tpuctl.escaping import one_line, preview
from tpuctl.fan_out import Outcome, fan_out
from tpuctl.ssh import agent
from tpuctl.ssh.agent.link import AGENT_MARK, AS_ROOT
from tpuctl.ssh.answers import MAX_LOGIN_BANNER, UnexpectedAnswerError, parse_answer
from tpuctl.ssh.connection import (
    BATCH_MODE,
    CONNECT_TIMEOUT,
    NEW_CONNECTION,
    SSH_FAILED,
    BoundedBuffer,
    last_printed_line,
    require_pipe,
    ssh_argv,
    start_ssh,
    terminate_process,
)
from tpuctl.ssh.control_master import is_multiplexing_message
from tpuctl.ssh.keys import SshProgramMissingError
from tpuctl.ssh.ssh_errors import (
    HOST_KEY_CHANGED_IDS,
    KEY_REFUSED_IDS,
    classify_stderr,
    collect_failure_context,
    explain_ssh_failures,
    is_ssh_failure_retriable,
    significant_line,
)

if TYPE_CHECKING:
    from tpuctl.ssh.connection import Target

# Handshakes in progress at the same time.
MAX_CHANNELS = 32
# Programs on workers send output in blocks of this size, and answers in one frame.
LONGEST_FRAME = 64 * 1024
LONGEST_ANSWER = 4 << 20
_HEAD = 5
_BLOCK = 256 * 1024
_KEPT_STDERR = 8 * 1024
_NO_PYTHON = 127
# Children of ssh may keep its pipes open, so its own end is polled for.
_POLL = 0.25
# Seconds for ssh to end after the worker closed the connection.
_EXIT_TIMEOUT = 2.0
# How ssh begins messages that `explain` does not know: with its name, or with the function in it that gave up.
_OF_SSH = re.compile(
    r"ssh: |(?:ssh|kex|client|channel|packet|mux|sshpkt)_\w+: |Bad packet length|Corrupted MAC on input"
)


class WorkerFrame(Enum):
    """A frame that a worker sends."""

    READY = b"h"  # `new`: nothing was started yet; `known`: an earlier connection started the command
    IN_USE = b"u"  # before READY: a job that runs on the worker already
    STARTED = b"s"
    OUT = b"o"
    ERR = b"e"
    OUT_GONE = b"O"  # this number of bytes is no longer stored
    ERR_GONE = b"E"
    TAKEN = b"a"  # number of bytes of stdin that the command has received
    EXIT = b"x"  # the end of a command, or the answer to a query
    LOST = b"l"  # started, and how it ended is unknown
    MISSING = b"m"  # no such job; among evidence what is missing and why, as JSON
    CONFLICT = b"c"  # another job has that name
    FILE = b"f"  # a file of evidence begins, as JSON: its path, its source, its size, its modification time
    REFUSED = b"!"  # an error of the system on the worker


class ClientFrame(Enum):
    """A frame that the client sends to a worker."""

    GO = b"g"
    KILL = b"k"
    IN = b"i"
    FINAL = b"f"  # the end of stdin
    HAVE = b"t"  # bytes of stdout and of stderr that have arrived: the worker may delete them
    BYE = b"b"  # everything has arrived: the worker may delete the job


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Frame = tuple[WorkerFrame, bytes]
FRAME_KINDS = {kind.value: kind for kind in WorkerFrame}


class FrameDecoder:
    """Decodes frames from data that arrives in pieces, skipping what a login shell prints before the mark.

    Buffers at most one frame of `longest` bytes and the data fed last.
    """

    def __init__(self, longest: int = LONGEST_FRAME) -> None:
        self.found_mark = False
        self._longest = longest
        self._data = bytearray()
        self._skipped = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now.

        Raises `UnexpectedAnswerError` for bytes that are no frame, for a frame that is too long, and for a login shell that
        prints without end before the mark.
        """
        self._data += data
        if not self.found_mark and not self._find_mark():
            return []
        frames = []
        at = 0
        while len(self._data) - at >= _HEAD:
            letter, size = bytes(self._data[at : at + 1]), int.from_bytes(self._data[at + 1 : at + _HEAD], "big")
            if letter not in FRAME_KINDS:
                raise UnexpectedAnswerError(f"no frame begins with {preview(letter)}")
            if size > self._longest:
                raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {self._longest} are expected")
            end = at + _HEAD + size
            if len(self._data) < end:
                break
            frames.append((FRAME_KINDS[letter], bytes(self._data[at + _HEAD : end])))
            at = end
        del self._data[:at]
        return frames

    def feed_raw(self, data: bytes) -> bytes:
        """Return what follows the mark, without decoding it. Raises `UnexpectedAnswerError` as `feed` does."""
        self._data += data
        if not self.found_mark and not self._find_mark():
            return b""
        rest = bytes(self._data)
        self._data.clear()
        return rest

    def _find_mark(self) -> bool:
        """Drop everything up to the mark; without a mark, all that cannot be its beginning."""
        at = self._data.find(AGENT_MARK)
        end = at + len(AGENT_MARK) if at >= 0 else max(0, len(self._data) - len(AGENT_MARK))
        self._skipped += end
        if self._skipped > MAX_LOGIN_BANNER:
            raise UnexpectedAnswerError(f"more than {MAX_LOGIN_BANNER} bytes before the program's first")
        del self._data[:end]
        self.found_mark = at >= 0
        return self.found_mark


class AgentError(RemoteCommandError):
    """A program on a worker gave no complete answer. `what`: the reason in one line.

    `ssh_stderr`: the stderr of ssh if ssh failed, or if the worker gave no sign before the timeout. `waited`: the timeout that
    has passed. `is_retriable`: a new connection may succeed. `has_begun`: the program has started.
    """

    def __init__(
        self,
        target: Target,
        what: str,
        *,
        ssh_stderr: str | None = None,
        waited: timedelta | None = None,
        is_retriable: bool = False,
        has_begun: bool = False,
    ) -> None:
        super().__init__(f"worker {target.label}: {what}")
        self.target, self.what, self.is_retriable, self.has_begun = target, what, is_retriable, has_begun
        self.ssh_stderr, self.waited = ssh_stderr, waited


class AgentChannel:
    """One ssh, and the program at its other end. Nothing waits but `read`, `frames` and `close`.

    `shared` are the options of a shared connection; without them ssh opens a new one. `is_in_own_group`: ssh gets no Ctrl-C
    of the terminal. `as_root`: the program runs as root if sudo needs no password. Raises `SshProgramMissingError`.
    """

    def __init__(
        self,
        target: Target,
        program: str,
        request: Mapping[str, Any],
        *,
        shared: tuple[str, ...] | None = None,
        options: tuple[str, ...] = (),
        connect_within: timedelta = CONNECT_TIMEOUT,
        longest: int = LONGEST_FRAME,
        is_in_own_group: bool = False,
        as_root: bool = False,
    ) -> None:
        call = f"run_agent(serve_{program}, { ({**request, 'worker': target.worker})!r})"
        line, source = bootstrap(program, call)
        if as_root:
            line = f"exec sh -c {shlex.quote(AS_ROOT)} tpuctl {line.removeprefix('exec ')}"
        timeout = ("-o", f"ConnectTimeout={max(1, ceil(connect_within.total_seconds()))}")
        connection = NEW_CONNECTION if shared is None else shared
        words = ssh_argv(target.connection, (line,), options=(*BATCH_MODE, *connection, *options, *timeout))
        self.target = target
        self.is_open = True
        self._may_be_shared = shared is not None
        self._decoder = FrameDecoder(longest)
        self._errors = BoundedBuffer(head=0, tail=_KEPT_STDERR)
        self._unsent = bytearray(source)
        self._process = start_ssh(words, is_in_own_group=is_in_own_group)
        self.stdin, self.stdout, self._stderr = map(
            require_pipe, (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        for pipe in (self.stdin, self.stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self.flush()

    @property
    def has_begun(self) -> bool:
        """Whether the program has started on the worker."""
        return self._decoder.found_mark

    @property
    def has_unsent(self) -> bool:
        """Whether data waits until ssh accepts it."""
        return bool(self._unsent)

    def send(self, kind: ClientFrame, payload: bytes = b"") -> None:
        """Send a frame as soon as ssh accepts it."""
        self.send_raw(kind.value + len(payload).to_bytes(4, "big") + payload)

    def send_raw(self, data: bytes) -> None:
        """Send data as soon as ssh accepts it."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send as much as ssh accepts now."""
        with suppress(BlockingIOError):
            try:
                while self._unsent:
                    del self._unsent[: os.write(self.stdin.fileno(), self._unsent)]
            except BrokenPipeError:
                # The end of ssh will say what went wrong.
                self._unsent.clear()

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived; clear `is_open` at the end of the connection.

        Raises `UnexpectedAnswerError` if the worker breaks the protocol.
        """
        self._read_stderr()
        try:
            data = os.read(self.stdout.fileno(), _BLOCK)
        except BlockingIOError:
            return []
        self.is_open = bool(data)
        return self._decoder.feed(data)

    def read(self, within: timedelta) -> Any:
        """Return the answer of a query. Raises `AgentError`, and `UnexpectedAnswerError` for anything but one answer."""
        until = time.monotonic() + within.total_seconds()
        while self.is_open:
            self._wait(until, within)
            if frames := self.receive():
                break
        else:
            if self.has_begun and self._end() == 0:
                raise UnexpectedAnswerError("its answer is incomplete")
            raise self.failure()
        if len(frames) > 1:
            raise UnexpectedAnswerError(f"{len(frames)} frames where one is expected")
        kind, payload = frames[0]
        if kind is WorkerFrame.REFUSED:
            raise AgentError(self.target, one_line(payload.decode(errors="replace")))
        if kind is not WorkerFrame.EXIT:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` as an answer")
        return parse_answer(payload)

    def frames(self, silence: timedelta, *, until: float = inf) -> Iterator[Frame]:
        """Yield the frames of a stream until the connection ends, which the caller has to expect or to explain.

        Raises `AgentError` after a `silence` of that length, and at the moment `until` of `time.monotonic()`.
        """
        while self.is_open:
            self._wait(min(time.monotonic() + silence.total_seconds(), until), silence)
            yield from self.receive()

    def read_into(self, buffer: memoryview, within: timedelta) -> int:
        """Read what follows the mark, without decoding it. Return how many bytes; 0 at the end of the connection.

        Raises `AgentError` after that time, and `UnexpectedAnswerError` as `receive` does before the mark.
        """
        until = time.monotonic() + within.total_seconds()
        while self.is_open:
            try:
                size = os.readv(self.stdout.fileno(), [buffer])
            except BlockingIOError:
                self._wait(until, within)
                continue
            self.is_open = size > 0
            if self.has_begun:
                return size
            rest = self._decoder.feed_raw(bytes(buffer[:size]))
            if rest:
                buffer[: len(rest)] = rest
                return len(rest)
        return 0

    def wait_for_room(self) -> bool:
        """Wait until ssh accepts data. Return False if the worker has sent something instead, or has gone."""
        poller = select.poll()
        poller.register(self.stdin, select.POLLOUT)
        poller.register(self.stdout, select.POLLIN)
        while not (ready := dict(poller.poll(_POLL * 1000))):
            self._read_stderr()
        return self.stdout.fileno() not in ready

    def failure(self, *, in_use: bool = False) -> AgentError:
        """Return why the connection ended before an answer; `in_use`: after it had started a command.

        ssh has one exit code for all its failures: its messages decide. Of a connection in use `what` is a message of ssh or
        empty: other lines on its stderr come from the login shell.
        """
        code, errors = self._end(), self.errors
        if code < 0:
            known = {one.value: one.name.removeprefix("SIG") for one in signal.Signals}
            ended = f"ssh was terminated on this machine by {known.get(-code, f'signal {-code}')}"
            return AgentError(self.target, ended, is_retriable=True)
        found, message = classify_stderr(errors), message_of_ssh(errors)
        if in_use:
            if not message and not self.has_begun:
                # While reconnecting: other programs (a ProxyCommand, say) may have printed the reason.
                message = significant_line(errors)
            # The worker accepted the key before: only these two say that it will not do so again.
            is_retriable = found is None or found.id not in KEY_REFUSED_IDS | HOST_KEY_CHANGED_IDS
            stderr = message if message and code == SSH_FAILED else None
            return AgentError(self.target, message, ssh_stderr=stderr, is_retriable=is_retriable)
        if code == SSH_FAILED:
            # A shared connection may have been used, whose master process prints nothing when it ends.
            is_retriable = (self._may_be_shared and not message) or is_ssh_failure_retriable(errors)
            what = significant_line(errors) or "ssh failed without a message"
            is_closed = found is not None and found.id == "ssh-closed-by-remote"
            return AgentError(
                self.target,
                what,
                ssh_stderr=errors,
                is_retriable=is_retriable or is_closed,
                has_begun=self.has_begun,
            )
        message = last_printed_line(errors)
        if code == _NO_PYTHON:
            message = "`python3` is not installed there" + (f" ({message})" if message else "")
        ended = "its answer is incomplete" if self.has_begun else f"the login shell exited with {code}"
        return AgentError(self.target, message or ended)

    @property
    def errors(self) -> str:
        """The stderr of ssh, without messages about the shared connection."""
        lines = bytes(self._errors).decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not is_multiplexing_message(line))

    def close_stdin(self) -> None:
        """Close the stdin of ssh: then the worker ends the session."""
        with suppress(BrokenPipeError):
            self.stdin.close()

    def kill(self) -> None:
        """Kill ssh; what runs on the worker continues."""
        self._process.kill()

    def close(self, patience: float = 0) -> None:
        """Wait for the end of ssh, terminate it after `patience` in seconds, and close its pipes."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        terminate_process(self._process)
        self._read_stderr()
        for pipe in (self.stdin, self.stdout, self._stderr):
            with suppress(BrokenPipeError):
                pipe.close()

    def _wait(self, until: float, within: timedelta) -> None:
        """Wait for data, and meanwhile send. Raises `AgentError` at the time `until`."""
        poller = select.poll()
        poller.register(self.stdout, select.POLLIN)
        if self._unsent:
            poller.register(self.stdin, select.POLLOUT)
        while (left := until - time.monotonic()) > 0:
            has_ended = self._process.poll() is not None
            ready = [file for file, _ in poller.poll(0 if has_ended else min(left, _POLL) * 1000)]
            self._read_stderr()
            if self.stdout.fileno() in ready or has_ended:
                self.is_open = not has_ended or self.stdout.fileno() in ready
                return
            if ready:
                self.flush()
                if not self._unsent:
                    poller.unregister(self.stdin)
        raise AgentError(
            self.target,
            f"no answer within {within.total_seconds():g} s",
            ssh_stderr=None if self.has_begun else self.errors,
            waited=within,
        )

    def _read_stderr(self) -> None:
        # Not to its end: the master of a shared connection may hold it open.
        with suppress(BlockingIOError):
            self._errors.add(os.read(self._stderr.fileno(), _BLOCK))

    def _end(self) -> int:
        """Return the exit code of an ssh that has ended or is about to; negative: the signal that terminated it."""
        try:
            code = self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._read_stderr()
        return code


class OpenChannels:
    """The channels of a command, so that an interrupt leaves no ssh behind. Thread-safe."""

    def __init__(self) -> None:
        self._channels: set[AgentChannel] = set()
        self._lock = Lock()
        self._is_killed = False

    @contextmanager
    def holding(self, channel: AgentChannel) -> Iterator[None]:
        """Know a channel until the end of the block."""
        with self._lock:
            self._channels.add(channel)
            if self._is_killed:
                channel.kill()
        try:
            yield
        finally:
            with self._lock:
                self._channels.remove(channel)

    def kill(self) -> None:
        """Kill each ssh, and those that start later."""
        with self._lock:
            self._is_killed = True
            for channel in self._channels:
                channel.kill()


@contextmanager
def open_agent(
    target: Target, program: str, request: Mapping[str, Any], *, longest: int = LONGEST_ANSWER, **options: Any
) -> Iterator[AgentChannel]:
    """Open a channel for a query, with the options of `AgentChannel`. An unexpected answer gets the label of the worker."""
    channel, patience = AgentChannel(target, program, request, longest=longest, **options), 0.0
    try:
        yield channel
        patience = _EXIT_TIMEOUT
    except UnexpectedAnswerError as error:
        raise error.of(target.label) from error
    finally:
        channel.close(patience)


def on_each_worker(
    function: Callable[[ItemT], ResultT],
    workers: Iterable[ItemT],
    *,
    limit: int = MAX_CHANNELS,
    deadline: timedelta | None = None,
) -> list[Outcome[ItemT, ResultT]]:
    """Call `function` for each worker, at most `limit` at a time, until a `deadline` as in `fan_out`.

    Raises `SshProgramMissingError`, the same for all workers.
    """
    outcomes = fan_out(function, workers, limit=limit, deadline=deadline)
    for outcome in outcomes:
        if isinstance(outcome.error, SshProgramMissingError):
            raise outcome.error
    return outcomes


def explain_agent_errors(errors: Iterable[TpuctlError], *, accepted_elsewhere: bool = False) -> list[TpuctlError]:
    """Return why workers gave no answer: failures of ssh as one error for all workers of a node that share a cause."""
    found: list[TpuctlError] = []
    failed: dict[timedelta | None, list[tuple[Target, str]]] = {}
    for error in errors:
        if isinstance(error, AgentError) and error.ssh_stderr is not None:
            failed.setdefault(error.waited, []).append((error.target, error.ssh_stderr))
        else:
            found.append(error)
    for waited, group in failed.items():
        context = collect_failure_context(group[0][0], accepted_elsewhere=accepted_elsewhere, waited=waited)
        found += explain_ssh_failures(group, context)
    return found


def message_of_ssh(errors: str) -> str:
    """Return the last message of ssh on its stderr, where login shells and their set-up print too; empty if none."""
    lines = [line for line in errors.splitlines() if classify_stderr(line) is not None or _OF_SSH.match(line.strip())]
    return significant_line("\n".join(lines))


# Half a program, after a broken connection, must do nothing.
_READ = (
    "import sys;PROGRAM=sys.stdin.buffer.read({size});len(PROGRAM)=={size} and exec(compile(PROGRAM,'tpuctl','exec'))"
)
_OF_PACKAGE = re.compile(r"^from tpuctl\.ssh\.agent\.(\w+) import (?:\([^)]*\)|.*)$", re.MULTILINE)
# The system's Python first: PATH may begin with a slow wrapper, or with an environment of the user.
_CHOICE = '[ -x /usr/bin/python3 ] && exec /usr/bin/python3 -ISc "$0"; exec python3 -ISc "$0"'


def bootstrap(name: str, call: str) -> tuple[str, bytes]:
    """Return the line for the worker's shell, and the beginning of the stdin of ssh.

    `name`: the program's file without its suffix. `call`: the Python line that starts it, with literals. The program reads what
    follows on stdin. A login shell may print first, so a program begins its output with a mark. Without Python on the
    worker the exit code is 127.
    """
    program = _source(name) + call.encode() + b"\n"
    return "exec " + shlex.join(["sh", "-c", _CHOICE, _READ.format(size=len(program))]), program


def standalone_program(name: str, call: str) -> str:
    """Return the text of a program that a worker stores and runs without a connection. `call` as for `bootstrap`."""
    return f"{_source(name).decode()}{call}\n"


@cache
def _source(name: str) -> bytes:
    """Return a program and all files of this package that it imports, as one text."""
    texts: dict[str, str] = {}
    _collect(name, texts)
    return ("from __future__ import annotations\n" + "\n".join(texts.values())).encode() + b"\n"


def _collect(name: str, texts: dict[str, str]) -> None:
    text = resources.files(agent).joinpath(f"{name}.py").read_text("utf-8")
    for other in _OF_PACKAGE.findall(text):
        if other not in texts:
            _collect(other, texts)
    texts[name] = _OF_PACKAGE.sub("", text).replace("from __future__ import annotations\n", "")
