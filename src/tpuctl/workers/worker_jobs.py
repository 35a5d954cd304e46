"""Jobs on workers: parse what workers report, ask all workers in parallel, read output, signal, remove, and show.

Each question is one ssh session with `ssh/agent/job_queries.py`. A `Job` combines the shares of all its workers.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import count
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, TypeVar

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ConflictError, InvalidInputError, NotFoundError, RemoteCommandError
from tpuctl.names import parse_whole_number
from tpuctl.output.terminal import Cell
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.answers import (
    MAX_LOGIN_BANNER,
    JsonFields,
    UnexpectedAnswerError,
    one_line,
    parse_answer,
    parse_array,
    parse_boolean,
    parse_choice,
    parse_decimal,
    parse_integer,
    parse_number,
    parse_object,
    parse_seconds,
    parse_string,
    preview,
)
from tpuctl.ssh.connection import (
    NEW_CONNECTION,
    SSH_FAILED,
    BoundedBuffer,
    Connection,
    exchange_pipes,
    ssh_argv,
    start_ssh,
    terminate_process,
)
from tpuctl.ssh.control_master import is_multiplexing_message
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failures
from tpuctl.workers.worker_session import (
    JOB_MARK,
    FrameDecoder,
    RunLimits,
    WorkerFrame,
    WorkerOutcome,
    WorkerResult,
    is_retriable_end,
    local_signal,
    parse_result,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.worker_session import OutputSink

# Linux's numbers: those of this machine may differ.
LINUX_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
    "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CONT": 18, "STOP": 19, "XCPU": 24, "XFSZ": 25, "SYS": 31,
}  # fmt: skip
_HIGHEST_SIGNAL = 64
# With the worker's number it forms the name of a folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The longest record of a job that a worker sends (ssh/agent/job_files.py).
_LONGEST = 64 * 1024
# Clocks of workers may be wrong, but a date ends at the year 9000.
_LATEST = 221_845_392_000
_LONGEST_AGE = 100 * 365 * 86400


class JobState(StrEnum):
    """The state of a job on one worker."""

    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    LOST = "lost"  # it does not run and has no recorded exit code: the worker was rebooted, or out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """A job on one worker. `began` is by the worker's clock; `age` depends on no other clock.

    `code`: the exit code as a shell reports it, None before the end. `command` is empty and `is_detached` None if the worker's
    record of them cannot be read. `is_followed`: a client streams its output now. `sizes` and `starts` are bytes of stdout and
    of stderr: their sizes, and the positions of the last lines that were requested.
    """

    target: Target
    job: str
    state: JobState
    began: datetime
    age: timedelta
    duration: timedelta | None
    code: int | None = None
    signal: int | None = None
    was_abandoned: bool = False
    was_late: bool = False
    disk_was_full: bool = False
    command: str = ""
    is_detached: bool | None = None
    is_followed: bool = False
    sizes: tuple[int, int] = (0, 0)
    starts: tuple[int, int] = (0, 0)

    @property
    def result(self) -> WorkerResult:
        """The job as the result of a worker."""
        outcomes = {
            JobState.EXITED: WorkerOutcome.EXITED,
            JobState.SIGNALED: WorkerOutcome.SIGNALED,
            JobState.LOST: WorkerOutcome.LOST,
        }
        return WorkerResult(
            target=self.target,
            outcome=outcomes.get(self.state, WorkerOutcome.DETACHED),
            code=self.code,
            signal=self.signal,
            duration=self.duration,
            was_late=self.was_late,
            disk_was_full=self.disk_was_full,
        )


def check_job_name(name: str) -> str:
    """Return the name of a job. Raises `InvalidInputError` for an invalid name: it becomes part of a folder's name."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"`{name}` cannot be the name of a job",
            hint="a job's name has letters, digits, `.`, `_` and `-`; list the jobs: `tpuctl jobs NODE`",
        )
    return name


def parse_signal(text: str) -> int:
    """Return the Linux number of a signal: `TERM`, `SIGTERM`, `15`. Raises `InvalidInputError`."""
    number = parse_whole_number(text) or LINUX_SIGNALS.get(text.upper().removeprefix("SIG"), 0)
    if not 0 < number <= _HIGHEST_SIGNAL:
        raise InvalidInputError(f"no signal `{text}`", hint="give TERM, INT, QUIT, KILL, …, or a number")
    return number


def signal_name(number: int) -> str:
    """Return the Linux name of a signal, without `SIG`."""
    return next((name for name, known in LINUX_SIGNALS.items() if known == number), str(number))


