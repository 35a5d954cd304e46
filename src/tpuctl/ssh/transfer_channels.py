"""The ssh sessions with the copy program and the sync program on one worker, and the meaning of their ends."""

from __future__ import annotations

import json
import struct
import subprocess
import threading
import zlib
from contextlib import contextmanager, suppress
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from tpuctl.errors import RemoteCommandError
from tpuctl.platforms import enlarge_pipe
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.agent.copy_files import COPY_MARK, FrameChannel, PeerLostError
from tpuctl.ssh.agent.sync_tree import TREE_MARK
from tpuctl.ssh.answers import (
    MAX_LOGIN_BANNER,
    UnexpectedAnswerError,
    one_line,
    parse_answer,
    parse_object,
    parse_string,
)
from tpuctl.ssh.connection import (
    SSH_FAILED,
    START_TIMEOUT,
    ProbeOutcome,
    StartDeadline,
    StderrPipe,
    classify_exit,
    ssh_argv,
    start_ssh,
)
from tpuctl.ssh.control_master import is_multiplexing_message
from tpuctl.ssh.ssh_errors import is_ssh_failure_retriable, significant_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta
    from types import TracebackType

    from tpuctl.ssh.connection import Connection

# Processors have AES instructions; OpenSSH's default (chacha20) takes three times as long. The other ciphers stay allowed.
FAST_CIPHERS = "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_PIPE_SIZE = 1 << 20
_MAX_LINE = 64 * 1024
_COPY_EXIT_SECONDS = 5
_NO_PYTHON_EXIT = 127


