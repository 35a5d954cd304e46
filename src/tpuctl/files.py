"""Read files within limits of size and time, and write private files.

A path from the user may be a pipe (`--env-file <(generate)`), a device, a directory, or larger than the memory: it is read
within the limits, or raises an `InvalidInputError` (exit 2) with the file and the reason.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import stat
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO, TypeVar

from tpuctl.clock import CLOUD_CALL_TIMEOUT, SystemClock, deadline_has_passed, time_until_deadline
from tpuctl.command_text import command_word
from tpuctl.decoding import ShapeError, decode_mapping, parse_json
from tpuctl.durations import format_duration
from tpuctl.errors import InvalidInputError, ServiceUnavailableError
from tpuctl.platforms import flush_to_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KIB: Final = 1024
MIB: Final = 1024 * KIB
# The largest value of one metadata key [Compute Engine documentation, "Metadata entries"].
METADATA_VALUE_LIMIT: Final = 256 * KIB
# Enough for configurations that people write by hand.
TEXT_FILE_LIMIT: Final = 4 * MIB
# The time for a writer to open a pipe that has none.
_WRITER_SECONDS: Final = 2.0
# The total time for reading a pipe: `<(gcloud secrets versions access …)` takes seconds.
_PIPE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
# Reopening one of these after its writer has exited gives a pipe at its end, not one without a writer.
_INHERITED: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def read_user_text(path: Path, *, limit: int = TEXT_FILE_LIMIT, what: str | None = None) -> str:
    """Return the text of a UTF-8 file with line ends as `\\n`, as `Path.read_text` does.

    `what` names the file in errors (default: its path). Raises the errors of `read_bytes`, and `InvalidInputError` with the
    line if the text is not UTF-8.
    """
    return decode_user_text(read_user_bytes(path, limit=limit, what=what), what or f"`{path}`")


def read_user_bytes(path: Path, *, limit: int = TEXT_FILE_LIMIT, what: str | None = None) -> bytes:
    """Return the content of a regular file, a pipe, or `/dev/null`; `~` is expanded.

    A pipe without a writer fails after 2 seconds, one that has not ended after 60. Raises `InvalidInputError` for other kinds
    of file, for more than `limit` bytes, and if it cannot be opened or read; its cause is `FileNotFoundError` if there is no
    file.
    """
    name = what or f"`{path}`"
    try:
        # Without O_NONBLOCK opening a pipe waits for a writer.
        file = os.open(expand_user_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable_error(name, _reason(error)) from error
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode):
            if status.st_size > limit:
                raise _too_large_error(name, limit, status.st_size)
            return _read_to_end(lambda: os.read(file, MIB), limit=limit, name=name)
        if stat.S_ISFIFO(status.st_mode):
            is_inherited = str(path).startswith(_INHERITED)
            return _read_to_end(_PipeReader(file, name, has_had_writer=is_inherited).read, limit=limit, name=name)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev:
            return b""
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a device or a socket"
        raise _unreadable_error(name, f"it is {kind}", hint="name a regular file")
    except OSError as error:
        raise _unreadable_error(name, _reason(error)) from error
    finally:
        os.close(file)


def read_text_stream(stream: TextIO, *, limit: int = TEXT_FILE_LIMIT, what: str = "stdin") -> str:
    """Return the text of stdin, at most `limit` characters. Raises `InvalidInputError`."""
    try:
        text = stream.read(limit + 1)
    except UnicodeDecodeError as error:
        raise _unreadable_error(what, f"not UTF-8 text (byte 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise _unreadable_error(what, _reason(error)) from error
    if len(text) > limit:
        raise _too_large_error(what, limit)
    return text


def decode_user_text(content: bytes, what: str) -> str:
    """Decode UTF-8 text, with line ends as `\\n`. Raises `InvalidInputError` with the line."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        place = f"line {line}, byte {column} (0x{content[error.start]:02x})"
        raise _unreadable_error(what, f"not UTF-8 text: {place}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def expand_user_path(path: Path) -> Path:
    """Return a path with `~` expanded; the file need not exist. Raises `InvalidInputError` for an invalid path."""
    try:
        expanded = path.expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            expanded.lstat()
    except RuntimeError:
        raise InvalidInputError(f"`{path}`: no such user", hint=f"write `./{path}` for a file of that name") from None
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"`{path}` is not a path: {_reason(error).lower()}") from error
    return expanded


def _read_to_end(read: Callable[[], bytes], *, limit: int, name: str) -> bytes:
    content = bytearray()
    while piece := read():
        content += piece
        if len(content) > limit:
            raise _too_large_error(name, limit)
    return bytes(content)


