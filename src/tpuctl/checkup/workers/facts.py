"""Facts about the workers of a node, for the rules of `doctor NODE`."""

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
    """A file system: its size in bytes, and the used share of space and inodes in percent, rounded as `df` does."""

    mount: str
    size: int
    available: int
    used: int
    inodes: int | None = None


class LogState(StrEnum):
    """Whether libtpu can write its log folder."""

    WRITABLE = "writable"
    ABSENT = "absent"  # libtpu creates the folder [TPU documentation, debug logs]
    LACKS_PARENT = "lacks-parent"  # but not its parents
    REFUSED = "refused"
    RELATIVE = "relative"


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The log folder of libtpu. Unless `is_complete`, size and number of files are lower bounds."""

    path: str
    state: LogState
    size: int
    files: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a worker, and what programs can still allocate, in bytes."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Kills:
    """The number of out-of-memory kills since the worker booted, and the kernel's last message about one."""

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
    """The processes that hold the TPU of a worker.

    `lock_owner` is the owner of libtpu's lock file, None if there is no such file; `is_lock_held`: a process has it open;
    `hidden` is the number of processes that could not be inspected.
    """

    holders: tuple[HolderSeen, ...] = ()
    lock_owner: str | None = None
    is_lock_held: bool = False
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The state of startup script and cloud-init on a worker; `detail` names the part that still runs or failed."""

    startup: Startup
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package: its version, and its requirements (`jaxlib <=0.4.35,>=0.4.34`)."""

    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A Python with frameworks. `kind` is system, venv or conda; `path` is the same on all workers, `~` is their home."""

    kind: str
    path: str
    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in findings."""
        return "the system's Python" if self.kind == "system" else f"`{self.path}`"


@dataclass(frozen=True, slots=True)
class Variables:
    """Environment variables that affect TPU programs, as found in an ssh session, a login shell and running jobs.

    `login_unread` is why those of a login shell are unknown, None if they are known.
    """

    session: Mapping[str, str] = field(default_factory=dict)
    login: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[Mapping[str, str], ...] = ()
    login_unread: str | None = None

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values of a variable, each once; those of jobs first."""
        places = (*self.jobs, self.login, self.session)
        return tuple(dict.fromkeys(place[name] for place in places if name in place))


@dataclass(frozen=True, slots=True)
class Offset:
    """Bounds of the offset of a worker's clock, positive if it is ahead of ours; the round trip makes it inexact."""

    low: timedelta
    high: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The report of one worker about itself."""

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
    """One worker and its report; Unknown if it sent none."""

    number: int
    report: Known[Examination] | Unknown


@dataclass(frozen=True, slots=True)
class ShutOut:
    """Workers that ssh could not log in to, and why."""

    workers: tuple[int, ...]
    why: str
    hints: tuple[str, ...] = ()
    error_id: str | None = None
    is_passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersFacts:
    """All facts about the workers of a node. `expected` are the workers that it should have.

    `has_own_key`: the user named the ssh key, so that tpuctl neither creates nor replaces it.
    """

    node: Node
    now: datetime
    expected: tuple[int, ...]
    workers: tuple[WorkerFacts, ...] = ()
    shut_out: tuple[ShutOut, ...] = ()
    has_own_key: bool = False

    @property
    def reports(self) -> tuple[tuple[int, Examination], ...]:
        """The reports, with the numbers of their workers, in order."""
        return tuple((one.number, one.report.value) for one in self.workers if isinstance(one.report, Known))
