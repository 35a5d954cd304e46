"""tpuctl's own known_hosts file, with the host keys that the API publishes.

The host alias contains the node's id, so a recreated node has a new alias and its new host key is no conflict. If a machine
keeps its id (after a reimage), the API's key replaces the old one. gcloud's file is only read: ssh accepts a host if a key of
either file matches, and reports a changed key if there are keys and none matches (observed: OpenSSH 9.2).
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.files import file_lock, read_own_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.ssh.connection import Connection

_KEY = re.compile(r"(?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+=*")


class KnownHostsError(TpuctlError):
    """tpuctl's known_hosts file cannot be written, or the API returned an invalid host key."""

    kind = "known_hosts"


def save_host_keys(connections: Iterable[Connection]) -> None:
    """Write the host keys of connections to their shared known_hosts file, replacing older keys of the same aliases.

    Connections without host keys change nothing. Several processes may do this at the same time. Raises `KnownHostsError`.
    """
    known = {one.host_alias: one for one in connections if one.host_keys}
    if not known:
        return
    lines: list[str] = []
    for alias, one in known.items():
        for key in one.host_keys:
            if not _KEY.fullmatch(key):
                # An alias is `tpu.ID-WORKER`.
                worker = alias.rpartition("-")[2]
                raise KnownHostsError(
                    f"worker {worker} published an invalid host key: `{key[:60]}`",
                    hint="exclude that worker with `--worker`, or recreate the node",
                )
            lines.append(f"{alias} {key}")
    path = next(iter(known.values())).known_hosts[0]
    try:
        with file_lock(path.with_name(path.name + ".lock")):
            old = read_own_file(path).decode().splitlines() if path.exists() else []
            new = [*(line for line in old if line.split(" ", 1)[0] not in known), *lines]
            if set(new) != set(old):
                # mkstemp's files are private to their owner.
                descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write("".join(f"{line}\n" for line in new))
                Path(scratch).replace(path)
    except (OSError, UnicodeDecodeError) as error:
        hint = "make it writable, or remove it: tpuctl writes it again"
        raise KnownHostsError(f"cannot write host keys to `{path}`: {error}", hint=hint) from error
