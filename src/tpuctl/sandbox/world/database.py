"""The world's SQLite file: opening it, its tables, and its failures in the user's words."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock
from tpuctl.private import make_private
from tpuctl.sandbox.world.errors import (
    WorldCorruptError,
    WorldForeignError,
    WorldLockedError,
    WorldTooNewError,
    WorldUnusableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = timedelta(seconds=10)

_FIRST = """
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
# What the other APIs serve. A parent is a project, or the bucket of an object; contents are what was uploaded.
_RESOURCES = """
CREATE TABLE resources (
  kind TEXT, parent TEXT, name TEXT, record TEXT NOT NULL, PRIMARY KEY (kind, parent, name)) WITHOUT ROWID;
CREATE INDEX resources_name ON resources (kind, name);
CREATE TABLE contents (name TEXT PRIMARY KEY, content BLOB NOT NULL);
"""
# What is planned: events of scenarios.
_EVENTS = """
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, record TEXT NOT NULL);
CREATE INDEX events_at ON events (at);
"""
# Each brings a world from the layout before to its own: an older world is brought up when it is opened. Only ever append.
_STEPS = (_FIRST, _RESOURCES, _EVENTS)
LAYOUT = len(_STEPS)


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection to the world at a path; the file is made, readable by its owner only, when there is none.

    Raises `WorldError` subclasses for what cannot be opened.
    """
    with translated(path):
        make_private(path.parent)
        if not path.exists():
            # Only a new file: closing one that SQLite has open would drop this process's locks on it (POSIX).
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            # Used by one thread; only closing is left to others.
            path,
            timeout=PATIENCE.total_seconds(),
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
    if _version(connection) == LAYOUT and marker(path).is_file():
        connection.execute("PRAGMA synchronous=NORMAL")
        return
    # The marker is made before the tables can be seen. Nothing is written to what somebody else made.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not marker(path).is_file():
        raise WorldForeignError(path, "it is a database of something else")
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    with transaction(connection, immediate=True):
        version = _version(connection)
        if version > LAYOUT:
            raise WorldTooNewError(path, version)
        for step in _STEPS[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={LAYOUT}")
        marker(path).touch(mode=0o600)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the journal, waiting for others: SQLite's own patience does not cover this statement."""
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if clock.monotonic() > deadline:
                raise
            clock.sleep(timedelta(milliseconds=20))
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection, *, immediate: bool) -> Iterator[None]:
    """Hold one transaction: committed at the end, rolled back when an exception passes."""
    connection.execute("BEGIN IMMEDIATE" if immediate else "BEGIN")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's failures into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise WorldLockedError(path, PATIENCE.total_seconds()) from error
        raise WorldUnusableError(path, error) from error
    except sqlite3.DatabaseError as error:
        # `tpuctl sandbox reset` removes only what has the marker: to name it elsewhere would be no way out.
        kind = WorldCorruptError if marker(path).is_file() else WorldForeignError
        raise kind(path, error) from error
    except OSError as error:
        raise WorldUnusableError(path, error.strerror) from error


def marker(path: Path) -> Path:
    """Return the file beside a world that says that the sandbox made it: a damaged world has no readable header."""
    return path.with_name(path.name + "-world")


# The database with its companions; the log of requests; where it is served.
_SUFFIXES = ("", "-wal", "-shm", "-journal", "-requests", "-requests.old", "-served")


def files(path: Path) -> tuple[Path, ...]:
    """Return all files that a world may consist of."""
    return (*(path.with_name(path.name + suffix) for suffix in _SUFFIXES), marker(path))
