"""The programs that a sync has started: ssh and rsync, all ended together when it is interrupted."""

from __future__ import annotations

import json
import struct
import subprocess
import zlib
from contextlib import suppress
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from tpuctl.remote.answers import LONGEST_BANNER, UnexpectedAnswerError, parse_json, record, string
from tpuctl.remote.failures import is_retriable, telling_line
from tpuctl.remote.inspection import last_line
from tpuctl.remote.kept import is_about_keeping
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard.tree import MARK
from tpuctl.remote.pipes import START_WITHIN, StartLimit, Stderr
from tpuctl.remote.session import SSH_FAILED
from tpuctl.remote.ssh import argv
from tpuctl.remote.syncing.values import NotSyncedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from tpuctl.remote.ssh import Connection

_FAREWELL = 5.0
_NO_PYTHON = 127
_LONGEST_ERROR = 16 * 1024
# What is read from a worker that hangs up: its error, or an answer that came too late.
_LONGEST_LAST = 4 << 20


def frame(value: dict[str, Any]) -> bytes:
    """Return what the program on a worker reads as one message."""
    text = zlib.compress(json.dumps(value).encode("ascii"), 1)
    return struct.pack(">Q", len(text)) + text


class Sessions:
    """What was started and has not ended. Safe for several threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_over = False

    def start(
        self, words: Sequence[str], *, stderr: Stderr, stdin: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start a program that writes to a pipe. Raises `SshProgramMissingError`, and `NotSyncedError` after the end."""
        with self._lock:
            if self._is_over:
                raise NotSyncedError("interrupted")
            try:
                process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr.writer)
            except FileNotFoundError as error:
                raise SshProgramMissingError(words[0]) from error
            self._running = {one for one in self._running if one.poll() is None} | {process}
            return process

    def end(self) -> None:
        """End all, and let none start any more."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()


class Session:
    """A talk with the program on one worker. Raises `NotSyncedError` where it ends before its time, or refuses."""

    def __init__(
        self,
        sessions: Sessions,
        way: Connection,
        line: str,
        *,
        options: tuple[str, ...] = (),
        start_within: timedelta = START_WITHIN,
    ) -> None:
        words = argv(way, (line,), options=("-o", "BatchMode=yes", "-o", "Compression=yes", *options))
        self._errors = Stderr()
        try:
            self._process = sessions.start(words, stderr=self._errors)
        except BaseException:
            self._errors.close()
            raise
        self._begun = False
        self._limit = StartLimit(self._process, start_within)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.met()
        if error is not None:
            self._process.terminate()
        self._end()
        self._errors.close()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def say(self, value: dict[str, Any]) -> None:
        """Send a frame."""
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
            # It has ended; perhaps it said why.
            self.hear(longest=_LONGEST_LAST)
            raise self._ending() from None

    def hear(self, *, longest: int) -> dict[str, Any]:
        """Return the next frame; the first one follows whatever a login shell printed. Raises `UnexpectedAnswerError`."""
        stream = self._process.stdout
        if stream is None:
            raise AssertionError("the session was started with a pipe")
        if not self._begun:
            self._begin(stream)
        head = stream.read(8)
        size = int.from_bytes(head, "big")
        if size > longest:
            raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {longest} are expected")
        text = stream.read(size)
        if len(head) < 8 or len(text) < size:
            raise self._ending()
        value = record(parse_json(text, longest=longest, deepest=2), "answer")
        if "error" in value:
            raise NotSyncedError(string(value["error"], "error", longest=_LONGEST_ERROR))
        return value

    def _begin(self, stream: IO[bytes]) -> None:
        said, noise = b"", 0
        while not said.endswith(MARK):
            line = stream.readline(LONGEST_BANNER)
            noise += len(line)
            said = (said + line)[-2 * len(MARK) :]
            if not line:
                raise self._ending()
            if noise > LONGEST_BANNER:
                raise UnexpectedAnswerError(f"more than {LONGEST_BANNER} bytes before its answer")
        self._limit.met()
        self._begun = True

    def _end(self) -> None:
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ending(self) -> NotSyncedError:
        """Return why the program fell silent."""
        self._end()
        if self._limit.has_passed:
            return NotSyncedError(str(self._limit))
        code = self._process.returncode
        lines = self._errors.text().splitlines(keepends=True)
        said = "".join(line for line in lines if not is_about_keeping(line.strip()))
        if code == SSH_FAILED and not self._begun:
            return NotSyncedError(telling_line(said), may_pass=is_retriable(said) or not said.strip(), ssh_said=said)
        if code == SSH_FAILED:
            return NotSyncedError(telling_line(said) or "the link broke", may_pass=True)
        if code == _NO_PYTHON:
            return NotSyncedError("there is no `python3` on the worker")
        why = last_line(said)
        return NotSyncedError(f"its end of the sync ended with {code}" + (f": {why}" if why else ""), may_pass=code < 0)
