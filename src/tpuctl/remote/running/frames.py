"""The frames between this machine and the job program on a worker (`ssh/agent/job.py`). No IO."""

from __future__ import annotations

from enum import Enum

from tpuctl.remote.answers import LONGEST_BANNER, UnexpectedAnswerError, shown

_HEAD = 5
MARK = b"\n\0tpuctl-job\n"
# Programs on workers send output in blocks of this size.
LONGEST_FRAME = 64 * 1024


class Told(Enum):
    """A frame that a worker sends."""

    READY = b"h"  # `new`: nothing was started yet; `known`: an earlier connection started the command
    STARTED = b"s"
    OUT = b"o"
    ERR = b"e"
    OUT_GONE = b"O"  # this number of bytes is no longer stored
    ERR_GONE = b"E"
    TAKEN = b"a"  # number of bytes of stdin that the command has received
    EXIT = b"x"
    LOST = b"l"  # started, and how it ended is unknown
    MISSING = b"m"  # no such job
    CONFLICT = b"c"  # another job has that name
    REFUSED = b"!"  # it could not be started


class Said(Enum):
    """A frame that the client sends to a worker."""

    GO = b"g"
    KILL = b"k"
    IN = b"i"
    FINAL = b"f"  # the end of stdin
    HAVE = b"t"  # bytes of stdout and of stderr that have arrived: the worker may delete them
    BYE = b"b"  # everything has arrived: the worker may delete the job


_KINDS = {kind.value: kind for kind in Told}


def frame(kind: Said, payload: bytes = b"") -> bytes:
    """Return a frame as it is sent."""
    return kind.value + len(payload).to_bytes(4, "big") + payload


class Decoder:
    """Decodes frames from data that arrives in pieces, skipping what a login shell prints before the mark.

    Buffers at most one frame of `longest` bytes and the data fed last.
    """

    def __init__(self, longest: int = LONGEST_FRAME) -> None:
        self._longest = longest
        self._data = bytearray()
        self._found_mark = False
        self._skipped = 0

    def feed(self, data: bytes) -> list[tuple[Told, bytes]]:
        """Return the frames that are complete now.

        Raises `UnexpectedAnswerError` for bytes that are no frame, for a frame that is too long, and for a login shell that
        prints without end before the mark.
        """
        self._data += data
        if not self._found_mark and not self._find_mark():
            return []
        frames = []
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
            frames.append((_KINDS[letter], bytes(self._data[at + _HEAD : end])))
            at = end
        del self._data[:at]
        return frames

    def _find_mark(self) -> bool:
        """Drop everything up to the mark; without a mark, all that cannot be its beginning."""
        at = self._data.find(MARK)
        self._skipped += max(0, len(self._data) - len(MARK)) if at < 0 else 0
        if self._skipped > LONGEST_BANNER:
            raise UnexpectedAnswerError(f"more than {LONGEST_BANNER} bytes before the program's first")
        if at < 0:
            del self._data[: -len(MARK)]
            return False
        del self._data[: at + len(MARK)]
        self._found_mark = True
        return True
