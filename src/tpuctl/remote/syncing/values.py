"""What a sync is asked for, and what came of it on one worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import RemoteCommandError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from pathlib import Path

    from tpuctl.remote.member import Member


class Entry(NamedTuple):
    """A file of a tree, or a symlink, whose `target` is then its text.

    `path` is below the tree's folder; bytes that are no UTF-8 are surrogates in it. `mode` is its nine bits; `size` in bytes.
    """

    path: str
    mode: int
    size: int
    mtime_ns: int
    target: str | None


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a folder that are to be sent, and what there is to say about others."""

    folder: Path
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()


class Via(StrEnum):
    """How contents travel. `auto` takes rsync where both ends have it and there is enough to send."""

    AUTO = "auto"
    RSYNC = "rsync"
    SSH = "ssh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a sync is to do. `folder` is on the worker: absolute, or below the home (`~/x` too).

    `delete` removes what an earlier sync put there and the tree no longer has; with `look` nothing is changed.
    """

    folder: str
    delete: bool = False
    look: bool = False
    via: Via = Via.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What was done on one worker, or with `look` what would be. Names are those of the tree.

    `folder` is absolute; `size` in bytes, of the files that were sent; `adjusted` are files of which but time or mode were set;
    `kept` were to be deleted, but had been changed there; `replaced` no sync had put there, or they had been changed: copies of
    them stay below `~/.tpuctl/sync` on the worker. `via` is nothing where no contents were sent.
    """

    folder: str
    sent: tuple[str, ...] = ()
    size: int = 0
    adjusted: int = 0
    deleted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    via: Via | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_nothing(self) -> bool:
        """Tell whether the worker had it all."""
        return not (self.sent or self.adjusted or self.deleted)


class NotSyncedError(RemoteCommandError):
    """A worker does not have the tree. `may_pass`: it was not reached, or the link broke; another try may do.

    `ssh_said` is there where ssh did not get in: its stderr.
    """

    def __init__(self, message: str, *, may_pass: bool = False, ssh_said: str | None = None) -> None:
        super().__init__(message)
        self.may_pass, self.ssh_said = may_pass, ssh_said


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended on one worker: what was brought, or why not."""

    member: Member
    brought: Brought | NotSyncedError


@dataclass(frozen=True, slots=True)
class Synced:
    """How it ended on all workers, in their order. `left_out` are files that could not be read, with why."""

    tree: Tree
    endings: tuple[Ending, ...]
    left_out: Mapping[str, str]
    took: timedelta

    @property
    def failed(self) -> tuple[tuple[Member, NotSyncedError], ...]:
        """Return the workers that do not have the tree, and why."""
        return tuple((one.member, one.brought) for one in self.endings if isinstance(one.brought, NotSyncedError))

    @property
    def brought(self) -> tuple[Brought, ...]:
        """Return what came of it on the others."""
        return tuple(one.brought for one in self.endings if isinstance(one.brought, Brought))
