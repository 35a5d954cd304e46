"""Run ssh in the foreground: it uses the terminal, or the streams of this process, until it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.ssh import SSH_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of an ssh in the foreground. `has_connected`: the login succeeded, so the command may have started."""

    code: int
    has_connected: bool

    @property
    def was_lost(self) -> bool:
        """Tell whether ssh itself failed. After a login, a remote command that exits with 255 looks the same."""
        return self.code == SSH_FAILED


def execute(words: list[str]) -> NoReturn:
    """Replace this process by ssh, which then handles signals, window size and job control. Raises `SshProgramMissingError`."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)  # noqa: S606  # an argv, no shell
    except FileNotFoundError as error:
        raise SshProgramMissingError(words[0]) from error


def run(build: Callable[[tuple[str, ...]], list[str]], *, has_terminal: bool = False) -> Ran:
    """Run ssh with the stdin, stdout and stderr of this process. If a signal ended it, the code is 128 + the signal number.

    `build` returns the argv for additional options. With `has_terminal` ssh stops and continues together with this process.
    Raises `SshProgramMissingError`.
    """
    with TemporaryDirectory(prefix="tpuctl-ssh-") as folder:
        # ssh runs LocalCommand after a login, before it sends the command [ssh_config(5)]. If the user's options set one,
        # `has_connected` stays False.
        marker = Path(folder) / "logged-in"
        line = f"touch {shlex.quote(str(marker))}".replace("%", "%%")
        words = build(("-o", "PermitLocalCommand=yes", "-o", f"LocalCommand={line}"))
        try:
            code = _run_on_terminal(words) if has_terminal else subprocess.call(words)
        except FileNotFoundError as error:
            raise SshProgramMissingError(words[0]) from error
        return Ran(code if code >= 0 else 128 - code, marker.exists())


def _run_on_terminal(words: list[str]) -> int:
    """Run a program in the foreground and return its exit code. If it stops itself (`~^Z` in ssh), stop too."""
    child = os.posix_spawnp(words[0], words, os.environ)
    try:
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
    except BaseException:
        # Ctrl-C reaches the child too; a signal to this process alone does not.
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        raise
