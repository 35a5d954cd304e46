"""`run --script`: a local script as a line for the shell of the workers. Pure."""

from __future__ import annotations

import base64
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# With base64 it must fit into one argument, which Linux limits to 128 KiB.
LONGEST_SCRIPT: Final = 64 << 10
# `exec`: signals for the job reach the script, and its exit code is that of the job.
_LINE = 'script=$(mktemp) && printf %s {data} | base64 -d > "$script" && chmod 700 "$script" && exec "$script"'


def script_line(content: bytes, path: str, words: Sequence[str]) -> tuple[str, str]:
    """Return the line that runs a script with arguments, and what to show in its place."""
    line = _LINE.format(data=base64.b64encode(content).decode())
    return (f"{line} {shlex.join(words)}" if words else line), shlex.join([path, *words])
