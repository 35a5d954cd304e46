"""Collect evidence for support from a worker: one ssh session, whose answer is processed as it arrives."""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, TYPE_CHECKING, Protocol

from tpuctl.remote.answers import (
    UnexpectedAnswerError,
    decimal,
    integer,
    member_of,
    number,
    parse_json,
    record,
    shown,
    string,
)
from tpuctl.remote.devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES
from tpuctl.remote.failures import telling_line
from tpuctl.remote.inspection import last_line
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.onboard.evidence_frames import EVIDENCE_MARK
from tpuctl.remote.pipes import Stderr
from tpuctl.remote.ssh import FRESH, SSH_FAILED, argv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member

# libtpu's default folder [TPU documentation]; the worker also reads `TPU_LOG_DIR`.
LOGS = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_BLOCK = 256 * 1024
# A login shell may print before the mark; no frame is longer than a piece of a file.
_NOISE = 1024 * 1024
_HEAD = 5
_LONGEST_FRAME = 1024 * 1024
_LONGEST_ABOUT, _LONGEST_PATH = 64 * 1024, 4096
_LATEST = 1e15  # seconds
_NAMES = ("path", "source")
# The worker enforces its limits itself; this one is for a worker that does not.
_SLACK = 4 * 1024 * 1024
_FAREWELL = 2.0
_ERRORS_KEPT = 8 * 1024
_NO_PYTHON = 127


@dataclass(frozen=True, slots=True)
class Order:
    """The limits: bytes in total and of one file, the maximum age of a file, and the timeout."""

    room: int
    each: int
    since: timedelta | None
    patience: timedelta


@dataclass(frozen=True, slots=True)
class Silence:
    """Why a worker sent no evidence, or not all. `ssh_said`: the stderr of ssh if it failed to connect."""

    why: str
    ssh_said: str | None = None


class Sink(Protocol):
    """Receives the evidence of a worker, file by file. None of it can be trusted, least of all the names."""

    def begin(self, path: str, source: str, size: int | None, modified: datetime | None) -> None:
        """Begin a file. `size`: its size on the worker, in bytes."""

    def take(self, data: bytes) -> None:
        """Receive bytes of the file."""

    def skip(self, size: int) -> None:
        """Record that `size` bytes are left out here."""

    def end(self) -> None:
        """End the file."""

    def lacks(self, path: str, why: str) -> None:
        """Record what is missing."""


class Visits:
    """The running sessions, terminated together on an interrupt. Thread-safe."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_over = False

    def start(self, words: list[str], *, stdin: IO[bytes], stderr: Stderr) -> subprocess.Popen[bytes] | None:
        """Start ssh; return None after `end`. Raises `SshProgramMissingError`."""
        with self._lock:
            if self._is_over:
                return None
            try:
                process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr.writer)
            except FileNotFoundError as error:
                raise SshProgramMissingError("ssh") from error
            self._running = {one for one in self._running if one.poll() is None} | {process}
            return process

    def end(self) -> None:
        """Terminate all, and start no further ones."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()


def visit(member: Member, limits: Order, sink: Sink, visits: Visits, *, clock: Clock) -> Silence | None:
    """Collect the evidence of a worker within the limits; return why it is incomplete, None if it is complete.

    The sink keeps what arrived before a failure. Uses a new connection: a shared one may be what is broken.
    Raises `SshProgramMissingError`.
    """
    request = {
        "worker": member.worker,
        "room": limits.room,
        "each": limits.each,
        "since": limits.since.total_seconds() if limits.since else None,
        # It ends by itself before the timeout, and says what is missing.
        "seconds": max(1.0, limits.patience.total_seconds() * 0.9 - 1),
        "logs": LOGS,
        "devices": [ACCEL_FILES, VFIO_FILES],
        # Run as root if that needs no password: this login cannot see what other users hold.
        "holders": bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r})")[1].decode(),
    }
    line, program = bootstrap("evidence", f"gather({request!r})")
    connecting = f"ConnectTimeout={max(1, round(limits.patience.total_seconds()))}"
    words = argv(
        member.way, (line,), options=(*FRESH, "-o", "BatchMode=yes", "-o", "Compression=yes", "-o", connecting)
    )
    with TemporaryFile() as stdin, Stderr() as errors:
        stdin.write(program)
        stdin.seek(0)
        process = visits.start(words, stdin=stdin, stderr=errors)
        if process is None:
            return Silence("interrupted")
        reader, is_late = _Hearing(sink, limits), True
        try:
            is_late = _read(process, reader, clock, clock.monotonic() + limits.patience)
        finally:
            code = _end(process, waits=not is_late)
            reader.close()
        return (
            None
            if reader.is_complete
            else _explain(reader, code, errors.text()[:_ERRORS_KEPT], limits, label=member.label, is_late=is_late)
        )


