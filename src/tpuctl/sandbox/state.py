"""The sandbox's state: resources, their history, and the clock. SQLite, shared by any number of processes.

There is no daemon: nothing runs between two requests, states follow from stored times. It must know nothing of HTTP.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tpuctl.clock import Clock, SystemClock, call_in_thread
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.files import make_private_folder
from tpuctl.sandbox.state_session import StateSession, parse_stored
from tpuctl.shapes import NUMBER, Scalar, Shape, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# More seconds would exceed the range of `datetime`.
_STORED_SPAN = Scalar("a number of seconds", lambda value: abs(value) < 10**11)
_META_KEYS = Shape(
    "",
    {
        "anchor": _STORED_SPAN,
        "offset": _STORED_SPAN,
        "speed": Scalar("a speed", lambda value: value > 0),
        "seed": _STORED_SPAN,
    },
    required=("anchor", "offset", "speed"),
)


_LATEST_TIME = timedelta(days=3650)
# How long a rate of the clock that was read counts for, in real seconds: clients read the clock for every step.
_RATE_SECONDS = 0.001
DEFAULT_SPEED = 60.0  # a minute of sandbox time is a second


class SandboxState:
    """The open state of a sandbox. Threads may share it: each gets its own connection. `clock` is the sandbox time."""

    # Number of `advance` calls in this process; SQLite's `data_version` shows writes of other processes.
    _moves: ClassVar[int] = 0

    def __init__(self, path: Path, clock: Clock | None) -> None:
        self.path = path
        self._errors = _TranslatedErrors(path)
        self._local = threading.local()
        # By thread: the connection, and the identity of the file for which it was opened.
        self._connections: dict[threading.Thread, tuple[sqlite3.Connection, object]] = {}
        # A working thread keeps a reference to this object; the finalizer closes connections of threads that ended after
        # `close`. At exit nothing is closed, since such threads may still run.
        weakref.finalize(self, _close_all, self._connections).atexit = False
        self._lock = threading.Lock()
        self._turn, self._reading = threading.RLock(), threading.RLock()
        self._injected = clock
        self._known_rate = _NO_RATE
        self._transactions = 0
        self._speed = DEFAULT_SPEED
        self.clock: Clock = SystemClock()

    @classmethod
    def open(cls, path: Path, *, clock: Clock | None = None, speed: float | None = None) -> SandboxState:
        """Open the state in a file, and create it if it does not exist.

        `speed` is sandbox time per real time (default 60) and applies only to a new sandbox. With a clock, the sandbox
        follows it at its own pace. Raises `SandboxStateError` subclasses, and `InvalidInputError` for a speed that is
        not positive.
        """
        if speed is not None and not 0 < speed <= 1e6:
            raise InvalidInputError(
                f"`{speed:g}` cannot be the speed of the sandbox", hint="give a number above 0, such as 60"
            )
        sandbox = cls(path.absolute(), clock)
        sandbox._speed = speed or DEFAULT_SPEED
        sandbox._connect()
        sandbox.clock = OffsetClock(sandbox._rate, clock) if clock else SandboxClock(sandbox._rate)
        return sandbox

    @contextmanager
    def read(self) -> Iterator[StateSession]:
        """Open a read transaction. Raises `SandboxStateError` subclasses."""
        if (session := self._joint_session) is not None:
            yield session
            return
        # Threads queue here: side by side they are slower, for each call of SQLite hands over the interpreter's lock.
        with self._reading, _Transaction(self._connect(), self.path, immediate=False):
            session = StateSession(self._connection, self._now_in_transaction(), self.path)
            if not session.is_event_due():
                yield session
                return
        with self.write() as session:  # runs the event before the read
            yield session

    @contextmanager
    def write(self) -> Iterator[StateSession]:
        """Open a write transaction: committed at the end, rolled back if an exception passes whose `commits` is not set.

        Raises `SandboxStateError` subclasses; `LockedStateError` if other processes hold the lock for 10 s.
        """
        if (session := self._joint_session) is not None:
            yield session
            return
        # Threads queue here: with SQLite's own random retries one of 200 threads times out after 10 s.
        with self._turn, _Transaction(self._connect(), self.path, immediate=True):
            now = self._now_in_transaction()
            self._run_due_events(now)
            session = StateSession(self._connection, now, self.path)
            yield session
            _plan_waiting(session)

    @contextmanager
    def joint_write(self) -> Iterator[StateSession]:
        """Open a write transaction of several parts: all reads and writes of this thread meanwhile join it.

        It is committed at the end, rolled back if an exception passes. Raises as `write` does.
        """
        with self.write() as session, self._join(session):
            yield session

    def advance(self, duration: timedelta) -> datetime:
        """Advance the clock for all processes and return the new time. Raises `InvalidInputError` if negative."""
        if duration < timedelta():
            raise InvalidInputError("the sandbox cannot advance by a negative time", hint="give a duration such as 10m")
        if duration > _LATEST_TIME:
            raise InvalidInputError("the sandbox cannot advance by more than 3650d at once", hint="give 3650d at most")
        with self.write():
            offset = self._rate().offset + duration
            self._connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'offset'", (json.dumps(offset.total_seconds()),)
            )
        SandboxState._moves += 1
        return self.clock.now()

    @property
    def speed(self) -> float:
        """Sandbox time per real time; 1 with an injected clock."""
        return 1.0 if self._injected else self._rate().speed

    def close(self) -> None:
        """Close the connections of this thread and of threads that have ended.

        A working thread keeps its connection, because SQLite crashes if a connection is closed during its use. It is closed
        when a thread opens the next one, or together with this object.
        """
        mine = threading.current_thread()
        with self._lock:
            for thread in [each for each in self._connections if each is mine or not each.is_alive()]:
                self._connections.pop(thread)[0].close()
            self._local = threading.local()
            self._known_rate = _NO_RATE

    def __enter__(self) -> SandboxState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        return found or self._connect()

    def _connect(self) -> sqlite3.Connection:
        """Return this thread's connection; a new one if there is none, or if the file was replaced."""
        thread = threading.current_thread()
        # Also after `close`, which does not close the connections of working threads.
        connection, opened_for = self._connections.get(thread, (None, None))
        if connection is not None and not connection.in_transaction and file_identity(self.path) != opened_for:
            # `tpuctl sandbox reset` removed the file that a server has open; this call belongs to a new sandbox.
            connection.close()
            connection = None
        if connection is not None:
            self._local.connection = connection
            return connection
        connection = self._local.connection = _connect_database(self.path)
        with self._lock:
            for ended in [each for each in self._connections if not each.is_alive()]:
                self._connections.pop(ended)[0].close()  # a server has a thread for every client
            self._connections[thread] = (connection, file_identity(self.path))
        # A new sandbox: store the values that never change.
        values = {"anchor": SystemClock().now().timestamp(), "offset": 0.0, "speed": self._speed, "seed": 0}
        with _TranslatedErrors(self.path):
            if not connection.execute("SELECT 1 FROM meta WHERE key = 'seed'").fetchone():
                rows = [(key, json.dumps(value)) for key, value in values.items()]
                with _Transaction(connection, self.path, immediate=True):
                    connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)
        return connection

    @property
    def _joint_session(self) -> StateSession | None:
        session: StateSession | None = getattr(self._local, "joint_session", None)
        return session

    @contextmanager
    def _join(self, session: StateSession) -> Iterator[None]:
        before = self._joint_session
        self._local.joint_session = session
        try:
            yield
        finally:
            self._local.joint_session = before

    def _run_due_events(self, now: datetime) -> None:
        """Run due planned events in order, each at its own time; one that fails changes nothing."""
        while event := StateSession(self._connection, now, self.path).take_event():
            from tpuctl.sandbox.scenarios import run_due_events  # noqa: PLC0415  # most sandboxes have no events

            session = StateSession(self._connection, event.at, self.path)
            self._connection.execute("SAVEPOINT event")
            with self._join(session):
                if run_due_events(self, event):
                    _plan_waiting(session)
                else:
                    self._connection.execute("ROLLBACK TO event")
            self._connection.execute("RELEASE event")

    def _now_in_transaction(self) -> datetime:
        """Return the time, never one before a move of the clock that another process has committed."""
        self._transactions += 1
        return self.clock.now()

    def _rate(self) -> ClockRate:
        """Return the rate of the sandbox time. Called for every reading of the clock; it seldom changes."""
        known, counts = self._known_rate, (self._moves, self._transactions)
        if known.counts == counts and time.monotonic() < known.until:
            return known.rate
        connection, moves = self._connection, counts[0]
        with self._errors:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            stored: tuple[object, ClockRate] | None = getattr(self._local, "rate", None)
            if stored is None or stored[0] != (connection, version, moves):
                text = "SELECT key, value FROM meta WHERE key IN ('anchor', 'offset', 'speed', 'seed')"
                meta = {key: float(parse_stored(value, NUMBER)) for key, value in connection.execute(text)}
                _META_KEYS.check(meta)
                rate = ClockRate(
                    datetime.fromtimestamp(meta["anchor"], UTC), timedelta(seconds=meta["offset"]), meta["speed"]
                )
                stored = self._local.rate = ((connection, version, moves), rate)
        self._known_rate = _KnownRate(stored[1], time.monotonic() + _RATE_SECONDS, counts)
        return stored[1]


