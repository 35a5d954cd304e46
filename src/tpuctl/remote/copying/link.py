"""The ssh session with the copy program on one worker, and the meaning of its end."""

from __future__ import annotations

import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from tpuctl.platforms import enlarge_pipe
from tpuctl.remote.answers import LONGEST_BANNER, UnexpectedAnswerError
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.onboard.copy_frames import MARK, Channel, LostError
from tpuctl.remote.pipes import START_WITHIN, StartLimit, Stderr
from tpuctl.remote.ssh import SSH_FAILED, ProbeOutcome, argv, classify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from tpuctl.remote.ssh import Connection

# Processors have AES instructions; OpenSSH's default (chacha20) takes three times as long. The other ciphers stay allowed.
CIPHERS = "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_PIPE_SIZE = 1 << 20
_MAX_LINE = 64 * 1024
_COPY_EXIT_SECONDS = 5
_NO_PYTHON_EXIT = 127


class DroppedError(Exception):
    """The link ended before the copy did.

    `is_final`: another link would fail in the same way. `ssh_stderr` is the stderr of an ssh that could not log in.
    """

    def __init__(self, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.is_final = detail, is_final
        self.ssh_stderr = ""


class WorkerChannel(Channel):
    """The frames to and from the copy program on a worker."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        super().__init__(process.stdout, process.stdin.fileno())
        self._process = process

    def terminate(self) -> None:
        """Terminate ssh, which unblocks the threads that read or write."""
        self._process.terminate()


class Links:
    """All links of a run. Limits parallel handshakes, and can terminate all links at once."""

    def __init__(self, fanout: int, *, start_within: timedelta = START_WITHIN) -> None:
        self._start_within = start_within
        self._handshakes = threading.Semaphore(fanout)
        self._lock = threading.Lock()
        self._open: set[subprocess.Popen[bytes]] = set()
        self._is_terminated = False

    def terminate_all(self) -> None:
        """Terminate every link, and allow no new ones."""
        with self._lock:
            self._is_terminated = True
            for process in self._open:
                process.terminate()

    @contextmanager
    def open(self, connection: Connection, call: str) -> Iterator[WorkerChannel]:
        """Start the copy program on a worker with the Python line `call`, and yield the channel to it.

        Raises `DroppedError` if the link fails or breaks, `UnexpectedAnswerError`, and `SshProgramMissingError`.
        """
        with Stderr() as errors:
            with self._handshakes:
                process, channel = self._start(connection, call, errors)
            try:
                yield channel
            except LostError as error:
                raise self._lost_error(process, errors) from error
            except BaseException:
                channel.terminate()
                raise
            finally:
                self._close(process)

    def _start(
        self, connection: Connection, call: str, errors: Stderr
    ) -> tuple[subprocess.Popen[bytes], WorkerChannel]:
        line, source = bootstrap("files", call)
        words = argv(connection, (line,), options=("-o", "BatchMode=yes", "-o", CIPHERS))
        with self._lock:
            if self._is_terminated:
                raise DroppedError("the copy was interrupted", is_final=True)
            try:
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors.writer)
            except FileNotFoundError as error:
                raise SshProgramMissingError("ssh") from error
            self._open.add(process)
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        limit = StartLimit(process, self._start_within)
        for pipe in (process.stdin, process.stdout):
            enlarge_pipe(pipe.fileno(), _PIPE_SIZE)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(source)
                process.stdin.flush()
            has_begun = _skip_banner(process.stdout)
        except BaseException:
            process.terminate()
            self._close(process)
            raise
        finally:
            limit.cancel()
        if not has_begun:
            dropped = DroppedError(str(limit), is_final=True) if limit.has_passed else self._lost_error(process, errors)
            self._close(process)
            if process.returncode == SSH_FAILED:
                dropped.ssh_stderr = errors.text().strip()
            raise dropped
        return process, WorkerChannel(process)

    def _lost_error(self, process: subprocess.Popen[bytes], errors: Stderr) -> DroppedError:
        """Return the error for a link that ended, with the message of ssh."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_COPY_EXIT_SECONDS)
        code = process.poll()
        said = errors.text().strip()
        if code == SSH_FAILED:
            result = classify(code, said)
            final = result.outcome in {ProbeOutcome.KEY_REFUSED, ProbeOutcome.HOST_KEY_CHANGED}
            return DroppedError(result.detail or "the connection was lost", is_final=final or self._is_terminated)
        if code == _NO_PYTHON_EXIT:
            return DroppedError("the worker has no `python3`, which the copy needs", is_final=True)
        if code is not None and code > 0:
            lines = said.strip().splitlines()
            return DroppedError(lines[-1] if lines else f"the copy program exited with {code}", is_final=True)
        return DroppedError("the connection was lost", is_final=self._is_terminated)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._open.discard(process)
        # Buffered data cannot be sent any more.
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        try:
            process.wait(_COPY_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _skip_banner(stream: IO[bytes]) -> bool:
    """Skip what the login shell prints, and tell whether the copy program has started."""
    skipped = 0
    while line := stream.readline(_MAX_LINE):
        if line.endswith(MARK):
            return True
        skipped += len(line)
        if skipped > LONGEST_BANNER:
            raise UnexpectedAnswerError(f"more than {LONGEST_BANNER} bytes before its answer")
    return False
