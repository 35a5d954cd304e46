"""What a hostile worker may send: the one place of these tests that knows the frames of copies, syncs and bundles."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Sequence
from typing import Any

from tests.conftest import Sandbox
from tests.hostile import HostileSlice, Steps, frame, hold, repeat, send, until
from tests.lifecycle import put

COPY = b"\0tpuctl copies\0\n"
SYNC = b"\n\0tpuctl-tree\n"
KEY = "0123456789ab"
STOLEN = b"planted"  # 7 bytes
# Python builds nested lists by recursion.
DEEP = b"[" * 100_000


# A worker that only sends something and stays needs no Python, which takes ten times as long to start.
_SSH = """
for word do case $word in *@198.18.0.* | 198.18.0.*) [ "${{host-}}" ] || host=${{word##*.}} ;; esac; done
plain='{root}'/plain-$((host - 1))
[ -e "$plain" ] || exec '{python}' -ISc 'exec(open("{root}/ssh.py").read())' "$@"
echo '[]' >>'{root}'/connections-$((host - 1))
cat "$plain" || exit 255
exec cat >>'{root}'/received-$((host - 1))
"""


class Crowd(HostileSlice):
    """A slice with 64 workers: one for each attack of a table."""

    def put(self, sandbox: Sandbox, accelerator_type: str = "v4-512") -> None:
        """Make the node, which then knows our key."""
        put(sandbox, "pod", acceleratorType=accelerator_type)
        self.tpuctl("ssh", "pod", "--worker", "0", "--", "true")
        self._fake_ssh(_SSH.format(root=self.root, python=sys.executable))
        self.play({})

    def play(self, plan: dict[int, Sequence[Steps]]) -> None:
        """Let workers do this, as `HostileSlice.play` has it."""
        super().play(plan)
        for path in self.root.glob("plain-*"):
            path.unlink()
        for worker, connections in plan.items():
            if len(connections) == 1 and [step[0] for step in connections[0]] == ["send", "hold"]:
                (self.root / f"plain-{worker}").write_bytes(base64.b64decode(str(connections[0][0][1])))


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