def parse_job_name(value: Any, where: str) -> str:
    """Parse the name of a job. Raises `UnexpectedAnswerError`."""
    name = parse_string(value, where, longest=100)
    if not _NAME.fullmatch(name):
        raise UnexpectedAnswerError(f"{where}: {preview(name)} cannot be the name of a job")
    return name


def parse_worker_job(target: Target, value: Any, where: str) -> WorkerJob:
    """Parse a worker's report of one job. Raises `UnexpectedAnswerError`."""
    fields = JsonFields(value, where)
    # The clock may have been set back since the start.
    age = max(timedelta(), fields.get("age", parse_seconds, low=-_LONGEST_AGE, high=_LONGEST_AGE))
    command, is_detached = _parse_about(fields.get("about", parse_string, longest=_LONGEST))
    end = fields.get("end", parse_string, longest=_LONGEST)
    word = fields.get("state", parse_choice, allowed=("running", "ended", "lost"))
    result = None
    if word == "ended":
        with suppress(UnexpectedAnswerError):  # unreadable, because the disk was full
            result = parse_result(target, end.encode(errors="replace"), (0, 0))
    state = JobState(result.outcome.value) if result else JobState.RUNNING if word == "running" else JobState.LOST
    sizes, starts = fields.get("sizes", _parse_pair), fields.get("starts", _parse_pair)
    for at, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        parse_integer(start, f"{where}.starts[{at}]", high=size)
    return WorkerJob(
        target=target,
        job=fields.get("name", parse_job_name),
        state=state,
        began=datetime.fromtimestamp(fields.get("began", parse_number, low=0, high=_LATEST), UTC),
        age=age,
        duration=result.duration if result else age if state is JobState.RUNNING else None,
        code=result.code if result else None,
        signal=result.signal if result else None,
        was_abandoned=bool(result and result.was_abandoned),
        was_late=bool(result and result.was_late),
        disk_was_full=bool(result and result.disk_was_full),
        command=command,
        is_detached=is_detached,
        is_followed=fields.get("followed", parse_boolean),
        sizes=sizes,
        starts=starts,
    )


def _parse_pair(value: Any, where: str) -> tuple[int, int]:
    """Return one number for stdout and one for stderr."""
    if len(both := parse_array(value, where, most=2)) != 2:
        raise UnexpectedAnswerError(f"{where}: {len(both)} values where 2 are expected")
    return parse_integer(both[0], f"{where}[0]"), parse_integer(both[1], f"{where}[1]")


def _parse_about(text: str) -> tuple[str, bool | None]:
    """Parse the command and whether it was detached; empty and None if unreadable, because the disk was full."""
    try:
        about = parse_object(parse_answer(text), "about")
        command = parse_string(about.get("command"), "command", longest=_LONGEST)
        # A lone surrogate, which stands for a byte that is no UTF-8, cannot be encoded.
        return command.encode(errors="backslashreplace").decode(), about.get("detached") is True
    except UnexpectedAnswerError:
        return "", None


_ERRORS_KEPT = 8 * 1024
_BLOCK = 256 * 1024
_END = timedelta(seconds=1)


class JobSession:
    """An ssh process whose stdout is read. Leaving the context terminates it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._errors = process, BoundedBuffer(head=0, tail=_ERRORS_KEPT)

    def answer(self, patience: timedelta, *, most: int) -> bytes:
        """Return the whole output of the program; after `patience`, the output so far.

        Raises `UnexpectedAnswerError` for more than `most` bytes.
        """
        output = BoundedBuffer(head=most, tail=0)
        exchange_pipes(self._process, b"", output, self._errors, patience, most=most)
        return bytes(output)

    def read(self, patience: timedelta) -> bytes | None:
        """Return the next output of the program, empty at its end; None if there is none within `patience`."""
        stdout, stderr = _stream(self._process.stdout), _stream(self._process.stderr)
        until = time.monotonic() + patience.total_seconds()
        with selectors.DefaultSelector() as selector:
            for stream in (stdout, stderr):
                selector.register(stream, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = os.read(key.fd, _BLOCK)
                    if key.fileobj is stdout:
                        return data
                    self._errors.add(data)
                    if not data:
                        selector.unregister(stderr)
        return None

    def end(self) -> int | None:
        """Return ssh's exit code, negative after a signal; None if ssh has not ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END.total_seconds())
        return None

    def words(self) -> str:
        """Return the stderr of ssh, without messages about the shared connection."""
        stderr = _stream(self._process.stderr)
        os.set_blocking(stderr.fileno(), False)
        # Not to its end: the master of a shared connection may hold it open.
        with suppress(BlockingIOError):
            self._errors.add(os.read(stderr.fileno(), _BLOCK))
        lines = bytes(self._errors).decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not is_multiplexing_message(line))

    def close(self) -> None:
        """Terminate ssh if it has not ended."""
        terminate_process(self._process)
        for stream in (self._process.stdout, self._process.stderr):
            _stream(stream).close()


