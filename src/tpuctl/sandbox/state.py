"""The sandbox's state: resources, their history, and the clock. SQLite, shared by any number of processes.

There is no daemon: nothing runs between two requests, states follow from stored times. It must know nothing of HTTP.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from tpuctl.clock import Clock, SystemClock, call_in_thread
from tpuctl.decoding import Range, decode
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox.state_file import Transaction, TranslatedErrors, connect, file_identity
from tpuctl.sandbox.state_session import StateSession, parse_stored

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from pathlib import Path

# More seconds would exceed the range of `datetime`.
_StoredSpan = Annotated[float, Range(-(10**11), 10**11)]


@dataclass(frozen=True, slots=True)
class _StoredClock:
    anchor: _StoredSpan
    offset: _StoredSpan
    speed: Annotated[float, Range(1e-9, 1e12)]


_LATEST_TIME = timedelta(days=3650)
# How long a rate of the clock that was read counts for, in real seconds: clients read the clock for every step.
_RATE_SECONDS = 0.001
DEFAULT_SPEED = 60.0  # a minute of sandbox time is a second


class SandboxState:
    """The open state of a sandbox. Threads may share it. `clock` is the sandbox time."""

    # Number of `advance` calls in this process, after which a rate that was read does not count.
    _moves: ClassVar[int] = 0

    def __init__(self, path: Path, clock: Clock | None, speed: float) -> None:
        self.path = path
        self._errors = TranslatedErrors(path)
        self._local = threading.local()
        # The connections that no transaction uses, each with the identity of its file. Opening one for each transaction
        # would take five times as long as the transaction.
        self._idle: list[tuple[sqlite3.Connection, object]] = []
        self._is_open = True
        self._write_lock, self._read_lock = threading.RLock(), threading.RLock()
        self._injected = clock
        self._speed = speed
        self._known_rate: _KnownRate | None = None
        self.clock: SandboxClock | OffsetClock = OffsetClock(self._rate, clock) if clock else SandboxClock(self._rate)

    @classmethod
    def open(cls, path: Path, *, clock: Clock | None = None, speed: float | None = None) -> SandboxState:
        """Open the state in a file; create it if it does not exist, or if another version of tpuctl created it.

        `speed` is sandbox time per real time (default 60) and applies only to a new sandbox. With a clock, the sandbox
        follows it at its own pace. Raises `SandboxStateError` subclasses, and `InvalidInputError` for a speed that is
        not positive.
        """
        if speed is not None and not 0 < speed <= 1e6:
            raise InvalidInputError(
                f"`{speed:g}` cannot be the speed of the sandbox", hint="give a number above 0, such as 60"
            )
        sandbox = cls(path.absolute(), clock, speed or DEFAULT_SPEED)
        sandbox._rate()
        return sandbox

    @contextmanager
    def read(self) -> Iterator[StateSession]:
        """Open a read transaction. Raises `SandboxStateError` subclasses."""
        if (session := self._joint_session) is not None:
            yield session
            return
        # Threads queue here: side by side they are slower, for each call of SQLite hands over the interpreter's lock.
        with self._read_lock, self._transaction("BEGIN") as session:
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
        with self._write_lock, self._transaction("BEGIN IMMEDIATE") as session:
            self._run_due_events(session)
            yield session
            _schedule(session)

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
        with self.write() as session:
            session.set_clock_offset(self._rate().offset + duration)
        SandboxState._moves += 1
        return self.clock.now()

    @property
    def speed(self) -> float:
        """Sandbox time per real time; 1 with an injected clock."""
        return 1.0 if self._injected else self._rate().speed

    def close(self) -> None:
        """Close the connections; one in a transaction is closed at the end of it. A later transaction opens a new one."""
        self._is_open = False
        self._known_rate = None
        while self._idle:
            self._idle.pop()[0].close()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> SandboxState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[StateSession]:
        """Open a transaction at the present time, never one before a move of the clock that another process has committed."""
        with self._connection() as connection, Transaction(connection, self.path, begin):
            yield StateSession(connection, self.clock.at(self._read_rate(connection)), self.path)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Return a connection that nothing else uses meanwhile."""
        identity = file_identity(self.path)
        connection = None
        while self._idle and connection is None:
            connection, opened_for = self._idle.pop()
            if opened_for != identity:
                # `tpuctl sandbox reset` removed the file that a server has open; this call belongs to a new sandbox.
                connection.close()
                connection = None
        if connection is None:
            connection, self._is_open = self._connect(), True
            identity = file_identity(self.path)
        try:
            yield connection
        finally:
            if self._is_open:
                self._idle.append((connection, identity))
            else:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path)
        with self._errors:
            if not connection.execute("SELECT 1 FROM meta WHERE key = 'clock'").fetchone():
                clock = {"anchor": SystemClock().now().timestamp(), "offset": 0.0, "speed": self._speed}
                with Transaction(connection, self.path, "BEGIN IMMEDIATE"):
                    connection.execute("INSERT OR IGNORE INTO meta VALUES ('clock', ?)", (json.dumps(clock),))
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

    def _run_due_events(self, session: StateSession) -> None:
        """Run due events in order, each at its own time; one that fails changes nothing."""
        while event := session.take_event():
            with session.savepoint(event.at) as then, self._join(then):
                if event.is_tick:
                    then.reschedule()
                else:
                    from tpuctl.sandbox.scenarios import run_due_event  # noqa: PLC0415  # most sandboxes have no events

                    run_due_event(self, event)
                _schedule(then)

    def _rate(self) -> ClockRate:
        """Return the rate of the sandbox time. Called for every reading of the clock; it seldom changes."""
        known = self._known_rate
        if known is not None and known.moves == self._moves and time.monotonic() < known.until:
            return known.rate
        with self._connection() as connection, self._errors:
            return self._read_rate(connection)

    def _read_rate(self, connection: sqlite3.Connection) -> ClockRate:
        known = self._known_rate
        (text,) = connection.execute("SELECT value FROM meta WHERE key = 'clock'").fetchone()
        if known is not None and known.text == text:
            rate = known.rate
        else:
            stored = decode(_StoredClock, parse_stored(text))
            anchor = datetime.fromtimestamp(stored.anchor, UTC)
            rate = ClockRate(anchor, timedelta(seconds=stored.offset), stored.speed)
        self._known_rate = _KnownRate(text, rate, time.monotonic() + _RATE_SECONDS, self._moves)
        return rate


