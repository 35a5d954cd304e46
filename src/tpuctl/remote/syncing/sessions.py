"""The ssh and rsync processes of a sync, which an interrupt terminates together, and the session with the worker program."""

from __future__ import annotations

import json
import struct
import subprocess
import zlib
from contextlib import suppress
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from tpuctl.errors import RemoteCommandError
from tpuctl.remote.answers import LONGEST_BANNER, UnexpectedAnswerError, one_line, parse_json, record, string
from tpuctl.remote.failures import is_retriable, telling_line
from tpuctl.remote.kept import is_about_keeping
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard.tree import MARK
from tpuctl.remote.pipes import START_WITHIN, StartLimit, Stderr
from tpuctl.remote.ssh import SSH_FAILED, argv

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from tpuctl.remote.ssh import Connection

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


def frame(value: dict[str, Any]) -> bytes:
    """Return what the program on a worker reads as one message."""
    text = zlib.compress(json.dumps(value).encode("ascii"), 1)
    return struct.pack(">Q", len(text)) + text


class Sessions:
    """The running processes of a sync. Thread-safe."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_terminated = False

    def start(
        self, words: Sequence[str], *, stderr: Stderr, stdin: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start a program with a pipe as stdout. Raises `SshProgramMissingError`, `NotSyncedError` after `terminate_all`."""
        with self._lock:
            if self._is_terminated:
                raise NotSyncedError("interrupted")
            try:
                process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr.writer)
            except FileNotFoundError as error:
                raise SshProgramMissingError(words[0]) from error
            self._running = {one for one in self._running if one.poll() is None} | {process}
            return process

    def terminate_all(self) -> None:
        """Terminate all processes, and allow no new ones."""
        with self._lock:
            self._is_terminated = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()


class Session:
    """The session with the program on one worker. Raises `NotSyncedError` if the program ends early or reports an error."""

    def __init__(
        self,
        sessions: Sessions,
        connection: Connection,
        line: str,
        *,
        options: tuple[str, ...] = (),
        start_within: timedelta = START_WITHIN,
    ) -> None:
        words = argv(connection, (line,), options=("-o", "BatchMode=yes", "-o", "Compression=yes", *options))
        self._errors = Stderr()
        try:
            self._process = sessions.start(words, stderr=self._errors)
        except BaseException:
            self._errors.close()
            raise
        self._has_started = False
        self._limit = StartLimit(self._process, start_within)

    def __enter__(self) -> Session:
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
        self.send([frame(value)])

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
        value = record(parse_json(text, longest=longest, deepest=2), "answer")
        if "error" in value:
            raise NotSyncedError(string(value["error"], "error", longest=_MAX_ERROR))
        return value

    def _skip_banner(self, stream: IO[bytes]) -> None:
        tail, skipped = b"", 0
        while not tail.endswith(MARK):
            line = stream.readline(LONGEST_BANNER)
            skipped += len(line)
            tail = (tail + line)[-2 * len(MARK) :]
            if not line:
                raise self._closed_error()
            if skipped > LONGEST_BANNER:
                raise UnexpectedAnswerError(f"more than {LONGEST_BANNER} bytes before its answer")
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
        stderr = "".join(line for line in lines if not is_about_keeping(line.strip()))
        if code == SSH_FAILED and not self._has_started:
            return NotSyncedError(
                telling_line(stderr), may_retry=is_retriable(stderr) or not stderr.strip(), ssh_stderr=stderr
            )
        if code == SSH_FAILED:
            return NotSyncedError(telling_line(stderr) or "the connection broke", may_retry=True)
        if code == _NO_PYTHON:
            return NotSyncedError("the worker has no `python3`")
        last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
        why = one_line(last, longest=_MAX_REASON)
        return NotSyncedError(
            f"the sync program on the worker exited with {code}" + (f": {why}" if why else ""), may_retry=code < 0
        )
