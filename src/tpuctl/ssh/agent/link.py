"""Runs on a worker: the start of each program, and the frames to and from the client.

A frame is a letter, four bytes of length, and the payload (the client's end: ssh/channel.py). A program has a function
`serve_PROGRAM(link, request)`. It must run under Python 3.8 and import little, since 64 may start on one machine.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A login shell may print before it.
AGENT_MARK = b"\n\0tpuctl-agent\n"
FRAME_BLOCK = 64 * 1024
# Only root can examine and terminate processes of other users and of containers. sudo drops the environment.
AS_ROOT = """\
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true </dev/null >/dev/null 2>&1; then
    exec sudo -n env TPUCTL_DEVICE_ROOT="${TPUCTL_DEVICE_ROOT-}" "$@"
fi
exec "$@"
"""


class ClientLink:
    """The connection: frames to the client on stdout, frames from it on stdin."""

    def __init__(self) -> None:
        self.waiting = b""
        self.is_open = True
        write_all(1, AGENT_MARK)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame; blocks while the client reads nothing."""
        write_all(1, frame_head(kind, len(payload)) + payload)

    def frames(self) -> list[tuple[bytes, bytes]]:
        """Return the frames received so far; clear `is_open` at the end of the connection."""
        data = os.read(0, FRAME_BLOCK)
        self.is_open = bool(data)
        self.waiting += data
        found = []
        while len(self.waiting) >= 5:
            end = 5 + int.from_bytes(self.waiting[1:5], "big")
            if len(self.waiting) < end:
                break
            found.append((self.waiting[:1], self.waiting[5:end]))
            self.waiting = self.waiting[end:]
        return found


def run_agent(serve: Callable[[ClientLink, dict[str, Any]], None], request: dict[str, Any]) -> None:
    """Run a program, and end the process; an error of the system is its last frame."""
    link = ClientLink()
    try:
        serve(link, request)
    except OSError as error:
        text = (error.strerror or str(error)).lower()
        text = "%s: %s" % (os.fsdecode(error.filename), text) if error.filename else text
        link.send(b"!", text.encode("utf-8", "replace"))
    # Without the tidying of the interpreter, which takes longer than many programs.
    os._exit(0)


def own_folder(*names: str) -> str:
    """Return a folder in ~/.tpuctl, created if it is missing. No other user can write there, or replace it.

    An earlier version left folders open to others where the umask did. Raises `OSError`.
    """
    folder = os.path.expanduser("~/.tpuctl")
    for path in [os.path.join(folder, *names[:count]) for count in range(len(names) + 1)]:
        make_folder(path)
        about = os.stat(path)
        if about.st_mode & 0o022 and about.st_uid == os.geteuid():
            os.chmod(path, 0o700)
    return os.path.join(folder, *names)


def make_folder(path: str | bytes, mode: int = 0o700) -> None:
    """Create a folder, and those above it that are missing, each with exactly this mode, whatever the umask is.

    Raises `OSError`.
    """
    try:
        os.mkdir(path, mode)
    except FileNotFoundError:
        make_folder(os.path.dirname(path), mode)
        make_folder(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        os.chmod(path, mode)


def frame_head(kind: bytes, size: int) -> bytes:
    """Return what comes before the payload of a frame."""
    return kind + size.to_bytes(4, "big")


def write_all(file: int, data: bytes) -> None:
    """Write all of `data`; exit quietly if the client has gone."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except BrokenPipeError:
        if file == 1:
            sys.exit(0)
        raise