class CopyLinkLostError(Exception):
    """The link ended before the copy did.

    `is_final`: another link would fail in the same way. `ssh_stderr` is the stderr of an ssh that could not log in.
    """

    def __init__(self, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.is_final = detail, is_final
        self.ssh_stderr = ""


class CopyChannel(FrameChannel):
    """The frames to and from the copy program on a worker."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        super().__init__(process.stdout, process.stdin.fileno())
        self._process = process

    def terminate(self) -> None:
        """Terminate ssh, which unblocks the threads that read or write."""
        self._process.terminate()


class CopyLinks:
    """All links of a run. Limits parallel handshakes, and can terminate all links at once."""

    def __init__(self, fanout: int, *, start_within: timedelta = START_TIMEOUT) -> None:
        self._start_within = start_within
        self._handshakes = threading.Semaphore(fanout)
        self._lock = threading.Lock()
        self._open: set[subprocess.Popen[bytes]] = set()
        self._is_terminated = False

    def terminate_all(self) -> None:
        """Terminate every link, and allow no new ones."""
        with self._lock:
            self._is_terminated = True
            for process in self._open:
                process.terminate()

    @contextmanager
    def open(self, connection: Connection, call: str) -> Iterator[CopyChannel]:
        """Start the copy program on a worker with the Python line `call`, and yield the channel to it.

        Raises `CopyLinkLostError` if the link fails or breaks, `UnexpectedAnswerError`, and `SshProgramMissingError`.
        """
        with StderrPipe() as errors:
            with self._handshakes:
                process, channel = self._start(connection, call, errors)
            try:
                yield channel
            except PeerLostError as error:
                raise self._lost_error(process, errors) from error
            except BaseException:
                channel.terminate()
                raise
            finally:
                self._close(process)

    def _start(
        self, connection: Connection, call: str, errors: StderrPipe
    ) -> tuple[subprocess.Popen[bytes], CopyChannel]:
        line, source = bootstrap("copy_files", call)
        words = ssh_argv(connection, (line,), options=("-o", "BatchMode=yes", "-o", FAST_CIPHERS))
        with self._lock:
            if self._is_terminated:
                raise CopyLinkLostError("the copy was interrupted", is_final=True)
            process = start_ssh(words, stderr=errors.writer, bufsize=-1)
            self._open.add(process)
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        limit = StartDeadline(process, self._start_within)
        for pipe in (process.stdin, process.stdout):
            enlarge_pipe(pipe.fileno(), _PIPE_SIZE)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(source)
                process.stdin.flush()
            has_begun = _skip_banner(process.stdout)
        except BaseException:
            process.terminate()
            self._close(process)
            raise
        finally:
            limit.cancel()
        if not has_begun:
            dropped = (
                CopyLinkLostError(str(limit), is_final=True) if limit.has_passed else self._lost_error(process, errors)
            )
            self._close(process)
            if process.returncode == SSH_FAILED:
                dropped.ssh_stderr = errors.text().strip()
            raise dropped
        return process, CopyChannel(process)

    def _lost_error(self, process: subprocess.Popen[bytes], errors: StderrPipe) -> CopyLinkLostError:
        """Return the error for a link that ended, with the message of ssh."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_COPY_EXIT_SECONDS)
        code = process.poll()
        said = errors.text().strip()
        if code == SSH_FAILED:
            result = classify_exit(code, said)
            final = result.outcome in {ProbeOutcome.KEY_REFUSED, ProbeOutcome.HOST_KEY_CHANGED}
            return CopyLinkLostError(result.detail or "the connection was lost", is_final=final or self._is_terminated)
        if code == _NO_PYTHON_EXIT:
            return CopyLinkLostError("the worker has no `python3`, which the copy needs", is_final=True)
        if code is not None and code > 0:
            lines = said.strip().splitlines()
            return CopyLinkLostError(lines[-1] if lines else f"the copy program exited with {code}", is_final=True)
        return CopyLinkLostError("the connection was lost", is_final=self._is_terminated)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._open.discard(process)
        # Buffered data cannot be sent any more.
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        try:
            process.wait(_COPY_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _skip_banner(stream: IO[bytes]) -> bool:
    """Skip what the login shell prints, and tell whether the copy program has started."""
    skipped = 0
    while line := stream.readline(_MAX_LINE):
        if line.endswith(COPY_MARK):
            return True
        skipped += len(line)
        if skipped > MAX_LOGIN_BANNER:
            raise UnexpectedAnswerError(f"more than {MAX_LOGIN_BANNER} bytes before its answer")
    return False


_SYNC_EXIT_SECONDS = 5.0
_NO_PYTHON = 127
_MAX_REASON = 200
_MAX_ERROR = 16 * 1024
# The longest frame that is read after a worker hung up: its error, or a late answer.
_MAX_LAST_FRAME = 4 << 20


class NotSyncedError(RemoteCommandError):
    """A worker could not be synced. `may_retry`: it was unreachable, or the connection broke, so a retry may succeed.

    `ssh_stderr` is the stderr of an ssh that could not log in, else None.
    """

    def __init__(self, message: str, *, may_retry: bool = False, ssh_stderr: str | None = None) -> None:
        super().__init__(message)
        self.may_retry, self.ssh_stderr = may_retry, ssh_stderr


def encode_frame(value: dict[str, Any]) -> bytes:
    """Return what the program on a worker reads as one message."""
    text = zlib.compress(json.dumps(value).encode("ascii"), 1)
    return struct.pack(">Q", len(text)) + text


class SyncProcesses:
    """The running processes of a sync. Thread-safe."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_terminated = False

    def start(
        self, words: Sequence[str], *, stderr: StderrPipe, stdin: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start a program with a pipe as stdout. Raises `SshProgramMissingError`, `NotSyncedError` after `terminate_all`."""
        with self._lock:
            if self._is_terminated:
                raise NotSyncedError("interrupted")
            process = start_ssh(words, stdin=stdin, stderr=stderr.writer, bufsize=-1)
            self._running = {one for one in self._running if one.poll() is None} | {process}
            return process

    def terminate_all(self) -> None:
        """Terminate all processes, and allow no new ones."""
        with self._lock:
            self._is_terminated = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()


class SyncSession:
    """The session with the program on one worker. Raises `NotSyncedError` if the program ends early or reports an error."""

    def __init__(
        self,
        sessions: SyncProcesses,
        connection: Connection,
        line: str,
        *,
        options: tuple[str, ...] = (),
        start_within: timedelta = START_TIMEOUT,
    ) -> None:
        words = ssh_argv(connection, (line,), options=("-o", "BatchMode=yes", "-o", "Compression=yes", *options))
        self._errors = StderrPipe()
        try:
            self._process = sessions.start(words, stderr=self._errors)
        except BaseException:
            self._errors.close()
            raise
        self._has_started = False
        self._limit = StartDeadline(self._process, start_within)

    def __enter__(self) -> SyncSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.cancel()
        if error is not None:
            self._process.terminate()
        self._wait_for_exit()
        self._errors.close()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def send_message(self, value: dict[str, Any]) -> None:
        """Send one message."""
        self.send([encode_frame(value)])

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send bytes."""
        stream = self._process.stdin
        if stream is None:
            raise AssertionError("the session was started with a pipe")
        try:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
        except (BrokenPipeError, ConnectionResetError):
            # The program has ended; perhaps it sent an error.
            self.receive(longest=_MAX_LAST_FRAME)
            raise self._closed_error() from None

    def receive(self, *, longest: int) -> dict[str, Any]:
        """Return the next message. Skips the output of the login shell before the first. Raises `UnexpectedAnswerError`."""
        stream = self._process.stdout
        if stream is None:
            raise AssertionError("the session was started with a pipe")
        if not self._has_started:
            self._skip_banner(stream)
        head = stream.read(8)
        size = int.from_bytes(head, "big")
        if size > longest:
            raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {longest} are expected")
        text = stream.read(size)
        if len(head) < 8 or len(text) < size:
            raise self._closed_error()
        value = parse_object(parse_answer(text, longest=longest, deepest=2), "answer")
        if "error" in value:
            raise NotSyncedError(parse_string(value["error"], "error", longest=_MAX_ERROR))
        return value

    def _skip_banner(self, stream: IO[bytes]) -> None:
        tail, skipped = b"", 0
        while not tail.endswith(TREE_MARK):
            line = stream.readline(MAX_LOGIN_BANNER)
            skipped += len(line)
            tail = (tail + line)[-2 * len(TREE_MARK) :]
            if not line:
                raise self._closed_error()
            if skipped > MAX_LOGIN_BANNER:
                raise UnexpectedAnswerError(f"more than {MAX_LOGIN_BANNER} bytes before its answer")
        self._limit.cancel()
        self._has_started = True

    def _wait_for_exit(self) -> None:
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_SYNC_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _closed_error(self) -> NotSyncedError:
        """Return the error for a program that ended early."""
        self._wait_for_exit()
        if self._limit.has_passed:
            return NotSyncedError(str(self._limit))
        code = self._process.returncode
        lines = self._errors.text().splitlines(keepends=True)
        stderr = "".join(line for line in lines if not is_multiplexing_message(line.strip()))
        if code == SSH_FAILED and not self._has_started:
            return NotSyncedError(
                significant_line(stderr),
                may_retry=is_ssh_failure_retriable(stderr) or not stderr.strip(),
                ssh_stderr=stderr,
            )
        if code == SSH_FAILED:
            return NotSyncedError(significant_line(stderr) or "the connection broke", may_retry=True)
        if code == _NO_PYTHON:
            return NotSyncedError("the worker has no `python3`")
        last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
        why = one_line(last, longest=_MAX_REASON)
        return NotSyncedError(
            f"the sync program on the worker exited with {code}" + (f": {why}" if why else ""), may_retry=code < 0
        )
