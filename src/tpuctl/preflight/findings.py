"""What a check has found: a level, a subject, what, why it matters, and what mends it. The ids are a contract with scripts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")


class Level(StrEnum):
    """How bad it is. `unknown` could not be read, and is never `ok`."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"
    OK = "ok"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class EnableService:
    """Enable an API in a project."""

    project: str
    service: str

    @property
    def command(self) -> str:
        """The gcloud command that does the same."""
        return shlex.join(["gcloud", "services", "enable", self.service, f"--project={self.project}"])


@dataclass(frozen=True, slots=True)
class GrantBucketRole:
    """Give an account a role on one bucket."""

    bucket: str
    role: str
    member: str
    user_project: str | None = None

    @property
    def command(self) -> str:
        """The gcloud command that does the same."""
        words = ["gcloud", "storage", "buckets", "add-iam-policy-binding", f"gs://{self.bucket}"]
        # Without a condition named gcloud asks for one where the policy has others, and cannot ask a script.
        words += [f"--member={self.member}", f"--role={self.role}", "--condition=None"]
        words += [f"--billing-project={self.user_project}"] if self.user_project else []
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class OpenFirewall:
    """Let some addresses reach tcp ports of every machine of a network."""

    project: str
    network: str
    name: str
    source_ranges: tuple[str, ...]
    ports: tuple[str, ...] = ("22",)

    @property
    def command(self) -> str:
        """The gcloud command that does the same."""
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
    """Let only the owner use a file or folder of this machine."""

    path: str
    mode: int

    @property
    def command(self) -> str:
        """The shell command that does the same."""
        return shlex.join(["chmod", f"{self.mode:o}", self.path])


@dataclass(frozen=True, slots=True)
class MakeSshKey:
    """Make the key pair for the workers below a home folder, where there is none."""

    home: str

    @property
    def command(self) -> str:
        """The command that does the same."""
        return "tpuctl ssh-key renew"


@dataclass(frozen=True, slots=True)
class AddToAgent:
    """Let the ssh agent hold a key; it asks for the passphrase."""

    path: str

    @property
    def command(self) -> str:
        """The shell command that does the same."""
        return shlex.join(["ssh-add", self.path])


LocalChange = SetMode | MakeSshKey | AddToAgent
# What `--fix` may do: nothing that creates, moves or deletes data, and nothing that costs.
Change = EnableService | GrantBucketRole | OpenFirewall | LocalChange


@dataclass(frozen=True, slots=True)
class Remedy:
    """What mends it, in words; a `command` to type where there is one; a `change` where `--fix` can do it."""

    text: str
    command: str | None = None
    change: Change | None = None

    @classmethod
    def by(cls, change: Change, text: str) -> Remedy:
        """Return the remedy that a change is."""
        return cls(text, change.command, change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one rule says of one subject.

    `facts` are values for scripts, with stable names; `is_passing` that the same question may be answered later.
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
    """What was found, under the id of the rule that says so. An error that was `accepted` stops nothing."""

    id: str
    title: str
    found: Found
    accepted: bool = False

    @property
    def level(self) -> Level:
        """How bad it is; what was accepted is one step less so."""
        if not self.accepted:
            return self.found.level
        return {Level.ERROR: Level.WARNING, Level.WARNING: Level.NOTE}.get(self.found.level, self.found.level)


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One rule: a question about facts. `text` says, for the reference, what is checked and why."""

    id: str
    title: str
    text: str
    judge: Callable[[T], Iterable[Found]]


def rule(id_: str, title: str) -> Callable[[Callable[[T], Iterable[Found]]], Rule[T]]:
    """Make a rule of a function; its docstring is the reference's text."""

    def made(judge: Callable[[T], Iterable[Found]]) -> Rule[T]:
        return Rule(id_, title, " ".join((judge.__doc__ or "").split()), judge)

    return made
