"""Runs on a worker before a frequently used program: compiles it once, which takes longer than running it."""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import CodeType


def load(size: int, name: str, digest: str) -> CodeType:
    """Return the compiled program whose text is next on stdin, from the cache in `~/.tpuctl/programs` if possible.

    A program that cannot be cached is compiled each time.
    """
    text = sys.stdin.buffer.read(size)
    if len(text) < size:
        # The connection broke. Half a program must not run, and must not be cached.
        sys.exit(0)
    folder = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".tpuctl", "programs")
    kept = "%s-%s.%s" % (name, digest, sys.implementation.cache_tag)
    try:
        with open(os.path.join(folder, kept), "rb") as file:
            # A user who can write there can run any program as this user anyway.
            return marshal.loads(file.read())  # type: ignore[no-any-return]  # noqa: S302
    except (OSError, EOFError, ValueError, TypeError):
        code = compile(text, "tpuctl", "exec")
    try:
        keep(folder, name, kept, marshal.dumps(code))
    except OSError:
        pass
    return code


def keep(folder: str, name: str, kept: str, data: bytes) -> None:
    """Cache a program atomically, replacing those of other versions of tpuctl."""
    os.makedirs(folder, 0o700, exist_ok=True)
    for other in os.listdir(folder):
        if other.startswith(name + "-") and other.partition(".")[0] != kept.partition(".")[0]:
            os.unlink(os.path.join(folder, other))
    scratch = os.path.join(folder, ".%s.%d" % (kept, os.getpid()))
    file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        is_whole = os.write(file, data) == len(data)
    finally:
        os.close(file)
    if is_whole:
        os.rename(scratch, os.path.join(folder, kept))
    else:  # the disk is full
        os.unlink(scratch)
