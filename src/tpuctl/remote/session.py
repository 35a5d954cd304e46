"""One ssh session with a command, what it reads and an end: nothing in it waits longer than it may, or asks anything."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.ssh import FRESH, argv

if TYPE_CHECKING:
    from tpuctl.remote.ssh import Connection

SSH_FAILED = 255
# ssh takes its ProxyCommand down with it when it is asked to end.
_FAREWELL = timedelta(seconds=1)
# Of what a long command prints, so much of the beginning and of the end is kept.
_KEPT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended. `code` is ssh's, nothing where the time was up; 255 is ssh's own failure."""

    code: int | None
    output: str
    errors: str


def run(connection: Connection, command: str, *, text: str = "", timeout: timedelta) -> Ended:
    """Run a shell line that reads `text`, and return all that it printed, also when the time is up.

    Raises `SshProgramMissingError`.
    """
    process = _start(connection, command, timeout, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with process:
        try:
            output, errors = process.communicate(text.encode(), timeout.total_seconds())
        except subprocess.TimeoutExpired as late:
            _end(process)
            return Ended(None, _text(late.stdout), _text(late.stderr))
        return Ended(_code(process.returncode), _text(output), _text(errors))


def run_long(connection: Connection, command: str, *, text: str, timeout: timedelta) -> Ended:
    """Do as `run` does for what may print much: of stdout the first and the last 64 KiB are kept. stderr is ssh's alone.

    Raises `SshProgramMissingError`, and `OSError` where there is no room for temporary files.
    """
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(text.encode())
        stdin.seek(0)
        with _start(connection, command, stdin=stdin, stdout=stdout, stderr=stderr) as process:
            try:
                code: int | None = _code(process.wait(timeout.total_seconds()))
            except subprocess.TimeoutExpired:
                _end(process)
                code = None
        return Ended(code, _ends_of(stdout), _ends_of(stderr))


def _start(
    connection: Connection,
    command: str,
    patience: timedelta | None = None,
    *,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    connecting = ("-o", f"ConnectTimeout={max(1, round(patience.total_seconds()))}") if patience else ()
    words = argv(connection, (command,), options=(*FRESH, "-o", "BatchMode=yes", *connecting))
    try:
        return subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=stderr)
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_FAREWELL.total_seconds())
        return
    process.kill()


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _text(output: bytes | str | None) -> str:
    # The type of the exception's output covers both; without an encoding it is bytes.
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _ends_of(file: IO[bytes]) -> str:
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(_KEPT)
    file.seek(max(_KEPT, size - _KEPT))
    return _text(head + file.read())
