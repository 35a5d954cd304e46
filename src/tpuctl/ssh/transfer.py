"""The ssh session with a program that stores or sends files on a worker, and the meaning of its end."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Set
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from threading import Lock, Semaphore
from typing import IO, TYPE_CHECKING, Any, TypeVar

from tpuctl.errors import RemoteCommandError, TpuctlError
from tpuctl.platforms import enlarge_pipe
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.agent.file_stream import MARK, PeerLostError, RefusedError, Stream, digest
from tpuctl.ssh.answers import (
    MAX_LOGIN_BANNER,
    UnexpectedAnswerError,
    one_line,
    parse_answer,
    parse_array,
    parse_choice,
    parse_integer,
    parse_string,
    preview,
)
from tpuctl.ssh.connection import (
    NEW_CONNECTION,
    SSH_FAILED,
    START_TIMEOUT,
    StartDeadline,
    StderrPipe,
    ssh_argv,
    start_ssh,
    terminate_process,
)
from tpuctl.ssh.control_master import is_multiplexing_message
from tpuctl.ssh.ssh_errors import (
    collect_failure_context,
    explain_ssh_failures,
    is_ssh_failure_retriable,
    significant_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Connection, Target

    ResultT = TypeVar("ResultT")

# Processors have AES instructions; OpenSSH's default (chacha20) takes three times as long. The other ciphers stay allowed.
_FAST_CIPHERS = ("-o", "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com")
_PIPE_SIZE = 1 << 20
_EXIT_SECONDS = 5.0
_NO_PYTHON = 127
_MAX_LINE = 64 * 1024
_MAX_TEXT = 16 * 1024
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KINDS = ("missing", "folder", "refused", "target", "new folder", "full", "read-only", "disk")


class TransferBrokenError(RemoteCommandError):
    """The transfer of one worker ended early. `may_retry`: the connection broke, so another one may succeed.

    `ssh_stderr` is the stderr of an ssh that could not log in, else None.
    """

    def __init__(
        self, message: str, *, may_retry: bool = False, ssh_stderr: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.may_retry, self.ssh_stderr = may_retry, ssh_stderr


class Processes:
    """The running processes of a command, of which at most `fanout` log in at once. Thread-safe."""

    def __init__(self, fanout: int = 64) -> None:
        self.logins = Semaphore(fanout)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_terminated = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        """Terminate all processes, and allow no new ones."""
        with self._lock:
            self._is_terminated = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()

    def start(
        self, words: Sequence[str], *, stderr: StderrPipe, stdin: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start a program with a pipe as stdout. Raises `SshProgramMissingError`, `TransferBrokenError` after the end."""
        with self._lock:
            if self._is_terminated:
                raise TransferBrokenError("interrupted")
            process = start_ssh(words, stdin=stdin, stderr=stderr.writer, bufsize=-1)
            self._running = {one for one in self._running if one.poll() is None} | {process}
            return process


