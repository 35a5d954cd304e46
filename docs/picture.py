"""Make the pictures of terminals from real runs of scripts of examples/, each in a terminal of its own.

Run it with `make picture`.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
# Picture, script, and the columns of the terminal.
PICTURES = (("demo.svg", "demo.sh", 106), ("top.svg", "top.sh", 120))
HEIGHT = 60
# The lines that move a cursor up, clear a line, and everything else that is not colour.
_CONTROL = re.compile(r"\x1b\[(?P<count>\d*)(?P<what>[A-Za-z])|\x1b\[\?\d+[hl]|(?P<char>[\r\n])")
# A font of another host; there is always another one.
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run_in_terminal(argv: list[str], width: int) -> str:
    """Run a program with a terminal as its stdout and stderr, and return all that it wrote."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, width, 0, 0))
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TPUCTL_", "NO_COLOR"))}
    environ |= {
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLUMNS": str(width),
    }
    process = subprocess.Popen(argv, stdin=follower, stdout=follower, stderr=follower, env=environ, cwd=ROOT)
    os.close(follower)
    written = b""
    try:
        while chunk := os.read(leader, 65536):
            written += chunk
    except OSError:  # Linux says EIO when the last writer has gone
        pass
    finally:
        os.close(leader)
    if process.wait() != 0:
        raise SystemExit(f"{argv} failed:\n{written.decode(errors='replace')}")
    return written.decode()


def what_stays(written: str) -> str:
    """Return what is on the screen in the end: the moving line below the others leaves no trace."""
    lines, row, position = [""], 0, 0
    for match in _CONTROL.finditer(written):
        lines[row] += written[position : match.start()]
        position = match.end()
        if match["char"] == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif match["what"] == "A":
            row = max(0, row - int(match["count"] or 1))
        elif match["what"] == "K":
            lines[row] = ""
        elif match["what"] == "m":
            lines[row] += match[0]
    lines[row] += written[position:]
    return "\n".join(lines).strip()


def main() -> None:
    """Run each script and draw what it has shown."""
    for name, script, width in PICTURES:
        console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(what_stays(run_in_terminal(["sh", f"examples/{script}"], width))))
        picture = _WEB_FONT.sub("", console.export_svg(title="tpuctl", clear=False))
        (ROOT / "docs" / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