@contextmanager
def open_job_session(target: Target, request: Mapping[str, Any], options: tuple[str, ...]) -> Iterator[JobSession]:
    """Start ssh with the program that executes a request. Raises `SshProgramMissingError`."""
    line, source = bootstrap("job_queries", f"answer({ ({**request, 'worker': target.worker})!r})", is_kept=True)
    words = ssh_argv(target.connection, (line,), options=("-o", "BatchMode=yes", *options))
    # A file: nothing here waits for ssh to read it.
    with TemporaryFile() as stdin:
        stdin.write(source)
        stdin.seek(0)
        session = JobSession(start_ssh(words, stdin=stdin))
        try:
            yield session
        finally:
            session.close()


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("it was opened as a pipe")
    return stream


# Handshakes in progress at the same time.
MAX_JOB_SESSIONS = 32
JOB_QUERY_TIMEOUT = timedelta(seconds=30)
# As long as `run` tries to connect to a worker, and as often.
_RETRY_FOR = RunLimits().connect_within
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (0.5, 1, 2, 4))
_NO_PROGRAM = 127
_LONGEST_ANSWER = 4 << 20
# No home directory has more jobs than this.
_MOST_JOBS = 100_000
_T = TypeVar("_T")
_A = TypeVar("_A")


@dataclass(frozen=True, slots=True)
class NoJobAnswer:
    """A worker that gave no answer. `words`: the message of ssh or of the worker.

    `code`: the exit code of ssh, negative after a signal, None after a timeout. `error`: why the answer was rejected.
    """

    target: Target
    code: int | None
    words: str
    error: UnexpectedAnswerError | None = None

    @classmethod
    def unexpected(cls, target: Target, error: UnexpectedAnswerError) -> NoJobAnswer:
        """Return the value for a worker whose answer was rejected."""
        return cls(target, 1, "", error.of(target.label))


@dataclass(frozen=True, slots=True)
class WorkerJobList:
    """The newest jobs of a worker, the newest first, and the number of all its jobs."""

    shares: tuple[WorkerJob, ...]
    total: int


@dataclass(frozen=True, slots=True)
class WorkerSignalResult:
    """Whether a signal was sent, and the job afterwards."""

    was_sent: bool
    share: WorkerJob


