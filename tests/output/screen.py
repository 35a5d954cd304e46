"""A terminal emulator for the control sequences of `tpuctl` and `rich`."""

from __future__ import annotations

import re

_STEERING = re.compile(r"\x1b\[(?:\?25[hl]|(?P<count>\d*)(?P<what>[AKm])|[\d;]+m)|(?P<char>[\r\n])")


def on_screen(written: str) -> list[str]:
    """Return the lines of a screen of any size. Fails on a sequence that it does not know."""
    lines, row, column, position = [""], 0, 0, 0
    for match in [*_STEERING.finditer(written), None]:
        text = written[position : match.start() if match else None]
        assert "\x1b" not in text
        lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
        column += len(text)
        if match is None:
            break
        position = match.end()
        if match["char"]:
            column = 0
            row += match["char"] == "\n"
            lines += [""] * (row + 1 - len(lines))
        elif match["what"] == "A":
            row -= int(match["count"] or 1)
            assert row >= 0
        elif match["what"] == "K":
            assert match["count"] == "2"
            lines[row] = ""
    return "\n".join(lines).rstrip().split("\n")
