"""One ssh to one worker with the program that copies, and what its end means."""

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
from tpuctl.remote.ssh import ProbeOutcome, argv, classify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from tpuctl.remote.ssh import Connection

# Processors have instructions for AES; OpenSSH's own first choice (chacha20) takes three times the time. The others stay.
CIPHERS = "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_PIPE = 1 << 20
_KEPT = 64 * 1024
_FAREWELL_SECONDS = 5
_NO_PYTHON = 127
_SSH_FAILED = 255


class DroppedError(Exception):
    """The link ended before the copy did.

    `is_final`: another would end in the same way. `ssh_said` are the words of an ssh that never got in.
    """

    def __init__(self, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.is_final = detail, is_final
        self.ssh_said = ""


class WorkerChannel(Channel):
    """The frames to and from the program at the other end of an ssh."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        super().__init__(process.stdout, process.stdin.fileno())
        self._process = process

    def cut(self) -> None:
        """End the ssh, which unblocks threads that read from or write to the other end."""
        self._process.terminate()


class Links:
    """All links of a run: so many handshakes at once, and all of them ended at once when the run is cut off."""

    def __init__(self, fanout: int, *, start_within: timedelta = START_WITHIN) -> None:
        self._start_within = start_within
        self._handshakes = threading.Semaphore(fanout)
        self._lock = threading.Lock()
        self._open: set[subprocess.Popen[bytes]] = set()
        self._is_cut_off = False

    def cut_off(self) -> None:
        """End every link, and let none begin."""
        with self._lock:
            self._is_cut_off = True
            for process in self._open:
                process.terminate()

    @contextmanager
    def open(self, way: Connection, call: str) -> Iterator[WorkerChannel]:
        """Give the channel to the program on a worker, which begins with this Python line.

        Raises `DroppedError` where there is none, or where it breaks, `UnexpectedAnswerError`, and `SshProgramMissingError`.
        """
        with Stderr() as errors:
            with self._handshakes:
                process, channel = self._begin(way, call, errors)
            try:
                yield channel
            except LostError as error:
                raise self._ended(process, errors) from error
            except BaseException:
                channel.cut()
                raise
            finally:
                self._end(process)

    def _begin(self, way: Connection, call: str, errors: Stderr) -> tuple[subprocess.Popen[bytes], WorkerChannel]:
        line, source = bootstrap("files", call)
        words = argv(way, (line,), options=("-o", "BatchMode=yes", "-o", CIPHERS))
        with self._lock:
            if self._is_cut_off:
                raise DroppedError("the run was cut off", is_final=True)
            try:
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors.writer)
            except FileNotFoundError as error:
                raise SshProgramMissingError("ssh") from error
            self._open.add(process)
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        limit = StartLimit(process, self._start_within)
        for pipe in (process.stdin, process.stdout):
            enlarge_pipe(pipe.fileno(), _PIPE)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(source)
                process.stdin.flush()
            has_begun = _skip_noise(process.stdout)
        except BaseException:
            process.terminate()
            self._end(process)
            raise
        finally:
            limit.met()
        if not has_begun:
            dropped = DroppedError(str(limit), is_final=True) if limit.has_passed else self._ended(process, errors)
            self._end(process)
            if process.returncode == _SSH_FAILED:
                dropped.ssh_said = errors.text().strip()
            raise dropped
        return process, WorkerChannel(process)

    def _ended(self, process: subprocess.Popen[bytes], errors: Stderr) -> DroppedError:
        """Return what the end of a link means, in ssh's words."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_FAREWELL_SECONDS)
        code = process.poll()
        said = errors.text().strip()
        if code == _SSH_FAILED:
            result = classify(code, said)
            final = result.outcome in {ProbeOutcome.KEY_REFUSED, ProbeOutcome.HOST_KEY_CHANGED}
            return DroppedError(result.detail or "the connection was lost", is_final=final or self._is_cut_off)
        if code == _NO_PYTHON:
            return DroppedError("there is no `python3` on it, which copies there", is_final=True)
        if code is not None and code > 0:
            lines = said.strip().splitlines()
            return DroppedError(lines[-1] if lines else f"the copying program ended with {code}", is_final=True)
        return DroppedError("the connection was lost", is_final=self._is_cut_off)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._open.discard(process)
        # What was buffered for a link that is gone goes nowhere.
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        try:
            process.wait(_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _skip_noise(stream: IO[bytes]) -> bool:
    """Read to where the program begins, past what a login shell prints, and tell whether it does."""
    noise = 0
    while heard := stream.readline(_KEPT):
        if heard.endswith(MARK):
            return True
        noise += len(heard)
        if noise > LONGEST_BANNER:
            raise UnexpectedAnswerError(f"more than {LONGEST_BANNER} bytes before its answer")
    return False