@dataclass(frozen=True, slots=True)
class JobClient:
    """The workers to ask; `ssh_options` returns additional options of ssh for a connection.

    A query that changes nothing is repeated after a broken connection, and while a worker does not accept ssh yet, for as long
    as `run` would try. Each method returns one answer for each worker, in their order, and raises `SshProgramMissingError`.
    """

    targets: Sequence[Target]
    ssh_options: Callable[[Connection], tuple[str, ...]]
    clock: Clock

    def jobs(
        self, *, names: Sequence[str] = (), limit: int, tail: int | None = None
    ) -> list[WorkerJobList | NoJobAnswer]:
        """Return the newest jobs, or those in `names`. With `tail` a share's `starts` is the position of its last lines."""

        def parse(target: Target, value: Any) -> WorkerJobList:
            fields = JsonFields(value, "the list")
            shares = fields.each("jobs", partial(parse_worker_job, target), most=limit)
            found = [share.job for share in shares]
            for at, name in enumerate(found):
                if names and name not in names:
                    raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` was not requested")
                if name in found[:at]:
                    raise UnexpectedAnswerError(f"the list.jobs[{at}]: `{name}` a second time")
            return WorkerJobList(shares, fields.get("total", parse_integer, low=len(shares), high=_MOST_JOBS))

        return self._each({"do": "list", "names": list(names), "limit": limit, "tail": tail}, parse, retries=True)

    def signal(self, job: str, number: int, *, wait: timedelta) -> list[WorkerSignalResult | NoJobAnswer | None]:
        """Send a signal to all processes of a job, if it runs, and wait up to `wait` for its end. None: no such job."""

        def parse(target: Target, value: Any) -> WorkerSignalResult | None:
            if value is None:
                return None
            fields = JsonFields(value, "the answer")
            share = fields.get("job", partial(parse_worker_job, target))
            if share.job != job:
                raise UnexpectedAnswerError(f"the answer.job: `{share.job}` was not requested")
            return WorkerSignalResult(fields.get("sent", parse_boolean), share)

        request = {"do": "signal", "name": job, "number": number, "wait": wait.total_seconds()}
        return self._each(request, parse, patience=JOB_QUERY_TIMEOUT + wait)

    def ended(self, names: Sequence[str], *, older: timedelta) -> list[Mapping[str, str] | NoJobAnswer]:
        """Return the states of the jobs in `names`, or which of all jobs ended longer ago than `older`. Changes nothing.

        A state is `ended`, `missing`, `running` or `followed` (a client reads its output).
        """
        request = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": True}
        return self._each(request, _parse_outcomes(names, ("ended", "missing", "running", "followed")), retries=True)

    def remove(self, names: Sequence[Sequence[str]], *, older: timedelta) -> list[Mapping[str, str] | NoJobAnswer]:
        """Remove the jobs in `names[i]` from worker `i`, except those that run; a worker without names is not asked.

        Returns the outcome of each: `removed`, `missing`, `running`, `followed`.
        """
        outcomes = ("removed", "missing", "running", "followed")

        def one(target: Target, names: Sequence[str]) -> Mapping[str, str] | NoJobAnswer:
            request = {"do": "remove", "names": list(names), "older": older.total_seconds(), "only_looks": False}
            options = self.ssh_options(target.connection)
            return _ask(target, request, _parse_outcomes(names, outcomes), options, JOB_QUERY_TIMEOUT) if names else {}

        return _in_parallel(one, self.targets, names)

    def _each(
        self,
        request: dict[str, Any],
        parse: Callable[[Target, Any], _T],
        *,
        patience: timedelta = JOB_QUERY_TIMEOUT,
        retries: bool = False,
    ) -> list[_T | NoJobAnswer]:
        """Ask each worker; with `retries` again after a broken connection."""

        def ask(target: Target, options: tuple[str, ...]) -> _T | NoJobAnswer:
            return _ask(target, request, parse, options, patience)

        answers = _in_parallel(ask, self.targets, [self.ssh_options(target.connection) for target in self.targets])
        until = self.clock.monotonic() + _RETRY_FOR
        for tries in count(1) if retries else ():
            pause = _PAUSES[min(tries, len(_PAUSES)) - 1]
            cut = [
                index
                for index, answer in enumerate(answers)
                if isinstance(answer, NoJobAnswer) and is_retriable_end(answer.code, answer.words, is_first=tries == 1)
            ]
            if not cut or self.clock.monotonic() + pause > until:
                break
            self.clock.sleep(pause)
            # A shared connection may be what broke.
            second = _in_parallel(ask, [self.targets[index] for index in cut], [NEW_CONNECTION] * len(cut))
            for index, answer in zip(cut, second, strict=True):
                answers[index] = answer
        return answers


def _in_parallel(act: Callable[[Target, _A], _T], targets: Sequence[Target], each: Sequence[_A]) -> list[_T]:
    """Call `act` for each worker with its value from `each`; return the results in their order."""
    with ThreadPoolExecutor(min(MAX_JOB_SESSIONS, len(targets)) or 1) as pool:
        return list(pool.map(act, targets, each))


def _parse_outcomes(names: Sequence[str], outcomes: Sequence[str]) -> Callable[[Target, Any], Mapping[str, str]]:
    """Return a parser for an answer about these jobs; without names, about any."""

    def parse(target: Target, value: Any) -> Mapping[str, str]:  # noqa: ARG001  # all parsers are called alike
        found = {}
        for at, (name, outcome) in enumerate(parse_object(value, "the answer").items()):
            if names and name not in names:
                raise UnexpectedAnswerError(f"{preview(name)} was not requested")
            found[parse_job_name(name, f"name {at}")] = parse_choice(outcome, name, outcomes)
        return found

    return parse


def explain_no_answers(no_answers: Iterable[NoJobAnswer]) -> list[TpuctlError]:
    """Return why workers gave no answer: one error for all workers of a node that share a cause."""
    unanswered = list(no_answers)
    silent = [one for one in unanswered if one.error is None]
    late = [one for one in silent if one.code is None]
    apart = [one for one in silent if one.code == SSH_FAILED]
    errors: list[TpuctlError] = [one.error for one in unanswered if one.error is not None]
    errors += [
        RemoteCommandError(
            f"worker {one.target.label}: {local_signal(one.code) or one.words or f'the session ended with {one.code}'}"
        )
        for one in silent
        if one.code not in {None, SSH_FAILED}
    ]
    for group, waited in ((apart, None), (late, JOB_QUERY_TIMEOUT)):
        if group:
            seen = collect_failure_context(group[0].target, waited=waited)
            errors += explain_ssh_failures([(one.target, one.words) for one in group], seen)
    return errors


def _ask(
    target: Target,
    request: Mapping[str, Any],
    parse: Callable[[Target, Any], _T],
    options: tuple[str, ...],
    patience: timedelta,
) -> _T | NoJobAnswer:
    try:
        with open_job_session(target, request, options) as session:
            output = session.answer(patience, most=MAX_LOGIN_BANNER + _LONGEST_ANSWER)
            code, words = session.end(), session.words()
        if JOB_MARK not in output:
            if code == SSH_FAILED and options and not words and options != NEW_CONNECTION:
                # A shared connection hides the messages of its ProxyCommand.
                return _ask(target, request, parse, NEW_CONNECTION, patience)
            if code == _NO_PROGRAM:
                words = words or "`python3` is not installed on it"
            return NoJobAnswer(target, code, words)
        frames = FrameDecoder(_LONGEST_ANSWER).feed(output)
        if not frames and code != 0:
            return NoJobAnswer(target, code, words or "its answer is incomplete")
        return _read(target, frames, parse, may_miss=request["do"] == "signal")
    except UnexpectedAnswerError as error:
        return NoJobAnswer.unexpected(target, error)


def _read(
    target: Target, frames: Sequence[tuple[WorkerFrame, bytes]], parse: Callable[[Target, Any], _T], *, may_miss: bool
) -> _T | NoJobAnswer:
    """Parse the one frame of an answer. Raises `UnexpectedAnswerError`."""
    if len(frames) != 1:
        raise UnexpectedAnswerError(f"{len(frames)} frames where one is expected")
    kind, payload = frames[0]
    match kind:
        case WorkerFrame.REFUSED:
            return NoJobAnswer(target, 1, one_line(payload.decode(errors="replace")))
        case WorkerFrame.EXIT:
            return parse(target, parse_answer(payload))
        case WorkerFrame.MISSING if may_miss and not payload:
            return parse(target, None)
        case _:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` as an answer")


