"""What a check has found: level, subject, text, reason and remedies. The ids are a contract with scripts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")


class Level(StrEnum):
    """Severity. `unknown` means that a value could not be read; it is never `ok`."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"
    OK = "ok"

    @property
    def rank(self) -> int:
        """Position in the order of severity; 0 is the worst."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class EnableService:
    """Enable an API in a project."""

    project: str
    service: str

    @property
    def command(self) -> str:
        """The equivalent gcloud command."""
        return shlex.join(["gcloud", "services", "enable", self.service, f"--project={self.project}"])


@dataclass(frozen=True, slots=True)
class GrantBucketRole:
    """Grant an account a role on one bucket."""

    bucket: str
    role: str
    member: str
    user_project: str | None = None

    @property
    def command(self) -> str:
        """The equivalent gcloud command."""
        words = ["gcloud", "storage", "buckets", "add-iam-policy-binding", f"gs://{self.bucket}"]
        # Without `--condition`, gcloud prompts for one if the policy has conditions, which fails in a script.
        words += [f"--member={self.member}", f"--role={self.role}", "--condition=None"]
        words += [f"--billing-project={self.user_project}"] if self.user_project else []
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class OpenFirewall:
    """Create a firewall rule that allows TCP ports of every machine of a network from some addresses."""

    project: str
    network: str
    name: str
    source_ranges: tuple[str, ...]
    ports: tuple[str, ...] = ("22",)

    @property
    def command(self) -> str:
        """The equivalent gcloud command."""
        return shlex.join(
            [
                *("gcloud", "compute", "firewall-rules", "create", self.name, f"--project={self.project}"),
                *(f"--network={self.network}", "--direction=INGRESS"),
                "--allow=" + ",".join(f"tcp:{port}" for port in self.ports),
                "--source-ranges=" + ",".join(self.source_ranges),
            ]
        )


@dataclass(frozen=True, slots=True)
class SetMode:
    """Restrict a file or folder of this machine to its owner."""

    path: str
    mode: int

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return shlex.join(["chmod", f"{self.mode:o}", self.path])


@dataclass(frozen=True, slots=True)
class MakeSshKey:
    """Create the key pair for the workers in a home folder that has none."""

    home: str

    @property
    def command(self) -> str:
        """The equivalent command."""
        return "tpuctl ssh-key renew"


@dataclass(frozen=True, slots=True)
class AddToAgent:
    """Add a key to the ssh agent, which asks for the passphrase."""

    path: str

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return shlex.join(["ssh-add", self.path])


LocalChange = SetMode | MakeSshKey | AddToAgent
# What `--fix` may do. It never creates, moves or deletes data, and never costs money.
Change = EnableService | GrantBucketRole | OpenFirewall | LocalChange


@dataclass(frozen=True, slots=True)
class Remedy:
    """How to fix a finding: `text`, an optional `command` to run, and a `change` if `--fix` can do it."""

    text: str
    command: str | None = None
    change: Change | None = None

    @classmethod
    def by(cls, change: Change, text: str) -> Remedy:
        """Return the remedy that applies `change`."""
        return cls(text, change.command, change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of one rule for one subject.

    `facts` are values for scripts, with stable names. `is_passing`: a value could not be read now and may be readable
    later.
    """

    level: Level
    subject: str
    text: str
    why: str | None = None
    remedies: tuple[Remedy, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A result with the id and title of its rule. An `accepted` error blocks nothing."""

    id: str
    title: str
    found: Found
    accepted: bool = False

    @property
    def level(self) -> Level:
        """The level; one step milder if the finding is accepted."""
        if not self.accepted:
            return self.found.level
        return {Level.ERROR: Level.WARNING, Level.WARNING: Level.NOTE}.get(self.found.level, self.found.level)


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """A rule: a function from facts to results. `text` explains in the reference what is checked and why."""

    id: str
    title: str
    text: str
    judge: Callable[[T], Iterable[Found]]


def rule(id_: str, title: str) -> Callable[[Callable[[T], Iterable[Found]]], Rule[T]]:
    """Make a rule of a function; its docstring is the text of the reference."""

    def made(judge: Callable[[T], Iterable[Found]]) -> Rule[T]:
        return Rule(id_, title, " ".join((judge.__doc__ or "").split()), judge)

    return made
