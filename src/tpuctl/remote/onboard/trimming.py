"""Runs on a worker: frees the disk space of output that the client has received.

Only for followed jobs: all output of a detached job is kept. Files keep their length, so that offsets stay valid; the file
`trimmed` has the offsets of the first bytes that still exist. Works on Linux only; elsewhere no space is freed.
"""

from __future__ import annotations

import os

from tpuctl.remote.onboard.small_files import read, write

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

# The smallest amount worth a system call.
WORTHWHILE = 64 * 1024 * 1024
# FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
PUNCH = 0x01 | 0x02


def trimmed(folder: str) -> list[int]:
    """Return the offsets of the first stored bytes of stdout and of stderr."""
    words = (read(folder + "/trimmed") or b"0 0").split()
    return [int(word) for word in words] if len(words) == 2 else [0, 0]


def trim(folder: str, offsets: Sequence[int]) -> None:
    """Free the disk space below these offsets, if possible."""
    before = trimmed(folder)
    if all(new - old < WORTHWHILE for new, old in zip(offsets, before)):
        return
    try:
        import ctypes  # noqa: PLC0415  # 10 ms, and rarely needed

        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        # Readers must know about the holes before they exist.
        write(folder + "/trimmed", b"%d %d" % tuple(map(max, offsets, before)))
        for name, offset in zip(("/out", "/err"), offsets):
            if offset:
                file = os.open(folder + name, os.O_WRONLY)
                fallocate(file, PUNCH, 0, offset)
                os.close(file)
    except (ImportError, OSError, AttributeError):
        pass
