"""Runs on a worker: gives back the disk under what a command has printed and the client has.

Only of followed jobs: what a detached one has printed is all kept. Files keep their length, so that offsets stay true; the file
`trimmed` says from where on there is something to read. It takes Linux; elsewhere nothing is given back.
"""

from __future__ import annotations

import os

from tpuctl.remote.onboard.small_files import read, write

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

# Not for less: each time costs a little.
WORTHWHILE = 64 * 1024 * 1024
# FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
PUNCH = 0x01 | 0x02


def trimmed(folder: str) -> list[int]:
    """Return from where on what was printed is kept: of stdout and of stderr."""
    words = (read(folder + "/trimmed") or b"0 0").split()
    return [int(word) for word in words] if len(words) == 2 else [0, 0]


def trim(folder: str, offsets: Sequence[int]) -> None:
    """Give back the disk below these offsets; nothing happens where that cannot be done."""
    before = trimmed(folder)
    if all(new - old < WORTHWHILE for new, old in zip(offsets, before)):
        return
    try:
        import ctypes  # noqa: PLC0415  # it costs 10 ms, and is seldom needed

        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        # Whoever reads from now on knows that there are holes.
        write(folder + "/trimmed", b"%d %d" % tuple(map(max, offsets, before)))
        for name, offset in zip(("/out", "/err"), offsets):
            if offset:
                file = os.open(folder + name, os.O_WRONLY)
                fallocate(file, PUNCH, 0, offset)
                os.close(file)
    except (ImportError, OSError, AttributeError):
        pass
