"""The worker's end of `tpuctl scp`: receives files, or sends them. Python 3.8, the standard library."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tpuctl.remote.onboard.copy_frames import MARK, Channel, LostError, Place, RefusedError, to_bytes
from tpuctl.remote.onboard.copy_keeping import Keeper, keep
from tpuctl.remote.onboard.copy_sending import Sender, expand, list_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def receive(target: str, place: Sequence[Any] | None, *, preserve: bool) -> None:
    """Receive files into `target`, with `~` expanded; `place`: the decision of an earlier connection."""

    def copy(channel: Channel) -> None:
        umask = os.umask(0o077)
        os.umask(umask)
        path = os.path.expanduser(to_bytes(target) or b".")
        keeper = Keeper(path, umask=umask, preserve=preserve, place=Place(*place) if place else None)
        keep(channel, keeper)

    _serve(copy)


def fetch(patterns: Sequence[str], *, recurse: bool, names: Mapping[str, str], hidden: bool) -> None:
    """Send the files that match the patterns. `names`: of home folders; `hidden`: see `list_files`."""

    def copy(channel: Channel) -> None:
        def answer(kind: bytes) -> Any:  # JSON
            found, value = channel.receive()
            if found != kind:
                raise LostError
            return value

        homes = {os.path.expanduser(to_bytes(path)): to_bytes(name) for path, name in names.items()}
        listing = list_files(expand(patterns), recurse=recurse, names=homes, hidden=hidden)
        Sender(channel, listing).send(answer)
        answer(b"Z")  # the receiver may still report an error

    _serve(copy)


def _serve(copy: Any) -> None:
    channel = Channel(sys.stdin.buffer, 1)
    os.write(1, MARK)
    try:
        try:
            copy(channel)
        except RefusedError as error:
            channel.send(b"X", error.args)
        channel.flush()
    except LostError:
        sys.exit(1)