class _PipeReader:
    """Reads a non-blocking pipe for a limited time."""

    def __init__(self, file: int, name: str, *, has_had_writer: bool) -> None:
        self._file, self._name, self._has_had_writer = file, name, has_had_writer
        self._begin = time.monotonic()

    def read(self) -> bytes:
        """Return the next bytes, `b""` at the end."""
        while True:
            passed = time.monotonic() - self._begin
            try:
                piece = os.read(self._file, MIB)
            except BlockingIOError:
                self._has_had_writer = True
                if passed > _PIPE_SECONDS:
                    text = f"the pipe has not ended after {_PIPE_SECONDS:.0f} seconds"
                    raise _unreadable_error(self._name, text, hint="write to a file first, and name that") from None
                select.select([self._file], [], [], 1.0)
                continue
            if piece or self._has_had_writer:
                self._has_had_writer = True
                return piece
            if passed > _WRITER_SECONDS:
                text = f"it is a pipe, and no program opened it for writing within {_WRITER_SECONDS:.0f} seconds"
                raise _unreadable_error(self._name, text, hint="name a regular file")
            time.sleep(_POLL_SECONDS)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # System calls refuse such a path [the message of CPython depends on its version].
    return "a path must not contain a zero byte" if "null" in str(error) else str(error)


def _unreadable_error(name: str, reason: str, *, hint: str | None = None) -> InvalidInputError:
    return InvalidInputError(f"{name} cannot be read: {reason}", hint=hint)


def _too_large_error(name: str, limit: int, size: int | None = None) -> InvalidInputError:
    found = f"{_size(size)}" if size is not None else f"more than {_size(limit)}"
    return InvalidInputError(f"{name} is too large: {found}; the limit is {_size(limit)}")


