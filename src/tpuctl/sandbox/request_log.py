"""The log of all requests that a sandbox answered, reads included, in the order of their ends.

It is a file of lines beside the database and not a table in it: a line is one append of a few microseconds, blocks no other
request and needs no transaction, so a read stays a read. A full file becomes the `.old` file, which is replaced: about the
last `REQUESTS_KEPT` requests can be read, from 16 MB at most. A process that is killed between an answer and its line leaves
no line. Tokens and keys in a URL, headers and bodies are not stored.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tpuctl.decoding import parse_json
from tpuctl.sandbox.state_file import file_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpuctl.sandbox.api_calls import Request

REQUESTS_KEPT = 20_000
# A line takes 150 to 500 bytes. Longer values are cut: an append of a short line is one atomic write.
FULL_SIZE = 8 * 1024 * 1024  # bytes
_LONGEST = 300
_SECRET_PARAMETERS = frozenset({"access_token", "oauth_token", "key", "upload_id"})
EVENT_METHOD = "EVENT"


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A request, at the sandbox time of its answer. `status` 0: the connection broke without one.

    `path` includes the query. `client` is the User-Agent. `call` is the API method of a write that was committed. `method` is
    `EVENT` for a planned event that happened, with its text in `path`.
    """

    at: datetime
    method: str
    path: str
    status: int
    client: str
    call: str = ""


def log_call(state_path: Path, request: Request, status: int, now: datetime, *, call: str = "") -> None:
    """Log a request and the status of its response. A write error loses the line, not the response."""
    query = urlencode(
        [(name, "..." if name in _SECRET_PARAMETERS else value) for name, value in request.query], safe="$/:,*=;@"
    )
    path = f"{request.path}?{query}" if query else request.path
    client = request.headers.get("user-agent", "")
    _append_entry(state_path, LoggedCall(now, request.method, path, status, client, call))


def log_event(state_path: Path, text: str, now: datetime) -> None:
    """Log a planned event that happened."""
    _append_entry(state_path, LoggedCall(now, EVENT_METHOD, text, 0, ""))


def read_log(state_path: Path, *, since: datetime | None = None) -> list[LoggedCall]:
    """Return the last `REQUESTS_KEPT` log entries, oldest first, from a sandbox time on."""
    text = b"".join(_read_from(path, 0) for path in (_old_log_path(state_path), log_path(state_path)))
    lines = text.decode("utf-8", "replace").splitlines()
    return [
        entry
        for line in lines[-REQUESTS_KEPT:]
        if (entry := _parse_entry(line)) and (since is None or entry.at >= since)
    ]


def follow_log(state_path: Path) -> Iterator[list[LoggedCall]]:
    """Yield, on each iteration, the entries logged since the last one; the first time since this call."""
    path, offset = log_path(state_path), 0
    identity = file_identity(path)
    if path.exists():
        offset = path.stat().st_size
    rest = b""
    while True:
        now = file_identity(path)
        text = b""
        if now != identity:
            text = (
                _read_from(_old_log_path(state_path), offset)
                if identity is not None and file_identity(_old_log_path(state_path)) == identity
                else b""
            )
            identity, offset = now, 0
        new = _read_from(path, offset)
        offset += len(new)
        *whole, rest = (rest + text + new).split(b"\n")
        yield [entry for line in whole if (entry := _parse_entry(line.decode("utf-8", "replace")))]


def _append_entry(state_path: Path, entry: LoggedCall) -> None:
    about = (entry.method, entry.path[:_LONGEST], entry.status, entry.client[:_LONGEST], entry.call)
    line = json.dumps([round(entry.at.timestamp(), 3), *about])
    path = log_path(state_path)
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            os.write(file, line.encode() + b"\n")
            is_full = os.fstat(file).st_size > FULL_SIZE
        finally:
            os.close(file)
        if is_full and path.stat().st_size > FULL_SIZE:  # unless another process was quicker
            path.replace(_old_log_path(state_path))
    except OSError:
        return


def _parse_entry(line: str) -> LoggedCall | None:
    """Return the entry of a line. None for a line that is damaged or was cut by the end of a process."""
    try:
        at, *fields = parse_json(line)
        if [type(value) for value in fields] != [str, str, int, str, str]:
            return None
        return LoggedCall(datetime.fromtimestamp(at, UTC), *fields)
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def client_name(client: str) -> str:
    """Return the short name of a client from its User-Agent: `gcloud 528.0.0`, `curl/8.5.0`, `google-api-python-client`."""
    if match := re.search(r"gcloud/(\S+) command/(\S+)", client):
        return f"gcloud {match[1]} ({match[2]})"
    return client.split(" ", maxsplit=1)[0].split("(", maxsplit=1)[0] or "-"


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:
        return b""


@lru_cache(maxsize=16)
def log_path(state_path: Path) -> Path:
    """Return the path of the current log file."""
    return state_path.with_name(state_path.name + "-requests")


def _old_log_path(state_path: Path) -> Path:
    return state_path.with_name(state_path.name + "-requests.old")
