"""The stdin of this process, for the command on one worker. Data that the worker has not received is kept, to send it again."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from tpuctl.remote.running.frames import Said
from tpuctl.remote.running.values import Phase

if TYPE_CHECKING:
    from tpuctl.remote.running.post import Post

_BLOCK = 64 * 1024
_WINDOW = 4 * _BLOCK


class Source:
    """A file that is read as fast as the worker receives it."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._data = bytearray()
        self._base = 0  # bytes that the worker has received; `_data` begins there
        self._sent = 0
        self._is_linked = False
        self._has_ended = False
        self._is_finished = False

    def fileno(self) -> int:
        """Return the descriptor to read, for a selector, if `may_wait`."""
        return self._file

    @property
    def may_wait(self) -> bool:
        """Whether a read may block: true for pipes, sockets and terminals, false for plain files."""
        mode = os.fstat(self._file).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(self._file)

    @property
    def wants_more(self) -> bool:
        """Whether the buffer has room and the file has not ended."""
        return not self._has_ended and len(self._data) < _WINDOW

    def fill(self) -> None:
        """Read more."""
        data = os.read(self._file, _BLOCK)
        self._has_ended = not data
        self._data += data

    def serve(self, session: Post) -> None:
        """Send the buffered data to a worker; over a new connection, again what the worker did not receive."""
        if session.phase is not Phase.RUNNING or session.taken is None:
            self._is_linked = False
            return
        del self._data[: session.taken - self._base]
        self._base = session.taken
        if not self._is_linked:
            self._is_linked, self._is_finished = True, False
            self._sent = self._base
        while self._sent - self._base < len(self._data):
            at = self._sent - self._base
            block = bytes(self._data[at : at + _BLOCK])
            session.send(Said.IN, block)
            self._sent += len(block)
        if self._has_ended and not self._is_finished:
            self._is_finished = True
            session.send(Said.FINAL)
