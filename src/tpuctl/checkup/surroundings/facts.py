"""What `tpuctl doctor` looks at on this machine and on the way to the cloud, as it was found. No value here is a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Absent, Fact, known

if TYPE_CHECKING:
    from tpuctl.preflight.facts import Facts
    from tpuctl.settings import ConfigFile, Settings


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder. `mode` are its permission bits, nothing where it is absent.

    `problem` says why it cannot be used for what tpuctl uses it for: read, where it is a file, and a folder written too.
    """

    path: Path
    mode: int | None = None
    is_own: bool = True
    problem: str | None = None

    @property
    def is_there(self) -> bool:
        """Tell whether it exists."""
        return self.mode is not None

    @property
    def octal(self) -> str | None:
        """Its permission bits as `chmod` takes them, nothing where it is absent."""
        return None if self.mode is None else f"{self.mode:04o}"

    def is_open(self, mask: int = 0o077) -> bool:
        """Tell whether others may do with it what `mask` says, and it is ours to change that."""
        return self.mode is not None and self.is_own and bool(self.mode & mask)


@dataclass(frozen=True, slots=True)
class Program:
    """A program on PATH."""

    path: str
    version: Fact[str]


@dataclass(frozen=True, slots=True)
class Gcloud:
    """The Google Cloud CLI. `packaging` is what installed it where its own updater is off: `apt`, `dnf`, `snap`, `other`."""

    path: str
    root: str | None
    version: Fact[str]
    packaging: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Python, tpuctl and the programs that it starts. `folders` are those that tpuctl writes to, with the bytes left there."""

    python: tuple[int, int, int]
    executable: str
    environment: str | None
    tpuctl: str
    installed_by: str | None
    packages: Mapping[str, Fact[str]] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)
    gcloud: Fact[Gcloud]
    programs: Mapping[str, Fact[Program]] = field(default_factory=dict)
    folders: Mapping[str, Entry] = field(default_factory=dict)
    bytes_left: Mapping[str, int] = field(default_factory=dict)
    journal: Fact[int] | None = None
    term: str | None = None
    locale: str | None = None
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The key pair that workers let in. `derived` is the public half that belongs to the private one, `public` what lies there.

    `is_locked` tells of a passphrase. `agent` are the public keys that an agent holds, as `TYPE BASE64`. `home` is where the
    pair is made when it is missing, nothing where the user has named it.
    """

    private: Entry
    public_half: Entry
    home: Path | None
    folder: Entry
    known_hosts: tuple[Entry, ...] = ()
    public: Fact[str] | None = None
    derived: Fact[str] | None = None
    is_locked: bool = False
    agent: Fact[frozenset[str]] | None = None


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """What a file of credentials says of itself. `source` is the variable that names it, nothing for gcloud's own."""

    entry: Entry
    kind: str
    source: str | None = None
    account: str | None = None
    quota_project: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """An access token that was fetched; it is not kept. What Google does not tell of it is nothing."""

    account: str | None = None
    scopes: frozenset[str] | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class NoToken:
    """Why there is no access token: nobody is logged in, or Google no longer takes the login."""

    reason: str
    advice: tuple[str, ...] = ()
    error_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose name calls are made in. `needed` is false for a sandbox, and for an endpoint of this machine."""

    needed: bool = True
    file: Fact[CredentialFile]
    named_by: str | None = None
    token: Fact[Token | NoToken] | None = None
    impersonated: str | None = None
    gcloud_account: str | None = None
    quota_project: str | None = None

    @property
    def account(self) -> str | None:
        """The account that logged in, as far as Google or a file tells; without a file it may be gcloud's."""
        file, token = known(self.file), known(self.token)
        if not isinstance(token, Token):
            return file.account if file else None
        theirs = self.gcloud_account if isinstance(self.file, Absent) else None
        return token.account or (file.account if file else None) or theirs


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host answered to a request that needs no account. `ahead` is how far its clock is before that of this machine."""

    status: int
    took: timedelta
    ahead: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """A host that is called. `addresses` is nothing where a proxy looks up its name."""

    name: str
    addresses: Fact[tuple[str, ...]] | None
    answer: Fact[Answer]


@dataclass(frozen=True, slots=True)
class Closed:
    """Why the sandbox that was chosen cannot be opened, so that no cloud was called, and what helps."""

    reason: str
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The way to the cloud. `proxy` is shown without a password; `bypassed` are the hosts that it is not used for.

    `closed` is nothing but where a sandbox cannot be opened.
    """

    proxy: Fact[str]
    proxy_source: str | None = None
    bypassed: tuple[str, ...] = ()
    other_proxies: tuple[str, ...] = ()
    ca_file: Entry | None = None
    hosts: tuple[Host, ...] = ()
    closed: Closed | None = None
    is_local: bool = False
    time_zone: str = "UTC"

    @property
    def ahead(self) -> timedelta | None:
        """How far the clock of the first host that told is before ours."""
        answers = (known(host.answer) for host in self.hosts)
        return next((answer.ahead for answer in answers if answer and answer.ahead is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings with their sources. `variables` are those of the environment that programs of the cloud read.

    `problems` are values that no command could use, though the files can be read.
    """

    settings: Fact[Settings]
    problems: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    entries: tuple[Entry, ...] = ()
    gcloud_name: str = "default"
    gcloud_entry: Entry | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    is_sandbox: bool = False
    endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The project, as `preflight` has its facts, and those of some permissions that the caller has on it.

    `unasked` says why nobody could be asked about it. `node` is the node that is looked for in it, where one was named.
    """

    project: Fact[str]
    node: str | None = None
    unasked: str | None = None
    facts: Facts | None = None
    wanted_permissions: tuple[str, ...] = ()
    permissions: Fact[frozenset[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything that the rules look at, at a time."""

    now: datetime
    machine: Machine
    keys: Keys
    identity: Identity
    network: Network
    configuration: Configuration
    cloud: Cloud
