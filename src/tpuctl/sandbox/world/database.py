"""The sandbox's SQLite file: opening it, its tables, and its errors."""

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
from tpuctl.shapes import ShapeError

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
_STEPS = (_FIRST, _RESOURCES, _EVENTS)
LAYOUT = len(_STEPS)


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection to the file at a path; create the file, readable by its owner only, if it does not exist.

    Raises `WorldError` subclasses if it cannot be opened.
    """
    with translated(path):
        make_private(path.parent)
        if not path.exists():
            # Only for a new file: closing one that SQLite has open would drop this process's locks on it (POSIX).
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            # Used by one thread; other threads may only close it.
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
    # The marker is created before the tables become visible. Databases of other programs are not changed.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not marker(path).is_file():
        raise WorldForeignError(path, "it is the database of another program")
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
    """Switch the journal, waiting for other processes: SQLite's timeout does not apply to this statement."""
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
    """Open a transaction: committed at the end, rolled back if an exception passes."""
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
    """Translate SQLite's errors into `WorldError` subclasses."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise WorldLockedError(path, PATIENCE.total_seconds()) from error
        raise WorldUnusableError(path, error) from error
    except sqlite3.DatabaseError as error:
        # `tpuctl sandbox reset` removes only files with the marker, so the hint must not name it for others.
        kind = WorldCorruptError if marker(path).is_file() else WorldForeignError
        raise kind(path, error) from error
    except ShapeError as error:
        raise WorldCorruptError(path, f"a record cannot be read: {error}") from error
    except OSError as error:
        raise WorldUnusableError(path, error.strerror) from error


def identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file, which differs from a later file at the same path. None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def marker(path: Path) -> Path:
    """Return the path of the marker beside the file: it shows that the sandbox created the file, even if that is damaged."""
    return path.with_name(path.name + "-world")


# The database with its companions; the log of requests; the address at which it is served.
_SUFFIXES = ("", "-wal", "-shm", "-journal", "-requests", "-requests.old", "-served")


def files(path: Path) -> tuple[Path, ...]:
    """Return the paths of all files that belong to a sandbox."""
    return (*(path.with_name(path.name + suffix) for suffix in _SUFFIXES), marker(path))
