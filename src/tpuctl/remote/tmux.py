"""A session of tmux on a worker: what is run there, and what its end means."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_NAME = "tpuctl"
# Exit codes of the lines below, which no program in common use has.
NO_TMUX = 84
GOES_ON = 85
# tmux itself changes dots and colons of a name, and takes some signs for patterns [tmux(1)].
_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
# A terminal that the worker's terminfo does not know is taken for one that everybody knows; ssh has passed its name on.
_LINES = """\
command -v tmux >/dev/null 2>&1 || exit {no_tmux}
infocmp >/dev/null 2>&1 || export TERM=xterm-256color
name=$0
tmux new-session -A -s "$name" "$@"
code=$?
tmux has-session -t "=$name" 2>/dev/null && exit {goes_on}
exit $code"""
# Leaves what a program in full-screen mode had switched on when its link broke: the other screen, mouse, bracketed paste.
RESTORE = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[0m\r"


def attach_line(name: str, command: Sequence[str] = ()) -> str:
    """Return the shell line that attaches to the session of that name, or makes it.

    A new session runs `command`, or a shell; one that is there goes on with what it does. Ends with `GOES_ON` where the session
    was left and goes on, `NO_TMUX` where the worker has no tmux. Raises `InvalidInputError` for a name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"`{name}` cannot name a session", hint="use letters, digits, `-` and `_`")
    line = [] if not command else [command[0] if len(command) == 1 else shlex.join(command)]
    text = _LINES.format(no_tmux=NO_TMUX, goes_on=GOES_ON)
    return "exec " + shlex.join(["sh", "-c", text, name, *line])
