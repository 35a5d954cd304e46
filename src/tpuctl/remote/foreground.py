"""ssh in the foreground: it has the terminal, or this process's streams, until it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.ssh import SSH_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Ran:
    """How an ssh ended. `has_connected`: it was let in, so that what it was to do may have begun."""

    code: int
    has_connected: bool

    @property
    def was_lost(self) -> bool:
        """Tell whether ssh itself failed; a remote command that ended with 255 looks the same once it was let in."""
        return self.code == SSH_FAILED


def execute(words: list[str]) -> NoReturn:
    """Become ssh: a terminal's signals, size and job control are then its own. Raises `SshProgramMissingError`."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)  # noqa: S606  # an argv, no shell
    except FileNotFoundError as error:
        raise SshProgramMissingError(words[0]) from error


def run(build: Callable[[tuple[str, ...]], list[str]], *, has_terminal: bool = False) -> Ran:
    """Run ssh with this process's stdin, stdout and stderr. A signal that ended it counts as 128 + its number.

    `build` makes the argv, given further options; with `has_terminal` it is stopped and continued together with this process.
    Raises `SshProgramMissingError`.
    """
    with _mark() as (mark, options):
        words = build(options)
        try:
            code = _attend(words) if has_terminal else subprocess.call(words)
        except FileNotFoundError as error:
            raise SshProgramMissingError(words[0]) from error
        return Ran(code if code >= 0 else 128 - code, mark.exists())


@contextmanager
def _mark() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield a file that ssh makes once it was let in, before it asks for the command, and the options for that [ssh_config(5)].

    A LocalCommand of the user's own takes its place; then it is never known that ssh was let in.
    """
    with TemporaryDirectory(prefix="tpuctl-ssh-") as folder:
        mark = Path(folder) / "let-in"
        line = f"touch {shlex.quote(str(mark))}".replace("%", "%%")
        yield mark, ("-o", "PermitLocalCommand=yes", "-o", f"LocalCommand={line}")


def _attend(words: list[str]) -> int:
    """Start a program in the foreground and return its exit code; where it stops itself (`~^Z` in ssh), stop too."""
    child = os.posix_spawnp(words[0], words, os.environ)
    try:
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
    except BaseException:
        # Ctrl-C has reached the child too; a signal to this process alone has not.
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        raise
