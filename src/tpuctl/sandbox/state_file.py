"""The sandbox's file: an SQLite database with its layout, the files beside it, and the errors of all of them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock
from tpuctl.decoding import ShapeError
from tpuctl.errors import TpuctlError
from tpuctl.files import make_private_folder

if TYPE_CHECKING:
    from pathlib import Path

LOCK_TIMEOUT = timedelta(seconds=10)
# A change of the tables, or of what is stored in them, needs another number.
LAYOUT = 4
# A parent of a resource is a project, or the bucket of an object; contents are uploaded bytes.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (
  project TEXT, zone TEXT, node_id TEXT, number TEXT, first_address INTEGER, workers INTEGER, gone REAL, record TEXT,
  PRIMARY KEY (project, zone, node_id));
CREATE INDEX nodes_address ON nodes (first_address);
CREATE INDEX nodes_gone ON nodes (gone) WHERE gone IS NOT NULL;
CREATE TABLE queued (
  project TEXT, zone TEXT, queued_resource_id TEXT, gone REAL, is_waiting INTEGER, record TEXT,
  PRIMARY KEY (project, zone, queued_resource_id));
CREATE TABLE operations (
  serial INTEGER PRIMARY KEY, name TEXT UNIQUE, project TEXT, zone TEXT, target TEXT, request_id TEXT, ended REAL, record TEXT);
CREATE INDEX operations_target ON operations (target, ended);
CREATE INDEX operations_request ON operations (request_id) WHERE request_id != '';
CREATE TABLE incarnations (name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE faults (id INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL);
CREATE TABLE resources (
  kind TEXT, parent TEXT, name TEXT, record TEXT NOT NULL, PRIMARY KEY (kind, parent, name)) WITHOUT ROWID;
CREATE INDEX resources_name ON resources (kind, name);
CREATE TABLE contents (name TEXT PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, record TEXT NOT NULL);
CREATE INDEX events_at ON events (at);
"""


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection to the file at a path; create the file, readable by its owner only, if it does not exist.

    One thread at a time may use it. Raises `SandboxStateError` subclasses if it cannot be opened.
    """
    with TranslatedErrors(path):
        make_private_folder(path.parent)
        if not path.exists():
            # Only for a new file: closing one that SQLite has open would drop this process's locks on it (POSIX).
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            path, timeout=LOCK_TIMEOUT.total_seconds(), isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, path)
            connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) == LAYOUT and marker_path(path).is_file():
        return
    # The marker is created before the tables become visible. Databases of other programs are not changed.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not marker_path(path).is_file():
        raise ForeignStateError(path, "it is the database of another program")
    _switch_to_wal(connection)
    with Transaction(connection, path, "BEGIN IMMEDIATE"):
        if (version := _version(connection)) not in {0, LAYOUT}:
            raise OtherLayoutError(path, version)
        if version == LAYOUT:  # another process was quicker
            return
        for statement in _TABLES.split(";"):
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


class TranslatedErrors:
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


class Transaction(TranslatedErrors):
    """A transaction: committed at the end, rolled back if an exception passes whose `commits` is not set."""

    def __init__(self, connection: sqlite3.Connection, path: Path, begin: str) -> None:
        super().__init__(path)
        self._connection = connection
        self._begin = begin

    def __enter__(self) -> None:
        with TranslatedErrors(self._path):
            self._connection.execute(self._begin)

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        with TranslatedErrors(self._path):
            if error is None or getattr(error, "commits", False):
                self._connection.execute("COMMIT")
            elif self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        super().__exit__(_type, error, _traceback)


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file, which differs from a later file at the same path. None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


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


class OtherLayoutError(SandboxStateError):
    """Another version of tpuctl created the file, with another layout."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            f"another version of tpuctl created the sandbox in `{path}`, with layout {version}", hint=_RESET
        )


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
