"""The sandbox's state: resources, their history, and the clock. SQLite, shared by any number of processes.

There is no daemon: nothing runs between two requests, states follow from stored times. It must know nothing of HTTP.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import Clock, SystemClock
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox.world.clock import MovedClock, Rate, WorldClock
from tpuctl.sandbox.world.database import connect, identity, transaction, translated
from tpuctl.sandbox.world.errors import (
    NotAWorldError,
    WorldCorruptError,
    WorldError,
    WorldForeignError,
    WorldLockedError,
    WorldTooNewError,
    WorldUnusableError,
)
from tpuctl.sandbox.world.records import NodeRecord, OperationRecord, QueuedRecord, stored
from tpuctl.sandbox.world.session import Session
from tpuctl.shapes import NUMBER, Scalar, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# More seconds would exceed the range of `datetime`.
_SPAN = Scalar("a number of seconds", lambda value: abs(value) < 10**11)
_META = Shape(
    "",
    {"anchor": _SPAN, "offset": _SPAN, "speed": Scalar("a speed", lambda value: value > 0), "seed": _SPAN},
    required=("anchor", "offset", "speed"),
)

__all__ = [
    "NodeRecord",
    "NotAWorldError",
    "OperationRecord",
    "QueuedRecord",
    "Session",
    "World",
    "WorldClock",
    "WorldCorruptError",
    "WorldError",
    "WorldForeignError",
    "WorldLockedError",
    "WorldTooNewError",
    "WorldUnusableError",
]

_FARTHEST = timedelta(days=3650)
DEFAULT_SPEED = 60.0  # a minute of sandbox time is a second


class World:
    """The open state of a sandbox. Threads may share it: each gets its own connection. `clock` is the sandbox time."""

    def __init__(self, path: Path, clock: Clock | None) -> None:
        self.path = path
        self._local = threading.local()
        # By thread: the connection, and the identity of the file for which it was opened.
        self._connections: dict[threading.Thread, tuple[sqlite3.Connection, object]] = {}
        # A working thread keeps a reference to this object; the finalizer closes connections of threads that ended after
        # `close`. At exit nothing is closed, since such threads may still run.
        weakref.finalize(self, _close_all, self._connections).atexit = False
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        self._injected = clock
        # Number of `advance` calls in this process; SQLite's `data_version` shows writes of other processes.
        self._moves = 0
        self._speed = DEFAULT_SPEED
        self.clock: Clock = SystemClock()

    @classmethod
    def open(cls, path: Path, *, clock: Clock | None = None, speed: float | None = None) -> World:
        """Open the state in a file, and create it if it does not exist.

        `speed` is sandbox time per real time (default 60) and applies only to a new sandbox. With a clock, the sandbox
        follows it at its own pace. Raises `WorldError` subclasses, and `InvalidInputError` for a speed that is
        not positive.
        """
        if speed is not None and not 0 < speed <= 1e6:
            raise InvalidInputError(
                f"`{speed:g}` cannot be the speed of the sandbox", hint="give a number above 0, such as 60"
            )
        sandbox = cls(path.absolute(), clock)
        sandbox._speed = speed or DEFAULT_SPEED
        sandbox._connect()
        sandbox.clock = MovedClock(sandbox._rate, clock) if clock else WorldClock(sandbox._rate)
        return sandbox

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a read transaction. Raises `WorldError` subclasses."""
        if (session := self._joint_session) is not None:
            yield session
            return
        self._connect()
        with translated(self.path):
            has_due_event = Session(self._connection, self.clock.now(), self.path).is_event_due()
        if has_due_event:
            with self.write():  # runs the event before the read
                pass
        with translated(self.path), transaction(self._connection, immediate=False):
            yield Session(self._connection, self.clock.now(), self.path)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a write transaction: committed at the end, rolled back if an exception passes.

        Raises `WorldError` subclasses; `WorldLockedError` if other processes hold the lock for 10 s.
        """
        if (session := self._joint_session) is not None:
            yield session
            return
        # Threads queue here: with SQLite's own random retries one of 200 threads times out after 10 s.
        with self._turn, translated(self.path), transaction(self._connect(), immediate=True):
            now = self.clock.now()
            self._run_due_events(now)
            yield Session(self._connection, now, self.path)

    @contextmanager
    def joint_write(self) -> Iterator[Session]:
        """Open a write transaction of several parts: all reads and writes of this thread meanwhile join it.

        It is committed at the end, rolled back if an exception passes. Raises as `write` does.
        """
        with self.write() as session, self._join(session):
            yield session

    def advance(self, duration: timedelta) -> datetime:
        """Advance the clock for all processes and return the new time. Raises `InvalidInputError` if negative."""
        if duration < timedelta():
            raise InvalidInputError("the sandbox cannot advance by a negative time", hint="give a duration such as 10m")
        if duration > _FARTHEST:
            raise InvalidInputError("the sandbox cannot advance by more than 3650d at once", hint="give 3650d at most")
        with self.write():
            offset = self._rate().offset + duration
            self._connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'offset'", (json.dumps(offset.total_seconds()),)
            )
            self._moves += 1
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

    def __enter__(self) -> World:
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
        if connection is not None and not connection.in_transaction and identity(self.path) != opened_for:
            # `tpuctl sandbox reset` removed the file that a server has open; this call belongs to a new sandbox.
            connection.close()
            connection = None
        if connection is not None:
            self._local.connection = connection
            return connection
        connection = self._local.connection = connect(self.path)
        with self._lock:
            for ended in [each for each in self._connections if not each.is_alive()]:
                self._connections.pop(ended)[0].close()  # a server has a thread for every client
            self._connections[thread] = (connection, identity(self.path))
        # A new sandbox: store the values that never change.
        values = {"anchor": SystemClock().now().timestamp(), "offset": 0.0, "speed": self._speed, "seed": 0}
        with translated(self.path):
            if not connection.execute("SELECT 1 FROM meta WHERE key = 'seed'").fetchone():
                rows = [(key, json.dumps(value)) for key, value in values.items()]
                with transaction(connection, immediate=True):
                    connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)
        return connection

    @property
    def _joint_session(self) -> Session | None:
        session: Session | None = getattr(self._local, "joint_session", None)
        return session

    @contextmanager
    def _join(self, session: Session) -> Iterator[None]:
        before = self._joint_session
        self._local.joint_session = session
        try:
            yield
        finally:
            self._local.joint_session = before

    def _run_due_events(self, now: datetime) -> None:
        """Run due planned events in order, each at its own time; one that fails changes nothing."""
        while event := Session(self._connection, now, self.path).take_event():
            from tpuctl.sandbox import scenarios  # noqa: PLC0415  # most sandboxes have no events

            session = Session(self._connection, event.at, self.path)
            self._connection.execute("SAVEPOINT event")
            with self._join(session):
                if not scenarios.happen(self, event):
                    self._connection.execute("ROLLBACK TO event")
            self._connection.execute("RELEASE event")

    def _rate(self) -> Rate:
        """Return the rate of the sandbox time. Called for every reading of the clock; it seldom changes."""
        connection = self._connection
        with translated(self.path):
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        cache_key = (connection, version, self._moves)
        known: tuple[object, Rate] | None = getattr(self._local, "rate", None)
        if known is None or known[0] != cache_key:
            text = "SELECT key, value FROM meta WHERE key IN ('anchor', 'offset', 'speed', 'seed')"
            with translated(self.path):
                meta = {key: float(stored(value, NUMBER)) for key, value in connection.execute(text)}
                _META.check(meta)
            anchor = datetime.fromtimestamp(meta["anchor"], UTC)
            known = self._local.rate = (cache_key, Rate(anchor, timedelta(seconds=meta["offset"]), meta["speed"]))
        return known[1]


def _close_all(connections: dict[threading.Thread, tuple[sqlite3.Connection, object]]) -> None:
    while connections:
        connections.popitem()[1][0].close()
