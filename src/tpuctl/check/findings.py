"""What a check has found: level, subject, text, reason and remedies. The ids are a contract with scripts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tpuctl.check.facts import Absent, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tpuctl.check.facts import Fact

FactsT = TypeVar("FactsT")


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
class SetFileMode:
    """Restrict a file or folder of this machine to its owner."""

    path: str
    mode: int

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return shlex.join(["chmod", f"{self.mode:o}", self.path])


@dataclass(frozen=True, slots=True)
class CreateSshKey:
    """Create the key pair for the workers in a home folder that has none."""

    home: str

    @property
    def command(self) -> str:
        """The equivalent command."""
        return "tpuctl ssh-key renew"


@dataclass(frozen=True, slots=True)
class AddKeyToSshAgent:
    """Add a key to the ssh agent, which asks for the passphrase."""

    path: str

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return shlex.join(["ssh-add", self.path])


LocalFix = SetFileMode | CreateSshKey | AddKeyToSshAgent
# What `--fix` may do. It never creates, moves or deletes data, and never costs money.
Fix = EnableService | GrantBucketRole | OpenFirewall | LocalFix


@dataclass(frozen=True, slots=True)
class Remedy:
    """How to fix a finding: `text`, an optional `command` to run, and a `change` if `--fix` can do it."""

    text: str
    command: str | None = None
    change: Fix | None = None

    @classmethod
    def by(cls, change: Fix, text: str) -> Remedy:
        """Return the remedy that applies `change`."""
        return cls(text, change.command, change)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
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
    found: RuleResult
    accepted: bool = False

    @property
    def level(self) -> Level:
        """The level; one step milder if the finding is accepted."""
        if not self.accepted:
            return self.found.level
        return {Level.ERROR: Level.WARNING, Level.WARNING: Level.NOTE}.get(self.found.level, self.found.level)


@dataclass(frozen=True, slots=True)
class CheckRule(Generic[FactsT]):
    """A rule: a function from facts to results. `text` explains in the reference what is checked and why."""

    id: str
    title: str
    text: str
    judge: Callable[[FactsT], Iterable[RuleResult]]


def check_rule(id_: str, title: str) -> Callable[[Callable[[FactsT], Iterable[RuleResult]]], CheckRule[FactsT]]:
    """Make a rule of a function; its docstring is the text of the reference."""

    def made(judge: Callable[[FactsT], Iterable[RuleResult]]) -> CheckRule[FactsT]:
        return CheckRule(id_, title, " ".join((judge.__doc__ or "").split()), judge)

    return made


# Run rules on facts and build a report of their findings.


EvaluatedT = TypeVar("EvaluatedT")
ALL_CHECKS = "all"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Findings sorted by level, id and subject; the worst first."""

    findings: tuple[Finding, ...]

    def of(self, *levels: Level) -> tuple[Finding, ...]:
        """Return the findings of these levels."""
        return tuple(finding for finding in self.findings if finding.level in levels)

    @property
    def worst(self) -> Level:
        """The worst level of all findings; `ok` if there are none."""
        return min((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.OK)

    def fails(self, *, strict: bool = False) -> bool:
        """Return whether the check has failed: on an error; with `strict` on everything except ok and notes."""
        return self.worst is Level.ERROR or (strict and self.worst.rank < Level.NOTE.rank)

    @property
    def is_lasting(self) -> bool:
        """Return whether the report may be cached: it has no error, and no value that could not be read just now."""
        return not any(finding.found.level is Level.ERROR or finding.found.is_passing for finding in self.findings)


def evaluate_rules(
    facts: EvaluatedT, rules: Iterable[CheckRule[EvaluatedT]], *, accepted: Collection[str] = ()
) -> CheckReport:
    """Run the rules and return a report.

    A finding whose id is `accepted` (or `all`) is one level milder and blocks nothing.
    """
    return build_report(run_rules(facts, rules), accepted=accepted)


def run_rules(facts: EvaluatedT, rules: Iterable[CheckRule[EvaluatedT]]) -> tuple[Finding, ...]:
    """Run the rules and return their findings, in the order of the rules."""
    return tuple(Finding(rule.id, rule.title, found) for rule in rules for found in rule.judge(facts))


def build_report(findings: Iterable[Finding], *, accepted: Collection[str] = ()) -> CheckReport:
    """Return a report of findings, possibly from several sources; `accepted` as for `evaluate`."""
    marked = (replace(finding, accepted=bool({finding.id, ALL_CHECKS} & set(accepted))) for finding in findings)
    return CheckReport(
        tuple(sorted(marked, key=lambda finding: (finding.level.rank, finding.id, finding.found.subject)))
    )


# A finding as one line, for commands other than `check`.


ACCEPTED_MARK = "(accepted)"
_MAX_REASON_LENGTH = 120


def warning_line(finding: Finding) -> str:
    """Return one line: what was found, a short reason, and a mark if the finding was accepted."""
    # The first part of the reason, shortened if it is long.
    reason = (finding.found.why or "").partition("; ")[0]
    if len(reason) > _MAX_REASON_LENGTH:
        reason = reason[: _MAX_REASON_LENGTH - 1].rpartition(" ")[0] + "…"
    why = f" ({reason})" if reason else ""
    end = f" {ACCEPTED_MARK}" if is_downgraded(finding) else ""
    return " ".join(f"{finding_headline(finding)}{why}{end}".split())


def finding_headline(finding: Finding) -> str:
    """Return the id and what was found; with the subject only if the text does not name it."""
    found = finding.found
    name = found.subject.rpartition(" ")[2]
    return f"{finding.id} {found.text}" if f"`{name}`" in found.text else f"{finding.id} {found.subject}: {found.text}"


def is_downgraded(finding: Finding) -> bool:
    """Return whether accepting the finding has changed its level."""
    return finding.level is not finding.found.level


# The result of a rule for a fact that could not be read: what, why, and which permission it takes. It is never `ok`.


# The service explains these errors in long paragraphs, which TPU501 and TPU502 show once.
_REPORTED_ELSEWHERE = frozenset({"api-disabled", "billing-disabled"})


def short_reason(fact: Unknown) -> str:
    """Return why the fact could not be read; shortened if another finding has the full text."""
    return fact.reason.partition(". ")[0] if fact.error_id in _REPORTED_ELSEWHERE else fact.reason


def refer_to_rule(fact: Unknown, other: Fact[Any], rule_id: str) -> Unknown:
    """Return a refusal that points to the rule with the full text, if `other` was refused for the same place."""
    if not isinstance(other, Unknown) or fact.permission is None or other.permission is None:
        return fact
    return replace(fact, reason=f"see {rule_id}")


def unread_result(
    fact: Unknown | Absent, subject: str, what: str, *, permission: str, project: str, also: Sequence[str] = ()
) -> RuleResult:
    """Return the result that `what` is unknown. Reading it takes `permission` on the project.

    An `Absent` here means that the API does not know the project itself. `also` are further remedies, as text.
    """
    unknown = fact if isinstance(fact, Unknown) else Unknown(fact.reason or f"the API knows no project `{project}`")
    needed = unknown.permission or permission
    if unknown.is_passing:
        advice = f"check again; reading it takes the permission `{needed}` on project `{project}`"
    elif unknown.permission:
        advice = f"ask for the permission `{needed}` on project `{project}`"
    else:
        advice = f"fix that and check again; reading it takes the permission `{needed}` on project `{project}`"
    return RuleResult(
        level=Level.UNKNOWN,
        subject=subject,
        text=f"{what} could not be read: {short_reason(unknown)}",
        remedies=(Remedy(advice), *map(Remedy, also)),
        facts={"permission": needed},
        is_passing=unknown.is_passing,
    )