class _Hearing:
    """Decodes frames as they arrive. An invalid frame ends it; no answer of a worker makes it raise."""

    def __init__(self, sink: Sink, limits: Order) -> None:
        self._sink, self._left = sink, limits.room + _SLACK
        self._data = b""
        self.has_begun = self.is_complete = self._is_in_file = False
        self.error: UnexpectedAnswerError | None = None

    def take(self, data: bytes) -> bool:
        """Process data; return false if no more is needed."""
        self._data += data
        self._left -= len(data)
        if not self.has_begun:
            at = self._data.find(EVIDENCE_MARK)
            if at < 0:
                return len(self._data) <= _NOISE
            self.has_begun, self._data = True, self._data[at + len(EVIDENCE_MARK) :]
        try:
            for kind, payload in self._frames():
                self._process(kind, payload)
        except UnexpectedAnswerError as error:
            self.error = error
        return not self.is_complete and self.error is None and self._left > 0

    def close(self) -> None:
        """End the current file."""
        if self._is_in_file:
            self._is_in_file = False
            self._sink.end()

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        at = 0
        while len(self._data) - at >= _HEAD:
            size = int.from_bytes(self._data[at + 1 : at + _HEAD], "big")
            if size > _LONGEST_FRAME:
                raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {_LONGEST_FRAME} are expected")
            if len(self._data) - at < _HEAD + size:
                break
            yield self._data[at : at + 1], self._data[at + _HEAD : at + _HEAD + size]
            at += _HEAD + size
        self._data = self._data[at:]

    def _process(self, kind: bytes, payload: bytes) -> None:
        match kind:
            case b"f":
                about = record(parse_json(payload, longest=_LONGEST_ABOUT, deepest=1), "file")
                path, source = (string(member_of(about, name, "file"), name, longest=_LONGEST_PATH) for name in _NAMES)
                size, modified = member_of(about, "size", "file"), member_of(about, "modified", "file")
                size = None if size is None else integer(size, "size")
                when = None
                if modified is not None:
                    seconds = number(modified, "modified", low=-_LATEST, high=_LATEST)
                    with suppress(ValueError, OverflowError, OSError):  # no calendar has that time
                        when = datetime.fromtimestamp(seconds, UTC)
                self.close()
                self._sink.begin(path, source, size, when)
                self._is_in_file = True
            case b"d" if self._is_in_file:
                self._sink.take(payload)
            case b"c" if self._is_in_file:
                self._sink.skip(decimal(payload, "left out"))
            case b"e":
                self.close()
            case b"n":
                lack = record(parse_json(payload, longest=_LONGEST_ABOUT, deepest=1), "lack")
                self._sink.lacks(
                    *(string(member_of(lack, name, "lack"), name, longest=_LONGEST_PATH) for name in ("path", "why"))
                )
            case b"z":
                self.is_complete = True
            case _:
                raise UnexpectedAnswerError(f"a frame {shown(kind)} out of order")


def _read(process: subprocess.Popen[bytes], reader: _Hearing, clock: Clock, until: timedelta) -> bool:
    """Read a session to its end, or until no more is needed; return true after a timeout."""
    if process.stdout is None:
        raise AssertionError("it was opened as a pipe")
    file = process.stdout.fileno()
    while (left := (until - clock.monotonic()).total_seconds()) > 0:
        # `select.select` is limited to descriptors below 1024, and there may be many sessions.
        poll = select.poll()
        poll.register(file, select.POLLIN | select.POLLHUP)
        if not poll.poll(left * 1000):
            break
        data = os.read(file, _BLOCK)
        if not data or not reader.take(data):
            return False
    return True


def _end(process: subprocess.Popen[bytes], *, waits: bool) -> int:
    """Terminate ssh, after waiting for its end if `waits`, and return its exit code."""
    if process.stdout is not None:
        process.stdout.close()
    if waits:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_FAREWELL)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_FAREWELL)
    process.kill()
    return process.wait()


def _explain(reader: _Hearing, code: int, words: str, limits: Order, *, label: str, is_late: bool) -> Silence:
    """Return why the evidence of a worker is incomplete."""
    if is_late:
        what = "incomplete" if reader.has_begun else "no answer"
        return Silence(f"{what} within {limits.patience.total_seconds():.0f} s")
    if reader.error:
        return Silence(reader.error.of(label).message)
    if reader.has_begun:
        return Silence("the connection broke" if code else "it sent more than was requested")
    if code == SSH_FAILED:
        return Silence(telling_line(words) or "ssh failed", words)
    if code == _NO_PYTHON:
        return Silence("`python3` is not installed on it")
    said = last_line(words)
    return Silence(f"collection failed: {said}" if said else f"collection failed: exit {code}")
