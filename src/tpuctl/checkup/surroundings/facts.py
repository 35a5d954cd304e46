"""Facts that `tpuctl doctor` judges: this machine, the credentials, the network, the project, a node and its workers.

Facts are data without any judgement. No value here is a secret.
"""

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
    """A file or a folder. `mode` holds its permission bits, None if it is absent.

    `problem` is why tpuctl cannot use it: read a file, or read and write a folder.
    """

    path: Path
    mode: int | None = None
    is_own: bool = True
    problem: str | None = None

    @property
    def is_there(self) -> bool:
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
class Program:
    """A program on PATH."""

    path: str
    version: Fact[str]


@dataclass(frozen=True, slots=True)
class Gcloud:
    """The Google Cloud CLI. `packaging` is what installed it if its own updater is off: `apt`, `dnf`, `snap`, `other`."""

    path: str
    root: str | None
    version: Fact[str]
    packaging: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Python, tpuctl and the programs that it starts. `folders` are those that tpuctl writes to; `bytes_left` is by folder."""

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
    """The ssh key pair for workers. `derived` is the public key computed from the private one, `public` the content of `.pub`.

    `is_locked`: the private key has a passphrase. `agent` are the public keys that an agent holds, as `TYPE BASE64`. `home` is
    where a missing pair is created, None if the user named a key.
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
    """The contents of a credentials file, without secrets. `source` is the variable that names it, None for gcloud's own."""

    entry: Entry
    kind: str
    source: str | None = None
    account: str | None = None
    quota_project: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """The properties of an access token, without the token. A field is None if Google does not report it."""

    account: str | None = None
    scopes: frozenset[str] | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class NoToken:
    """Why there is no access token: no login, or Google rejects it."""

    reason: str
    advice: tuple[str, ...] = ()
    error_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The account that calls are made as. `needed` is false for a sandbox, and for an endpoint on this machine."""

    needed: bool = True
    file: Fact[CredentialFile]
    named_by: str | None = None
    token: Fact[Token | NoToken] | None = None
    impersonated: str | None = None
    gcloud_account: str | None = None
    quota_project: str | None = None

    @property
    def account(self) -> str | None:
        """The account that is logged in, as Google or the file reports it; without a file it may be gcloud's."""
        file, token = known(self.file), known(self.token)
        if not isinstance(token, Token):
            return file.account if file else None
        gcloud_account = self.gcloud_account if isinstance(self.file, Absent) else None
        return token.account or (file.account if file else None) or gcloud_account


@dataclass(frozen=True, slots=True)
class Answer:
    """A host's answer to a request without credentials. `ahead` is by how much its clock is ahead of this machine's."""

    status: int
    took: timedelta
    ahead: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """A host that commands call. `addresses` is None if a proxy resolves its name."""

    name: str
    addresses: Fact[tuple[str, ...]] | None
    answer: Fact[Answer]


@dataclass(frozen=True, slots=True)
class Closed:
    """Why the chosen sandbox cannot be opened, and what helps. No cloud is called in its place."""

    reason: str
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between this machine and the cloud.

    `proxy` is a URL without its password; `bypassed` are the hosts that do not use it. `closed` is set if the chosen sandbox
    cannot be opened.
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
        """By how much the clock of the first host with a `Date` is ahead of ours."""
        answers = (known(host.answer) for host in self.hosts)
        return next((answer.ahead for answer in answers if answer and answer.ahead is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings with their sources. `variables` are environment variables that tpuctl, gcloud and Google's libraries read.

    `problems` are invalid values in files that can be read.
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
    """The project: `check`'s facts about it, and which of the `wanted_permissions` the caller has.

    `skip_reason` is why no request about it was made. `node` is the NODE that the user named, if any.
    """

    project: Fact[str]
    node: str | None = None
    skip_reason: str | None = None
    facts: Facts | None = None
    wanted_permissions: tuple[str, ...] = ()
    permissions: Fact[frozenset[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """All facts about this machine and its access to the cloud, at one moment."""

    now: datetime
    machine: Machine
    keys: Keys
    identity: Identity
    network: Network
    configuration: Configuration
    cloud: Cloud
