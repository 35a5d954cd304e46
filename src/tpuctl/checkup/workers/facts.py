"""What the workers of a node told of themselves, for the rules of `doctor NODE`. Each part is known, or says why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Fact, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.model import Node
    from tpuctl.readiness import Startup


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system in bytes, and what of it is `used`, in percent as `df` rounds it; of its inodes too, where it has some."""

    mount: str
    size: int
    available: int
    used: int
    inodes: int | None = None


class LogState(StrEnum):
    """What becomes of libtpu's log on disk."""

    WRITABLE = "writable"
    ABSENT = "absent"  # libtpu makes the folder [TPU documentation, debug logs]
    LACKS_PARENT = "lacks-parent"  # but none above it
    REFUSED = "refused"
    RELATIVE = "relative"


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of libtpu's log, and how much is in it; at least so much where it is not `is_complete`."""

    path: str
    state: LogState
    size: int
    files: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """A worker's memory in bytes, and what of it programs could still get."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Kills:
    """How often the kernel ended a process for want of memory since it booted, and its last words about that."""

    count: int
    last: str = ""


@dataclass(frozen=True, slots=True)
class HolderSeen:
    """A process that holds the TPU: device files, libtpu's lock file, or both."""

    pid: int
    user: str
    name: str
    age: timedelta
    is_waiting_in_kernel: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """What holds the TPU.

    `lock_owner` is whose libtpu's lock file is, nothing where there is none; `is_lock_held` that a process has it open;
    `hidden` processes could not be looked into.
    """

    holders: tuple[HolderSeen, ...] = ()
    lock_owner: str | None = None
    is_lock_held: bool = False
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a worker's startup, and what of it still runs or failed."""

    startup: Startup
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package: its version, and what it asks of others (`jaxlib <=0.4.35,>=0.4.34`)."""

    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A Python with frameworks: `kind` is system, venv or conda; `path` is the same on all workers, `~` is their home."""

    kind: str
    path: str
    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called in findings."""
        return "the system's Python" if self.kind == "system" else f"`{self.path}`"


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables that TPU programs mind, as ssh's session, a login shell and running jobs have them.

    `login_unread` is why those of a login shell are not known, nothing where they are.
    """

    session: Mapping[str, str] = field(default_factory=dict)
    login: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[Mapping[str, str], ...] = ()
    login_unread: str | None = None

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values that a variable has, each once; those of jobs first."""
        places = (*self.jobs, self.login, self.session)
        return tuple(dict.fromkeys(place[name] for place in places if name in place))


@dataclass(frozen=True, slots=True)
class Offset:
    """Between which bounds a worker's clock is ahead of ours (behind, where negative): the way there and back takes time."""

    low: timedelta
    high: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What one worker told."""

    offset: Offset
    kernel: str
    python: str
    uptime: Fact[timedelta]
    disks: Fact[tuple[Disk, ...]]
    logs: Fact[LogFolder]
    memory: Fact[Memory]
    kills: Fact[Kills]
    hold: Fact[Hold]
    chips: Fact[int]
    ended: Fact[Ended]
    variables: Fact[Variables]
    environments: Fact[tuple[PythonEnvironment, ...]]
    is_synchronized: Fact[bool]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker, and what it told or why it told nothing."""

    number: int
    told: Known[Examination] | Unknown


@dataclass(frozen=True, slots=True)
class ShutOut:
    """Why ssh did not get into some workers, in `remote/failures`' words."""

    workers: tuple[int, ...]
    why: str
    hints: tuple[str, ...] = ()
    error_id: str | None = None
    is_passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersFacts:
    """All that is known of the workers of a node. `expected` are those that were to be asked.

    `has_own_key` tells that the ssh key is one that the user has named, which tpuctl neither makes nor replaces.
    """

    node: Node
    now: datetime
    expected: tuple[int, ...]
    workers: tuple[WorkerFacts, ...] = ()
    shut_out: tuple[ShutOut, ...] = ()
    has_own_key: bool = False

    @property
    def told(self) -> tuple[tuple[int, Examination], ...]:
        """The workers that told something, in their order."""
        return tuple((one.number, one.told.value) for one in self.workers if isinstance(one.told, Known))
