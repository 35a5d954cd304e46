"""Text as it is meant: without colours, and with what JSON, HTML, URLs and shells write for a character replaced by that."""

from __future__ import annotations

import re
from bisect import bisect_right

_MARKS = re.compile(
    # Colours and moves of the cursor, also as programs write them into JSON.
    rb"(?P<colour>(?:\x1b|\\{1,32}(?:u001[bB]|x1[bB]|033|e))\[[0-9;:?]{0,24}[A-Za-z])"
    rb"|\\{1,32}u00(?P<code>[2-7][0-9A-Fa-f])"
    rb"|\\{1,32}(?P<slash>/)"
    rb"|%(?P<percent>3[dD]|26|3[fF]|2[eE]|22)"
    rb"|&(?P<entity>amp|quot|#39|#x27|#34);"
    # A quote within quotes, as a shell wants it.
    rb"|(?P<shell>'\"'\"'|'\\'')"
)
_ENTITIES = {b"amp": b"&", b"quot": b'"', b"#39": b"'", b"#x27": b"'", b"#34": b'"'}
_SIGNS = (b"\x1b[", b"\\", b"%", b"&", b"'\"'")


class Plain:
    """A text as it is meant, and where its parts stand in what was written."""

    def __init__(self, written: bytes) -> None:
        self.text = written
        # Where each part begins, here and there, and whether it stands there as it is.
        self._here: list[int] = []
        self._there: list[int] = []
        if any(sign in written for sign in _SIGNS):
            self._read(written)

    def _read(self, written: bytes) -> None:
        pieces, at, length = [], 0, 0
        for found in _MARKS.finditer(written):
            meant = _meant(found)
            self._here += [length, length + found.start() - at]
            self._there += [at, found.start()]
            pieces += [written[at : found.start()], meant]
            length += found.start() - at + len(meant)
            at = found.end()
        if pieces:
            self._here.append(length)
            self._there.append(at)
            self.text = b"".join([*pieces, written[at:]])

    def start(self, at: int) -> int:
        """Return where in the written text stands what begins here."""
        if not self._here:
            return at
        part = bisect_right(self._here, at) - 1
        # Parts of even numbers stand there as they are.
        return self._there[part] + (0 if part % 2 else at - self._here[part])

    def end(self, at: int) -> int:
        """Return where in the written text ends what ends here."""
        if not self._here or not at:
            return at
        part = bisect_right(self._here, at - 1) - 1
        return self._there[part + 1] if part % 2 else self._there[part] + at - self._here[part]


def _meant(found: re.Match[bytes]) -> bytes:
    match found.lastgroup:
        case "code" | "percent":
            char = bytes([int(found[found.lastgroup], 16)])
            return b"\\" + char if char in b"\"'\\" else char
        case "slash":
            return b"/"
        case "entity":
            return _ENTITIES[found["entity"]]
        case "shell":
            return b"\\'"
        case _:
            return b""
