"""Connections that are kept for the next command, so that it needs no handshake: OpenSSH's ControlMaster, and its end.

ssh does the keeping, in a process of its own (the master) that listens on a socket in a folder of the user's. This module names
the socket, and ends masters. What ssh does by itself [observed: OpenSSH 9.2]: of two that would become master at once one does,
the other goes on without; a socket whose master has crashed is replaced; where a server refuses an eleventh session on one
connection (its MaxSessions is 10) a connection is made for it. Its words about that are not for users: `is_about_keeping`.

With a ProxyCommand the master hides what that says, since its stderr would stay open as long as the master lives: a failure
without words is worth a second try with `FRESH`. Masters of OpenSSH before 8.5 keep the stderr of the session that made them
[release notes, unverified]: whoever reads it must end with the process, not with the end of the stream.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import socket
import stat
import struct
import tempfile
from contextlib import ExitStack, suppress
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.platforms import LONGEST_SOCKET_PATH, OPEN_FILES
from tpuctl.private import make_private
from tpuctl.remote.ssh import host_alias, trust_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuctl.model import Node
    from tpuctl.remote.ssh import Connection

# While ssh makes a socket it appends 17 to its name.
_LONGEST_PATH = LONGEST_SOCKET_PATH - 17
_NAME = 8 + 1 + 16
# New sessions on a link that is dead hang until ssh notices: after this times that.
_ALIVE_INTERVAL, _ALIVE_COUNT = timedelta(seconds=5), 3
# What a master is told: hello (1) of protocol version 4, then MUX_C_TERMINATE with request 0 [OpenSSH PROTOCOL.mux].
_TERMINATE = struct.pack(">6I", 8, 1, 4, 8, 0x10000005, 0)
_FAREWELL = timedelta(milliseconds=500)
_AT_ONCE = OPEN_FILES // 2
_TEMPORARY = Path("/tmp")  # noqa: S108  # the folder in it has a name of our own, and whose it is is checked
_ABOUT_KEEPING = re.compile(
    r"ControlSocket .* already exists, disabling multiplexing|Control socket connect\(.*\): .*"
    r"|mux_?client\w*: .*|Master refused session request.*"
)


def kept_options(connection: Connection, folder: Path | None, keep: timedelta) -> tuple[str, ...]:
    """Return ssh's options that use the kept connection, or make one that lasts `keep` after its last session.

    None without a folder, and for a `keep` of 0. Two connections share a link only where ssh
    would be told exactly the same about both.
    """
    if folder is None or keep <= timedelta():
        return ()
    settings = {
        "ControlMaster": "auto",
        "ControlPath": '"{}"'.format(str(folder / _name(connection)).replace("%", "%%")),
        # 0 would mean for ever.
        "ControlPersist": str(max(1, ceil(keep.total_seconds()))),
        "ServerAliveInterval": str(round(_ALIVE_INTERVAL.total_seconds())),
        "ServerAliveCountMax": str(_ALIVE_COUNT),
    }
    return tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))


def control_folder(environ: Mapping[str, str], state_folder: Path, *, temporary: Path = _TEMPORARY) -> Path | None:
    """Return the folder for sockets, made when it is missing; nothing where none can be used, and nothing is kept.

    The first that is the user's alone, short enough, and can hold sockets and links to them, without which ssh would fail:
    in XDG_RUNTIME_DIR, in the state folder, in `/tmp`.
    """
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    # Machines may share the state folder, but not the sockets in it.
    of_machine = _digest(os.uname().nodename, size=4)
    folders = [runtime / "tpuctl"] if runtime.is_absolute() and runtime.is_dir() else []
    folders += [state_folder.absolute() / f"ssh-{of_machine}", temporary / f"tpuctl-{os.geteuid()}"]
    return next((folder for folder in folders if _fits(folder) and _is_private(folder) and _can_hold(folder)), None)


def forget(node: Node, folder: Path | None) -> None:
    """End the kept connections to a node that is stopped, rebooted or gone: nothing may wait for them. It takes 0.5 s at most.

    Sessions on them end too. Sockets that crashed masters of any node have left are removed. Nothing is raised.
    """
    if folder is None:
        return
    prefix = _prefix(host_alias(node.id or node.name.node_id, 0))
    with suppress(OSError):
        # A name with a dot is a socket that ssh is still making.
        found = sorted(path for path in folder.iterdir() if len(path.name) == _NAME and path.is_socket())
        masters = [path for path in found if path.name.startswith(prefix)]
        for first in range(0, len(masters), _AT_ONCE):
            _end(masters[first : first + _AT_ONCE])
        for path in found:
            _remove_if_dead(path)


def is_about_keeping(line: str) -> bool:
    """Tell whether a line of ssh's stderr is about how a connection is shared, which ssh settles by itself."""
    return _ABOUT_KEEPING.fullmatch(line.strip()) is not None


def _end(masters: Iterable[Path]) -> None:
    """Tell masters to end, all at once; one that does not hang up soon is hidden from new sessions."""
    with ExitStack() as stack:
        waiting: dict[socket.socket, Path] = {}
        for path in masters:
            master = stack.enter_context(socket.socket(socket.AF_UNIX))
            master.setblocking(False)  # noqa: FBT003  # the standard library's signature
            try:
                master.connect(str(path))
                master.sendall(_TERMINATE)
            except OSError:  # nobody listens, or a master that has long stopped listening
                path.unlink(missing_ok=True)
            else:
                waiting[master] = path
        while waiting and (ready := select.select(waiting, (), (), _FAREWELL.total_seconds())[0]):
            waiting = {master: path for master, path in waiting.items() if master not in ready or _speaks(master)}
        for path in waiting.values():
            path.unlink(missing_ok=True)


def _remove_if_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as master:
        master.setblocking(False)  # noqa: FBT003  # as above
        try:
            master.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:  # it has just ended, or has much to do
            return


def _speaks(master: socket.socket) -> bool:
    try:
        return bool(master.recv(1024))
    except OSError:
        return False


def _name(connection: Connection) -> str:
    told = [connection.login, connection.address, *trust_options(connection)]
    return _prefix(connection.host_alias) + _digest("\0".join(told), size=8)


def _prefix(alias: str) -> str:
    """Return what the names of all sockets of a node begin with: an alias is the node's, and the worker's number."""
    return _digest(alias.rpartition("-")[0], size=4) + "-"


def _digest(text: str, *, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=size).hexdigest()


def _fits(folder: Path) -> bool:
    # In the value of an option ssh has no way to write a quote, and expands variables.
    return len(os.fsencode(folder)) + 1 + _NAME <= _LONGEST_PATH and not re.search(r'["$\\\n]', str(folder))


def _is_private(folder: Path) -> bool:
    try:
        make_private(folder)
        seen = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077


def _can_hold(folder: Path) -> bool:
    """Tell whether a socket can be made here, and a link to it, as ssh does."""
    with suppress(OSError), tempfile.TemporaryDirectory(dir=folder) as scratch, socket.socket(socket.AF_UNIX) as ours:
        made = Path(scratch) / "s"
        ours.bind(str(made))
        (Path(scratch) / "l").hardlink_to(made)
        return True
    return False
