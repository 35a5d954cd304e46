"""Plain text: without colours, and with the escapes of JSON, HTML, URLs and shells decoded."""

from __future__ import annotations

import re
from bisect import bisect_right

_MARKS = re.compile(
    # Colours and cursor moves, also as programs write them into JSON.
    rb"(?P<colour>(?:\x1b|\\{1,32}(?:u001[bB]|x1[bB]|033|e))\[[0-9;:?]{0,24}[A-Za-z])"
    rb"|\\{1,32}u00(?P<code>[2-7][0-9A-Fa-f])"
    rb"|\\{1,32}(?P<slash>/)"
    rb"|%(?P<percent>3[dD]|26|3[fF]|2[eE]|22)"
    rb"|&(?P<entity>amp|quot|#39|#x27|#34);"
    # A quote within quotes, for a shell.
    rb"|(?P<shell>'\"'\"'|'\\'')"
)
_ENTITIES = {b"amp": b"&", b"quot": b'"', b"#39": b"'", b"#x27": b"'", b"#34": b'"'}
_SIGNS = (b"\x1b[", b"\\", b"%", b"&", b"'\"'")


class Plain:
    """A decoded text, and the positions of its parts in the original text."""

    def __init__(self, written: bytes) -> None:
        self.text = written
        # The start of each part in the decoded text, and in the original.
        self._decoded_starts: list[int] = []
        self._original_starts: list[int] = []
        if not any(sign in written for sign in _SIGNS):
            return
        pieces, at, length = [], 0, 0
        for found in _MARKS.finditer(written):
            decoded = _decode(found)
            self._decoded_starts += [length, length + found.start() - at]
            self._original_starts += [at, found.start()]
            pieces += [written[at : found.start()], decoded]
            length += found.start() - at + len(decoded)
            at = found.end()
        if pieces:
            self._decoded_starts.append(length)
            self._original_starts.append(at)
            self.text = b"".join([*pieces, written[at:]])

    def start(self, at: int) -> int:
        """Return the start in the original text of a part that starts here."""
        if not self._decoded_starts:
            return at
        part = bisect_right(self._decoded_starts, at) - 1
        # Parts with an even index are unchanged.
        return self._original_starts[part] + (0 if part % 2 else at - self._decoded_starts[part])

    def end(self, at: int) -> int:
        """Return the end in the original text of a part that ends here."""
        if not self._decoded_starts or not at:
            return at
        part = bisect_right(self._decoded_starts, at - 1) - 1
        return (
            self._original_starts[part + 1]
            if part % 2
            else self._original_starts[part] + at - self._decoded_starts[part]
        )


def _decode(found: re.Match[bytes]) -> bytes:
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
