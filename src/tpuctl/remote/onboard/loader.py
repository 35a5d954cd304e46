"""Runs on a worker before a program that is started often: compiles it there once, which takes longer than all it does."""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from types import CodeType


def load(size: int, name: str, digest: str) -> CodeType:
    """Return the program whose text is the next of stdin, compiled; from `~/.tpuctl/programs` where it is there already.

    What cannot be read or kept there is compiled each time.
    """
    text = sys.stdin.buffer.read(size)
    if len(text) < size:
        # The link was cut. Half a program must not run, and least of all be kept.
        sys.exit(0)
    folder = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".tpuctl", "programs")
    kept = "%s-%s.%s" % (name, digest, sys.implementation.cache_tag)
    try:
        with open(os.path.join(folder, kept), "rb") as file:
            # Whoever can write there can run what they like as this user anyway.
            return marshal.loads(file.read())  # type: ignore[no-any-return]  # noqa: S302
    except (OSError, EOFError, ValueError, TypeError):
        code = compile(text, "tpuctl", "exec")
    try:
        keep(folder, name, kept, marshal.dumps(code))
    except OSError:
        pass
    return code


def keep(folder: str, name: str, kept: str, data: bytes) -> None:
    """Keep a program, in place of what other versions of tpuctl have left of it. It is there whole, or not at all."""
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
