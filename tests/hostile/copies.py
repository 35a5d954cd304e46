"""What a hostile worker may send: the one place of these tests that knows the formats of copies, syncs and bundles."""

from __future__ import annotations

import base64
import json
import sys
import tarfile
from collections.abc import Sequence
from typing import Any

from tests.conftest import Sandbox
from tests.hostile import MARK, HostileSlice, Steps, frame, hold, repeat, send, until
from tests.lifecycle import put

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
    """Return a frame of a bundle; bytes are sent as they are, all else as JSON."""
    return frame(kind, value if isinstance(value, bytes) else json.dumps(value).encode())


def line(value: Any) -> bytes:
    """Return a value of a copy or a sync; bytes are sent as they are, all else as JSON."""
    return told(b"x", value)


FILES = MARK + line(None)


def sending(*parts: bytes) -> Steps:
    """Send this of a copy or a sync at once, whatever the client says, and stay."""
    return [send(FILES, *parts), hold()]


def flood(*parts: bytes, block: bytes, size: int = 64 << 20) -> Steps:
    """Send this, and then the same bytes without an end."""
    return [send(FILES, *parts), repeat(block, size), hold()]


def overview(
    *, named: Any = 1, tree: Any = False, count: Any = 1, size: Any = 0, notes: Any = (), failed: Any = ()
) -> bytes:
    return line([named, tree, count, size, notes, failed])


END = bytes(1024)
# Where a tar stream is expected, a reader waits for a whole header.
SHORT = b"x" * 512


def entry(
    path: str, *, folder: bool = False, size: Any = 7, mode: int | None = None, mtime: Any = 0, kind: bytes | None = None,
    records: dict[str, str] | None = None, raw: dict[str, bytes] | None = None,
) -> bytes:  # fmt: skip
    """Return what comes before the bytes of a file, or stands for a folder, as Python's tarfile writes it.

    `records`: of the extended header. `raw`: what the header has in these fields.
    """
    info = tarfile.TarInfo(path)
    info.type = kind or (tarfile.DIRTYPE if folder else tarfile.REGTYPE)
    info.mode, info.size, info.mtime = mode or 0o644, 0 if folder else size, mtime
    info.linkname = "/etc/passwd" if kind in {b"1", b"2"} else ""
    info.pax_headers = records or {}
    data = bytearray(info.tobuf(tarfile.PAX_FORMAT))
    if info.name.endswith("/") or folder:
        data = bytearray(data.replace(path.encode("utf-8", "surrogateescape") + b"/", path.encode() + b"\0", 1))
    header = data[-512:]
    for name, value in (raw or {}).items():
        at = {
            "name": 0,
            "mode": 100,
            "size": 124,
            "mtime": 136,
            "link": 157,
            "magic": 257,
            "owner": 265,
            "prefix": 345,
        }[name]
        header[at : at + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(data[:-512] + header)


def content(data: bytes = STOLEN) -> bytes:
    return data + bytes(-len(data) % 512)


def gives(*paths: str, named: int = 1, **fields: Any) -> Steps:
    """Send a whole copy of files; a path that ends in `/` is a folder."""
    rows = [
        entry(path[:-1], folder=True, **fields) if path.endswith("/") else entry(path, **fields) + content()
        for path in paths
    ]
    is_tree = named == 1 and paths[0].endswith("/")
    return sending(overview(named=named, tree=is_tree, count=len(rows)), *rows, END, line([]))


# What the client sends behind the files: all of them are whole.
ALL_WHOLE = line([]).replace(b"x", b"g", 1)


def takes(*parts: bytes, then: Sequence[bytes] = (), lists: int = 1) -> Steps:
    """Answer an upload with the first lines, and then, after so many empty lists of the client, with the others."""
    return [send(FILES, *parts), *[until(ALL_WHOLE)] * lists, send(*then), hold()]


def plan(**fields: Any) -> dict[str, Any]:
    """Return what a worker answers that has none of a tree of two files, but for some fields."""
    return {
        "send": [0, 1], "link": [], "touch": [], "foreign": [], "digests": [], "folder": "/home/ada/code",
        "delete": [], "kept": [], **fields,
    }  # fmt: skip