# Before reconnecting to a worker.
_READ_RETRY_DELAYS = (timedelta(seconds=0.5), timedelta(seconds=2), timedelta(seconds=5))


@dataclass(slots=True)
class _OutputPosition:
    """The output to read from one worker. `at`: the position in stdout and in stderr, in bytes."""

    share: WorkerJob
    at: list[int]

    @property
    def request(self) -> dict[str, object]:
        parts = list(zip(self.at, self.share.sizes, strict=True))
        return {"do": "read", "name": self.share.job, "parts": parts}

    def move(self, index: int, size: int) -> None:
        """Advance the position by `size`. Raises `UnexpectedAnswerError` beyond the requested end."""
        self.at[index] += size
        if not size or self.at[index] > self.share.sizes[index]:
            raise UnexpectedAnswerError(f"{size} bytes of output, to {self.at[index]} of {self.share.sizes[index]}")


class JobOutputReader:
    """Reads workers and passes their output on. A broken connection is replaced, and reading continues where it broke."""

    def __init__(self, sink: OutputSink, ssh_options: Callable[[Connection], tuple[str, ...]], clock: Clock) -> None:
        self._sink, self._ssh_options, self._clock = sink, ssh_options, clock

    def read(self, shares: Sequence[WorkerJob]) -> list[NoJobAnswer]:
        """Pass on the output of jobs from `starts` to `sizes`; return the workers that could not be read.

        Memory is bounded: a worker waits for its turn with a full pipe. Raises `SshProgramMissingError`.
        """
        parts = [_OutputPosition(share, list(share.starts)) for share in shares]
        silent = []
        with ExitStack() as stack:
            sessions: dict[int, JobSession] = {}
            for index, part in enumerate(parts):
                for ahead in range(len(sessions), min(index + MAX_JOB_SESSIONS, len(parts))):
                    sessions[ahead] = stack.enter_context(self._open(parts[ahead]))
                if no_answer := self._read_worker(part, sessions[index]):
                    silent.append(no_answer)
                self._sink.ended(part.share.result)
        return silent

    def _open(self, part: _OutputPosition) -> AbstractContextManager[JobSession]:
        return open_job_session(part.share.target, part.request, self._ssh_options(part.share.target.connection))

    def _read_worker(self, part: _OutputPosition, session: JobSession) -> NoJobAnswer | None:
        """Read one worker to the end, over several connections if they break."""
        before, tries = list(part.at), 0
        no_answer = self._pass_on(part, session)
        while no_answer is not None and is_retriable_end(no_answer.code, no_answer.words, is_first=not tries):
            # No limit as long as each connection brings something.
            tries = 0 if part.at != before else tries
            if tries == len(_READ_RETRY_DELAYS):
                break
            self._clock.sleep(_READ_RETRY_DELAYS[tries])
            before, tries = list(part.at), tries + 1
            with self._open(part) as again:
                no_answer = self._pass_on(part, again)
        return no_answer

    def _pass_on(self, part: _OutputPosition, session: JobSession) -> NoJobAnswer | None:
        """Pass on the output of one connection and advance the position; return why it ended before all was read."""
        decoder, target = FrameDecoder(), part.share.target
        try:
            while data := session.read(JOB_QUERY_TIMEOUT):
                for kind, payload in decoder.feed(data):
                    match kind:
                        case WorkerFrame.OUT | WorkerFrame.ERR:
                            part.move(kind is WorkerFrame.ERR, len(payload))
                            self._sink.output(target, payload, is_error=kind is WorkerFrame.ERR)
                        case WorkerFrame.OUT_GONE | WorkerFrame.ERR_GONE:
                            gone = parse_decimal(payload, "bytes that are not stored", low=1)
                            part.move(kind is WorkerFrame.ERR_GONE, gone)
                            self._sink.note(target, f"{gone} bytes of its output are no longer stored")
                        case WorkerFrame.EXIT if not payload:
                            return None
                        case WorkerFrame.MISSING if not payload:
                            return NoJobAnswer(target, 1, "the job no longer exists")
                        case WorkerFrame.REFUSED:
                            return NoJobAnswer(target, 1, one_line(payload.decode(errors="replace")))
                        case _:
                            return NoJobAnswer.unexpected(
                                target, UnexpectedAnswerError(f"a frame `{kind.name}` within the output of the job")
                            )
        except UnexpectedAnswerError as error:
            return NoJobAnswer.unexpected(target, error)
        return NoJobAnswer(target, None if data is None else session.end(), session.words())