def _size(size: int) -> str:
    for unit, name in ((1024**3, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"


def read_regular_file(path: Path, *, longest: int) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a regular file, without blocking, and at most `longest` bytes.

    Raises `OSError` if it cannot be read, is not a regular file (a pipe, a device, a folder) or is longer.
    """
    # `open` would wait for a writer of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "Is a directory" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
            raise OSError(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL, kind, str(path))
        content = file.read(longest + 1)
    if len(content) > longest:
        raise OSError(
            errno.EFBIG,
            f"it is larger than {longest >> 20} MiB" if longest >> 20 else f"it is larger than {longest >> 10} KiB",
            str(path),
        )
    return content, status


# Far more than tpuctl ever writes: a larger file is not its own, and could exhaust the memory.
_OWN_FILE_LIMIT = 64 << 20


def read_own_file(path: Path) -> bytes:
    """Return the content of a file. Raises `OSError`, also if it is not a regular file or has more than 64 MiB."""
    return read_regular_file(path, longest=_OWN_FILE_LIMIT)[0]


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, all with mode 0700 regardless of the umask."""
    if folder.is_dir():
        return
    # `Path.mkdir(parents=True)` sets the mode of the last folder only.
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        try:
            missing.mkdir(mode=0o700)
        except FileExistsError:
            if not missing.is_dir():
                raise
        else:
            missing.chmod(0o700)  # independent of the umask


def private_folder_problem(folder: Path) -> str | None:
    """Return why other users could change the files in a folder, as ssh checks its own; None if they cannot, or without one."""
    try:
        status = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return "it is a symlink" if stat.S_ISLNK(status.st_mode) else "it is not a folder"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    mode = stat.S_IMODE(status.st_mode)
    return f"others can write to it (mode {mode:04o})" if mode & 0o022 else None


def secure_private_folder(folder: Path) -> None:
    """Create a folder, or set the mode of an own one to 0700. Raises `OSError`, also for a symlink and another's folder."""
    make_private_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def replace_private_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically, with this mode; create it and its folder if missing. Raises `OSError`."""
    make_private_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


T = TypeVar("T")


def read_json_cache(path: Path, kind: type[T]) -> dict[str, T]:
    """Return the entries of a cache file; none if it cannot be read or one is not of this kind."""
    try:
        return decode_mapping(kind, parse_json(read_own_file(path)))
    except (OSError, ShapeError):
        return {}


def write_json_cache(path: Path, entries: Mapping[str, Any]) -> None:
    """Replace a cache file, with mode 0600. It stays as it is if it cannot be written."""
    with contextlib.suppress(OSError):
        replace_private_file(path, json.dumps(entries).encode())


def open_private_file(path: Path) -> int:
    """Open a file for reading and writing, with mode 0600; create it and its folder if missing. Return its descriptor.

    The mode of an own file that is readable for others (older versions wrote such) is corrected.
    """
    make_private_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    status = os.fstat(descriptor)
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)
    return descriptor


def real_path(path: Path) -> Path:
    """Return a path without its symlinks; of a link that leads to itself the path of that link."""
    # `Path.resolve` raises `RuntimeError` for such a link before Python 3.13.
    return Path(os.path.realpath(path))


# What the shell opened for this process, and devices: not part of any folder. But memory for files has folders of users.
_SYSTEM_FILES: Final = ("/dev/", "/proc/")
_SHARED_MEMORY: Final = "/dev/shm/"  # noqa: S108  # only compared


def output_path(path: Path, folder: Path) -> Path:
    """Return the real path of a file or folder that the user named for output; `~` is expanded. It need not exist.

    A cloned repository may contain symlinks. A link may lead to a device, and to what is in `folder` too, the working directory
    of the user; for a path outside of it, what is in the folder of its last name. Raises `InvalidInputError` for any other.
    """
    named = folder / expand_user_path(path)
    # Without links resolved, as the user reads it.
    plain = Path(os.path.normpath(named))
    if str(plain).startswith(_SYSTEM_FILES) and not str(plain).startswith(_SHARED_MEMORY):
        return plain
    real = real_path(named)
    base = folder if plain.is_relative_to(folder) else plain.parent
    if real.is_symlink():
        hint = f"remove it: `rm {command_word('path', real)}`"
        raise InvalidInputError(f"cannot write `{path}`: it is a symlink to itself", hint=hint)
    if not real.is_relative_to(real_path(base)) and not real.is_char_device():
        hint = f"to write there, name the target: `{command_word('path', real)}`"
        raise InvalidInputError(f"cannot write `{path}`: a symlink in it leads out of `{base}`", hint=hint)
    return real


def create_unlinked_file(path: Path) -> BinaryIO:
    """Open a file for writing, replacing its content.

    A repository may contain symlinks: only those to a device such as `/dev/null` are followed. Raises `OSError`, also if it is
    neither a regular file nor such a device.
    """
    is_link = path.is_symlink()
    if is_link and not path.is_char_device():
        raise OSError(errno.ELOOP, f"`{path.name}` is a symlink")

    def opened(name: str, _: int) -> int:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(name, flags if is_link else flags | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    file = open(path, "wb", opener=opened)  # noqa: SIM115  # pathlib has no opener; the caller closes it
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) and not is_link:
        file.truncate(0)
    elif not stat.S_ISCHR(mode):
        file.close()
        raise OSError(errno.EINVAL, f"`{path.name}` is not a regular file")
    os.set_blocking(file.fileno(), True)
    return file


@contextmanager
def file_lock(path: Path, *, notify: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock of a file that serves only as a lock. Raises `LockedFileError`; see `wait_for_lock`."""
    descriptor = open_private_file(path)
    try:
        wait_for_lock(descriptor, fcntl.LOCK_EX, path, notify)
        yield
    finally:
        os.close(descriptor)


# How long a lock is awaited, and after which time the user gets a message about that.
LOCK_TIMEOUT: Final = timedelta(seconds=30)
_LOCK_NOTICE: Final = timedelta(seconds=1)
_LONGEST_LOCK_PAUSE: Final = timedelta(milliseconds=50)


class LockedFileError(ServiceUnavailableError):
    """Another process kept a file locked. A run that waits for an unavailable service waits for it too."""

    def __init__(self, path: Path, holder: int | None, waited: timedelta) -> None:
        process = "another process" if holder is None else f"process {holder}"
        find = f"`ps -fp {holder}`" if holder is not None else f"`fuser -v {command_word('path', path)}`"
        super().__init__(
            f"{process} keeps `{path}` locked: gave up after {format_duration(waited)}",
            hint=f"{find} shows that process; end it if it hangs, then try again",
        )


def wait_for_lock(descriptor: int, kind: int, path: Path, notify: Callable[[str], None]) -> None:
    """Lock an open file, shared or exclusive (`kind`). `notify` gets a message if that takes longer than a second.

    The deadline of a long run decides how long this waits; otherwise it is half a minute. Raises `LockedFileError` then, and
    `OSError` on a file system without locks.
    """
    clock, has_notified = SystemClock(), False
    started, left = clock.monotonic(), time_until_deadline()
    is_long = left is not None and left > CLOUD_CALL_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = clock.monotonic() - started
        else:
            return
        if waited >= _LOCK_NOTICE:
            holder = _lock_holder(descriptor)
            if deadline_has_passed() or (waited >= LOCK_TIMEOUT and not is_long):
                raise LockedFileError(path, holder, waited)
            if not has_notified:
                has_notified = True
                notify(
                    f"waiting for {'another process' if holder is None else f'process {holder}'}, which locks `{path}`"
                )
        clock.sleep(min(_LONGEST_LOCK_PAUSE, waited / 10 + timedelta(milliseconds=1)))


def _lock_holder(descriptor: int) -> int | None:
    """Return the id of a process that locks an open file; None if the system does not tell (macOS, other containers)."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        # 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF [proc_locks(5)]; `->` marks a process that waits.
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == device and int(words[4]) > 0:
                return int(words[4])
    return None


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder while a file of the user in it is read and replaced; another process waits.

    No file of a lock stays there. Without effect for a folder that is missing, or on a file system without such locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):  # NFS wants a descriptor that can write
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a private file atomically, also in case of a crash of the machine. The caller holds its lock."""
    draft = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            flush_to_disk(descriptor)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
