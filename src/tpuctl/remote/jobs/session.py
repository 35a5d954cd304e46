"""One ssh session with the program that tells of jobs (remote/onboard/jobs.py)."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from tpuctl.remote.kept import is_about_keeping
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.ssh import argv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.remote.member import Member

# ssh takes its ProxyCommand down with it when it is asked to end.
_FAREWELL = timedelta(seconds=1)
_ERRORS_KEPT = 8 * 1024


class Session:
    """An ssh whose stdout is read. Leaving it ends it."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    @property
    def stdout(self) -> IO[bytes]:
        """What the program sends."""
        if self._process.stdout is None:
            raise AssertionError("it was asked for as a pipe")
        return self._process.stdout

    def answer(self, patience: timedelta) -> bytes:
        """Return all that the program sends; of one that does not end in time what it has sent so far."""
        try:
            return self._process.communicate(timeout=patience.total_seconds())[0]
        except subprocess.TimeoutExpired as late:
            return late.stdout or b""

    def end(self) -> int | None:
        """Return ssh's exit code, a negative one where a signal ended it; nothing where it has not ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_FAREWELL.total_seconds())
        return None

    def words(self) -> str:
        """Return what ssh said, without what is about the connection that is kept."""
        self._errors.seek(0)
        lines = self._errors.read(_ERRORS_KEPT).decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not is_about_keeping(line))

    def close(self) -> None:
        """End ssh if it has not ended."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL.total_seconds())
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        self.stdout.close()


@contextmanager
def opened(member: Member, order: Mapping[str, Any], options: tuple[str, ...]) -> Iterator[Session]:
    """Start ssh with the program that obeys an order. Raises `SshProgramMissingError`."""
    line, source = bootstrap("jobs", f"answer({ ({**order, 'worker': member.worker})!r})", is_kept=True)
    words = argv(member.way, (line,), options=("-o", "BatchMode=yes", *options))
    # Files: nothing here waits for ssh to read or to close one.
    with TemporaryFile() as stdin, TemporaryFile() as errors:
        stdin.write(source)
        stdin.seek(0)
        try:
            process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=errors)
        except FileNotFoundError as error:
            raise SshProgramMissingError("ssh") from error
        session = Session(process, errors)
        try:
            yield session
        finally:
            session.close()