# Of each worker: enough for all to name the same newest job, although it was started on some of them only.
_NEWEST = 20


@dataclass(frozen=True, slots=True)
class Job:
    """A job on all workers that have it, in their order."""

    name: str
    shares: tuple[WorkerJob, ...]

    @property
    def age(self) -> timedelta:
        """Time since its start on its first worker. The workers compute it, so no two clocks are compared."""
        return max(share.age for share in self.shares)

    @property
    def began(self) -> datetime:
        """Its start, by the clock of its first worker."""
        return max(self.shares, key=lambda share: share.age).began

    @property
    def duration(self) -> timedelta | None:
        """Its longest duration so far on any worker; None if no worker knows."""
        return max((share.duration for share in self.shares if share.duration is not None), default=None)

    @property
    def command(self) -> str:
        """Its command; empty if no worker's record of it can be read."""
        return next((share.command for share in self.shares if share.command), "")

    @property
    def is_detached(self) -> bool | None:
        """Whether it continues without a client; None if no worker's record of that can be read."""
        return next((share.is_detached for share in self.shares if share.is_detached is not None), None)

    @property
    def is_followed(self) -> bool:
        """Whether a client streams its output now."""
        return any(share.is_followed for share in self.shares)

    @property
    def is_running(self) -> bool:
        """Whether it runs on any worker."""
        return any(share.state is JobState.RUNNING for share in self.shares)


@dataclass(frozen=True, slots=True)
class JobListing:
    """All jobs, the newest first; the workers that did not answer; and how many jobs were left out, at least."""

    jobs: tuple[Job, ...]
    silent: tuple[NoJobAnswer, ...] = ()
    left_out: int = 0

    @property
    def errors(self) -> list[TpuctlError]:
        """Why workers did not answer."""
        return explain_no_answers(self.silent)


def list_jobs(
    workers: JobClient, *, names: Sequence[str] = (), limit: int = _NEWEST, tail: int | None = None
) -> JobListing:
    """Ask all workers for their newest jobs, or for those in `names`. Raises `SshProgramMissingError`."""
    answers = workers.jobs(names=names, limit=limit, tail=tail)
    lists = [answer for answer in answers if not isinstance(answer, NoJobAnswer)]
    jobs = group_jobs(share for answer in lists for share in answer.shares)
    left_out = max([len(jobs) - limit, *(answer.total - len(answer.shares) for answer in lists)], default=0)
    silent = tuple(answer for answer in answers if isinstance(answer, NoJobAnswer))
    return JobListing(jobs[:limit], silent, max(0, left_out))


