"""The sandbox's world: what exists, since when, and what time it is there. SQLite, shared by any number of processes.

There is no daemon: nothing happens between two requests, states follow from stored times. It must know nothing of HTTP.
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

# More seconds than that are more years than a calendar has.
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
DEFAULT_SPEED = 60.0  # a cloud minute is a second


class World:
    """An open world. May be shared by threads: each gets a connection of its own. `clock` is the world's time."""

    def __init__(self, path: Path, clock: Clock | None) -> None:
        self.path = path
        self._local = threading.local()
        # Of each thread, and what tells the file that it was opened for.
        self._connections: dict[threading.Thread, tuple[sqlite3.Connection, object]] = {}
        # A thread that is at work holds the world: with it goes what threads left that ended after `close`. At exit nothing
        # is closed, since such threads may still be there.
        weakref.finalize(self, _close_all, self._connections).atexit = False
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        self._injected = clock
        # How often this process has moved the time; what other processes write shows in SQLite's `data_version`.
        self._moves = 0
        self._speed = DEFAULT_SPEED
        self.clock: Clock = SystemClock()

    @classmethod
    def open(cls, path: Path, *, clock: Clock | None = None, speed: float | None = None) -> World:
        """Return the world in a file, made when there is none.

        `speed` is world time per real time (60 unless given) and applies only when the world is made. With a clock, the
        world follows that one at its own pace. Raises `WorldError` subclasses, and `InvalidInputError` for a speed that is
        not positive.
        """
        if speed is not None and not 0 < speed <= 1e6:
            raise InvalidInputError(
                f"`{speed:g}` cannot be the speed of the sandbox", hint="give a number above 0, such as 60"
            )
        world = cls(path.absolute(), clock)
        world._speed = speed or DEFAULT_SPEED
        world._connect()
        world.clock = MovedClock(world._rate, clock) if clock else WorldClock(world._rate)
        return world

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Hold a consistent view. Raises `WorldError` subclasses."""
        if (joined := self._joined) is not None:
            yield joined
            return
        self._connect()
        self._catch_up()
        with translated(self.path), transaction(self._connection, immediate=False):
            yield Session(self._connection, self.clock.now(), self.path)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Hold the world for a change: all of it is kept at the end, nothing when an exception passes.

        Raises `WorldError` subclasses; `WorldLockedError` when others hold it for 10 s.
        """
        if (joined := self._joined) is not None:
            yield joined
            return
        # Threads queue here: SQLite lets who waits try again at random moments, and gives up on one of 200 after 10 s.
        with self._turn, translated(self.path), transaction(self._connect(), immediate=True):
            now = self.clock.now()
            self._let_happen(now)
            yield Session(self._connection, now, self.path)

    @contextmanager
    def together(self) -> Iterator[Session]:
        """Hold the world for a change of several parts: whatever this thread reads and writes meanwhile joins in.

        All of it is kept at the end, nothing when an exception passes. Raises as `write` does.
        """
        with self.write() as session, self._joining(session):
            yield session

    def advance(self, duration: timedelta) -> datetime:
        """Move the world's time on, for all processes, and return the new time. Raises `InvalidInputError` when negative."""
        if duration < timedelta():
            raise InvalidInputError("the sandbox's time cannot go back", hint="give a duration such as 10m")
        if duration > _FARTHEST:
            raise InvalidInputError("the sandbox's time cannot move so far at once", hint="give 3650d at the most")
        with self.write():
            offset = self._rate().offset + duration
            self._connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'offset'", (json.dumps(offset.total_seconds()),)
            )
            self._moves += 1
        return self.clock.now()

    @property
    def speed(self) -> float:
        """World time per real time; 1 with an injected clock."""
        return 1.0 if self._injected else self._rate().speed

    def close(self) -> None:
        """Close the connections of this thread and of those that have ended.

        A thread that is at work keeps its own: SQLite crashes where a connection is closed under it. That goes when a
        thread opens the next, or with the world.
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
        """Return this thread's connection; a new one where there is none, or another file has taken the place of the old."""
        thread = threading.current_thread()
        # Also after `close`, which leaves a thread at work its own.
        connection, opened_for = self._connections.get(thread, (None, None))
        if connection is not None and not connection.in_transaction and identity(self.path) != opened_for:
            # `tpuctl sandbox reset` removed the file that a server has open; what comes next belongs to a new world.
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
        self._settle()
        return connection

    @property
    def _joined(self) -> Session | None:
        session: Session | None = getattr(self._local, "joined", None)
        return session

    @contextmanager
    def _joining(self, session: Session) -> Iterator[None]:
        before = self._joined
        self._local.joined = session
        try:
            yield
        finally:
            self._local.joined = before

    def _catch_up(self) -> None:
        """Let what was planned for a time that has come happen, before anybody looks."""
        with translated(self.path):
            due = Session(self._connection, self.clock.now(), self.path).is_event_due()
        if due:
            with self.write():
                pass

    def _let_happen(self, now: datetime) -> None:
        """Let planned events happen that are due, in order, each at its own time; one that fails changes nothing."""
        while event := Session(self._connection, now, self.path).take_event():
            from tpuctl.sandbox import scenarios  # noqa: PLC0415  # most worlds have no events

            session = Session(self._connection, event.at, self.path)
            self._connection.execute("SAVEPOINT event")
            with self._joining(session):
                if not scenarios.happen(self, event):
                    self._connection.execute("ROLLBACK TO event")
            self._connection.execute("RELEASE event")

    def _settle(self) -> None:
        """Write down what is decided once, when the world is made."""
        anchor = SystemClock().now().timestamp()
        values = {"anchor": anchor, "offset": 0.0, "speed": self._speed, "seed": 0}
        with translated(self.path):
            if not self._connection.execute("SELECT 1 FROM meta WHERE key = 'seed'").fetchone():
                rows = [(key, json.dumps(value)) for key, value in values.items()]
                with transaction(self._connection, immediate=True):
                    self._connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)

    def _meta(self) -> dict[str, float]:
        text = "SELECT key, value FROM meta WHERE key IN ('anchor', 'offset', 'speed', 'seed')"
        with translated(self.path):
            found = {key: float(stored(value, NUMBER)) for key, value in self._connection.execute(text)}
            _META.check(found)
            return found

    def _rate(self) -> Rate:
        """Return the rate of the world's time. It is asked for at every look at the clock, and seldom changes."""
        connection = self._connection
        with translated(self.path):
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        seen = (connection, version, self._moves)
        known: tuple[object, Rate] | None = getattr(self._local, "rate", None)
        if known is None or known[0] != seen:
            meta = self._meta()
            anchor = datetime.fromtimestamp(meta["anchor"], UTC)
            known = self._local.rate = (seen, Rate(anchor, timedelta(seconds=meta["offset"]), meta["speed"]))
        return known[1]


def _close_all(connections: dict[threading.Thread, tuple[sqlite3.Connection, object]]) -> None:
    while connections:
        connections.popitem()[1][0].close()
