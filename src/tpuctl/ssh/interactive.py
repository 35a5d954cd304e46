"""Run ssh in the foreground: it uses the terminal, or the streams of this process, until it ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

from tpuctl.errors import InvalidInputError
from tpuctl.ssh.connection import SSH_FAILED
from tpuctl.ssh.keys import SshProgramMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class ForegroundResult:
    """The result of an ssh in the foreground. `has_connected`: the login succeeded, so the command may have started."""

    code: int
    has_connected: bool

    @property
    def was_lost(self) -> bool:
        """Tell whether ssh itself failed. After a login, a remote command that exits with 255 looks the same."""
        return self.code == SSH_FAILED


def exec_ssh(words: list[str]) -> NoReturn:
    """Replace this process by ssh, which then handles signals, window size and job control. Raises `SshProgramMissingError`."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(words[0], words)  # noqa: S606  # an argv, no shell
    except FileNotFoundError as error:
        raise SshProgramMissingError(words[0]) from error


def run_in_foreground(build: Callable[[tuple[str, ...]], list[str]], *, has_terminal: bool = False) -> ForegroundResult:
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
        return ForegroundResult(code if code >= 0 else 128 - code, marker.exists())


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


# The remote command that attaches to a tmux session, and its exit codes.


DEFAULT_TMUX_SESSION = "tpuctl"
# Exit codes of the script below, which common programs do not use.
NO_TMUX = 84
TMUX_DETACHED = 85
# tmux changes dots and colons in a name, and treats some characters as patterns [tmux(1)].
_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
# ssh passes the name of the terminal on; if the worker's terminfo does not know it, a common one is used.
_SCRIPT = """\
command -v tmux >/dev/null 2>&1 || exit {no_tmux}
infocmp >/dev/null 2>&1 || export TERM=xterm-256color
name=$0
tmux new-session -A -s "$name" "$@"
code=$?
tmux has-session -t "=$name" 2>/dev/null && exit {goes_on}
exit $code"""
# Resets the modes of a full-screen program after a lost connection: alternate screen, mouse, bracketed paste.
RESET_TERMINAL = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[0m\r"


def tmux_attach_command(name: str, command: Sequence[str] = ()) -> str:
    """Return the shell line that attaches to the session `name`, and creates it if it does not exist.

    A new session runs `command`, or a shell; an existing session is not changed. The line exits with `GOES_ON` if the session
    was detached and still runs, with `NO_TMUX` if the worker has no tmux. Raises `InvalidInputError` for an invalid name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"`{name}` is not a valid session name", hint="use letters, digits, `-` and `_`")
    line = [] if not command else [command[0] if len(command) == 1 else shlex.join(command)]
    text = _SCRIPT.format(no_tmux=NO_TMUX, goes_on=TMUX_DETACHED)
    return "exec " + shlex.join(["sh", "-c", text, name, *line])
