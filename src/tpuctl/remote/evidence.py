"""Asking a worker for what support would want to see: one ssh session, whose answer is taken as it comes."""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Protocol

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

# libtpu's default folder [TPU documentation]; `TPU_LOG_DIR` names another, which the worker looks up itself.
LOGS = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_BLOCK = 256 * 1024
# A login shell may print something first; a frame is never longer than a piece of a file.
_NOISE = 1024 * 1024
_HEAD = 5
_LONGEST_FRAME = 1024 * 1024
_LONGEST_ABOUT, _LONGEST_PATH = 64 * 1024, 4096
_LATEST = 1e15  # seconds
_NAMES = ("path", "source")
# The worker keeps its bounds itself; one that does not is not listened to for ever.
_SLACK = 4 * 1024 * 1024
_FAREWELL = 2.0
_ERRORS_KEPT = 8 * 1024
_NO_PYTHON = 127


@dataclass(frozen=True, slots=True)
class Order:
    """How much is wanted: bytes in all and of one file, how old it may be, and until when the worker has time."""

    room: int
    each: int
    since: timedelta | None
    patience: timedelta


@dataclass(frozen=True, slots=True)
class Silence:
    """Why a worker told nothing, or not all. `ssh_said` is what ssh printed where it did not get in."""

    why: str
    ssh_said: str | None = None


class Sink(Protocol):
    """Takes what a worker tells, file after file. Nothing of it can be trusted, least of all the names."""

    def begin(self, path: str, source: str, size: int | None, modified: datetime | None) -> None:
        """Begin a file. `size` is that on the worker, in bytes."""

    def take(self, data: bytes) -> None:
        """Take bytes of it."""

    def skip(self, size: int) -> None:
        """Note that so many bytes are left out here."""

    def end(self) -> None:
        """End the file that was begun."""

    def lacks(self, path: str, why: str) -> None:
        """Note what could not be had."""


class Visits:
    """The sessions under way, all ended together when it is interrupted. Safe for several threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_over = False

    def start(self, words: list[str], *, stdin: IO[bytes], stderr: Stderr) -> subprocess.Popen[bytes] | None:
        """Start ssh; nothing after the end. Raises `SshProgramMissingError`."""
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
        """End all, and let none start any more."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()


def visit(member: Member, order: Order, sink: Sink, visits: Visits, *, clock: Clock) -> Silence | None:
    """Have a worker tell what there is, within the order's bounds; nothing where it told all, else why it did not.

    What was told by then counts. The connection is a new one: one that is kept may be what is broken.
    Raises `SshProgramMissingError`.
    """
    line, program = bootstrap("evidence", f"gather({_wish(member, order)!r})")
    connecting = f"ConnectTimeout={max(1, round(order.patience.total_seconds()))}"
    words = argv(
        member.way, (line,), options=(*FRESH, "-o", "BatchMode=yes", "-o", "Compression=yes", "-o", connecting)
    )
    with TemporaryFile() as stdin, Stderr() as errors:
        stdin.write(program)
        stdin.seek(0)
        process = visits.start(words, stdin=stdin, stderr=errors)
        if process is None:
            return Silence("interrupted")
        hearing, is_late = _Hearing(sink, order), True
        try:
            is_late = _hear(process, hearing, clock, clock.monotonic() + order.patience)
        finally:
            code = _end(process, waits=not is_late)
            hearing.close()
        return (
            None
            if hearing.is_whole
            else _silence(hearing, code, errors.text()[:_ERRORS_KEPT], order, label=member.label, is_late=is_late)
        )


def _wish(member: Member, order: Order) -> dict[str, Any]:
    return {
        "worker": member.worker,
        "room": order.room,
        "each": order.each,
        "since": order.since.total_seconds() if order.since else None,
        # It is to end by itself, and to say what is missing.
        "seconds": max(1.0, order.patience.total_seconds() * 0.9 - 1),
        "logs": LOGS,
        "devices": [ACCEL_FILES, VFIO_FILES],
        # As root where that needs no password: what others hold is hidden from this login.
        "holders": bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r})")[1].decode(),
    }


class _Hearing:
    """Frames as they come. What is not understood ends it: nothing that a worker says makes this fail."""

    def __init__(self, sink: Sink, order: Order) -> None:
        self._sink, self._left = sink, order.room + _SLACK
        self._data = b""
        self.has_begun = self.is_whole = self._is_in_file = False
        self.wrong: UnexpectedAnswerError | None = None

    def take(self, data: bytes) -> bool:
        """Take what came; false where no more is wanted."""
        self._data += data
        self._left -= len(data)
        if not self.has_begun:
            at = self._data.find(EVIDENCE_MARK)
            if at < 0:
                return len(self._data) <= _NOISE
            self.has_begun, self._data = True, self._data[at + len(EVIDENCE_MARK) :]
        try:
            for kind, payload in self._frames():
                self._obey(kind, payload)
        except UnexpectedAnswerError as error:
            self.wrong = error
        return not self.is_whole and self.wrong is None and self._left > 0

    def close(self) -> None:
        """End the file that was begun."""
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

    def _obey(self, kind: bytes, payload: bytes) -> None:
        match kind:
            case b"f":
                about = record(parse_json(payload, longest=_LONGEST_ABOUT, deepest=1), "file")
                path, source = (string(member_of(about, name, "file"), name, longest=_LONGEST_PATH) for name in _NAMES)
                size, modified = member_of(about, "size", "file"), member_of(about, "modified", "file")
                size = None if size is None else integer(size, "size")
                when = None if modified is None else _time(number(modified, "modified", low=-_LATEST, high=_LATEST))
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
                self.is_whole = True
            case _:
                raise UnexpectedAnswerError(f"a frame {shown(kind)} out of order")


def _time(seconds: float) -> datetime | None:
    """Return a point in time; nothing for one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _hear(process: subprocess.Popen[bytes], hearing: _Hearing, clock: Clock, until: timedelta) -> bool:
    """Hear a session to its end, or until no more is wanted; true where its time was up."""
    if process.stdout is None:
        raise AssertionError("it was asked for as a pipe")
    file = process.stdout.fileno()
    while (left := (until - clock.monotonic()).total_seconds()) > 0:
        # `select` itself could not watch the high numbers that many sessions have.
        poll = select.poll()
        poll.register(file, select.POLLIN | select.POLLHUP)
        if not poll.poll(left * 1000):
            break
        data = os.read(file, _BLOCK)
        if not data or not hearing.take(data):
            return False
    return True


def _end(process: subprocess.Popen[bytes], *, waits: bool) -> int:
    """End ssh if it does not end by itself, which may be waited for, and return its code."""
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


def _silence(hearing: _Hearing, code: int, words: str, order: Order, *, label: str, is_late: bool) -> Silence:
    """Return why a worker did not tell all."""
    if is_late:
        what = "it did not tell all" if hearing.has_begun else "no answer"
        return Silence(f"{what} within {order.patience.total_seconds():.0f} s")
    if hearing.wrong:
        return Silence(hearing.wrong.of(label).message)
    if hearing.has_begun:
        return Silence("the connection broke in the midst of it" if code else "it told more than it was asked for")
    if code == SSH_FAILED:
        return Silence(telling_line(words) or "ssh failed", words)
    if code == _NO_PYTHON:
        return Silence("there is no `python3` on it")
    said = last_line(words)
    return Silence(f"it could not tell: {said}" if said else f"it could not tell: exit {code}")
