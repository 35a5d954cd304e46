"""An interactive shell on a pseudo-terminal, as a user has it: text and Tab go in, the completed line comes out."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

# A key that prints the command line between marks, and empties it.
_SHOW = {
    "bash": r"""_show() { printf '<<<%s>>>\n' "$READLINE_LINE"; READLINE_LINE=; READLINE_POINT=0; }; bind -x '"\C-o": _show'""",
    "zsh": r"""_show() { print -r -- "<<<$BUFFER>>>"; BUFFER=; }; zle -N _show; bindkey '^O' _show; unsetopt beep""",
    "fish": r"""bind \co 'printf "<<<%s>>>\n" (commandline); commandline ""'""",
}
STARTUP_FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}
# The terminal becomes that of the shell, as a terminal emulator does it.
_START = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], [sys.argv[1], '-i'])"
)
# Far longer than any answer takes on a busy machine: a test that waits so long has failed.
_PATIENCE_SECONDS = 60


class ShellSession:
    """A running shell."""

    def __init__(self, shell: str, *, environ: Mapping[str, str], folder: Path) -> None:
        startup = Path(environ["HOME"], STARTUP_FILES[shell])
        startup.parent.mkdir(parents=True, exist_ok=True)
        with startup.open("a") as file:
            file.write(f"{_SHOW[shell]}\n")
        self._terminal, side = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-SE", "-c", _START, shell],
            stdin=side, stdout=side, stderr=side, cwd=folder, env={**environ, "TERM": "dumb", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )  # fmt: skip
        os.close(side)
        self.shown = ""
        # The prompt: a shell that starts discards what was typed before.
        self._type("\x0f")
        self._read_line()

    def complete(self, text: str) -> str:
        """Return what the command line is after this text and Tab."""
        self._type(f"{text}\t\x0f")
        return self._read_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def _read_line(self) -> str:
        seen = ""
        while "<<<" not in seen or ">>>" not in seen.partition("<<<")[2]:
            ready, _, _ = select.select([self._terminal], [], [], _PATIENCE_SECONDS)
            assert ready, f"no answer from the shell: {self.shown + seen!r}"
            seen += os.read(self._terminal, 65536).decode(errors="replace")
        self.shown += seen
        return seen.partition("<<<")[2].partition(">>>")[0]
