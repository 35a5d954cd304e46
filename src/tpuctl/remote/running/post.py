"""One worker of a run: its ssh, what it has told so far, and what is to be done with it next."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from datetime import timedelta
from math import ceil
from typing import IO, TYPE_CHECKING

from tpuctl.remote.kept import is_about_keeping
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard import bootstrap
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
        self._unsent = bytearray(source)
        self.write()

    def go(self) -> None:
        """Let the command begin."""
        self.may_run = True
        self.phase = Phase.RUNNING
        self.say(Said.GO)

    def signal(self, number: int) -> None:
        """Send a signal to the command; later, where the link is down."""
        if self.is_connected and self.phase is Phase.RUNNING:
            self.say(Said.KILL, str(number).encode())
        elif self.may_run:
            self._signals.append(number)

    def say(self, kind: Said, payload: bytes = b"") -> None:
        """Send a frame, as soon as ssh takes it."""
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
        """Take what has arrived; return whether the connection is still there."""
        try:
            data = os.read(self.stdout.fileno(), _BLOCK)
        except BlockingIOError:
            return True
        if not data:
            self._hang_up()
            return False
        for kind, payload in self._decoder.feed(data):
            self._hear(kind, payload)
        return True

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
        # Not to its end: the process that keeps a connection open may hold it.
        with suppress(BlockingIOError):
            self.errors = _told(os.read(_stream(process.stderr).fileno(), _ERRORS_KEPT))
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                _stream(stream).close()
        self._process = None

    def _hear(self, kind: Told, payload: bytes) -> None:
        match kind:
            case Told.READY:
                self._ready(is_known=payload == b"known")
            case Told.STARTED:
                self._started()
            case Told.OUT | Told.ERR:
                is_error = kind is Told.ERR
                self._sizes[is_error] += len(payload)
                self._audience.output(self.member, payload, is_error=is_error)
                self._acknowledge()
            case Told.OUT_GONE | Told.ERR_GONE:
                self._sizes[kind is Told.ERR_GONE] += int(payload)
                self._audience.note(self.member, f"{payload.decode()} bytes of what it printed are not kept any more")
            case Told.TAKEN:
                self.taken = int(payload)
            case Told.EXIT:
                if not self.order.must_exist:
                    # Who only follows a job leaves its output and its exit code where they are.
                    self.say(Said.BYE)
                self.finish(parse_end(self.member, payload, self.sizes))
            case Told.LOST:
                self.end(Outcome.LOST, "nothing there knows how it ended: the worker was rebooted, or out of memory")
            case Told.MISSING:
                gone = "the job is no longer there" if self.has_started else "there is no such job"
                self.end(Outcome.LOST if self.has_started else Outcome.MISSING, gone)
            case Told.CONFLICT:
                self.end(Outcome.REFUSED, f"a job `{self.order.job}` is there already")
            case Told.REFUSED:
                outcome = Outcome.LOST if self.has_started else Outcome.REFUSED
                self.end(outcome, payload.decode(errors="replace"))

    def _acknowledge(self) -> None:
        """Tell the worker that it need not keep what has arrived, so that its disk is not filled by a long run."""
        if sum(self._sizes) - self._acknowledged >= _WORTHWHILE and not (self.order.detach or self.order.must_exist):
            self._acknowledged = sum(self._sizes)
            self.say(Said.HAVE, b"%d %d" % self.sizes)

    def _ready(self, *, is_known: bool) -> None:
        if is_known:
            self.may_run = True
            self.phase = Phase.RUNNING
        elif self.may_run:
            # The word was given, and got lost with the connection. Where it only was slow the worker no longer obeys it.
            self.go()
        else:
            self.phase = Phase.READY

    def _started(self) -> None:
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
