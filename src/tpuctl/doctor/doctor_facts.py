"""Facts that `tpuctl doctor` judges: this machine, the credentials, the network, the project, a node and its workers.

Facts are data without any judgement. No value here is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.check.facts import Absent, Fact, Known, Unknown, value_or_none
from tpuctl.decoding import MAX_BYTES, By, Line, Most, Range, decoder_of

if TYPE_CHECKING:
    from tpuctl.check.facts import CheckFacts
    from tpuctl.config.settings import ConfigFile, Settings
    from tpuctl.models.node import Node
    from tpuctl.nodes.inspection import InspectionReport
    from tpuctl.ssh.port_probe import PortProbe
    from tpuctl.ssh.tpu_guard import GuardReport
    from tpuctl.ssh.tpu_holders import HoldersFound

_MOST_VALUES = 100
_PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,60}")


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A file or a folder. `mode` holds its permission bits, None if it is absent.

    `problem` is why tpuctl cannot use it: read a file, or read and write a folder.
    """

    path: Path
    mode: int | None = None
    is_own: bool = True
    problem: str | None = None

    @property
    def exists(self) -> bool:
        """Return whether it exists."""
        return self.mode is not None

    @property
    def octal(self) -> str | None:
        """Its permission bits as `chmod` takes them, None if it is absent."""
        return None if self.mode is None else f"{self.mode:04o}"

    def is_open(self, mask: int = 0o077) -> bool:
        """Return whether it has any bit of `mask` set, and is owned by this user, who can change that."""
        return self.mode is not None and self.is_own and bool(self.mode & mask)


@dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A program on PATH."""

    path: str
    version: Fact[str]


@dataclass(frozen=True, slots=True)
class GcloudInstallation:
    """The Google Cloud CLI. `packaging` is what installed it if its own updater is off: `apt`, `dnf`, `snap`, `other`."""

    path: str
    root: str | None
    version: Fact[str]
    packaging: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMachine:
    """Python, tpuctl and the programs that it starts. `folders` are those that tpuctl writes to; `bytes_left` is by folder."""

    python: tuple[int, int, int]
    executable: str
    environment: str | None
    tpuctl: str
    installed_by: str | None
    packages: Mapping[str, Fact[str]] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)
    gcloud: Fact[GcloudInstallation]
    programs: Mapping[str, Fact[InstalledProgram]] = field(default_factory=dict)
    folders: Mapping[str, PathStatus] = field(default_factory=dict)
    bytes_left: Mapping[str, int] = field(default_factory=dict)
    journal: Fact[int] | None = None
    term: str | None = None
    locale: str | None = None
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class SshKeyFacts:
    """The ssh key pair for workers. `derived` is the public key computed from the private one, `public` the content of `.pub`.

    `is_locked`: the private key has a passphrase. `agent` are the public keys that an agent holds, as `TYPE BASE64`. `home` is
    where a missing pair is created, None if the user named a key.
    """

    private: PathStatus
    public_half: PathStatus
    home: Path | None
    folder: PathStatus
    known_hosts: tuple[PathStatus, ...] = ()
    public: Fact[str] | None = None
    derived: Fact[str] | None = None
    is_locked: bool = False
    agent: Fact[frozenset[str]] | None = None


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """The contents of a credentials file, without secrets. `source` is the variable that names it, None for gcloud's own."""

    entry: PathStatus
    kind: str
    source: str | None = None
    account: str | None = None
    quota_project: str | None = None


