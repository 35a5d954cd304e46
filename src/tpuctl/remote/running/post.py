"""One worker of a run: its ssh process, the dialogue with the program on the worker, and the result."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from math import ceil
from typing import IO, TYPE_CHECKING

from tpuctl.remote.answers import MOST_BYTES, UnexpectedAnswerError, decimal, one_line, shown
from tpuctl.remote.kept import is_about_keeping
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.pipes import Kept
from tpuctl.remote.running.frames import Decoder, Said, Told, frame
from tpuctl.remote.running.order_text import order_text
from tpuctl.remote.running.values import Ending, Outcome, Phase, parse_end
from tpuctl.remote.ssh import CONNECT_TIMEOUT, FRESH, argv

if TYPE_CHECKING:
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.values import Audience, Order

_BLOCK = 256 * 1024
_ERRORS_KEPT = 8 * 1024
# The worker frees disk space in steps of this size.
_WORTHWHILE = 64 * 1024 * 1024
# Three unanswered messages mean a dead connection: a preempted node is noticed within half a minute.
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_BATCH_MODE = ("-o", "BatchMode=yes")
_FAREWELL = timedelta(seconds=2)


class _Stage(Enum):
    """The state of the dialogue over one connection."""

    HELLO = auto()
    OFFERED = auto()  # the worker is ready to start the command, and has not received GO
    STARTING = auto()  # it has received GO, or says that an earlier connection started the command
    FOLLOWED = auto()


# The frames that a worker may send in each stage; any other breaks the protocol.
_ALLOWED = {
    _Stage.HELLO: {Told.READY, Told.MISSING, Told.CONFLICT, Told.REFUSED},
    _Stage.OFFERED: set[Told](),
    _Stage.STARTING: {Told.STARTED, Told.CONFLICT, Told.REFUSED},
    _Stage.FOLLOWED: {
        *(Told.OUT, Told.ERR, Told.OUT_GONE, Told.ERR_GONE, Told.TAKEN),
        *(Told.EXIT, Told.LOST, Told.REFUSED),
    },
}
_WHERE = {
    _Stage.HELLO: "before it reported ready",
    _Stage.OFFERED: "before it was asked to start the command",
    _Stage.STARTING: "before it reported the command as started",
    _Stage.FOLLOWED: "after the command was started",
}
_WITHOUT_PAYLOAD = frozenset({Told.STARTED, Told.LOST, Told.MISSING})


class Post:
    """One worker of a run."""

    def __init__(self, member: Member, request: Order, audience: Audience, *, options: tuple[str, ...]) -> None:
        self.member, self.request = member, request
        self.phase = Phase.WAITING
        self.ending: Ending | None = None
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
        self._audience, self._options = audience, options
        self._sizes = list(request.start)
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = Decoder()
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
    def is_adrift(self) -> bool:
        """Whether there is no connection, or one without an answer so far."""
        return self.phase in {Phase.WAITING, Phase.CONNECTING}

    @property
    def can_write(self) -> bool:
        """Whether the stdin of an ssh process is open."""
        return self._process is not None and not self.stdin.closed

    def connect(self, within: timedelta) -> None:
        """Start ssh with `within` as its connection timeout. Raises `SshProgramMissingError`."""
        must_exist = self.request.must_exist or self.has_started
        request = order_text(self.request, self.member.worker, offsets=self.sizes, must_exist=must_exist)
        line, source = bootstrap("job", f"serve({request})", is_kept=True)
        # A shared connection may be what broke.
        shared = self._options if self.tries == 0 else FRESH
        soon = ("-o", f"ConnectTimeout={max(1, ceil(min(within, CONNECT_TIMEOUT).total_seconds()))}")
        words = argv(self.member.way, (line,), options=(*_BATCH_MODE, *shared, *_ALIVE, *soon))
        try:
            # In its own process group: a Ctrl-C at the terminal reaches only this process, which forwards it.
            self._process = subprocess.Popen(
                words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except FileNotFoundError as error:
            raise SshProgramMissingError("ssh") from error
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(_stream(stream).fileno(), False)
        self.phase = Phase.CONNECTING
        self.tries += 1
        self.taken = None
        self._decoder = Decoder()
        self._stage = _Stage.HELLO
        self._unsent = bytearray(source)
        self.write()

    def start(self) -> None:
        """Start the command."""
        self.may_run = True
        self.phase = Phase.RUNNING
        self._stage = _Stage.STARTING
        self.send(Said.GO)

    def signal(self, number: int) -> None:
        """Send a signal to the command; without a connection, once there is one."""
        if self.is_connected and self.phase is Phase.RUNNING:
            self.send(Said.KILL, str(number).encode())
        elif self.may_run:
            self._signals.append(number)

    def send(self, kind: Said, payload: bytes = b"") -> None:
        """Send a frame as soon as ssh accepts it."""
        if kind is Said.IN:
            self._fed_here += len(payload)
            self._fed = max(self._fed, self._fed_here)
        self._unsent += frame(kind, payload)
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
        for kind, payload in [] if self.phase is Phase.ENDED else self._decoder.feed(data):
            self._check(kind, payload)
            self._process_frame(kind, payload)
            if self.phase is Phase.ENDED:
                return True
        if self.phase is Phase.ENDED:
            # Unrequested data.
            self.kill()
        return True

    def reject(self, error: UnexpectedAnswerError) -> None:
        """Count the worker as failed, and ignore its further output."""
        if self.phase is not Phase.ENDED:
            outcome = Outcome.LOST if self.may_run else Outcome.REFUSED
            out, err = self.sizes
            self.finish(
                Ending(
                    member=self.member, outcome=outcome, why=error.what, out_size=out, err_size=err, is_unexpected=True
                )
            )
        self.kill()

    def finish(self, ending: Ending) -> None:
        """Record the result of this worker."""
        self.ending = ending
        self.phase = Phase.ENDED
        self._audience.ended(ending)

    def end(self, outcome: Outcome, why: str = "", *, ssh_said: str | None = None) -> None:
        """Record a result that the worker has not reported."""
        if self.phase is Phase.CONNECTING:
            self.kill()
        out, err = self.sizes
        self.finish(Ending(member=self.member, outcome=outcome, why=why, out_size=out, err_size=err, ssh_said=ssh_said))

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
            raise AssertionError(f"worker {self.member.label} is not connected")
        return self._process

    def _reap(self) -> None:
        """Read exit code and stderr of an ssh process that has ended or is about to, and close its pipes."""
        process = self._connected
        try:
            code = process.wait(_FAREWELL.total_seconds())
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self.code = code  # negative: the signal that terminated ssh
        errors = Kept(head=0, tail=_ERRORS_KEPT)
        # Not to its end: the master of a shared connection may hold it open, and a pipe is no longer than a block.
        with suppress(BlockingIOError):
            errors.add(os.read(_stream(process.stderr).fileno(), _BLOCK))
        lines = bytes(errors).decode(errors="replace").splitlines()
        self.errors = "\n".join(line for line in lines if not is_about_keeping(line))
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                _stream(stream).close()
        self._process = None

    def _check(self, kind: Told, payload: bytes) -> None:
        """Raise `UnexpectedAnswerError` for a frame that the protocol does not allow at this point."""
        if kind not in _ALLOWED[self._stage]:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` {_WHERE[self._stage]}")
        if kind in _WITHOUT_PAYLOAD and payload:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` with {shown(payload)} in it")
        if kind is Told.MISSING and not (self.request.must_exist or self.has_started):
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about a job that does not exist yet")
        if kind is Told.TAKEN and not self.request.stdin:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about stdin, although none was sent")
        if kind in {Told.OUT, Told.ERR} and not payload:
            raise UnexpectedAnswerError(f"an empty frame `{kind.name}`")

    def _process_frame(self, kind: Told, payload: bytes) -> None:
        match kind:
            case Told.READY:
                self._receive_ready(payload)
            case Told.STARTED:
                self._receive_started()
            case Told.OUT | Told.ERR:
                is_error = kind is Told.ERR
                self._sizes[is_error] += len(payload)
                self._audience.output(self.member, payload, is_error=is_error)
                self._acknowledge()
            case Told.OUT_GONE | Told.ERR_GONE:
                most = MOST_BYTES - self._sizes[kind is Told.ERR_GONE]
                gone = decimal(payload, "bytes that are not stored", low=1, high=most)
                self._sizes[kind is Told.ERR_GONE] += gone
                self._audience.note(self.member, f"{gone} bytes of its output are no longer stored")
            case Told.TAKEN:
                taken = decimal(payload, "bytes of stdin", low=self._taken_before, high=self._fed)
                if self.taken is None:
                    # This connection sends what follows.
                    self._fed_here = taken
                self.taken = self._taken_before = taken
            case Told.EXIT:
                ending = parse_end(self.member, payload, self.sizes)
                if not self.request.must_exist:
                    # A client that only follows a job leaves output and exit code on the worker.
                    self.send(Said.BYE)
                self.finish(ending)
            case Told.LOST:
                self.end(Outcome.LOST, "no exit code was recorded there: the worker was rebooted, or out of memory")
            case Told.MISSING:
                why = "the job no longer exists" if self.has_started else "there is no such job"
                self.end(Outcome.LOST if self.has_started else Outcome.MISSING, why)
            case Told.CONFLICT:
                self.end(Outcome.REFUSED, f"a job `{self.request.job}` already exists")
            case Told.REFUSED:
                outcome = Outcome.LOST if self.has_started else Outcome.REFUSED
                self.end(outcome, one_line(payload.decode(errors="replace")))

    def _acknowledge(self) -> None:
        """Let the worker delete what has arrived, so that a long run does not fill its disk."""
        if sum(self._sizes) - self._acknowledged >= _WORTHWHILE and not (
            self.request.detach or self.request.must_exist
        ):
            self._acknowledged = sum(self._sizes)
            self.send(Said.HAVE, b"%d %d" % self.sizes)

    def _receive_ready(self, payload: bytes) -> None:
        """Process READY: the worker has the job already (`known`), or would start it (`new`)."""
        must_exist = self.request.must_exist or self.has_started
        if payload not in {b"known", b"new"}:
            raise UnexpectedAnswerError(f"a frame `{Told.READY.name}` with {shown(payload)} in it")
        if payload == b"known" and not (must_exist or self.may_run):
            raise UnexpectedAnswerError("it reports the command as started, which it was not asked to do")
        if payload == b"new" and must_exist:
            raise UnexpectedAnswerError("it would start a job that it was asked to follow")
        self._stage = _Stage.STARTING if payload == b"known" else _Stage.OFFERED
        if payload == b"known":
            self.may_run = True
            self.phase = Phase.RUNNING
        elif self.may_run:
            # GO was lost with the connection. If it is only late, the worker no longer obeys it.
            self.start()
        else:
            self.phase = Phase.READY

    def _receive_started(self) -> None:
        self._stage = _Stage.FOLLOWED
        self.has_started = self.may_run = True
        self.phase = Phase.RUNNING
        self.trying_since = None
        self.tries = 0
        if self.request.detach:
            self.end(Outcome.DETACHED)
            return
        signals, self._signals = self._signals, []
        for number in signals:
            self.signal(number)


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("all three were opened as pipes")
    return stream
