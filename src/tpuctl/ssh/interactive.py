"""Run ssh in the foreground: it uses the terminal, or the streams of this process, until it ends.

Also the parts of its command line: the tmux session, the user's options and port forwards.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

from tpuctl.command_text import join_command, quote_word
from tpuctl.errors import ConflictError, InvalidInputError
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
        """Return whether ssh itself failed. After a login, a remote command that exits with 255 looks the same."""
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
tmux has-session -t "=$name" 2>/dev/null && exit {detached}
exit $code"""
# Resets the modes of a full-screen program after a lost connection: alternate screen, mouse, bracketed paste.
RESET_TERMINAL = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[0m\r"


def tmux_attach_command(name: str, command: Sequence[str] = ()) -> str:
    """Return the shell line that attaches to the session `name`, and creates it if it does not exist.

    A new session runs `command`, or a shell; an existing session is not changed. The line exits with `TMUX_DETACHED` if the
    session was detached and still runs, with `NO_TMUX` if the worker has no tmux. Raises `InvalidInputError` for an invalid
    name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"`{name}` is not a valid session name", hint="use letters, digits, `-` and `_`")
    line = [] if not command else [command[0] if len(command) == 1 else shlex.join(command)]
    text = _SCRIPT.format(no_tmux=NO_TMUX, detached=TMUX_DETACHED)
    return "exec " + shlex.join(["sh", "-c", text, name, *line])


# ssh uses the first value of an option, and those of `trust_options` come first. These could change a check of host keys, too.
_HOST_KEY_CHECKS = ("-o", "VerifyHostKeyDNS=no", "-o", "NoHostAuthenticationForLocalhost=no")
# Options that `tpuctl ssh` has too, with the same meaning: with a value, and without.
_WITH_VALUE, _ALONE = "LRDo", "ANt"


def parse_ssh_options(keys: Sequence[str], flags: Sequence[str], *, is_plain: bool = False) -> tuple[str, ...]:
    """Return the arguments of ssh for the values of `-o` and of `--ssh-flag`. ssh itself checks them.

    Raises `InvalidInputError` for a flag that ssh would not take for an option.
    """
    words: list[str] = []
    for flag in flags:
        try:
            words += shlex.split(flag)
        except ValueError as error:
            message = f"`--ssh-flag={flag}` cannot be parsed: {error}".lower()
            raise InvalidInputError(message, hint="close its quotes") from None
    if words and (not words[0].startswith("-") or "--" in words):
        word = words[0] if not words[0].startswith("-") else "--"
        message = f"`{word}` in `--ssh-flag` is not an option of ssh"
        raise InvalidInputError(message, hint="put the command after `--`: `-- COMMAND`")
    options = [*(word for key in keys for word in ("-o", key)), *words]
    return (*(_HOST_KEY_CHECKS if options and not is_plain else ()), *options)


def misplaced_option_error(word: str, node: str, rest: Sequence[str]) -> InvalidInputError:
    """Return the error for an option of ssh in place of a command. gcloud passes such an option on to ssh."""
    letter, option = word[1:2], f"--ssh-flag={quote_word(word)}"
    if letter and letter in _WITH_VALUE + _ALONE:
        option = join_command([word, *rest[:1]] if letter in _WITH_VALUE and len(word) == 2 else [word])
    hint = f"put options of ssh before `--`: `tpuctl ssh {node} {option}`"
    return InvalidInputError(f"`{word}` after `--` is not a command", hint=hint)


# The default ports of TensorBoard and Jupyter [their documentation].
_NAMES = {"tensorboard": 6006, "jupyter": 8888}
_PORTS = re.compile(r"(?:(?P<local>\d{1,5}):)?(?P<remote>\d{1,5})", re.ASCII)
# How many ports above a port in use are tried.
_MAX_TRIES = 100
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class PortForward:
    """A port of a worker and the local port that forwards to it. `is_fixed`: the user named the local port."""

    local: int
    remote: int
    is_fixed: bool

    @classmethod
    def parse(cls, text: str) -> PortForward:
        """Parse `tensorboard`, `jupyter`, `PORT` or `LOCAL:PORT`. Raises `InvalidInputError`."""
        if remote := _NAMES.get(text):
            return cls(remote, remote, is_fixed=False)
        match = _PORTS.fullmatch(text)
        remote = int(match["remote"]) if match else 0
        local = int(match["local"] or remote) if match else 0
        if match is None or not (0 < local <= _MAX_PORT and 0 < remote <= _MAX_PORT):
            hint = "use `tensorboard`, `jupyter`, PORT or LOCAL:PORT; for another host `-L LOCAL:HOST:PORT`"
            raise InvalidInputError(f"`--forward {text}` is not a port", hint=hint)
        return cls(local, remote, is_fixed=match["local"] is not None)

    @property
    def options(self) -> tuple[str, ...]:
        """The options for ssh. Services on workers often listen on the loopback address only."""
        return ("-L", f"{self.local}:localhost:{self.remote}")


def choose_local_ports(forwards: list[PortForward]) -> list[PortForward]:
    """Return the forwards with free local ports: the next free port, or the port that the user named.

    Raises `ConflictError` if a named port is in use or not permitted.
    """
    chosen: list[PortForward] = []
    for forward in forwards:
        used = {one.local for one in chosen}
        last = forward.local if forward.is_fixed else min(forward.local + _MAX_TRIES, _MAX_PORT)
        candidates = (
            port for port in range(forward.local, last + 1) if port not in used and _port_problem(port) is None
        )
        port = next(candidates, None)
        if port is None:
            why = _port_problem(forward.local) or "it is already forwarded"
            raise ConflictError(
                f"the local port {forward.local} cannot be used: {why}",
                hint=f"name another port: `--forward LOCAL:{forward.remote}`"
                + (f", or let tpuctl choose: `--forward {forward.remote}`" if forward.is_fixed else ""),
            )
        chosen.append(PortForward(port, forward.remote, forward.is_fixed))
    return chosen


def _port_problem(port: int) -> str | None:
    """Return why ssh cannot listen on a local port, None if it can. ssh needs one of the two loopback addresses."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "another program listens on it"
                if error.errno == errno.EACCES:
                    return "ports below 1024 need administrator rights"
    return None
