"""The remote command that attaches to a tmux session, and its exit codes."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_NAME = "tpuctl"
# Exit codes of the script below, which common programs do not use.
NO_TMUX = 84
GOES_ON = 85
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
RESTORE = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[0m\r"


def attach_line(name: str, command: Sequence[str] = ()) -> str:
    """Return the shell line that attaches to the session `name`, and creates it if it does not exist.

    A new session runs `command`, or a shell; an existing session is not changed. The line exits with `GOES_ON` if the session
    was detached and still runs, with `NO_TMUX` if the worker has no tmux. Raises `InvalidInputError` for an invalid name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"`{name}` is not a valid session name", hint="use letters, digits, `-` and `_`")
    line = [] if not command else [command[0] if len(command) == 1 else shlex.join(command)]
    text = _SCRIPT.format(no_tmux=NO_TMUX, goes_on=GOES_ON)
    return "exec " + shlex.join(["sh", "-c", text, name, *line])
