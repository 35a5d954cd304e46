"""One worker of a run: the dialogue with the program on the worker, over one connection after another, and the result.

`WorkerSession` is a state machine for each connection. A frame that may not come in its stage, or that does not fit the schema,
ends that worker with `UnexpectedAnswerError`. The other end is `ssh/agent/job.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from tpuctl.decoding import MAX_BYTES, Text
from tpuctl.escaping import one_line, preview
from tpuctl.nodes.usage import UseKind, WorkerUse
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer, parse_decimal
from tpuctl.ssh.channel import AgentChannel, ClientFrame, WorkerFrame
from tpuctl.ssh.connection import CONNECT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.ssh.connection import Target

# The worker frees disk space in steps of this size.
_ACKNOWLEDGE_EVERY = 64 * 1024 * 1024
# Three unanswered messages mean a dead connection: a preempted node is noticed within half a minute.
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


class OutputSink(Protocol):
    """Takes what the workers of a run send, as it arrives."""

    @property
    def failure(self) -> OSError | None:
        """Why no more output can be taken, which ends the run; None if it can."""

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Take a piece of a worker's output."""

    def ended(self, target: Target) -> None:
        """Take the end of a worker's output."""

    def connected(self, count: int, total: int) -> None:
        """Learn how many workers answer so far."""

    def interrupted(self) -> None:
        """Learn that the user has pressed Ctrl-C."""

    def note(self, target: Target | None, text: str) -> None:
        """Learn something about a worker, or about all for None."""


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
    may report that it terminated the command because no client followed it (`orphaned`) or because it timed out
    (`timed_out`), that its disk was full, that processes left behind by the command can still print (`left_processes`), and
    that the command got the notice of a preemption (`has_notice`).
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
    orphaned: bool = False
    timed_out: bool = False
    disk_was_full: bool = False
    left_processes: bool = False
    has_notice: bool = False
    is_unexpected: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the command succeeded."""
        return (self.code == 0 and not self.timed_out) or self.outcome is WorkerOutcome.DETACHED

    def explain(self, workers: str) -> str:
        """Return the reason, in one line about `workers`, which share it."""
        if self.is_unexpected:
            return f"unexpected answer from worker {workers}: {self.why}"
        return f"worker {workers}: {self.why or self.outcome}"


class _Stage(Enum):
    """The state of the dialogue over one connection. The value is for errors."""

    HELLO = "before it reported ready"
    OFFERED = "before it was asked to start the command"  # the worker is ready, and has not received GO
    STARTING = "before it reported the command as started"  # it has received GO, or an earlier connection started it
    FOLLOWED = "after the command was started"


# The frames that a worker may send in each stage; any other breaks the protocol.
_ALLOWED = {
    _Stage.HELLO: {
        *(WorkerFrame.IN_USE, WorkerFrame.READY, WorkerFrame.MISSING, WorkerFrame.CONFLICT, WorkerFrame.REFUSED),
    },
    _Stage.OFFERED: set[WorkerFrame](),
    _Stage.STARTING: {WorkerFrame.STARTED, WorkerFrame.CONFLICT, WorkerFrame.REFUSED},
    _Stage.FOLLOWED: {
        *(WorkerFrame.OUT, WorkerFrame.ERR, WorkerFrame.OUT_GONE, WorkerFrame.ERR_GONE, WorkerFrame.TAKEN),
        *(WorkerFrame.EXIT, WorkerFrame.LOST, WorkerFrame.REFUSED),
    },
}
# The worker sends fewer.
_MOST_USES = 16
_USE_FIELDS = 3
_LONGEST_NAME = 100
_LONGEST_AGE = 100 * 365 * 86400
# The longest record of a job that a worker sends (ssh/agent/job_files.py).
_LONGEST_RECORD = 64 * 1024
_WITHOUT_PAYLOAD = frozenset({WorkerFrame.STARTED, WorkerFrame.LOST, WorkerFrame.MISSING})


class WorkerSession:
    """One worker of a run. `request` is the request for `ssh/agent/job.py`, `shared` the options of a shared connection."""

    def __init__(
        self, target: Target, request: Mapping[str, Any], streams: OutputSink, *, shared: tuple[str, ...]
    ) -> None:
        self.target = target
        self.phase = WorkerPhase.WAITING
        self.result: WorkerResult | None = None
        self.channel: AgentChannel | None = None
        # Whether the command may have been started: from then on a connection only joins it.
        self.may_run = False
        self.has_started = False
        # The jobs that ran there before the command was started.
        self.uses: list[WorkerUse] = []
        self.taken: int | None = None  # bytes of stdin that the command has received, by this connection
        self.next_try = timedelta()
        self.since = timedelta()  # start of this attempt to connect
        self.trying_since: timedelta | None = None  # start of the first attempt since the worker was last connected
        self.tries = 0
        self._request, self._streams, self._shared = request, streams, shared
        # Bytes of stdout and of stderr that have arrived.
        self._sizes: list[int] = list(request["offsets"])
        self._stage = _Stage.HELLO
        # Bytes of stdin: sent over this connection, sent over any, and received by the command according to the worker.
        self._fed_here = self._fed = self._taken_before = 0
        self._signals: list[int] = []
        self._acknowledged = 0

    @property
    def only_follows(self) -> bool:
        """Whether it follows a job that must exist, and starts nothing."""
        return bool(self._request["must_exist"])

    @property
    def has_no_answer(self) -> bool:
        """Whether there is no connection, or one without an answer so far."""
        return self.phase in {WorkerPhase.WAITING, WorkerPhase.CONNECTING}

    def connect(self, within: timedelta) -> AgentChannel:
        """Start ssh with `within` as its connection timeout. Raises `SshProgramMissingError`."""
        self.channel = AgentChannel(
            self.target,
            "job",
            {**self._request, "offsets": tuple(self._sizes), "must_exist": self.only_follows or self.has_started},
            # A shared connection may be what broke.
            shared=None if self.tries else self._shared,
            options=_ALIVE,
            connect_within=min(within, CONNECT_TIMEOUT),
            # A Ctrl-C at the terminal reaches only this process, which forwards it.
            is_in_own_group=True,
        )
        self.phase = WorkerPhase.CONNECTING
        self.tries += 1
        self.taken = None
        self.uses = []
        self._stage = _Stage.HELLO
        return self.channel

    def start(self) -> None:
        """Start the command."""
        self.may_run = True
        self.phase = WorkerPhase.RUNNING
        self._stage = _Stage.STARTING
        self._send(ClientFrame.GO)

    def signal(self, number: int) -> None:
        """Send a signal to the command; without a connection, once there is one."""
        if self.channel is not None and self.phase is WorkerPhase.RUNNING:
            self._send(ClientFrame.KILL, str(number).encode())
        elif self.may_run:
            self._signals.append(number)

    def feed(self, data: bytes) -> None:
        """Send data for the stdin of the command; without data, its end."""
        self._fed_here += len(data)
        self._fed = max(self._fed, self._fed_here)
        self._send(ClientFrame.IN if data else ClientFrame.FINAL, data)

    def receive(self) -> None:
        """Process what has arrived. A worker that breaks the protocol has failed, and its further output is ignored."""
        channel, was_over = self._connected, self.phase is WorkerPhase.ENDED
        try:
            frames = channel.receive()
            if was_over and channel.is_open:  # unrequested data
                channel.kill()
            for kind, payload in frames:
                if self.phase is not WorkerPhase.ENDED:
                    self._check(kind, payload)
                    self._process(kind, payload)
        except UnexpectedAnswerError as error:
            # Either a hostile worker, or a program there that prints into the session: none of its output counts.
            if self.phase is not WorkerPhase.ENDED:
                self.end(WorkerOutcome.LOST if self.may_run else WorkerOutcome.REFUSED, error.what, is_unexpected=True)
            channel.kill()

    def disconnect(self, patience: float = 0) -> None:
        """Close the connection, if there is one. The command continues."""
        if self.channel is not None:
            self.channel.close(patience)
            self.channel = None

    def end(
        self, outcome: WorkerOutcome, why: str = "", *, ssh_stderr: str | None = None, is_unexpected: bool = False
    ) -> None:
        """Record a result that the worker has not reported."""
        if self.phase is WorkerPhase.CONNECTING:
            self._connected.kill()
        out, err = self._sizes
        self._finish(
            WorkerResult(
                target=self.target,
                outcome=outcome,
                why=why,
                out_size=out,
                err_size=err,
                ssh_stderr=ssh_stderr,
                is_unexpected=is_unexpected,
            )
        )

    @property
    def _connected(self) -> AgentChannel:
        if self.channel is None:
            raise AssertionError(f"worker {self.target.label} is not connected")
        return self.channel

    def _finish(self, result: WorkerResult) -> None:
        self.result = result
        self.phase = WorkerPhase.ENDED
        self._streams.ended(self.target)

    def _send(self, kind: ClientFrame, payload: bytes = b"") -> None:
        self._connected.send(kind, payload)

    def _check(self, kind: WorkerFrame, payload: bytes) -> None:
        """Raise `UnexpectedAnswerError` for a frame that the protocol does not allow at this point."""
        if kind not in _ALLOWED[self._stage]:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` {self._stage.value}")
        if kind in _WITHOUT_PAYLOAD and payload:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` with {preview(payload)} in it")
        if kind is WorkerFrame.MISSING and not (self.only_follows or self.has_started):
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about a job that does not exist yet")
        if kind is WorkerFrame.TAKEN and not self._request["stdin"]:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` about stdin, although none was sent")
        if kind in {WorkerFrame.OUT, WorkerFrame.ERR} and not payload:
            raise UnexpectedAnswerError(f"an empty frame `{kind.name}`")

    def _process(self, kind: WorkerFrame, payload: bytes) -> None:
        match kind:
            case WorkerFrame.IN_USE:
                self._receive_use(payload)
            case WorkerFrame.READY:
                self._receive_ready(payload)
            case WorkerFrame.STARTED:
                self._receive_started()
            case WorkerFrame.OUT | WorkerFrame.ERR:
                is_error = kind is WorkerFrame.ERR
                self._sizes[is_error] += len(payload)
                self._streams.output(self.target, payload, is_error=is_error)
                self._acknowledge()
            case WorkerFrame.OUT_GONE | WorkerFrame.ERR_GONE:
                is_error = kind is WorkerFrame.ERR_GONE
                most = MAX_BYTES - self._sizes[is_error]
                gone = parse_decimal(payload, "bytes that are not stored", low=1, high=most)
                self._sizes[is_error] += gone
                self._streams.note(self.target, f"{gone} bytes of its output are no longer stored")
            case WorkerFrame.TAKEN:
                self._receive_taken(payload)
            case WorkerFrame.EXIT:
                result = parse_result(self.target, payload, (self._sizes[0], self._sizes[1]))
                if not self.only_follows:
                    # A client that only follows a job leaves output and exit code on the worker.
                    self._send(ClientFrame.BYE)
                self._finish(result)
            case WorkerFrame.LOST:
                why = "no exit code was recorded there: the worker was rebooted, or out of memory"
                self.end(WorkerOutcome.LOST, why)
            case WorkerFrame.MISSING:
                why = "the job no longer exists" if self.has_started else "there is no such job"
                self.end(WorkerOutcome.LOST if self.has_started else WorkerOutcome.MISSING, why)
            case WorkerFrame.CONFLICT:
                job = self._request["name"].rpartition(".")[0]
                self.end(WorkerOutcome.REFUSED, f"a job `{job}` already exists")
            case WorkerFrame.REFUSED:
                outcome = WorkerOutcome.LOST if self.has_started else WorkerOutcome.REFUSED
                self.end(outcome, one_line(payload.decode(errors="replace")))

    def _acknowledge(self) -> None:
        """Let the worker delete what has arrived, so that a long run does not fill its disk."""
        arrived = sum(self._sizes)
        is_kept_there = self._request["detach"] or self.only_follows
        if not is_kept_there and arrived - self._acknowledged >= _ACKNOWLEDGE_EVERY:
            self._acknowledged = arrived
            self._send(ClientFrame.HAVE, b"%d %d" % tuple(self._sizes))

    def _receive_ready(self, payload: bytes) -> None:
        """Process READY: the worker has the job already (`known`), or would start it (`new`)."""
        must_exist = self.only_follows or self.has_started
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
            # GO was lost with the connection. If it is only late, the worker no longer acts on it.
            self.start()
        else:
            self.phase = WorkerPhase.READY

    def _receive_use(self, payload: bytes) -> None:
        if len(self.uses) >= _MOST_USES:
            raise UnexpectedAnswerError(f"more than {_MOST_USES} frames `{WorkerFrame.IN_USE.name}`")
        self.uses.append(parse_running_job(payload, login=self.target.connection.login))

    def _receive_taken(self, payload: bytes) -> None:
        taken = parse_decimal(payload, "bytes of stdin", low=self._taken_before, high=self._fed)
        if self.taken is None:
            # This connection sends what follows.
            self._fed_here = taken
        self.taken = self._taken_before = taken

    def _receive_started(self) -> None:
        self._stage = _Stage.FOLLOWED
        self.has_started = self.may_run = True
        self.phase = WorkerPhase.RUNNING
        self.trying_since = None
        self.tries = 0
        if self._request["detach"]:
            self.end(WorkerOutcome.DETACHED)
            return
        signals, self._signals = self._signals, []
        for number in signals:
            self.signal(number)


def parse_running_job(payload: bytes, *, login: str) -> WorkerUse:
    """Parse a job of the same `login` that runs on a worker already. Raises `UnexpectedAnswerError`."""
    fields = payload.split(b"\0")
    if len(fields) != _USE_FIELDS:
        raise UnexpectedAnswerError(f"no job: {preview(payload)}")
    age = timedelta(seconds=parse_decimal(fields[0], "an age", high=_LONGEST_AGE))
    name, about = (field.decode(errors="replace") for field in fields[1:])
    return WorkerUse(UseKind.JOB, one_line(name, longest=_LONGEST_NAME), one_line(parse_about(about)[0]), login, age)


@dataclass(frozen=True, slots=True)
class _About:
    """The record of a job."""

    command: Annotated[str, Text(_LONGEST_RECORD)]
    detached: Any = None


def parse_about(text: str) -> tuple[str, bool | None]:
    """Parse the command and whether it was detached; empty and None if unreadable, because the disk was full."""
    try:
        about = decode_answer(_About, parse_answer(text))
        # A lone surrogate, which stands for a byte that is no UTF-8, cannot be encoded.
        return about.command.encode(errors="backslashreplace").decode(), about.detached is True
    except UnexpectedAnswerError:
        return "", None


# How a command ended, as its supervisor on the worker writes it (ssh/agent/job.py).
_END = re.compile(rb"(exit|signal) ([0-9]{1,3}) ([0-9]{1,9}(?:\.[0-9]{1,6})?)((?: [a-z]{1,9}){0,4})")
_REMARKS = frozenset({"abandoned", "late", "full", "outlived", "preempted"})
_HIGHEST_CODE, _HIGHEST_SIGNAL = 255, 64
_WHYS = {
    "abandoned": "terminated by its worker: no client followed it any more",
    "late": "terminated by its worker: timed out",
}


def parse_result(target: Target, payload: bytes, sizes: tuple[int, int] = (0, 0)) -> WorkerResult:
    """Parse what the worker wrote: `exit CODE SECONDS` or `signal NUMBER SECONDS`, then remarks (`late`, `full`, …).

    Raises `UnexpectedAnswerError`.
    """
    match = _END.fullmatch(payload)
    remarks = match[4].decode().split() if match else []
    if match is None or not _REMARKS.issuperset(remarks) or len(set(remarks)) < len(remarks):
        raise UnexpectedAnswerError(f"no exit code: {preview(payload)}")
    was_signal = match[1] == b"signal"
    if was_signal:
        number = parse_decimal(match[2], "a signal", low=1, high=_HIGHEST_SIGNAL)
    else:
        number = parse_decimal(match[2], "an exit code", high=_HIGHEST_CODE)
    return WorkerResult(
        target=target,
        outcome=WorkerOutcome.SIGNALED if was_signal else WorkerOutcome.EXITED,
        code=128 + number if was_signal else number,
        signal=number if was_signal else None,
        duration=timedelta(seconds=float(match[3])),
        out_size=sizes[0],
        err_size=sizes[1],
        why=next((why for word, why in _WHYS.items() if word in remarks), ""),
        orphaned="abandoned" in remarks,
        timed_out="late" in remarks,
        disk_was_full="full" in remarks,
        left_processes="outlived" in remarks,
        has_notice="preempted" in remarks,
    )
