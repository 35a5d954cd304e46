"""tpuctl's own known_hosts file: host keys that the API vouches for.

An alias holds the node's id, so a node that was made anew is a new name, and its new host key is no change. For a machine
that keeps its id (a reimaged one) the key of the API takes the place of the old one. gcloud's file is only read: ssh is
content when one key of either file fits, and speaks of a changed key when there are some and none fits (observed: OpenSSH 9.2).
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.private import locked, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.remote.ssh import Connection

_KEY = re.compile(r"(?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+=*")


class KnownHostsError(TpuctlError):
    """tpuctl's known_hosts file cannot be written, or the API's host key is not one."""

    kind = "known_hosts"


def remember_host_keys(connections: Iterable[Connection]) -> None:
    """Write the host keys of connections, which share one known_hosts file, in place of others under the same aliases.

    A connection without host keys leaves the file alone. Several processes may do so at once. Raises `KnownHostsError`.
    """
    known = {one.host_alias: one for one in connections if one.host_keys}
    if not known:
        return
    lines = [f"{alias} {_checked(key, alias)}" for alias, one in known.items() for key in one.host_keys]
    path = next(iter(known.values())).known_hosts[0]
    try:
        with locked(path.with_name(path.name + ".lock")):
            old = read_bounded(path).decode().splitlines() if path.exists() else []
            new = [*_others(old, set(known)), *lines]
            if set(new) != set(old):
                _replace(path, "".join(f"{line}\n" for line in new))
    except (OSError, UnicodeDecodeError) as error:
        hint = "make it writable for you, or remove it: it is written again"
        raise KnownHostsError(f"host keys cannot be kept in `{path}`: {error}", hint=hint) from error


def _others(lines: list[str], aliases: set[str]) -> Iterator[str]:
    return (line for line in lines if line.split(" ", 1)[0] not in aliases)


def _checked(key: str, alias: str) -> str:
    if not _KEY.fullmatch(key):
        # An alias is `tpu.ID-WORKER`.
        worker = alias.rpartition("-")[2]
        raise KnownHostsError(
            f"worker {worker} has published a host key that is not one: `{key[:60]}`",
            hint="leave that worker out with `--worker`, or recreate the node",
        )
    return key


def _replace(path: Path, text: str) -> None:
    # mkstemp's files are for their owner only.
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(scratch).replace(path)
