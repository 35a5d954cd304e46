"""What a hostile worker may send: the one place of these tests that knows the frames of copies, syncs and bundles."""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.hostile import Steps, frame, hold, repeat, send, until

COPY = b"\0tpuctl copies\0\n"
SYNC = b"\n\0tpuctl-tree\n"
EVIDENCE = b"\n\0tpuctl-evidence\n"
KEY = "0123456789ab"
STOLEN = b"planted"  # 7 bytes
# Python builds nested lists by recursion.
DEEP = b"[" * 100_000


def told(kind: bytes, value: Any) -> bytes:
    """Return a frame of a copy; bytes are sent as they are, all else as JSON."""
    return frame(kind, value if isinstance(value, bytes) else json.dumps(value).encode())


def copying(*frames: bytes) -> Steps:
    """Send these frames at once, whatever the client says, and stay."""
    return [send(COPY, *frames), hold()]


def flood(*frames: bytes, block: bytes, size: int = 64 << 20) -> Steps:
    """Send these frames, and then the same bytes without an end."""
    return [send(COPY, *frames), repeat(block, size), hold()]


def listing(
    *, named: Any = 1, tree: Any = None, count: Any = 1, size: Any = 0, notes: Any = (), failed: Any = ()
) -> bytes:
    return told(b"S", [named, tree, count, size, notes, failed])


def entry(
    path: Any, number: Any = 0, *, folder: Any = False, size: Any = 7, mode: Any = 0o100644, mtime: Any = 0,
    key: Any = KEY, sample: Any = "",
) -> list[Any]:  # fmt: skip
    return [number, folder, path, 0 if folder is True else size, mode, mtime, key, sample]


def entries(*rows: list[Any]) -> bytes:
    return told(b"L", list(rows))


def content(number: Any = 0, data: bytes = STOLEN, problem: Any = None) -> bytes:
    return told(b"F", number) + frame(b"D", data) + told(b"E", [number, problem])


END = told(b"Z", None)


def gives(*paths: Any, named: int = 1, **fields: Any) -> Steps:
    """Send a whole copy of files; a path that ends in `/` is a folder."""
    rows = [
        entry(path.rstrip("/") if isinstance(path, str) else path, number, folder=str(path).endswith("/"), **fields)
        for number, path in enumerate(paths)
    ]
    is_tree = named == 1 and rows[0][1]
    files = [content(row[0]) for row in rows if not row[1]]
    return copying(listing(named=named, tree=KEY if is_tree else None, count=len(rows)), entries(*rows), *files, END)


def takes(*frames: bytes, first: Any = ("/home/ada", True, None)) -> Steps:
    """Answer a listing with these frames."""
    return [send(COPY), until(b"S\0"), send(told(b"P", list(first)), *frames), hold()]


def tree_frame(value: Any, *, length: int | None = None) -> bytes:
    """Return a frame of a sync."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">Q", len(data) if length is None else length) + data


def plan(**fields: Any) -> dict[str, Any]:
    """Return what a worker answers that has none of a tree of two files, but for some fields."""
    return {
        "send": [0, 1], "link": [], "touch": [], "foreign": [], "digests": {}, "folder": "/home/ada/code",
        "delete": [], "kept": [], "rsync": False, **fields,
    }  # fmt: skip


def syncing(*frames: bytes) -> Steps:
    """Send these frames of a sync at once, and stay."""
    return [send(SYNC, *frames), hold()]
