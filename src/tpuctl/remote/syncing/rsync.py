"""rsync, for much to send: of a file it sends only what differs. What it does not bring goes another way: it may fail."""

from __future__ import annotations

import os
import re
import shutil
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from tpuctl.remote.pipes import Stderr
from tpuctl.remote.ssh import argv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.syncing.sessions import Sessions
    from tpuctl.remote.syncing.values import Tree

# Files that vanished while it worked [rsync's manual].
_VANISHED = 24
# `  1,048,576  12%   10.00MB/s    0:00:01`, each followed by a carriage return [rsync's manual, `--info=progress2`].
_PROGRESS = re.compile(rb"(?:^|\r) {0,20}([0-9,]{1,30}) {1,20}[0-9]{1,3}%")


def is_here() -> bool:
    """Tell whether this machine has rsync."""
    return shutil.which("rsync") is not None


def carry(
    way: Connection,
    tree: Tree,
    numbers: Sequence[int],
    folder: str,
    *,
    sessions: Sessions,
    options: tuple[str, ...],
    tell: Callable[[int], None],
) -> str | None:
    """Send files of a tree to a folder on the worker, where theirs are made already. Returns what rsync complained of.

    `tell` gets the number of bytes that are there, as it grows.
    """
    with TemporaryFile() as names, Stderr() as errors:
        for number in numbers:
            names.write(b"./" + tree.entries[number].path.encode("utf-8", "surrogateescape") + b"\0")
        names.seek(0)
        process = sessions.start(words(way, tree, folder, options=options), stdin=names, stderr=errors)
        with process:
            if process.stdout is None:
                raise AssertionError("rsync was started with a pipe")
            while said := os.read(process.stdout.fileno(), 64 * 1024):
                # What the other end prints comes here, too.
                if (found := _PROGRESS.findall(said)) and (digits := found[-1].replace(b",", b"")):
                    tell(int(digits))
        if process.returncode in {0, _VANISHED}:
            return None
        lines = errors.text().strip().splitlines()
        return f"rsync ended with {process.returncode}" + (f": {lines[0]}" if lines else "")


def words(way: Connection, tree: Tree, folder: str, *, options: tuple[str, ...]) -> list[str]:
    """Return the argv of rsync, which reads names from stdin, each ended by a NUL.

    It takes the remote shell as one text, in which only quotes count, a doubled one for itself [rsync's manual, `--rsh`].
    """
    shell = argv(way, options=("-o", "BatchMode=yes", *options))
    destination = shell.pop()
    login, _, address = destination.rpartition("@")
    target = f"{login}@[{address}]" if ":" in address else f"{login}@{address}"
    return [
        "rsync", "--links", "--perms", "--times", "--compress", "--from0", "--files-from=-", "--no-implied-dirs",
        "--protect-args", "--info=progress2", "-e", " ".join(map(_quoted, shell)), f"{tree.folder}/", f"{target}:{folder}/",
    ]  # fmt: skip


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"
