"""Determine whether a folder is persistent: not on a CI runner, in a Kubernetes pod, or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.platforms import mount_table

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKERS = ("/run/.containerenv", "/.dockerenv")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def is_lasting(environ: Mapping[str, str], *, filesystem: str | None = None, in_container: bool = False) -> bool:
    """Return whether files outlive this machine, as far as that is known. Pure.

    `filesystem` is the type of the file system of the folder. The layer of a container (overlay) is deleted with it. The
    volume of a pod may or may not be persistent, so that a pod counts as not persistent.
    """
    if environ.get("KUBERNETES_SERVICE_HOST") or environ.get("CI"):
        return False
    return filesystem not in _IN_MEMORY and not (in_container and filesystem == "overlay")


def is_in_container() -> bool:
    """Return whether this process runs in Docker or Podman."""
    return any(Path(marker).exists() for marker in _MARKERS)


def filesystem_of(folder: Path) -> str | None:
    """Return the type of the file system of a folder, which may not exist yet; None if it is unknown."""
    table = mount_table()
    return None if table is None else mounted_at(table, folder.resolve())


def mounted_at(table: str, folder: Path) -> str | None:
    """Return the type of the file system of a folder from a mount table [proc(5)]. Pure."""
    found, depth = None, -1
    for line in table.splitlines():
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        mount = Path(point.replace("\\040", " "))
        # Of two mounts at the same path, the later covers the earlier.
        if len(mount.parts) >= depth and folder.is_relative_to(mount):
            found, depth = rest.partition(" ")[0], len(mount.parts)
    return found
