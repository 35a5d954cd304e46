"""Errors of the sandbox's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from pathlib import Path

_RESET = "run `tpuctl sandbox reset` to start with an empty sandbox"


class WorldError(TpuctlError):
    """The sandbox's file cannot be used."""

    kind = "sandbox"


class WorldCorruptError(WorldError):
    """The sandbox created the file, and it is damaged."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"the sandbox in `{path}` is damaged: {reason}", hint=_RESET)


class WorldForeignError(WorldError):
    """Another program created the file. It is not changed."""

    def __init__(self, path: Path, reason: object) -> None:
        hint = "move the file away, or set `TPUCTL_STATE_DIR` to another folder"
        super().__init__(f"`{path}` is not a file of the sandbox: {reason}", hint=hint)


class WorldTooNewError(WorldError):
    """Another version of tpuctl created the file, with another layout."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(f"the sandbox in `{path}` has layout {version}: this tpuctl cannot read it", hint=_RESET)


class WorldLockedError(WorldError):
    """Another process holds the lock of the file for too long."""

    def __init__(self, path: Path, seconds: float) -> None:
        message = f"timed out after {seconds:g} s: another process holds the lock of the sandbox in `{path}`"
        super().__init__(message, hint=f"stop that process and try again; if there is none, {_RESET}")


class WorldUnusableError(WorldError):
    """The file cannot be opened or written: permissions, a full disk, a directory in its place."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"cannot use the sandbox in `{path}`: {reason}", hint="check the path and its permissions")


class NotAWorldError(WorldError):
    """The file to remove was not created by the sandbox."""

    def __init__(self, path: Path) -> None:
        hint = "nothing was removed; check the path, or remove the file yourself"
        super().__init__(f"`{path}` is not a file of the sandbox", hint=hint)