def group_jobs(shares: Iterable[WorkerJob]) -> tuple[Job, ...]:
    """Group the workers' answers by job; the newest job first."""
    jobs: dict[str, list[WorkerJob]] = {}
    for share in shares:
        jobs.setdefault(share.job, []).append(share)
    return tuple(sorted((Job(name, tuple(found)) for name, found in jobs.items()), key=lambda job: job.age))


def choose_job(listing: JobListing, name: str | None, nodes: str, *, running_first: bool = False) -> Job:
    """Return the job called `name`, or the newest; with `running_first` the newest that runs, if any does.

    Raises `NotFoundError`; if workers did not answer, their error instead, because their jobs are unknown.
    """
    found = [job for job in listing.jobs if name in {None, job.name}]
    running = [job for job in found if job.is_running] if running_first else []
    if found:
        return (running or found)[0]
    if listing.silent:
        raise listing.errors[0]
    raise job_not_found(name, nodes)


def job_not_found(name: str | None, nodes: str) -> NotFoundError:
    """Return the error for a job that no worker has."""
    if name is None:
        return NotFoundError(f"no jobs on `{nodes}`", hint=f"start one: `tpuctl run {nodes} --detach -- COMMAND`")
    return NotFoundError(
        f"no job `{name}` on `{nodes}`",
        hint=f"list them: `tpuctl jobs {nodes}`; the last of several words is the job",
    )


@dataclass(frozen=True, slots=True)
class JobSignalResult:
    """The job after the signal, the workers that received it, and the workers that did not answer."""

    job: Job
    sent: tuple[Target, ...]
    silent: tuple[NoJobAnswer, ...]

    @property
    def errors(self) -> list[TpuctlError]:
        """Why workers did not answer."""
        return explain_no_answers(self.silent)


@dataclass(frozen=True, slots=True)
class JobRemoval:
    """The jobs that were removed; why others that were named were not, and why workers did not answer."""

    removed: tuple[str, ...]
    errors: tuple[TpuctlError, ...]


def signal_job(workers: JobClient, name: str, number: int, *, wait: timedelta, nodes: str) -> JobSignalResult:
    """Send a signal to all processes of a job on all workers where it runs, and wait up to `wait` for its end.

    Raises `NotFoundError` if no worker has it; if workers did not answer, their error instead.
    """
    answers = workers.signal(name, number, wait=wait)
    silent = tuple(answer for answer in answers if isinstance(answer, NoJobAnswer))
    answered = [answer for answer in answers if isinstance(answer, WorkerSignalResult)]
    if not answered:
        raise explain_no_answers(silent)[0] if silent else job_not_found(name, nodes)
    sent = tuple(one.share.target for one in answered if one.was_sent)
    return JobSignalResult(Job(name, tuple(one.share for one in answered)), sent, silent)


def remove_jobs(workers: JobClient, names: Sequence[str], *, older: timedelta, nodes: str) -> JobRemoval:
    """Remove the jobs in `names`, or all that ended longer ago than `older`, with their output.

    A job that runs on any worker is removed from none. If a worker does not answer, nothing is removed. Raises
    `SshProgramMissingError`.
    """
    answers = workers.ended(names, older=older)
    if silent := [answer for answer in answers if isinstance(answer, NoJobAnswer)]:
        return JobRemoval((), tuple(explain_no_answers(silent)))
    outcomes: dict[str, dict[str, list[Target]]] = {}
    states = [answer for answer in answers if not isinstance(answer, NoJobAnswer)]
    for target, answer in zip(workers.targets, states, strict=True):
        for name, outcome in answer.items():
            outcomes.setdefault(name, {}).setdefault(outcome, []).append(target)
    errors: list[TpuctlError] = []
    for name in names:
        found = outcomes.get(name, {})
        in_use = next((one for one in ("running", "followed") if one in found), None)
        if in_use is not None:
            what, hint = {
                "running": ("runs", f"terminate it: `tpuctl kill {nodes} {name}`"),
                "followed": ("is being followed", "try again when its client has ended"),
            }[in_use]
            where = ", ".join(target.label for target in found[in_use])
            errors.append(ConflictError(f"job `{name}` {what} on worker {where}; nothing was removed", hint=hint))
        elif "ended" not in found:
            errors.append(job_not_found(name, nodes))
    ended = sorted(
        name for name, found in outcomes.items() if "ended" in found and not {"running", "followed"} & set(found)
    )
    if not ended:
        return JobRemoval((), tuple(errors))
    # Each worker removes only what it reported itself: the answer of one changes nothing on another.
    theirs = [[name for name in ended if answer.get(name) == "ended"] for answer in states]
    removed = workers.remove(theirs, older=older)
    silent = [answer for answer in removed if isinstance(answer, NoJobAnswer)]
    return JobRemoval(tuple(ended), (*errors, *explain_no_answers(silent)))


