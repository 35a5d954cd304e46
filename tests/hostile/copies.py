"""What a hostile worker may send: the one place of these tests that knows the formats of copies, syncs and bundles."""

from __future__ import annotations

import base64
import json
import sys
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


def entry(
    path: Any, *, folder: bool = False, size: Any = 7, mode: Any = None, mtime: Any = 0, target: Any = None,
    offset: Any = 0, problem: Any = None,
) -> bytes:  # fmt: skip
    """Return what comes before the bytes of a file, or stands for a folder."""
    mode = (0o040755 if folder else 0o100644) if mode is None else mode
    return line([path, mode, 0 if folder else size, mtime, target, offset, problem])


def content(data: bytes = STOLEN, problem: Any = None) -> bytes:
    return frame(b"o", data) + line(problem)


def gives(*paths: Any, named: int = 1, **fields: Any) -> Steps:
    """Send a whole copy of files; a path that ends in `/` is a folder."""
    rows = [
        entry(path[:-1], folder=True, **fields)
        if isinstance(path, str) and path.endswith("/")
        else entry(path, **fields) + content()
        for path in paths
    ]
    is_tree = named == 1 and str(paths[0]).endswith("/")
    return sending(overview(named=named, tree=is_tree, count=len(rows)), *rows)


def takes(*parts: bytes) -> Steps:
    """Answer the entries of an upload with these lines."""
    return [send(FILES), until(b"]]]"), send(*parts), hold()]


def plan(**fields: Any) -> dict[str, Any]:
    """Return what a worker answers that has none of a tree of two files, but for some fields."""
    return {
        "send": [0, 1], "link": [], "touch": [], "foreign": [], "digests": [], "parts": [], "folder": "/home/ada/code",
        "delete": [], "kept": [], "rsync": False, **fields,
    }  # fmt: skip
