"""Runs on a worker: the small files of a job, the locks on them, and its output."""

from __future__ import annotations

import fcntl
import os
import time

from tpuctl.ssh.agent.link import FRAME_BLOCK, ClientLink

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

# Not from `signal`, which makes enums of all its names: that costs more than the rest of a program.
TERM, KILL = 15, 9
LONGEST_SMALL_FILE = 64 * 1024
RESERVED = 64
# With less free space than this, a file system may have no block left.
SPARE = 64 * 1024


def job_folder(name: str = "") -> str:
    """Return the folder of a job; without a name that of all jobs."""
    jobs = os.path.expanduser("~/.tpuctl/jobs")
    return os.path.join(jobs, name) if name else jobs


def jobs_here(worker: int) -> list[tuple[float, str]]:
    """Return the start and the name of each job of this worker, the newest first."""
    try:
        entries = os.listdir(job_folder())
    except FileNotFoundError:
        return []
    end = ".%d" % worker
    found = []
    for entry in entries:
        if entry.endswith(end) and not entry.startswith("."):
            try:
                # Written once, before the start of the command.
                began = os.stat(os.path.join(job_folder(entry), "token")).st_mtime
            except OSError:  # not a job, or one that was just removed
                continue
            found.append((began, entry[: -len(end)]))
    return sorted(found, reverse=True)


def process_group(folder: str) -> list[int] | None:
    """Return the process group of a job and its supervisor; None if it ended before these were written."""
    for _ in range(200):
        words = (read(folder + "/pid") or b"").split()
        if len(words) == 2 or read(folder + "/exit") is not None:
            break
        # They are written just after the start of the command.
        time.sleep(0.005)
    return [int(word) for word in words] if len(words) == 2 else None


def signal_group(folder: str, group: int, number: int) -> bool:
    """Send a signal to all processes of a job's group; return whether there were any."""
    if number == TERM:
        # All processes must end, also those that outlive the shell: the supervisor ensures it.
        touch(folder + "/ending")
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def is_locked(path: str) -> bool:
    """Return whether a process holds a lock on a file of this user."""
    try:
        # On NFS an exclusive lock needs a file open for writing.
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def read(path: str) -> bytes | None:
    """Return the content of a small file, None if it does not exist."""
    try:
        # Without waiting for the writer of a pipe that another user put there.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return os.read(file, LONGEST_SMALL_FILE)
    finally:
        os.close(file)


def write(path: str, data: bytes) -> None:
    """Write a small file that only its owner can read."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def touch(path: str) -> None:
    """Create an empty file, if possible."""
    try:
        write(path, b"")
    except OSError:
        pass


def reserve(folder: str, name: str) -> None:
    """Reserve disk space for a small file that must be written later, even on a full disk."""
    write("%s/%s.new" % (folder, name), b" " * RESERVED)


def fill_reserved(folder: str, name: str, data: bytes) -> None:
    """Write a reserved file; it appears atomically."""
    path = "%s/%s.new" % (folder, name)
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)
    os.rename(path, "%s/%s" % (folder, name))


def is_full(folder: str) -> bool:
    """Return whether the disk under a folder has no room for output."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < SPARE


def remove_job(folder: str) -> None:
    """Remove a job's folder, which has no subfolders, if it exists."""
    gone = "%s/.gone.%d.%s" % (os.path.dirname(folder), os.getpid(), os.path.basename(folder).lstrip("."))
    try:
        # Of two processes that remove it one succeeds, and no process sees half of it.
        os.rename(folder, gone)
    except FileNotFoundError:
        return
    for name in os.listdir(gone):
        os.unlink(os.path.join(gone, name))
    os.rmdir(gone)


# The smallest amount worth a system call.
WORTHWHILE = 64 * 1024 * 1024
# FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
PUNCH = 0x01 | 0x02


def trimmed(folder: str) -> list[int]:
    """Return the offsets of the first stored bytes of stdout and of stderr."""
    words = (read(folder + "/trimmed") or b"0 0").split()
    return [int(word) for word in words] if len(words) == 2 else [0, 0]


