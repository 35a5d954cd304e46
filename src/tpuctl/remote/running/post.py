"""One worker of a run: its ssh, what it has told so far, and what is to be done with it next."""

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
# As often as the worker may give back the disk under it.
_WORTHWHILE = 64 * 1024 * 1024
# A dead link is noticed after three unanswered ones: soon enough to say within half a minute that a node was preempted.
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_BATCH_MODE = ("-o", "BatchMode=yes")
_FAREWELL = timedelta(seconds=2)


class _Stage(Enum):
    """How far the dialogue over one connection has come."""

    HELLO = auto()
    OFFERED = auto()  # it is ready to start the command, and was not told to
    STARTING = auto()  # it was told to, or says that an earlier connection has
    FOLLOWED = auto()


# What a worker may tell at each stage; all else breaks the protocol.
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
    _Stage.HELLO: "before it said that it is ready",
    _Stage.OFFERED: "before it was told to start the command",
    _Stage.STARTING: "before it said that the command was started",
    _Stage.FOLLOWED: "after the command was started",
}
_WITHOUT_PAYLOAD = frozenset({Told.STARTED, Told.LOST, Told.MISSING})


class Post:
    """One worker of a run."""

    def __init__(self, member: Member, order: Order, audience: Audience, *, options: tuple[str, ...]) -> None:
        self.member, self.order = member, order
        self.phase = Phase.WAITING
        self.ending: Ending | None = None
        # Whether the command may have been started: from then on a connection only joins it.
        self.may_run = False
        self.has_started = False
        self.taken: int | None = None
        self.next_try = timedelta()
        self.since = timedelta()  # when this try began
        self.trying_since: timedelta | None = None  # when the first began, of those since it was last connected
        self.tries = 0
        self.errors = ""
        self.code: int | None = None
        self._audience, self._options = audience, options
        self._sizes = list(order.start)
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = Decoder()
        self._stage = _Stage.HELLO
        # Bytes of stdin: sent by now over this connection, sent over any, and taken by the command, as far as it has told.
        self._fed_here = self._fed = self._taken_before = 0
        self._unsent = bytearray()
        self._signals: list[int] = []
        self._acknowledged = 0

    @property
    def stdout(self) -> IO[bytes]:
        """What is to be read."""
        return _stream(self._of_process.stdout)

    @property
    def stdin(self) -> IO[bytes]:
        """What is to be written to, while `has_unsent`."""
        return _stream(self._of_process.stdin)

    @property
    def has_unsent(self) -> bool:
        """Tell whether something waits to be sent."""
        return bool(self._unsent)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many bytes of stdout and of stderr have arrived."""
        return self._sizes[0], self._sizes[1]

    @property
    def is_connected(self) -> bool:
        """Tell whether there is an ssh."""
        return self._process is not None

    @property
    def is_adrift(self) -> bool:
        """Tell whether there is no connection, or one that has not answered yet."""
        return self.phase in {Phase.WAITING, Phase.CONNECTING}

    @property
    def can_write(self) -> bool:
        """Tell whether there is an ssh that has not been told that nothing more comes."""
        return self._process is not None and not self.stdin.closed

    def connect(self, within: timedelta) -> None:
        """Start ssh, which is to reach the worker within that time. Raises `SshProgramMissingError`."""
        must_exist = self.order.must_exist or self.has_started
        order = order_text(self.order, self.member.worker, offsets=self.sizes, must_exist=must_exist)
        line, source = bootstrap("job", f"serve({order})", is_kept=True)
        # What is kept from an earlier command may be what broke.
        shared = self._options if self.tries == 0 else FRESH
        soon = ("-o", f"ConnectTimeout={max(1, ceil(min(within, CONNECT_TIMEOUT).total_seconds()))}")
        words = argv(self.member.way, (line,), options=(*_BATCH_MODE, *shared, *_ALIVE, *soon))
        try:
            # In a process group of its own: Ctrl-C at the terminal is for us to pass on.
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

    def go(self) -> None:
        """Let the command begin."""
        self.may_run = True
        self.phase = Phase.RUNNING
        self._stage = _Stage.STARTING
        self.say(Said.GO)

    def signal(self, number: int) -> None:
        """Send a signal to the command; later, where the link is down."""
        if self.is_connected and self.phase is Phase.RUNNING:
            self.say(Said.KILL, str(number).encode())
        elif self.may_run:
            self._signals.append(number)

    def say(self, kind: Said, payload: bytes = b"") -> None:
        """Send a frame, as soon as ssh takes it."""
        if kind is Said.IN:
            self._fed_here += len(payload)
            self._fed = max(self._fed, self._fed_here)
        self._unsent += frame(kind, payload)
        self.write()

    def write(self) -> None:
        """Write as much as ssh takes now."""
        with suppress(BlockingIOError):
            try:
                while self._unsent:
                    del self._unsent[: os.write(self.stdin.fileno(), self._unsent)]
            except BrokenPipeError:
                # Its end tells what was wrong.
                self._unsent.clear()

    def read(self) -> bool:
        """Take what has arrived; return whether the connection is still there.

        Raises `UnexpectedAnswerError` where the worker breaks the protocol: nothing that it says from then on counts.
        """
        try:
            data = os.read(self.stdout.fileno(), _BLOCK)
        except BlockingIOError:
            return True
        if not data:
            self._hang_up()
            return False
        for kind, payload in [] if self.phase is Phase.ENDED else self._decoder.feed(data):
            self._check(kind, payload)
            self._hear(kind, payload)
            if self.phase is Phase.ENDED:
                return True
        if self.phase is Phase.ENDED:
            # It was not asked for more.
            self.drop()
        return True

    def reject(self, error: UnexpectedAnswerError) -> None:
        """Take the worker for one that failed, whatever else it says."""
        if self.phase is not Phase.ENDED:
            outcome = Outcome.LOST if self.may_run else Outcome.REFUSED
            out, err = self.sizes
            ending = Ending(
                member=self.member, outcome=outcome, why=error.what, out_size=out, err_size=err, is_unexpected=True
            )
            self.finish(ending)
        self.drop()

    def finish(self, ending: Ending) -> None:
        """Note how it ended here."""
        self.ending = ending
        self.phase = Phase.ENDED
        self._audience.ended(ending)

    def end(self, outcome: Outcome, why: str = "", *, ssh_said: str | None = None) -> None:
        """Note an end of which the worker has not told."""
        if self.phase is Phase.CONNECTING:
            self.drop()
        out, err = self.sizes
        self.finish(Ending(member=self.member, outcome=outcome, why=why, out_size=out, err_size=err, ssh_said=ssh_said))

    def let_go(self) -> None:
        """Tell the worker that nothing more comes: then it ends the session."""
        if self.can_write:
            with suppress(BrokenPipeError):
                self.stdin.close()

    def drop(self) -> None:
        """End ssh at once; the command goes on."""
        if self._process is not None:
            self._process.kill()

    def close(self, patience: timedelta) -> None:
        """Let ssh end; it is given that long."""
        if self._process is None:
            return
        try:
            self._process.wait(patience.total_seconds())
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._hang_up()

    @property
    def _of_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise AssertionError(f"worker {self.member.label} is not connected")
        return self._process

    def _hang_up(self) -> None:
        """Take leave of an ssh that has ended, or is about to."""
        process = self._of_process
        try:
            code = process.wait(_FAREWELL.total_seconds())
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self.code = code  # negative: ssh was ended by that signal
        errors = Kept(head=0, tail=_ERRORS_KEPT)
        # Not to its end: the process that keeps a connection open may hold it, and a pipe is no longer than a block.
        with suppress(BlockingIOError):
            errors.add(os.read(_stream(process.stderr).fileno(), _BLOCK))
        self.errors = _told(bytes(errors))
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                _stream(stream).close()
        self._process = None

    def _check(self, kind: Told, payload: bytes) -> None:
        """Raise `UnexpectedAnswerError` where a frame does not belong where it stands."""
        if kind not in _ALLOWED[self._stage]:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` {_WHERE[self._stage]}")
        if kind in _WITHOUT_PAYLOAD and payload:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` with {shown(payload)} in it")
        if kind is Told.MISSING and not (self.order.must_exist or self.has_started):
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about a job that was to be started")
        if kind is Told.TAKEN and not self.order.stdin:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about stdin, of which nothing was sent")
        if kind in {Told.OUT, Told.ERR} and not payload:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` with nothing in it")

    def _hear(self, kind: Told, payload: bytes) -> None:
        match kind:
            case Told.READY:
                self._ready(payload)
            case Told.STARTED:
                self._started()
            case Told.OUT | Told.ERR:
                is_error = kind is Told.ERR
                self._sizes[is_error] += len(payload)
                self._audience.output(self.member, payload, is_error=is_error)
                self._acknowledge()
            case Told.OUT_GONE | Told.ERR_GONE:
                most = MOST_BYTES - self._sizes[kind is Told.ERR_GONE]
                gone = decimal(payload, "bytes that are not kept", low=1, high=most)
                self._sizes[kind is Told.ERR_GONE] += gone
                self._audience.note(self.member, f"{gone} bytes of what it printed are not kept any more")
            case Told.TAKEN:
                taken = decimal(payload, "bytes of stdin", low=self._taken_before, high=self._fed)
                if self.taken is None:
                    # From there on it is sent over this connection.
                    self._fed_here = taken
                self.taken = self._taken_before = taken
            case Told.EXIT:
                ending = parse_end(self.member, payload, self.sizes)
                if not self.order.must_exist:
                    # Who only follows a job leaves its output and its exit code where they are.
                    self.say(Said.BYE)
                self.finish(ending)
            case Told.LOST:
                self.end(Outcome.LOST, "nothing there knows how it ended: the worker was rebooted, or out of memory")
            case Told.MISSING:
                why = "the job is no longer there" if self.has_started else "there is no such job"
                self.end(Outcome.LOST if self.has_started else Outcome.MISSING, why)
            case Told.CONFLICT:
                self.end(Outcome.REFUSED, f"a job `{self.order.job}` is there already")
            case Told.REFUSED:
                outcome = Outcome.LOST if self.has_started else Outcome.REFUSED
                self.end(outcome, one_line(payload.decode(errors="replace")))

    def _acknowledge(self) -> None:
        """Tell the worker that it need not keep what has arrived, so that its disk is not filled by a long run."""
        if sum(self._sizes) - self._acknowledged >= _WORTHWHILE and not (self.order.detach or self.order.must_exist):
            self._acknowledged = sum(self._sizes)
            self.say(Said.HAVE, b"%d %d" % self.sizes)

    def _ready(self, payload: bytes) -> None:
        """Note that the worker is there: it has the job already (`known`), or would start it (`new`)."""
        must_exist = self.order.must_exist or self.has_started
        if payload not in {b"known", b"new"}:
            raise UnexpectedAnswerError(f"a frame `{Told.READY.name}` with {shown(payload)} in it")
        if payload == b"known" and not (must_exist or self.may_run):
            raise UnexpectedAnswerError("it says that it has started the command, which it was not told to do")
        if payload == b"new" and must_exist:
            raise UnexpectedAnswerError("it would start a job that was only to be followed")
        self._stage = _Stage.STARTING if payload == b"known" else _Stage.OFFERED
        if payload == b"known":
            self.may_run = True
            self.phase = Phase.RUNNING
        elif self.may_run:
            # The word was given, and got lost with the connection. Where it only was slow the worker no longer obeys it.
            self.go()
        else:
            self.phase = Phase.READY

    def _started(self) -> None:
        self._stage = _Stage.FOLLOWED
        self.has_started = self.may_run = True
        self.phase = Phase.RUNNING
        self.trying_since = None
        self.tries = 0
        if self.order.detach:
            self.end(Outcome.DETACHED)
            return
        signals, self._signals = self._signals, []
        for number in signals:
            self.signal(number)


def _told(errors: bytes) -> str:
    """Return ssh's words, without those about how a connection is shared."""
    lines = errors.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not is_about_keeping(line))


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("all three were asked for as pipes")
    return stream
