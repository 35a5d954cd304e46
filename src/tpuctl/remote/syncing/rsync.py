"""Send files with rsync, which transfers only changed parts of a file. It may fail: the caller sends the rest through ssh."""

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
    from tpuctl.remote.syncing.tree import Tree

# Some files vanished during the transfer [rsync's manual].
_VANISHED_EXIT = 24
# `  1,048,576  12%   10.00MB/s    0:00:01`, each followed by a carriage return [rsync's manual, `--info=progress2`].
_PROGRESS = re.compile(rb"(?:^|\r) {0,20}([0-9,]{1,30}) {1,20}[0-9]{1,3}%")


def is_here() -> bool:
    """Tell whether this machine has rsync."""
    return shutil.which("rsync") is not None


def carry(
    connection: Connection,
    tree: Tree,
    numbers: Sequence[int],
    folder: str,
    *,
    sessions: Sessions,
    options: tuple[str, ...],
    report: Callable[[int], None],
) -> str | None:
    """Send files of a tree to a folder on the worker; their folders exist already. Return rsync's error, None without.

    `report` is called with the number of bytes sent so far.
    """
    with TemporaryFile() as names, Stderr() as errors:
        for number in numbers:
            names.write(b"./" + tree.entries[number].path.encode("utf-8", "surrogateescape") + b"\0")
        names.seek(0)
        process = sessions.start(words(connection, tree, folder, options=options), stdin=names, stderr=errors)
        with process:
            if process.stdout is None:
                raise AssertionError("rsync was started with a pipe")
            while output := os.read(process.stdout.fileno(), 64 * 1024):
                # Output of the remote side appears here, too.
                if (found := _PROGRESS.findall(output)) and (digits := found[-1].replace(b",", b"")):
                    report(int(digits))
        if process.returncode in {0, _VANISHED_EXIT}:
            return None
        lines = errors.text().strip().splitlines()
        return f"rsync exited with {process.returncode}" + (f": {lines[0]}" if lines else "")


def words(connection: Connection, tree: Tree, folder: str, *, options: tuple[str, ...]) -> list[str]:
    """Return the argv of rsync, which reads NUL-terminated names from stdin.

    The remote shell is one argument, in which a quote is escaped by doubling it [rsync's manual, `--rsh`].
    """
    shell = argv(connection, options=("-o", "BatchMode=yes", *options))
    destination = shell.pop()
    login, _, address = destination.rpartition("@")
    target = f"{login}@[{address}]" if ":" in address else f"{login}@{address}"
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in shell)
    return [
        "rsync", "--links", "--perms", "--times", "--compress", "--from0", "--files-from=-", "--no-implied-dirs",
        "--protect-args", "--info=progress2", "-e", quoted, f"{tree.folder}/", f"{target}:{folder}/",
    ]  # fmt: skip
