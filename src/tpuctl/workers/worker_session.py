"""One worker of a run: its ssh process, the dialogue with the program on the worker, and the result.

`WorkerSession` is a state machine for each connection. A frame that may not come in its stage, or that does not fit the schema,
ends that worker with `UnexpectedAnswerError`. The other end is `ssh/agent/job.py`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, StrEnum, auto
from math import ceil
from typing import IO, TYPE_CHECKING, Protocol

from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.answers import MAX_BYTES, MAX_LOGIN_BANNER, UnexpectedAnswerError, one_line, parse_decimal, preview
from tpuctl.ssh.connection import (
    CONNECT_TIMEOUT,
    NEW_CONNECTION,
    SSH_FAILED,
    BoundedBuffer,
    last_printed_line,
    ssh_argv,
    start_ssh,
)
from tpuctl.ssh.control_master import is_multiplexing_message
from tpuctl.ssh.ssh_errors import HOST_KEY_CHANGED_IDS, KEY_REFUSED_IDS, classify_stderr, significant_line
from tpuctl.ssh.ssh_errors import is_ssh_failure_retriable as passes_soon

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.ssh.connection import Target

_HEAD = 5
JOB_MARK = b"\n\0tpuctl-job\n"
# Programs on workers send output in blocks of this size.
LONGEST_FRAME = 64 * 1024


class WorkerFrame(Enum):
    """A frame that a worker sends."""

    READY = b"h"  # `new`: nothing was started yet; `known`: an earlier connection started the command
    STARTED = b"s"
    OUT = b"o"
    ERR = b"e"
    OUT_GONE = b"O"  # this number of bytes is no longer stored
    ERR_GONE = b"E"
    TAKEN = b"a"  # number of bytes of stdin that the command has received
    EXIT = b"x"
    LOST = b"l"  # started, and how it ended is unknown
    MISSING = b"m"  # no such job
    CONFLICT = b"c"  # another job has that name
    REFUSED = b"!"  # it could not be started


class ClientFrame(Enum):
    """A frame that the client sends to a worker."""

    GO = b"g"
    KILL = b"k"
    IN = b"i"
    FINAL = b"f"  # the end of stdin
    HAVE = b"t"  # bytes of stdout and of stderr that have arrived: the worker may delete them
    BYE = b"b"  # everything has arrived: the worker may delete the job


_KINDS = {kind.value: kind for kind in WorkerFrame}


def encode_frame(kind: ClientFrame, payload: bytes = b"") -> bytes:
    """Return a frame as it is sent."""
    return kind.value + len(payload).to_bytes(4, "big") + payload


class FrameDecoder:
    """Decodes frames from data that arrives in pieces, skipping what a login shell prints before the mark.

    Buffers at most one frame of `longest` bytes and the data fed last.
    """

    def __init__(self, longest: int = LONGEST_FRAME) -> None:
        self._longest = longest
        self._data = bytearray()
        self._found_mark = False
        self._skipped = 0

    def feed(self, data: bytes) -> list[tuple[WorkerFrame, bytes]]:
        """Return the frames that are complete now.

        Raises `UnexpectedAnswerError` for bytes that are no frame, for a frame that is too long, and for a login shell that
        prints without end before the mark.
        """
        self._data += data
        if not self._found_mark and not self._find_mark():
            return []
        frames = []
        at = 0
        while len(self._data) - at >= _HEAD:
            letter, size = bytes(self._data[at : at + 1]), int.from_bytes(self._data[at + 1 : at + _HEAD], "big")
            if letter not in _KINDS:
                raise UnexpectedAnswerError(f"no frame begins with {preview(letter)}")
            if size > self._longest:
                raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {self._longest} are expected")
            end = at + _HEAD + size
            if len(self._data) < end:
                break
            frames.append((_KINDS[letter], bytes(self._data[at + _HEAD : end])))
            at = end
        del self._data[:at]
        return frames

    def _find_mark(self) -> bool:
        """Drop everything up to the mark; without a mark, all that cannot be its beginning."""
        at = self._data.find(JOB_MARK)
        self._skipped += max(0, len(self._data) - len(JOB_MARK)) if at < 0 else 0
        if self._skipped > MAX_LOGIN_BANNER:
            raise UnexpectedAnswerError(f"more than {MAX_LOGIN_BANNER} bytes before the program's first")
        if at < 0:
            del self._data[: -len(JOB_MARK)]
            return False
        del self._data[: at + len(JOB_MARK)]
        self._found_mark = True
        return True


_BLOCK = 256 * 1024
_ERRORS_KEPT = 8 * 1024
# The worker frees disk space in steps of this size.
_ACKNOWLEDGE_EVERY = 64 * 1024 * 1024
# Three unanswered messages mean a dead connection: a preempted node is noticed within half a minute.
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_BATCH_MODE = ("-o", "BatchMode=yes")
_EXIT_TIMEOUT = timedelta(seconds=2)


class _Stage(Enum):
    """The state of the dialogue over one connection."""

    HELLO = auto()
    OFFERED = auto()  # the worker is ready to start the command, and has not received GO
    STARTING = auto()  # it has received GO, or says that an earlier connection started the command
    FOLLOWED = auto()


# The frames that a worker may send in each stage; any other breaks the protocol.
_ALLOWED = {
    _Stage.HELLO: {WorkerFrame.READY, WorkerFrame.MISSING, WorkerFrame.CONFLICT, WorkerFrame.REFUSED},
    _Stage.OFFERED: set[WorkerFrame](),
    _Stage.STARTING: {WorkerFrame.STARTED, WorkerFrame.CONFLICT, WorkerFrame.REFUSED},
    _Stage.FOLLOWED: {
        *(WorkerFrame.OUT, WorkerFrame.ERR, WorkerFrame.OUT_GONE, WorkerFrame.ERR_GONE, WorkerFrame.TAKEN),
        *(WorkerFrame.EXIT, WorkerFrame.LOST, WorkerFrame.REFUSED),
    },
}
_WHERE = {
    _Stage.HELLO: "before it reported ready",
    _Stage.OFFERED: "before it was asked to start the command",
    _Stage.STARTING: "before it reported the command as started",
    _Stage.FOLLOWED: "after the command was started",
}
_WITHOUT_PAYLOAD = frozenset({WorkerFrame.STARTED, WorkerFrame.LOST, WorkerFrame.MISSING})


class WorkerSession:
    """One worker of a run."""

    def __init__(self, target: Target, request: JobRequest, sink: OutputSink, *, options: tuple[str, ...]) -> None:
        self.target, self.request = target, request
        self.phase = WorkerPhase.WAITING
        self.result: WorkerResult | None = None
        # Whether the command may have been started: from then on a connection only joins it.
        self.may_run = False
        self.has_started = False
        self.taken: int | None = None
        self.next_try = timedelta()
        self.since = timedelta()  # start of this attempt to connect
        self.trying_since: timedelta | None = None  # start of the first attempt since the worker was last connected
        self.tries = 0
        self.errors = ""
        self.code: int | None = None
        self._sink, self._options = sink, options
        self._sizes = list(request.start)
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = FrameDecoder()
        self._stage = _Stage.HELLO
        # Bytes of stdin: sent over this connection, sent over any, and received by the command according to the worker.
        self._fed_here = self._fed = self._taken_before = 0
        self._unsent = bytearray()
        self._signals: list[int] = []
        self._acknowledged = 0

    @property
    def stdout(self) -> IO[bytes]:
        """The stream to read."""
        return _stream(self._connected.stdout)

    @property
    def stdin(self) -> IO[bytes]:
        """The stream to write while `has_unsent`."""
        return _stream(self._connected.stdin)

    @property
    def has_unsent(self) -> bool:
        """Whether data waits to be sent."""
        return bool(self._unsent)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many bytes of stdout and of stderr have arrived."""
        return self._sizes[0], self._sizes[1]

    @property
    def is_connected(self) -> bool:
        """Whether an ssh process exists."""
        return self._process is not None

    @property
    def has_no_answer(self) -> bool:
        """Whether there is no connection, or one without an answer so far."""
        return self.phase in {WorkerPhase.WAITING, WorkerPhase.CONNECTING}

    @property
    def can_write(self) -> bool:
        """Whether the stdin of an ssh process is open."""
        return self._process is not None and not self.stdin.closed

    def connect(self, within: timedelta) -> None:
        """Start ssh with `within` as its connection timeout. Raises `SshProgramMissingError`."""
        must_exist = self.request.must_exist or self.has_started
        request = encode_request(self.request, self.target.worker, offsets=self.sizes, must_exist=must_exist)
        line, source = bootstrap("job", f"serve({request})", is_kept=True)
        # A shared connection may be what broke.
        shared = self._options if self.tries == 0 else NEW_CONNECTION
        soon = ("-o", f"ConnectTimeout={max(1, ceil(min(within, CONNECT_TIMEOUT).total_seconds()))}")
        words = ssh_argv(self.target.connection, (line,), options=(*_BATCH_MODE, *shared, *_ALIVE, *soon))
        # A Ctrl-C at the terminal reaches only this process, which forwards it.
        self._process = start_ssh(words, is_in_own_group=True)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(_stream(stream).fileno(), False)
        self.phase = WorkerPhase.CONNECTING
        self.tries += 1
        self.taken = None
        self._decoder = FrameDecoder()
        self._stage = _Stage.HELLO
        self._unsent = bytearray(source)
        self.write()

    def start(self) -> None:
        """Start the command."""
        self.may_run = True
        self.phase = WorkerPhase.RUNNING
        self._stage = _Stage.STARTING
        self.send(ClientFrame.GO)

    def signal(self, number: int) -> None:
        """Send a signal to the command; without a connection, once there is one."""
        if self.is_connected and self.phase is WorkerPhase.RUNNING:
            self.send(ClientFrame.KILL, str(number).encode())
        elif self.may_run:
            self._signals.append(number)

    def send(self, kind: ClientFrame, payload: bytes = b"") -> None:
        """Send a frame as soon as ssh accepts it."""
        if kind is ClientFrame.IN:
            self._fed_here += len(payload)
            self._fed = max(self._fed, self._fed_here)
        self._unsent += encode_frame(kind, payload)
        self.write()

    def write(self) -> None:
        """Write as much as ssh accepts now."""
        with suppress(BlockingIOError):
            try:
                while self._unsent:
                    del self._unsent[: os.write(self.stdin.fileno(), self._unsent)]
            except BrokenPipeError:
                # The end of ssh will say what went wrong.
                self._unsent.clear()

    def read(self) -> bool:
        """Process what has arrived; return whether the connection still exists.

        Raises `UnexpectedAnswerError` if the worker breaks the protocol; the caller must ignore its further output.
        """
        try:
            data = os.read(self.stdout.fileno(), _BLOCK)
        except BlockingIOError:
            return True
        if not data:
            self._reap()
            return False
        for kind, payload in [] if self.phase is WorkerPhase.ENDED else self._decoder.feed(data):
            self._check(kind, payload)
            self._process_frame(kind, payload)
            if self.phase is WorkerPhase.ENDED:
                return True
        if self.phase is WorkerPhase.ENDED:
            # Unrequested data.
            self.kill()
        return True

    def reject(self, error: UnexpectedAnswerError) -> None:
        """Count the worker as failed, and ignore its further output."""
        if self.phase is not WorkerPhase.ENDED:
            outcome = WorkerOutcome.LOST if self.may_run else WorkerOutcome.REFUSED
            out, err = self.sizes
            self.finish(
                WorkerResult(
                    target=self.target, outcome=outcome, why=error.what, out_size=out, err_size=err, is_unexpected=True
                )
            )
        self.kill()

    def finish(self, result: WorkerResult) -> None:
        """Record the result of this worker."""
        self.result = result
        self.phase = WorkerPhase.ENDED
        self._sink.ended(result)

    def end(self, outcome: WorkerOutcome, why: str = "", *, ssh_stderr: str | None = None) -> None:
        """Record a result that the worker has not reported."""
        if self.phase is WorkerPhase.CONNECTING:
            self.kill()
        out, err = self.sizes
        self.finish(
            WorkerResult(
                target=self.target, outcome=outcome, why=why, out_size=out, err_size=err, ssh_stderr=ssh_stderr
            )
        )

    def close_stdin(self) -> None:
        """Close the stdin of ssh: then the worker ends the session."""
        if self.can_write:
            with suppress(BrokenPipeError):
                self.stdin.close()

    def kill(self) -> None:
        """Kill ssh; the command continues."""
        if self._process is not None:
            self._process.kill()

    def close(self, patience: timedelta) -> None:
        """Wait for the end of ssh, and kill it after `patience`."""
        if self._process is None:
            return
        try:
            self._process.wait(patience.total_seconds())
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    @property
    def _connected(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise AssertionError(f"worker {self.target.label} is not connected")
        return self._process

    def _reap(self) -> None:
        """Read exit code and stderr of an ssh process that has ended or is about to, and close its pipes."""
        process = self._connected
        try:
            code = process.wait(_EXIT_TIMEOUT.total_seconds())
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self.code = code  # negative: the signal that terminated ssh
        errors = BoundedBuffer(head=0, tail=_ERRORS_KEPT)
        # Not to its end: the master of a shared connection may hold it open, and a pipe is no longer than a block.
        with suppress(BlockingIOError):
            errors.add(os.read(_stream(process.stderr).fileno(), _BLOCK))
        lines = bytes(errors).decode(errors="replace").splitlines()
        self.errors = "\n".join(line for line in lines if not is_multiplexing_message(line))
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                _stream(stream).close()
        self._process = None

    def _check(self, kind: WorkerFrame, payload: bytes) -> None:
        """Raise `UnexpectedAnswerError` for a frame that the protocol does not allow at this point."""
        if kind not in _ALLOWED[self._stage]:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` {_WHERE[self._stage]}")
        if kind in _WITHOUT_PAYLOAD and payload:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` with {preview(payload)} in it")
        if kind is WorkerFrame.MISSING and not (self.request.must_exist or self.has_started):
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about a job that does not exist yet")
        if kind is WorkerFrame.TAKEN and not self.request.stdin:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about stdin, although none was sent")
        if kind in {WorkerFrame.OUT, WorkerFrame.ERR} and not payload:
            raise UnexpectedAnswerError(f"an empty frame `{kind.name}`")

    def _process_frame(self, kind: WorkerFrame, payload: bytes) -> None:
        match kind:
            case WorkerFrame.READY:
                self._receive_ready(payload)
            case WorkerFrame.STARTED:
                self._receive_started()
            case WorkerFrame.OUT | WorkerFrame.ERR:
                is_error = kind is WorkerFrame.ERR
                self._sizes[is_error] += len(payload)
                self._sink.output(self.target, payload, is_error=is_error)
                self._acknowledge()
            case WorkerFrame.OUT_GONE | WorkerFrame.ERR_GONE:
                most = MAX_BYTES - self._sizes[kind is WorkerFrame.ERR_GONE]
                gone = parse_decimal(payload, "bytes that are not stored", low=1, high=most)
                self._sizes[kind is WorkerFrame.ERR_GONE] += gone
                self._sink.note(self.target, f"{gone} bytes of its output are no longer stored")
            case WorkerFrame.TAKEN:
                taken = parse_decimal(payload, "bytes of stdin", low=self._taken_before, high=self._fed)
                if self.taken is None:
                    # This connection sends what follows.
                    self._fed_here = taken
                self.taken = self._taken_before = taken
            case WorkerFrame.EXIT:
                result = parse_result(self.target, payload, self.sizes)
                if not self.request.must_exist:
                    # A client that only follows a job leaves output and exit code on the worker.
                    self.send(ClientFrame.BYE)
                self.finish(result)
            case WorkerFrame.LOST:
                self.end(
                    WorkerOutcome.LOST, "no exit code was recorded there: the worker was rebooted, or out of memory"
                )
            case WorkerFrame.MISSING:
                why = "the job no longer exists" if self.has_started else "there is no such job"
                self.end(WorkerOutcome.LOST if self.has_started else WorkerOutcome.MISSING, why)
            case WorkerFrame.CONFLICT:
                self.end(WorkerOutcome.REFUSED, f"a job `{self.request.job}` already exists")
            case WorkerFrame.REFUSED:
                outcome = WorkerOutcome.LOST if self.has_started else WorkerOutcome.REFUSED
                self.end(outcome, one_line(payload.decode(errors="replace")))

    def _acknowledge(self) -> None:
        """Let the worker delete what has arrived, so that a long run does not fill its disk."""
        is_kept_there = self.request.detach or self.request.must_exist
        if not is_kept_there and sum(self._sizes) - self._acknowledged >= _ACKNOWLEDGE_EVERY:
            self._acknowledged = sum(self._sizes)
            self.send(ClientFrame.HAVE, b"%d %d" % self.sizes)

    def _receive_ready(self, payload: bytes) -> None:
        """Process READY: the worker has the job already (`known`), or would start it (`new`)."""
        must_exist = self.request.must_exist or self.has_started
        if payload not in {b"known", b"new"}:
            raise UnexpectedAnswerError(f"a frame `{WorkerFrame.READY.name}` with {preview(payload)} in it")
        if payload == b"known" and not (must_exist or self.may_run):
            raise UnexpectedAnswerError("it reports the command as started, which it was not asked to do")
        if payload == b"new" and must_exist:
            raise UnexpectedAnswerError("it would start a job that it was asked to follow")
        self._stage = _Stage.STARTING if payload == b"known" else _Stage.OFFERED
        if payload == b"known":
            self.may_run = True
            self.phase = WorkerPhase.RUNNING
        elif self.may_run:
            # GO was lost with the connection. If it is only late, the worker no longer obeys it.
            self.start()
        else:
            self.phase = WorkerPhase.READY

    def _receive_started(self) -> None:
        self._stage = _Stage.FOLLOWED
        self.has_started = self.may_run = True
        self.phase = WorkerPhase.RUNNING
        self.trying_since = None
        self.tries = 0
        if self.request.detach:
            self.end(WorkerOutcome.DETACHED)
            return
        signals, self._signals = self._signals, []
        for number in signals:
            self.signal(number)


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("all three were opened as pipes")
    return stream


# How a command ended, as its supervisor on the worker writes it (ssh/agent/job.py).
_END = re.compile(rb"(exit|signal) ([0-9]{1,3}) ([0-9]{1,9}(?:\.[0-9]{1,6})?)((?: [a-z]{1,9}){0,4})")
_REMARKS = frozenset({"abandoned", "late", "full", "outlived"})
_HIGHEST_CODE, _HIGHEST_SIGNAL = 255, 64
_WHYS = {
    "abandoned": "terminated by its worker: no client followed it any more",
    "late": "terminated by its worker: timed out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A command for one worker, or a job of that worker to follow.

    `job` names the job's folder on the worker. `token` distinguishes this request from all others; empty: any job of that name.
    `line` goes to the login shell unchanged. `about` is stored with the job. `must_exist`: only follow, start nothing.
    `linger`: how long the command continues after its last client has gone. `limit`: how long it may run until its worker
    terminates it. None means no limit. `merged` writes stdout and stderr to one file, in the order of the writes.
    `start`: the first bytes of stdout and of stderr to send.
    """

    job: str
    token: str
    line: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    about: str = ""
    detach: bool = False
    merged: bool = False
    stdin: bool = False
    must_exist: bool = False
    linger: timedelta | None = None
    limit: timedelta | None = None
    start: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The limits of a run. `batch`: how many workers run the command at a time, None for all.

    `connect_within`: how long a worker may be unreachable before the run gives it up; `attach_within`: the same after its
    command has started. `allow_unreachable`: start the command although some workers cannot be reached.
    """

    fanout: int = 64
    batch: int | None = None
    allow_unreachable: bool = False
    fail_fast: bool = False
    timeout: timedelta | None = None
    connect_within: timedelta = timedelta(seconds=45)
    attach_within: timedelta = timedelta(minutes=5)


class WorkerPhase(Enum):
    """What a worker is doing in this run."""

    WAITING = auto()  # for its turn to connect, or to reconnect
    CONNECTING = auto()
    READY = auto()  # connected, waiting for the signal to start
    RUNNING = auto()
    ENDED = auto()


class WorkerOutcome(StrEnum):
    """The result of the command on one worker."""

    EXITED = "exited"
    SIGNALED = "signaled"
    DETACHED = "detached"
    NOT_STARTED = "not-started"  # although the worker could have run it
    UNREACHABLE = "unreachable"  # and therefore not started
    REFUSED = "refused"  # by the worker
    MISSING = "missing"  # the job to follow does not exist
    LOST = "lost"  # started, and how it ended is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """The result on one worker. `code`: the exit code as a shell reports it, None if unknown. Sizes are in bytes.

    `ssh_stderr` is the stderr of ssh if a failure of ssh prevented the command from starting or from being followed. A worker
    may report that it terminated the command because no client followed it (`was_abandoned`) or because it timed out
    (`was_late`), that its disk was full, and that processes left behind by the command can still print (`is_outlived`).
    `is_unexpected`: the worker broke the protocol; `why` says how.
    """

    target: Target
    outcome: WorkerOutcome
    code: int | None = None
    signal: int | None = None
    duration: timedelta | None = None
    out_size: int = 0
    err_size: int = 0
    why: str = ""
    ssh_stderr: str | None = None
    was_abandoned: bool = False
    was_late: bool = False
    disk_was_full: bool = False
    is_outlived: bool = False
    is_unexpected: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the command succeeded."""
        return (self.code == 0 and not self.was_late) or self.outcome is WorkerOutcome.DETACHED

    def explain(self, workers: str) -> str:
        """Return the reason, in one line about `workers`, which share it."""
        if self.is_unexpected:
            return f"unexpected answer from worker {workers}: {self.why}"
        return f"worker {workers}: {self.why or self.outcome}"


class OutputSink(Protocol):
    """Receives the output and the events of a run."""

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Receive output of a command, in pieces of any size."""

    def ended(self, result: WorkerResult) -> None:
        """Receive the result of one worker."""

    def connected(self, count: int, total: int) -> None:
        """Receive how many workers are connected while the command waits for all of them."""

    def interrupted(self) -> None:
        """Receive a Ctrl-C, which a terminal shows as `^C`."""

    def note(self, target: Target | None, text: str) -> None:
        """Receive a note for the user."""


def parse_result(target: Target, payload: bytes, sizes: tuple[int, int]) -> WorkerResult:
    """Parse what the worker wrote: `exit CODE SECONDS` or `signal NUMBER SECONDS`, then remarks (`late`, `full`, …).

    Raises `UnexpectedAnswerError`.
    """
    match = _END.fullmatch(payload)
    remarks = match[4].decode().split() if match else []
    if match is None or not _REMARKS.issuperset(remarks) or len(set(remarks)) < len(remarks):
        raise UnexpectedAnswerError(f"no exit code: {preview(payload)}")
    was_signal = match[1] == b"signal"
    number = (
        parse_decimal(match[2], "a signal", low=1, high=_HIGHEST_SIGNAL)
        if was_signal
        else parse_decimal(match[2], "an exit code", high=_HIGHEST_CODE)
    )
    return WorkerResult(
        target=target,
        outcome=WorkerOutcome.SIGNALED if was_signal else WorkerOutcome.EXITED,
        code=128 + number if was_signal else number,
        signal=number if was_signal else None,
        duration=timedelta(seconds=float(match[3])),
        out_size=sizes[0],
        err_size=sizes[1],
        why=next((why for word, why in _WHYS.items() if word in remarks), ""),
        was_abandoned="abandoned" in remarks,
        was_late="late" in remarks,
        disk_was_full="full" in remarks,
        is_outlived="outlived" in remarks,
    )


def encode_request(request: JobRequest, worker: int, *, offsets: tuple[int, int], must_exist: bool) -> str:
    """Return the literal. The worker sends output from `offsets` on; with `must_exist` it does not start the command."""
    return repr(
        {
            "name": f"{request.job}.{worker}",
            "token": request.token.encode(),
            "line": os.fsencode(request.line),
            "environment": {os.fsencode(key): os.fsencode(value) for key, value in request.environment.items()},
            "folder": request.folder,
            "about": request.about.encode(errors="surrogateescape"),
            "detach": request.detach,
            "merged": request.merged,
            "stdin": request.stdin,
            "linger": request.linger.total_seconds() if request.linger else 0,
            "limit": request.limit.total_seconds() if request.limit else 0,
            "offsets": offsets,
            "must_exist": must_exist,
        }
    )


_NO_PROGRAM = 127
# How ssh begins messages that `explain` does not know: with its name, or with the function in it that gave up.
_OF_SSH = re.compile(
    r"ssh: |(?:ssh|kex|client|channel|packet|mux|sshpkt)_\w+: |Bad packet length|Corrupted MAC on input"
)


@dataclass(frozen=True, slots=True)
class SessionFailure:
    """Why a session ended, and whether a new one may succeed. `ssh_stderr`: the stderr of ssh if ssh failed.

    For a connection that broke after the command started, `why` is a message of ssh or empty: other lines on its stderr come
    from the login shell.
    """

    why: str
    is_retriable: bool
    ssh_stderr: str | None = None


def explain_session_end(session: WorkerSession) -> SessionFailure:
    """Return why the session of a worker ended before its command did.

    ssh has one exit code for all its failures: its messages decide.
    """
    if ended := local_signal(session.code):
        return SessionFailure(ended, is_retriable=True)
    if session.may_run:
        message = words_of_ssh(session.errors)
        if not message and session.tries:
            # While reconnecting: other programs (a ProxyCommand, say) may have printed the reason.
            message = significant_line(session.errors)
        found = classify_stderr(session.errors)
        # The worker accepted the key before: only these two say that it will not do so again.
        is_retriable = found is None or found.id not in KEY_REFUSED_IDS | HOST_KEY_CHANGED_IDS
        return SessionFailure(
            message, is_retriable=is_retriable, ssh_stderr=message if message and session.code == SSH_FAILED else None
        )
    if session.code == SSH_FAILED:
        why = significant_line(session.errors) or "ssh failed without a message"
        is_retriable = is_retriable_end(session.code, session.errors, is_first=session.tries == 1)
        return SessionFailure(why, is_retriable=is_retriable, ssh_stderr=session.errors)
    message = last_printed_line(session.errors)
    if session.code == _NO_PROGRAM:
        return SessionFailure(
            "`python3` is not installed there" + (f" ({message})" if message else ""), is_retriable=False
        )
    return SessionFailure(message or f"the login shell exited with {session.code}", is_retriable=False)


def is_retriable_end(code: int | None, errors: str, *, is_first: bool) -> bool:
    """Return whether a new session may succeed where one failed with this exit code (negative: a signal) and stderr of ssh.

    Only for sessions that started nothing, or nothing that does harm when started twice. An unknown message counts as
    permanent.
    """
    if code != SSH_FAILED:
        return local_signal(code) is not None
    if is_first and not words_of_ssh(errors):
        # It may have used a shared connection, whose master process prints nothing when it ends.
        return True
    found = classify_stderr(errors)
    # A connection that broke in use: nothing had been started over it.
    return passes_soon(errors) or (found is not None and found.id == "ssh-closed-by-remote")


def local_signal(code: int | None) -> str | None:
    """Return a message if a signal on this machine ended ssh (a negative exit code); None otherwise."""
    if code is None or code >= 0:
        return None
    known = {one.value: one.name.removeprefix("SIG") for one in signal.Signals}
    return f"ssh was terminated on this machine by {known.get(-code, f'signal {-code}')}"


def words_of_ssh(errors: str) -> str:
    """Return the last message of ssh on its stderr, where login shells and their set-up print too; empty if none."""
    lines = [line for line in errors.splitlines() if classify_stderr(line) is not None or _OF_SSH.match(line.strip())]
    return significant_line("\n".join(lines))
