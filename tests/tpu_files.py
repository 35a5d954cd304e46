"""What stands for a worker's TPU in tests: device files and a lock file, and processes that hold them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCKING = """\
import fcntl, sys, time
file = open(sys.argv[1], 'a+')
fcntl.{how}(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


# Python's own `mmap` would keep the file open.
MAPPING = """\
import ctypes, sys, time
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
with open(sys.argv[1], 'rb') as file:
    mmap(None, 1, 1, 2, file.fileno(), 0)
print(flush=True)
time.sleep(60)
"""


class Machine:
    """A folder that stands for a worker's root, with device files and perhaps a lock file."""

    def __init__(self, root: Path) -> None:
        self.root, self.lock_file = root.resolve(), root.resolve() / "tmp" / "libtpu_lockfile"
        for name in ("dev/accel0", "dev/accel1", "dev/vfio/vfio"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.lock_file.parent.mkdir()

    @contextmanager
    def locked(self, how: str = "lockf") -> Iterator[int]:
        """Let a process take the lock, as libtpu does."""
        words = [sys.executable, "-ISc", LOCKING.format(how=how), str(self.lock_file)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield process.pid
            finally:
                process.kill()


@contextmanager
def running(*words: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let a program hold a file open."""
    with path.open("rb") as file:
        process = subprocess.Popen(words, pass_fds=[file.fileno()])
    with process:
        try:
            yield process
        finally:
            process.kill()
