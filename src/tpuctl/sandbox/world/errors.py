"""What can be wrong with the file that the sandbox lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from pathlib import Path

_RESET = "run `tpuctl sandbox reset` to begin with an empty sandbox"


class WorldError(TpuctlError):
    """The sandbox's file cannot be used."""

    kind = "sandbox"


class WorldCorruptError(WorldError):
    """The sandbox made the file, and it is damaged."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"the sandbox in `{path}` is damaged: {reason}", hint=_RESET)


class WorldForeignError(WorldError):
    """Where the world should be is a file that the sandbox did not make. It is left alone."""

    def __init__(self, path: Path, reason: object) -> None:
        hint = "it belongs to something else: move it away, or let `TPUCTL_STATE_DIR` name another folder"
        super().__init__(f"`{path}` is not a sandbox's world: {reason}", hint=hint)


class WorldTooNewError(WorldError):
    """The file was made by another version of tpuctl, with another layout."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(f"the sandbox in `{path}` has layout {version}, which this tpuctl cannot read", hint=_RESET)


class WorldLockedError(WorldError):
    """Another process holds the file for longer than one is willing to wait."""

    def __init__(self, path: Path, seconds: float) -> None:
        message = f"the sandbox in `{path}` is held by another process for more than {seconds:g} s"
        super().__init__(message, hint=f"end that process and try again; if there is none, {_RESET}")


class WorldUnusableError(WorldError):
    """The file cannot be opened or written at all: rights, a full disk, a directory in its place."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"the sandbox in `{path}` cannot be used: {reason}", hint="check the path and its rights")


class NotAWorldError(WorldError):
    """What should be removed was not made by the sandbox."""

    def __init__(self, path: Path) -> None:
        hint = "nothing was removed; check the path, or remove the file yourself"
        super().__init__(f"`{path}` is not a sandbox's world", hint=hint)