def _plan_waiting(session: StateSession) -> None:
    """Plan waiting queued resources again if the transaction changed the stock or its use."""
    if session.are_turns_stale():
        from tpuctl.sandbox.tpu_queued_resources import replan_waiting  # noqa: PLC0415  # most sandboxes have no stock

        replan_waiting(session)


def _close_all(connections: dict[threading.Thread, tuple[sqlite3.Connection, object]]) -> None:
    while connections:
        connections.popitem()[1][0].close()


class ClockRate(NamedTuple):
    """How sandbox time follows real time: equal at `anchor`, `speed` times as fast since, advanced by `offset`."""

    anchor: datetime
    offset: timedelta
    speed: float


class _KnownRate(NamedTuple):
    """A rate that was read, until when it counts in seconds of `time.monotonic`, and after which moves and transactions."""

    rate: ClockRate
    until: float
    counts: tuple[int, int]


_NO_RATE = _KnownRate(ClockRate(datetime.fromtimestamp(0, UTC), timedelta(), 1), 0, (-1, 0))


# The clock may be advanced, and its speed changed, during a sleep.
_GLANCE = timedelta(milliseconds=250)


class SandboxClock:
    """Sandbox time computed from the machine's: anchor + offset + (real - anchor) * speed."""

    def __init__(self, rate: Callable[[], ClockRate], real: Clock | None = None) -> None:
        self._rate = rate
        self._real = real or SystemClock()
        self._start = self.now()
        self._latest = timedelta()
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return the sandbox time."""
        rate = self._rate()
        return rate.anchor + rate.offset + (self._real.now() - rate.anchor) * rate.speed

    def monotonic(self) -> timedelta:
        """Return the sandbox time since this clock was created; it stands still while the machine's clock is set back."""
        with self._lock:
            self._latest = max(self._latest, self.now() - self._start)
            return self._latest

    def sleep(self, duration: timedelta) -> None:
        """Sleep for a duration of sandbox time: in real time `duration` / speed, less if the clock is advanced meanwhile."""
        rate = self._rate()
        end = self._real.monotonic() * rate.speed + rate.offset + duration
        while True:
            rate = self._rate()
            left = (end - rate.offset) / rate.speed - self._real.monotonic()
            if left <= timedelta():
                return
            self._real.sleep(min(left, _GLANCE))

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` in a thread of its own, each period of sandbox time."""

        def pause(left: timedelta) -> timedelta:
            # Time may pass faster than anything can be done in it.
            return max(_GLANCE / 5, min(left / self._rate().speed, _GLANCE))

        return call_in_thread(self, period, act, pause=pause)


class OffsetClock:
    """An injected clock, plus the time by which the sandbox was advanced."""

    def __init__(self, rate: Callable[[], ClockRate], clock: Clock) -> None:
        self._rate = rate
        self._clock = clock

    def now(self) -> datetime:
        """Return the injected clock's time and the offset."""
        return self._clock.now() + self._rate().offset

    def monotonic(self) -> timedelta:
        """Return the injected clock's count and the offset, which never shrinks."""
        return self._clock.monotonic() + self._rate().offset

    def sleep(self, duration: timedelta) -> None:
        """Sleep by the injected clock."""
        self._clock.sleep(duration)

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` by the injected clock."""
        return self._clock.every(period, act)


LOCK_TIMEOUT = timedelta(seconds=10)

_FIRST_LAYOUT = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (
  project TEXT, zone TEXT, node_id TEXT, number TEXT, first_address INTEGER, workers INTEGER, gone REAL, record TEXT,
  PRIMARY KEY (project, zone, node_id));
CREATE INDEX nodes_address ON nodes (first_address);
CREATE INDEX nodes_gone ON nodes (gone) WHERE gone IS NOT NULL;
CREATE TABLE queued (
  project TEXT, zone TEXT, queued_resource_id TEXT, gone REAL, record TEXT,
  PRIMARY KEY (project, zone, queued_resource_id));
CREATE TABLE operations (
  serial INTEGER PRIMARY KEY, name TEXT UNIQUE, project TEXT, zone TEXT, target TEXT, request_id TEXT, ended REAL, record TEXT);
CREATE INDEX operations_target ON operations (target, ended);
CREATE INDEX operations_request ON operations (request_id) WHERE request_id != '';
CREATE TABLE incarnations (name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE faults (id INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL);
CREATE TABLE projects (project TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (serial INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, method TEXT, name TEXT);
"""
# Resources of the other APIs. A parent is a project, or the bucket of an object; contents are uploaded bytes.
_RESOURCES = """
CREATE TABLE resources (
  kind TEXT, parent TEXT, name TEXT, record TEXT NOT NULL, PRIMARY KEY (kind, parent, name)) WITHOUT ROWID;
CREATE INDEX resources_name ON resources (kind, name);
CREATE TABLE contents (name TEXT PRIMARY KEY, content BLOB NOT NULL);
"""
# Planned events of scenarios.
_EVENTS = """
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, record TEXT NOT NULL);
CREATE INDEX events_at ON events (at);
"""
# Each step migrates the previous layout: older files are migrated when they are opened. Only append.
_LAYOUT_STEPS = (_FIRST_LAYOUT, _RESOURCES, _EVENTS)
LAYOUT = len(_LAYOUT_STEPS)


