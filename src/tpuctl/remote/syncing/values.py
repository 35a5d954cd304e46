"""The request of a sync, and its results on one worker and on all workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.remote.syncing.sessions import NotSyncedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from tpuctl.remote.member import Member
    from tpuctl.remote.syncing.tree import Tree


class Via(StrEnum):
    """How file contents are sent. `auto` uses rsync if both sides have it and there is enough to send."""

    AUTO = "auto"
    RSYNC = "rsync"
    SSH = "ssh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a sync does."""

    # The folder on the worker: absolute, or relative to the home (`~/x` too).
    folder: str
    # Delete files that an earlier sync put there and the tree no longer has.
    delete: bool = False
    # Change nothing.
    dry_run: bool = False
    via: Via = Via.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a sync changed on one worker, or would change in a dry run. Names are those of the tree."""

    # The absolute path on the worker.
    folder: str
    sent: tuple[str, ...] = ()
    # Bytes of the files that were sent.
    size: int = 0
    # The number of files of which only time or mode were set.
    adjusted: int = 0
    deleted: tuple[str, ...] = ()
    # Not deleted, because they were changed on the worker.
    kept: tuple[str, ...] = ()
    # Replaced, though no sync had put them there or they were changed: copies stay below `~/.tpuctl/sync` on the worker.
    replaced: tuple[str, ...] = ()
    # None if no contents were sent.
    via: Via | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Tell whether the worker was already up to date."""
        return not (self.sent or self.adjusted or self.deleted)


@dataclass(frozen=True, slots=True)
class Ending:
    """The result on one worker: its changes, or the error."""

    member: Member
    outcome: Brought | NotSyncedError


@dataclass(frozen=True, slots=True)
class Synced:
    """The results on all workers, in their order. `unreadable` are files that could not be read, with the reasons."""

    tree: Tree
    results: tuple[Ending, ...]
    unreadable: Mapping[str, str]
    duration: timedelta

    @property
    def failed(self) -> tuple[tuple[Member, NotSyncedError], ...]:
        """The workers that could not be synced, and the errors."""
        return tuple((one.member, one.outcome) for one in self.results if isinstance(one.outcome, NotSyncedError))

    @property
    def succeeded(self) -> tuple[Brought, ...]:
        """The changes on the other workers."""
        return tuple(one.outcome for one in self.results if isinstance(one.outcome, Brought))
