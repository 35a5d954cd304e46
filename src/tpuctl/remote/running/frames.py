"""What goes to and fro between this machine and the program on a worker (`remote/onboard/job.py`). No IO."""

from __future__ import annotations

from enum import Enum

from tpuctl.remote.answers import LONGEST_BANNER, UnexpectedAnswerError, shown

_HEAD = 5
MARK = b"\n\0tpuctl-job\n"
# Programs on workers send output in blocks of this size.
LONGEST_FRAME = 64 * 1024


class Told(Enum):
    """What a worker tells."""

    READY = b"h"  # it is there; nothing was started yet (`new`), or was by an earlier connection (`known`)
    STARTED = b"s"
    OUT = b"o"
    ERR = b"e"
    OUT_GONE = b"O"  # so many bytes are not kept any more
    ERR_GONE = b"E"
    TAKEN = b"a"  # so many bytes of stdin
    EXIT = b"x"
    LOST = b"l"  # it was started, and nobody knows how it ended
    MISSING = b"m"  # there is no such job
    CONFLICT = b"c"  # another job has that name
    REFUSED = b"!"  # it could not be started


class Said(Enum):
    """What is said to a worker."""

    GO = b"g"
    KILL = b"k"
    IN = b"i"
    FINAL = b"f"  # the end of stdin
    HAVE = b"t"  # so much of stdout and of stderr has arrived: what is below need not be kept
    BYE = b"b"  # all has arrived: nothing need be kept


_KINDS = {kind.value: kind for kind in Told}


def frame(kind: Said, payload: bytes = b"") -> bytes:
    """Return a frame as it goes over the connection."""
    return kind.value + len(payload).to_bytes(4, "big") + payload


class Decoder:
    """Makes frames of what arrives in pieces. What a login shell prints before the mark is left out.

    No more is kept than one frame of at most `longest` bytes, and what was fed last.
    """

    def __init__(self, longest: int = LONGEST_FRAME) -> None:
        self._longest = longest
        self._data = bytearray()
        self._has_begun = False
        self._skipped = 0

    def feed(self, data: bytes) -> list[tuple[Told, bytes]]:
        """Return the frames that are complete now.

        Raises `UnexpectedAnswerError` for bytes that are none, for a frame that is too long, and for a login that prints
        without end before the mark.
        """
        self._data += data
        if not self._has_begun and not self._begin():
            return []
        found = []
        at = 0
        while len(self._data) - at >= _HEAD:
            letter, size = bytes(self._data[at : at + 1]), int.from_bytes(self._data[at + 1 : at + _HEAD], "big")
            if letter not in _KINDS:
                raise UnexpectedAnswerError(f"no frame begins with {shown(letter)}")
            if size > self._longest:
                raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {self._longest} are expected")
            end = at + _HEAD + size
            if len(self._data) < end:
                break
            found.append((_KINDS[letter], bytes(self._data[at + _HEAD : end])))
            at = end
        del self._data[:at]
        return found

    def _begin(self) -> bool:
        """Find the mark; of what is not it, no more is kept than may be its beginning."""
        at = self._data.find(MARK)
        self._skipped += max(0, len(self._data) - len(MARK)) if at < 0 else 0
        if self._skipped > LONGEST_BANNER:
            raise UnexpectedAnswerError(f"more than {LONGEST_BANNER} bytes before the program's first")
        if at < 0:
            del self._data[: -len(MARK)]
            return False
        del self._data[: at + len(MARK)]
        self._has_begun = True
        return True