JOB_HEADER = ("JOB", "STARTED", "STATE", "DURATION", "KIND", "COMMAND")
# More workers than these are counted, not named.
_NAMED = 3
_ORDER = (JobState.RUNNING, JobState.LOST, JobState.SIGNALED, JobState.EXITED)


def job_row(job: Job) -> tuple[Cell, ...]:
    """Return the row of one job."""
    states = {share.state for share in job.shares}
    style = "green" if JobState.RUNNING in states else ""
    if states & {JobState.LOST, JobState.SIGNALED} or any(share.code for share in job.shares):
        style = "red"
    duration = Cell("")
    if job.duration is not None:
        seconds = job.duration.total_seconds()
        text = f"{seconds:.1f}s" if seconds < 10 else format_duration(job.duration)  # below it tenths matter
        duration = Cell(text, f"{seconds:.3f}")
    return (
        Cell(job.name),
        Cell(f"{format_duration(job.age)} ago", format_timestamp(job.began)),
        Cell(job_state(job.shares), style=style),
        duration,
        Cell({True: "detached", False: "followed", None: ""}[job.is_detached]),
        Cell(job.command),
    )


def job_state(shares: Sequence[WorkerJob]) -> str:
    """Return the state of a job: `running on 8 workers`, `exited 0`, `exited 1 on worker 5, exited 0 on 7 workers`."""
    groups: dict[str, list[WorkerJob]] = {}
    # Running first, then failures.
    for share in sorted(shares, key=lambda one: (_ORDER.index(one.state), one.code == 0, one.code or 0)):
        groups.setdefault(_share_state(share), []).append(share)
    if len(groups) == 1 and (len(shares) == 1 or shares[0].state is not JobState.RUNNING):
        return next(iter(groups))
    where = {how: worker_names([share.target for share in group], len(shares)) for how, group in groups.items()}
    return ", ".join(f"{how} on {place}" for how, place in where.items())


def job_json(job: Job, *, sandbox: bool) -> dict[str, Any]:
    """Return the form for scripts. Times of day are by the workers' clocks."""
    return {
        "job": job.name,
        "started": format_timestamp(job.began),
        "state": job_state(job.shares),
        "seconds": _total(job.duration),
        "detached": job.is_detached,
        "command": job.command,
        "workers": [
            {
                "nodeId": share.target.node.name.node_id,
                "zone": share.target.node.name.zone,
                "worker": share.target.worker,
                "state": str(share.state),
                "started": format_timestamp(share.began),
                "exitCode": share.code,
                "signal": share.signal,
                "seconds": _total(share.duration),
                "followed": share.is_followed,
                "stdoutBytes": share.sizes[0],
                "stderrBytes": share.sizes[1],
                **({"timedOut": True} if share.was_late else {}),
                **({"diskFull": True} if share.disk_was_full else {}),
            }
            for share in job.shares
        ],
        **({"sandbox": True} if sandbox else {}),
    }


def _share_state(share: WorkerJob) -> str:
    match share.state:
        case JobState.EXITED | JobState.SIGNALED if share.was_late:
            return f"timed out (exit {share.code})"
        case JobState.EXITED:
            return f"exited {share.code}"
        case JobState.SIGNALED:
            by = f"ended by {signal_name(share.signal or 0)}"
            return f"{by}: no client followed it" if share.was_abandoned else by
        case _:
            return str(share.state)


def worker_names(targets: Sequence[Target], total: int) -> str:
    """Return the workers by name if they are few, else their number: `worker 5`, `workers 2, 3`, `8 workers`."""
    if len(targets) > 1 and (len(targets) == total or len(targets) > _NAMED):
        return f"{len(targets)} workers"
    return f"worker{'s' if len(targets) > 1 else ''} {', '.join(target.label for target in targets)}"


def _total(duration: timedelta | None) -> float | None:
    return None if duration is None else round(duration.total_seconds(), 3)
