"""rsync, for much to send: of a file it sends only what differs. What it does not bring goes another way: it may fail."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from tpuctl.remote.ssh import argv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.syncing.sessions import Sessions
    from tpuctl.remote.syncing.values import Tree

# Files that vanished while it worked [rsync's manual].
_VANISHED = 24


def is_here() -> bool:
    """Tell whether this machine has rsync."""
    return shutil.which("rsync") is not None


def carry(
    way: Connection, tree: Tree, numbers: Sequence[int], folder: str, *, sessions: Sessions, options: tuple[str, ...]
) -> str | None:
    """Send files of a tree to a folder on the worker, where theirs are made already. Returns what rsync complained of."""
    names = b"".join(b"./" + tree.entries[number].path.encode("utf-8", "surrogateescape") + b"\0" for number in numbers)
    process = sessions.start(words(way, tree, folder, options=options), stdout=subprocess.DEVNULL)
    _, said = process.communicate(names)
    if process.returncode in {0, _VANISHED}:
        return None
    lines = said.decode(errors="replace").strip().splitlines()
    return f"rsync ended with {process.returncode}" + (f": {lines[0]}" if lines else "")


def words(way: Connection, tree: Tree, folder: str, *, options: tuple[str, ...]) -> list[str]:
    """Return the argv of rsync, which reads names from stdin, each ended by a NUL.

    It takes the remote shell as one text, in which only quotes count, a doubled one for itself [rsync's manual, `--rsh`].
    """
    shell = argv(way, options=("-o", "BatchMode=yes", *options))
    destination = shell.pop()
    login, _, address = destination.rpartition("@")
    host = f"[{address}]" if ":" in address else address
    return [
        "rsync", "--links", "--perms", "--times", "--compress", "--from0", "--files-from=-", "--no-implied-dirs",
        "--protect-args", "-e", " ".join(map(_quoted, shell)), f"{tree.folder}/", f"{login}@{host}:{folder}/",
    ]  # fmt: skip


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"
