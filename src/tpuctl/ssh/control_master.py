"""Shared ssh connections (OpenSSH's ControlMaster), which save the next command a handshake.

ssh runs the master as a process of its own, which listens on a socket in a private folder. This module names the socket and
stops masters. ssh handles these cases itself [observed: OpenSSH 9.2]: of two processes that try to become master one does, and
the other connects without; the socket of a crashed master is replaced; if a server refuses an eleventh session on a connection
(its MaxSessions is 10), ssh opens another connection. Users need not see its messages about that: `is_multiplexing_message`.

With a ProxyCommand the master hides the output of that command, because its stderr would stay open as long as the master runs.
So retry a failure without a message with `NEW_CONNECTION`. Masters of OpenSSH before 8.5 keep the stderr of the session that
started them [release notes, unverified]: a reader must stop at the end of the process, not at the end of the stream.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import subprocess
import tempfile
from contextlib import suppress
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.fan_out import fan_out
from tpuctl.files import make_private_folder
from tpuctl.platforms import MAX_SOCKET_PATH_BYTES
from tpuctl.ssh.connection import host_alias, trust_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Connection

# ssh appends 17 characters to the name while it creates a socket.
_MAX_PATH = MAX_SOCKET_PATH_BYTES - 17
_NAME_LENGTH = 8 + 1 + 16
# New sessions on a dead connection hang until ssh notices: after interval times count.
_ALIVE_INTERVAL, _ALIVE_COUNT = timedelta(seconds=5), 3
_STOP_TIMEOUT = 1.0  # seconds
_MAX_AT_ONCE = 16
_TEMPORARY = Path("/tmp")  # noqa: S108  # the owner of our folder in it is checked
_MULTIPLEXING_MESSAGE = re.compile(
    r"ControlSocket .* already exists, disabling multiplexing|Control socket connect\(.*\): .*"
    r"|mux_?client\w*: .*|Master refused session request.*"
)


def control_master_options(connection: Connection, folder: Path | None, keep: timedelta) -> tuple[str, ...]:
    """Return the ssh options that use a shared connection, or open one that stays for `keep` after its last session.

    No options without a folder, and for a `keep` of 0. Two connections share a master only if ssh gets exactly the same
    options for both.
    """
    if folder is None or keep <= timedelta():
        return ()
    settings = {
        "ControlMaster": "auto",
        "ControlPath": '"{}"'.format(str(_socket_path(connection, folder)).replace("%", "%%")),
        # 0 would mean forever.
        "ControlPersist": str(max(1, ceil(keep.total_seconds()))),
        "ServerAliveInterval": str(round(_ALIVE_INTERVAL.total_seconds())),
        "ServerAliveCountMax": str(_ALIVE_COUNT),
    }
    return tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))


def has_master(connection: Connection, folder: Path | None) -> bool:
    """Return whether there is a shared connection to a worker; it may be dead."""
    return folder is not None and _socket_path(connection, folder).is_socket()


def control_socket_folder(
    environ: Mapping[str, str], state_folder: Path, *, temporary: Path = _TEMPORARY
) -> Path | None:
    """Return the folder for sockets, and create it if it is missing. None if no folder is usable: connections are not shared.

    Candidates are in XDG_RUNTIME_DIR, in the state folder and in `/tmp`. The folder must be private, have a short path, and
    support sockets and links to them; ssh fails otherwise.
    """
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    # Machines may share the state folder, but not sockets.
    of_machine = _digest(os.uname().nodename, size=4)
    folders = [runtime / "tpuctl"] if runtime.is_absolute() and runtime.is_dir() else []
    folders += [state_folder.absolute() / f"ssh-{of_machine}", temporary / f"tpuctl-{os.geteuid()}"]
    return next((folder for folder in folders if _is_usable(folder)), None)


def close_masters(node: Node, folder: Path | None) -> None:
    """Close the shared connections to a node that is stopped, rebooted or deleted, so that no session hangs on them.

    Ends their sessions, and removes the sockets of crashed and hanging masters. Never raises.
    """
    if folder is None:
        return
    prefix = _prefix(host_alias(node.id or node.name.node_id, 0))
    with suppress(OSError):
        # A name with a dot is a socket that ssh is still creating.
        found = sorted(path for path in folder.iterdir() if len(path.name) == _NAME_LENGTH and path.is_socket())
        fan_out(_stop_master, [path for path in found if path.name.startswith(prefix)], limit=_MAX_AT_ONCE)


def is_multiplexing_message(line: str) -> bool:
    """Return whether a line of ssh's stderr is about connection sharing. ssh handles these cases itself."""
    return _MULTIPLEXING_MESSAGE.fullmatch(line.strip()) is not None


def _stop_master(path: Path) -> None:
    """Stop a master. Its socket is removed in any case, so no session finds it."""
    # ssh wants a host name, which it does not use.
    words = ["ssh", "-F", "none", "-O", "exit", "-o", f'ControlPath="{str(path).replace("%", "%%")}"', "unused"]
    with suppress(OSError, subprocess.TimeoutExpired):
        quiet = subprocess.DEVNULL
        subprocess.run(words, stdin=quiet, stdout=quiet, stderr=quiet, timeout=_STOP_TIMEOUT, check=False)
    path.unlink(missing_ok=True)


def _socket_path(connection: Connection, folder: Path) -> Path:
    # The name depends on all that ssh gets about the connection.
    identity = [connection.login, connection.address, *trust_options(connection)]
    return folder / (_prefix(connection.host_alias) + _digest("\0".join(identity), size=8))


def _prefix(alias: str) -> str:
    """Return the common prefix of the socket names of a node. An alias is that of the node and a worker number."""
    return _digest(alias.rpartition("-")[0], size=4) + "-"


def _digest(text: str, *, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=size).hexdigest()


def _is_usable(folder: Path) -> bool:
    """Create the folder, and return whether its path is short, it is private, and it supports sockets and links to them."""
    # The value of an ssh option cannot contain a quote, and ssh expands variables in it.
    if len(os.fsencode(folder)) + 1 + _NAME_LENGTH > _MAX_PATH or re.search(r'["$\\\n]', str(folder)):
        return False
    with suppress(OSError):
        make_private_folder(folder)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return False
        with tempfile.TemporaryDirectory(dir=folder) as scratch, socket.socket(socket.AF_UNIX) as listener:
            path = Path(scratch) / "s"
            listener.bind(str(path))
            (Path(scratch) / "l").hardlink_to(path)
            return True
    return False