def _connect_database(path: Path) -> sqlite3.Connection:
    """Return a connection to the file at a path; create the file, readable by its owner only, if it does not exist.

    Raises `SandboxStateError` subclasses if it cannot be opened.
    """
    with _TranslatedErrors(path):
        make_private_folder(path.parent)
        if not path.exists():
            # Only for a new file: closing one that SQLite has open would drop this process's locks on it (POSIX).
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            # Used by one thread; other threads may only close it.
            path,
            timeout=LOCK_TIMEOUT.total_seconds(),
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) == LAYOUT and marker_path(path).is_file():
        connection.execute("PRAGMA synchronous=NORMAL")
        return
    # The marker is created before the tables become visible. Databases of other programs are not changed.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not marker_path(path).is_file():
        raise ForeignStateError(path, "it is the database of another program")
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    with _Transaction(connection, path, immediate=True):
        version = _version(connection)
        if version > LAYOUT:
            raise NewerStateError(path, version)
        for step in _LAYOUT_STEPS[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={LAYOUT}")
        marker_path(path).touch(mode=0o600)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the journal, waiting for other processes: SQLite's timeout does not apply to this statement."""
    clock = SystemClock()
    deadline = clock.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if clock.monotonic() > deadline:
                raise
            clock.sleep(timedelta(milliseconds=20))
        else:
            return


class _TranslatedErrors:
    """Translates SQLite's errors into `SandboxStateError` subclasses. A class: it is entered for each reading of the clock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        path = self._path
        match error:
            # Python's own, for text that is not UTF-8, has no code; a message of SQLite may quote such text.
            case sqlite3.OperationalError() if hasattr(error, "sqlite_errorcode"):
                if error.sqlite_errorcode in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                    raise LockedStateError(path, LOCK_TIMEOUT.total_seconds()) from error
                raise UnusableStateError(path, error) from error
            case sqlite3.DatabaseError() | UnicodeDecodeError():
                # `tpuctl sandbox reset` removes only files with the marker, so the hint must not name it for others.
                kind = CorruptStateError if marker_path(path).is_file() else ForeignStateError
                raise kind(path, error) from error
            case ShapeError():
                raise CorruptStateError(path, f"a record cannot be read: {error}") from error
            case OSError():
                raise UnusableStateError(path, error.strerror) from error


class _Transaction(_TranslatedErrors):
    """A transaction: committed at the end, rolled back if an exception passes whose `commits` is not set."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, immediate: bool) -> None:
        super().__init__(path)
        self._connection = connection
        self._begin = "BEGIN IMMEDIATE" if immediate else "BEGIN"

    def __enter__(self) -> None:
        with _TranslatedErrors(self._path):
            self._connection.execute(self._begin)

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        with _TranslatedErrors(self._path):
            if error is None or getattr(error, "commits", False):
                self._connection.execute("COMMIT")
            elif self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        super().__exit__(_type, error, _traceback)


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file, which differs from a later file at the same path. None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def marker_path(path: Path) -> Path:
    """Return the path of the marker beside the file: it shows that the sandbox created the file, even if that is damaged."""
    return path.with_name(path.name + "-world")


# The database with its companions; the log of requests; the address at which it is served.
_SUFFIXES = ("", "-wal", "-shm", "-journal", "-requests", "-requests.old", "-served")


def state_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of all files that belong to a sandbox."""
    return (*(path.with_name(path.name + suffix) for suffix in _SUFFIXES), marker_path(path))


_RESET = "run `tpuctl sandbox reset` to start with an empty sandbox"


class SandboxStateError(TpuctlError):
    """The sandbox's file cannot be used."""

    kind = "sandbox"


class CorruptStateError(SandboxStateError):
    """The sandbox created the file, and it is damaged."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"the sandbox in `{path}` is damaged: {reason}", hint=_RESET)


class ForeignStateError(SandboxStateError):
    """Another program created the file. It is not changed."""

    def __init__(self, path: Path, reason: object) -> None:
        hint = "move the file away, or set `TPUCTL_STATE_DIR` to another folder"
        super().__init__(f"`{path}` is not a file of the sandbox: {reason}", hint=hint)


class NewerStateError(SandboxStateError):
    """Another version of tpuctl created the file, with another layout."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(f"the sandbox in `{path}` has layout {version}: this tpuctl cannot read it", hint=_RESET)


class LockedStateError(SandboxStateError):
    """Another process holds the lock of the file for too long."""

    def __init__(self, path: Path, seconds: float) -> None:
        message = f"timed out after {seconds:g} s: another process holds the lock of the sandbox in `{path}`"
        super().__init__(message, hint=f"stop that process and try again; if there is none, {_RESET}")


class UnusableStateError(SandboxStateError):
    """The file cannot be opened or written: permissions, a full disk, a directory in its place."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"cannot use the sandbox in `{path}`: {reason}", hint="check the path and its permissions")


class NotASandboxError(SandboxStateError):
    """The file to remove was not created by the sandbox."""

    def __init__(self, path: Path) -> None:
        hint = "nothing was removed; check the path, or remove the file yourself"
        super().__init__(f"`{path}` is not a file of the sandbox", hint=hint)
