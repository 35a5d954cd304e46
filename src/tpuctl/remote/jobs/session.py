"""One ssh session with the job query program on a worker (ssh/agent/job_queries.py)."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from tpuctl.remote.kept import is_about_keeping
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.pipes import Kept, end, exchange
from tpuctl.remote.ssh import argv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.remote.member import Member

_ERRORS_KEPT = 8 * 1024
_BLOCK = 256 * 1024
_END = timedelta(seconds=1)


class Session:
    """An ssh process whose stdout is read. Leaving the context terminates it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._errors = process, Kept(head=0, tail=_ERRORS_KEPT)

    def answer(self, patience: timedelta, *, most: int) -> bytes:
        """Return the whole output of the program; after `patience`, the output so far.

        Raises `UnexpectedAnswerError` for more than `most` bytes.
        """
        output = Kept(head=most, tail=0)
        exchange(self._process, b"", output, self._errors, patience, most=most)
        return bytes(output)

    def read(self, patience: timedelta) -> bytes | None:
        """Return the next output of the program, empty at its end; None if there is none within `patience`."""
        stdout, stderr = _stream(self._process.stdout), _stream(self._process.stderr)
        until = time.monotonic() + patience.total_seconds()
        with selectors.DefaultSelector() as selector:
            for stream in (stdout, stderr):
                selector.register(stream, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = os.read(key.fd, _BLOCK)
                    if key.fileobj is stdout:
                        return data
                    self._errors.add(data)
                    if not data:
                        selector.unregister(stderr)
        return None

    def end(self) -> int | None:
        """Return ssh's exit code, negative after a signal; None if ssh has not ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END.total_seconds())
        return None

    def words(self) -> str:
        """Return the stderr of ssh, without messages about the shared connection."""
        stderr = _stream(self._process.stderr)
        os.set_blocking(stderr.fileno(), False)
        # Not to its end: the master of a shared connection may hold it open.
        with suppress(BlockingIOError):
            self._errors.add(os.read(stderr.fileno(), _BLOCK))
        lines = bytes(self._errors).decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not is_about_keeping(line))

    def close(self) -> None:
        """Terminate ssh if it has not ended."""
        end(self._process)
        for stream in (self._process.stdout, self._process.stderr):
            _stream(stream).close()


@contextmanager
def opened(member: Member, request: Mapping[str, Any], options: tuple[str, ...]) -> Iterator[Session]:
    """Start ssh with the program that executes a request. Raises `SshProgramMissingError`."""
    line, source = bootstrap("jobs", f"answer({ ({**request, 'worker': member.worker})!r})", is_kept=True)
    words = argv(member.way, (line,), options=("-o", "BatchMode=yes", *options))
    # A file: nothing here waits for ssh to read it.
    with TemporaryFile() as stdin:
        stdin.write(source)
        stdin.seek(0)
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(words, bufsize=0, stdin=stdin, stdout=pipe, stderr=pipe)
        except FileNotFoundError as error:
            raise SshProgramMissingError("ssh") from error
        session = Session(process)
        try:
            yield session
        finally:
            session.close()


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("it was opened as a pipe")
    return stream
