"""Whether a folder is still there tomorrow: not on a CI runner, in a Kubernetes pod, or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.platforms import mount_table

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKERS = ("/run/.containerenv", "/.dockerenv")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def is_lasting(environ: Mapping[str, str], *, filesystem: str | None = None, in_container: bool = False) -> bool:
    """Return whether what is written outlasts this process's machine, as far as can be told. Pure.

    `filesystem` is the type of the one that holds the folder. A container's own layer (overlay) goes with the container;
    a volume of a pod may last or not, so a pod counts as one that does not.
    """
    if environ.get("KUBERNETES_SERVICE_HOST") or environ.get("CI"):
        return False
    return filesystem not in _IN_MEMORY and not (in_container and filesystem == "overlay")


def is_in_container() -> bool:
    """Return whether Docker or Podman started us."""
    return any(Path(marker).exists() for marker in _MARKERS)


def filesystem_of(folder: Path) -> str | None:
    """Return the type of the file system that holds a folder, or will hold it; None if it cannot be told."""
    table = mount_table()
    return None if table is None else mounted_at(table, folder.resolve())


def mounted_at(table: str, folder: Path) -> str | None:
    """Return the type of the file system that a table of mounts [proc(5)] names for a folder. Pure."""
    found, depth = None, -1
    for line in table.splitlines():
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        mount = Path(point.replace("\\040", " "))
        # Of two at the same place the later one covers the earlier.
        if len(mount.parts) >= depth and folder.is_relative_to(mount):
            found, depth = rest.partition(" ")[0], len(mount.parts)
    return found