class WorkerStream(Stream):
    """The stream to a worker, which is not trusted: all that it sends is limited and checked."""

    def write(self, data: bytes) -> None:
        """Send bytes, perhaps together with later ones. Raises `PeerLostError`, or what the worker said before it hung up."""
        try:
            super().write(data)
        except PeerLostError:
            self.receive()
            raise

    def receive(self, *, longest: int = _MAX_LINE) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`, `UnexpectedAnswerError`, and `RefusedError` if the worker says so."""
        with suppress(PeerLostError):  # as above
            self.flush()
        line = self.reader.readline(longest + 1)
        if len(line) > longest:
            raise UnexpectedAnswerError(f"a line of more than {longest} bytes")
        if not line.endswith(b"\n"):
            raise PeerLostError
        value = parse_answer(line, longest=longest, deepest=3)
        if isinstance(value, dict) and "refused" in value:
            kind, message = parse_row(value["refused"], "refused", 2)
            raise RefusedError(parse_choice(kind, "kind", _KINDS), parse_string(message, "message", longest=_MAX_TEXT))
        return value

    def receive_problem(self) -> str | None:
        """Return why a file is not whole; None if it is."""
        value = self.receive()
        return None if value is None else parse_string(value, "problem", longest=_MAX_TEXT)

    def begin(self, source: bytes) -> None:
        """Send the program, and skip what the login shell prints before it. Raises `PeerLostError`."""
        for pipe in (self.reader, self.writer):
            enlarge_pipe(pipe.fileno(), _PIPE_SIZE)
        super().write(source)
        super().flush()
        skipped, line = 0, b""
        while not line.endswith(MARK):
            line = self.reader.readline(_MAX_LINE)
            skipped += len(line)
            if not line:
                raise PeerLostError
            if skipped > MAX_LOGIN_BANNER:
                raise UnexpectedAnswerError(f"more than {MAX_LOGIN_BANNER} bytes before its answer")


@contextmanager
def open_transfer(
    processes: Processes,
    connection: Connection,
    program: str,
    call: str,
    *,
    options: tuple[str, ...] = (),
    on_bytes: Callable[[int], None] = lambda size: None,  # noqa: ARG005  # no listener
    start_within: timedelta = START_TIMEOUT,
) -> Iterator[WorkerStream]:
    """Start a program of `ssh/agent` on a worker with the Python line `call`, and yield the stream to it.

    Raises `TransferBrokenError` if the program ends early, `UnexpectedAnswerError`, and `SshProgramMissingError`.
    """
    line, source = bootstrap(program, call)
    words = ssh_argv(connection, (line,), options=("-o", "BatchMode=yes", *_FAST_CIPHERS, *options))
    with StderrPipe() as errors, ExitStack() as login:
        login.enter_context(processes.logins)
        process = processes.start(words, stderr=errors)
        stream = WorkerStream(process.stdout, process.stdin, on_bytes)
        limit = StartDeadline(process, start_within)
        has_begun = False
        try:
            stream.begin(source)
            limit.cancel()
            login.close()
            has_begun = True
            yield stream
        except PeerLostError as error:
            _close(process)
            raise _broken_error(process, errors, limit, has_begun=has_begun) from error
        except BaseException:
            terminate_process(process)
            raise
        finally:
            limit.cancel()
            _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe:
                pipe.close()
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _broken_error(
    process: subprocess.Popen[bytes], errors: StderrPipe, limit: StartDeadline, *, has_begun: bool
) -> TransferBrokenError:
    """Return the error for a program that ended early."""
    if limit.has_passed:
        return TransferBrokenError(str(limit))
    code = process.returncode
    lines = errors.text().splitlines(keepends=True)
    stderr = "".join(line for line in lines if not is_multiplexing_message(line.strip()))
    lost = significant_line(stderr) or "the connection was lost"
    if code == SSH_FAILED and not has_begun:
        is_silent = not stderr.strip()
        may_retry = is_silent or is_ssh_failure_retriable(stderr)
        return TransferBrokenError(lost, may_retry=may_retry, ssh_stderr=None if is_silent else stderr)
    if code == SSH_FAILED or code <= 0:
        return TransferBrokenError(lost, may_retry=True)
    if code == _NO_PYTHON:
        return TransferBrokenError("the worker has no `python3`")
    last = one_line(next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), ""), longest=200)
    return TransferBrokenError(f"the program on the worker exited with {code}" + (f": {last}" if last else ""))


def explain_failed_logins(
    failed: Sequence[tuple[Target, TpuctlError]], *, accepted_elsewhere: bool
) -> tuple[list[TpuctlError], list[tuple[Target, TpuctlError]]]:
    """Return an error for each cause of failed logins, and the workers that failed for other reasons."""
    unreached: list[tuple[Target, str]] = []
    others: list[tuple[Target, TpuctlError]] = []
    for target, error in failed:
        if isinstance(error, TransferBrokenError) and error.ssh_stderr is not None:
            unreached.append((target, error.ssh_stderr))
        else:
            others.append((target, error))
    if not unreached:
        return [], others
    context = collect_failure_context(unreached[0][0], accepted_elsewhere=accepted_elsewhere or bool(others))
    return [*explain_ssh_failures(unreached, context)], others


class LocalDigests:
    """Digests of local files, each of which is read once for all workers. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[bytes, str | None] = {}
        self._lock = Lock()

    def get(self, path: bytes) -> str | None:
        """Return the digest of a file's contents. None if it cannot be read."""
        with self._lock:
            if path not in self._known:
                self._known[path] = None
                with suppress(OSError):
                    self._known[path] = digest(path)
            return self._known[path]


def parse_row(value: Any, where: str, length: int) -> list[Any]:  # JSON
    """Check that a value is an array of so many values, and return it."""
    row = parse_array(value, where, most=length)
    if len(row) < length:
        raise UnexpectedAnswerError(f"{where}: {len(row)} values where {length} are expected")
    return row


def parse_numbers(value: Any, where: str, allowed: Set[int]) -> list[int]:  # JSON
    """Check that a value is an array of numbers of entries, each of which is allowed and occurs once, and return it."""
    numbers = [parse_integer(number, where) for number in parse_array(value, where, most=len(allowed))]
    if len(set(numbers)) < len(numbers) or not allowed >= set(numbers):
        raise UnexpectedAnswerError(f"{where}: numbers of entries that are not allowed")
    return numbers


def parse_pairs(value: Any, where: str, allowed: Set[int]) -> dict[int, Any]:  # JSON
    """Check that a value is an array of pairs, of a number of an entry and another value, and return these by number."""
    rows = [parse_row(row, where, 2) for row in parse_array(value, where, most=len(allowed))]
    return dict(
        zip(parse_numbers([number for number, _ in rows], where, allowed), (one for _, one in rows), strict=True)
    )


def parse_digest(value: Any, where: str) -> str:  # JSON
    """Check that a value is a digest, and return it."""
    if not _DIGEST.fullmatch(parse_string(value, where, longest=64)):
        raise UnexpectedAnswerError(f"{where}: {preview(value)} is not a digest")
    text: str = value
    return text


_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8))
# A worker that takes a little more each time and hangs up would never finish.
_MAX_LINKS = 1000


def with_retries(
    attempt: Callable[[tuple[str, ...]], ResultT],
    kept: Callable[[], int],
    *,
    options: tuple[str, ...] = (),
    clock: Clock,
    pauses: Sequence[timedelta] = _PAUSES,
) -> ResultT:
    """Call `attempt` with ssh options until it returns, or fails as often as there are pauses without progress.

    `kept`: the bytes that the other end had at the last attempt. Raises what the last attempt raised.
    """
    failures, before = 0, 0
    for _ in range(_MAX_LINKS - 1):
        try:
            return attempt(options)
        except TransferBrokenError as error:
            # Only confirmed bytes count: bytes that were sent may be lost each time.
            failures = 1 if kept() > before else failures + 1
            before = max(before, kept())
            if not error.may_retry or failures > len(pauses):
                raise
            clock.sleep(pauses[failures - 1])
            # A shared connection may be the reason.
            options = NEW_CONNECTION
    return attempt(options)