@dataclass(frozen=True, slots=True)
class AccessToken:
    """The properties of an access token, without the token. A field is None if Google does not report it."""

    account: str | None = None
    scopes: frozenset[str] | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class AccessFailure:
    """Why there is no access token, or why the chosen sandbox cannot be opened; and what helps."""

    reason: str
    advice: tuple[str, ...] = ()
    error_id: str | None = None

    @classmethod
    def of(cls, error: Exception) -> AccessFailure:
        """Return the failure that an error stands for."""
        advice = (getattr(error, "hint", None) or "").splitlines()
        return cls(str(error), tuple(advice), getattr(error, "error_id", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerIdentity:
    """The account that calls are made as. `is_needed` is false for a sandbox, and for an endpoint on this machine."""

    is_needed: bool = True
    file: Fact[CredentialFile]
    named_by: str | None = None
    token: Fact[AccessToken | AccessFailure] | None = None
    impersonated: str | None = None
    gcloud_account: str | None = None
    quota_project: str | None = None

    @property
    def account(self) -> str | None:
        """The account that is logged in, as Google or the file reports it; without a file it may be gcloud's."""
        file, token = value_or_none(self.file), value_or_none(self.token)
        if not isinstance(token, AccessToken):
            return file.account if file else None
        gcloud_account = self.gcloud_account if isinstance(self.file, Absent) else None
        return token.account or (file.account if file else None) or gcloud_account


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The answer of a host to a request without credentials: how much its clock is ahead of this machine's."""

    ahead: timedelta | None = None


@dataclass(frozen=True, slots=True)
class CloudHost:
    """A host that commands call. `addresses` is None if a proxy resolves its name."""

    name: str
    addresses: Fact[tuple[str, ...]] | None
    answer: Fact[HostAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """The network between this machine and the cloud.

    `proxy` is a URL without its password; `bypassed` are the hosts that do not use it. `sandbox_failure` is set if the chosen
    sandbox cannot be opened.
    """

    proxy: Fact[str]
    proxy_source: str | None = None
    bypassed: tuple[str, ...] = ()
    other_proxies: tuple[str, ...] = ()
    ca_file: PathStatus | None = None
    hosts: tuple[CloudHost, ...] = ()
    sandbox_failure: AccessFailure | None = None
    is_local: bool = False
    time_zone: str = "UTC"

    @property
    def ahead(self) -> timedelta | None:
        """By how much the clock of the first host with a `Date` is ahead of ours."""
        answers = (value_or_none(host.answer) for host in self.hosts)
        return next((answer.ahead for answer in answers if answer and answer.ahead is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFacts:
    """The settings with their sources. `variables` are environment variables that tpuctl, gcloud and Google's libraries read.

    `problems` are invalid values in files that can be read.
    """

    settings: Fact[Settings]
    problems: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    entries: tuple[PathStatus, ...] = ()
    gcloud_name: str = "default"
    gcloud_entry: PathStatus | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    is_sandbox: bool = False
    endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFacts:
    """The project: `check`'s facts about it, and which of the needed permissions the caller has.

    `skip_reason` is why no request about it was made. `node` is the NODE that the user named, if any.
    """

    project: Fact[str]
    node: str | None = None
    skip_reason: str | None = None
    facts: CheckFacts | None = None
    permissions: Fact[frozenset[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """All facts about this machine and its access to the cloud, at one moment."""

    now: datetime
    machine: LocalMachine
    keys: SshKeyFacts
    identity: CallerIdentity
    network: NetworkFacts
    configuration: ConfigFacts
    cloud: ProjectFacts


def environment_json(facts: EnvironmentFacts) -> dict[str, Any]:
    """Return the facts as JSON. Every field is always present, null if unknown or absent. No value is a secret.

    `settings` has the source of each setting that has a value; `tpuctl config show` has the values.
    """
    machine, network, settings = facts.machine, facts.network, value_or_none(facts.configuration.settings)
    gcloud, ahead = value_or_none(machine.gcloud), network.ahead
    programs = {name: value_or_none(fact) for name, fact in machine.programs.items()}
    return {
        "python": ".".join(map(str, machine.python)),
        "executable": machine.executable,
        "tpuctl": machine.tpuctl,
        "installedBy": machine.installed_by,
        "packages": {name: value_or_none(fact) for name, fact in machine.packages.items()},
        "gcloud": value_or_none(gcloud.version) if gcloud else None,
        "programs": {
            name: (value_or_none(found.version) or found.path) if found else None for name, found in programs.items()
        },
        "locale": machine.locale,
        "timeZone": network.time_zone,
        "secondsBehind": round(ahead.total_seconds()) if ahead is not None else None,
        "proxy": value_or_none(network.proxy),
        "account": facts.identity.account,
        "project": value_or_none(facts.cloud.project),
        "endpoint": facts.configuration.endpoint,
        "settings": {spec.key: str(setting.source) for spec, setting in settings or () if setting},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node at one moment.

    `published` are the guest attributes of each worker. `obstacle` is why its workers are not examined, None if they are, and
    `remedy` what helps.
    """

    node: Node
    now: datetime
    published: Fact[tuple[Mapping[str, str], ...]]
    obstacle: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class FileSystemUsage:
    """A file system: its free bytes, and the used share of space and inodes in percent, rounded as `df` does."""

    mount: str
    available: Annotated[int, Range(-MAX_BYTES, MAX_BYTES)]
    used: int
    inodes: int | None = None


class LogFolderState(StrEnum):
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
    state: LogFolderState
    size: int
    files: int
    is_complete: bool = field(metadata={"key": "is_complete"})


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory of a worker, and what programs can still allocate, in bytes."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class OomKills:
    """The number of out-of-memory kills since the worker booted, and the kernel's last message about one."""

    count: int
    last: str = ""


def _packages(value: Any) -> dict[str, str]:  # JSON
    """Return the packages whose names and versions may become part of suggested commands."""
    packages = decoder_of(Annotated[Mapping[str, str], Most(_MOST_VALUES)])(value)
    return {
        name: version
        for name, version in packages.items()
        if _PACKAGE_NAME.fullmatch(name) and _VERSION.fullmatch(version)
    }


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A Python with frameworks. `kind` is system, venv or conda; `path` is the same on all workers, `~` is their home.

    `packages` are versions by name. `broken` are the lines of its `pip check` about them, `unchecked` why there are none.
    """

    kind: str
    path: str
    python: str
    packages: Annotated[Mapping[str, str], By(_packages)] = field(default_factory=dict)
    broken: Annotated[tuple[Annotated[str, Line(300)], ...], Most(_MOST_VALUES)] = ()
    unchecked: str | None = None

    @property
    def name(self) -> str:
        """Its name in findings."""
        return "the system's Python" if self.kind == "system" else f"`{self.path}`"


Variables = Annotated[Mapping[str, str], Most(_MOST_VALUES)]


@dataclass(frozen=True, slots=True)
class TpuVariables:
    """Environment variables that affect TPU programs, as found in an ssh session, a login shell and running jobs.

    `login_unread` is why those of a login shell are unknown, None if they are known.
    """

    session: Variables = field(default_factory=dict)
    login: Variables = field(default_factory=dict)
    jobs: Annotated[tuple[Variables, ...], Most(10)] = ()
    login_unread: str | None = field(default=None, metadata={"key": "login_unread"})

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values of a variable, each once; those of jobs first."""
        places = (*self.jobs, self.login, self.session)
        return tuple(dict.fromkeys(place[name] for place in places if name in place))


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Bounds of the offset of a worker's clock, positive if it is ahead of ours; the round trip makes it inexact."""

    low: timedelta
    high: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The report of one worker about itself."""

    offset: ClockOffset
    kernel: str
    uptime: Fact[timedelta]
    disks: Fact[tuple[FileSystemUsage, ...]]
    logs: Fact[LogFolder]
    memory: Fact[WorkerMemory]
    oom_kills: Fact[OomKills]
    tpu_use: Fact[HoldersFound]
    inspection: Fact[InspectionReport]
    variables: Fact[TpuVariables]
    environments: Fact[tuple[PythonEnvironment, ...]]
    is_synchronized: Fact[bool]
    guard: Fact[GuardReport] = field(default_factory=Absent)


@dataclass(frozen=True, slots=True)
class UnreachableWorkers:
    """Workers that ssh could not log in to, and why."""

    workers: tuple[int, ...]
    why: str
    hints: tuple[str, ...] = ()
    error_id: str | None = None
    is_passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllWorkersFacts:
    """All facts about the workers of a node. `answers` are those of workers with ssh, Unknown if one sent no report.

    `has_own_key`: the user named the ssh key, so that tpuctl neither creates nor replaces it. `ports` are those between these
    workers and those of the other nodes that were named.
    """

    node: Node
    now: datetime
    answers: Mapping[int, Known[WorkerReport] | Unknown] = field(default_factory=dict)
    unreachable: tuple[UnreachableWorkers, ...] = ()
    has_own_key: bool = False
    ports: Fact[PortProbe] = field(default_factory=Absent)

    @property
    def reports(self) -> dict[int, WorkerReport]:
        """The reports, by the numbers of their workers."""
        return {number: answer.value for number, answer in self.answers.items() if isinstance(answer, Known)}