def trim(folder: str, offsets: Sequence[int]) -> None:
    """Free the disk space below these offsets, if possible; on Linux only.

    Only for followed jobs: all output of a detached job is kept. Files keep their length, so that offsets stay valid; the file
    `trimmed` has the offsets of the first bytes that still exist.
    """
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


# Blocks of each stream in one round: a signal from the client must not wait for a gigabyte of output.
BLOCKS_PER_ROUND = 16


class OutputStreamer:
    """The output of the command in one file, sent from an offset on, to an `end` if there is one."""

    def __init__(self, link: ClientLink, folder: str, kind: bytes, offset: int, end: int | None = None) -> None:
        self.link, self.folder, self.kind, self.offset, self.end = link, folder, kind, offset, end
        try:
            self.file = os.open(folder + ("/out" if kind == b"o" else "/err"), os.O_RDONLY)
        except FileNotFoundError:  # both are in one file
            self.file = -1

    def pump(self) -> bool:
        """Send some of the available output; return whether there was any."""
        before = self.offset
        for _ in range(BLOCKS_PER_ROUND if self.file >= 0 else 0):
            most = FRAME_BLOCK if self.end is None else max(0, min(FRAME_BLOCK, self.end - self.offset))
            data = os.pread(self.file, most, self.offset)
            if not data:
                break
            # Checked after the read: a hole that existed by then is known now.
            kept_from = trimmed(self.folder)[self.kind == b"e"]
            kept_from = kept_from if self.end is None else min(kept_from, self.end)
            if kept_from > self.offset:
                self.link.send(self.kind.upper(), b"%d" % (kept_from - self.offset))
                self.offset = kept_from
                continue
            self.link.send(self.kind, data)
            self.offset += len(data)
        return self.offset > before

    def stop_here(self) -> None:
        """Send only what exists now: processes left behind may print without end."""
        if self.end is None and self.file >= 0:
            self.end = os.fstat(self.file).st_size


# Seconds between two lines of the file `times`, and the most lines of it.
TIMES_INTERVAL = 3.0
MOST_TIMES = 8192


class OutputTimes:
    """The file `times` of a job, which its supervisor writes: `tpuctl logs --since` reads it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.due = time.monotonic() + TIMES_INTERVAL
        self.sizes = (0, 0)
        self.lines: list[bytes] = []

    def note(self, *, is_last: bool = False) -> None:
        """Add a line if there is new output, and the last line is old enough. A full disk costs precision only."""
        now = time.monotonic()
        if now < self.due and not is_last:
            return
        sizes = size_of(self.folder + "/out"), size_of(self.folder + "/err")
        if sizes == self.sizes and self.lines:
            return
        self.due, self.sizes = now + TIMES_INTERVAL, sizes
        line = b"%.3f %d %d\n" % ((time.time(), *sizes))
        self.lines.append(line)
        try:
            if len(self.lines) > MOST_TIMES:
                # The older half gets half as precise.
                half = MOST_TIMES // 2
                self.lines = self.lines[:half:2] + self.lines[half:]
                write(self.folder + "/times.new", b"".join(self.lines))
                os.rename(self.folder + "/times.new", self.folder + "/times")
                return
            file = os.open(self.folder + "/times", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError:
            pass


def sizes_at(folder: str, moment: float) -> list[int] | None:
    """Return how much output a job had at a time, or shortly before; None if that is not known."""
    try:
        with open(folder + "/times", "rb") as file:
            lines = file.read(MOST_TIMES * 64).splitlines()
    except OSError:
        return None
    sizes = [0, 0]
    for line in lines:
        try:
            at, out, err = line.split()
            if float(at) > moment:
                break
            sizes = [int(out), int(err)]
        except ValueError:  # the disk was full
            continue
    return sizes


def size_of(path: str) -> int:
    """Return the size of a file, 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