def _schedule(session: StateSession) -> None:
    """Give capacity to waiting queued resources if the transaction changed the stock or its use."""
    if session.is_schedule_stale():
        from tpuctl.sandbox.tpu_queued_resources import schedule  # noqa: PLC0415  # most sandboxes have no queue

        schedule(session)


class ClockRate(NamedTuple):
    """How sandbox time follows real time: equal at `anchor`, `speed` times as fast since, advanced by `offset`."""

    anchor: datetime
    offset: timedelta
    speed: float


class _KnownRate(NamedTuple):
    """A rate, the text that it was read from, until when it counts (`time.monotonic`), and after which moves of the clock."""

    text: str
    rate: ClockRate
    until: float
    moves: int


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
        return self.at(self._rate())

    def at(self, rate: ClockRate) -> datetime:
        """Return the sandbox time at a rate."""
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
        return self.at(self._rate())

    def at(self, rate: ClockRate) -> datetime:
        """Return the injected clock's time and the offset of a rate."""
        return self._clock.now() + rate.offset

    def monotonic(self) -> timedelta:
        """Return the injected clock's count and the offset, which never shrinks."""
        return self._clock.monotonic() + self._rate().offset

    def sleep(self, duration: timedelta) -> None:
        """Sleep by the injected clock."""
        self._clock.sleep(duration)

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` by the injected clock."""
        return self._clock.every(period, act)
