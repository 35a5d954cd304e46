"""What a check has found: level, subject, text, reason and remedies; and running rules to find it.

The ids are a contract with scripts. Remedies suggest complete commands, which tpuctl never runs; `--fix` applies only a `Fix`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Generic, TypeVar

from tpuctl.accelerators import find_accelerator_type
from tpuctl.check.facts import Absent, Fact, Purpose, Unknown, WantedNode
from tpuctl.command_text import fitting, join_command
from tpuctl.models.node import Tier
from tpuctl.models.spec import FIELDS, without_own_labels
from tpuctl.models.spec_fields import option_values

FactsT = TypeVar("FactsT")


class Level(StrEnum):
    """Severity. `unknown` means that a value could not be read, so that nothing follows from it."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """Position in the order of severity; 0 is the worst."""
        return list(Level).index(self)


def gcloud_command(words: str, *arguments: str, **options: str | bool | None) -> str:
    """Return a gcloud command, quoted for the shell. An option that is None is left out. All are valid for gcloud 528.

    The value of an option whose kind is known fits it; arguments are checked by the caller (`fitting`).
    """
    return _command("gcloud", words, arguments, options)


def tpuctl_command(words: str, *arguments: str, **options: str | bool | None) -> str:
    """Return a tpuctl command in the same way."""
    return _command("tpuctl", words, arguments, options)


def _command(program: str, words: str, arguments: Iterable[str], options: Mapping[str, str | bool | None]) -> str:
    flags = _flags((name.replace("_", "-"), value) for name, value in options.items())
    return join_command([program, *words.split(), *arguments, *flags])


# The kinds of values of options; any other value is only quoted.
_KINDS_OF_OPTIONS = {
    "billing-project": "project",
    "bucket": "bucket_url",
    "checkpoint-bucket": "bucket_url",
    "data-bucket": "bucket_url",
    "service-account": "service_account",
    **{kind: kind for kind in ("member", "network", "project", "region", "role", "subnetwork", "type", "zone")},
}


def _flags(options: Iterable[tuple[str, object]]) -> list[str]:
    """Return options for a command line, without those that have no value."""
    return [
        f"--{name}"
        if value is True
        else f"--{name}={fitting(kind, value) if (kind := _KINDS_OF_OPTIONS.get(name)) else value}"
        for name, value in options
        if value
    ]


@dataclass(frozen=True, slots=True)
class EnableService:
    """Enable an API in a project."""

    project: str
    service: str

    @property
    def command(self) -> str:
        """The equivalent gcloud command."""
        return gcloud_command("services enable", fitting("service", self.service), project=self.project)


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
        return gcloud_command(
            "storage buckets add-iam-policy-binding",
            f"gs://{fitting('bucket', self.bucket)}",
            member=self.member,
            role=self.role,
            # Without it, gcloud prompts for one if the policy has conditions, which fails in a script.
            condition="None",
            billing_project=self.user_project,
        )


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
        return gcloud_command(
            "compute firewall-rules create",
            fitting("firewall_rule", self.name),
            project=self.project,
            network=self.network,
            direction="INGRESS",
            allow=",".join(f"tcp:{port}" for port in self.ports),
            source_ranges=",".join(self.source_ranges),
        )


@dataclass(frozen=True, slots=True)
class SetFileMode:
    """Restrict a file or folder of this machine to its owner."""

    path: str
    mode: int

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return join_command(["chmod", f"{self.mode:o}", fitting("path", self.path)])


@dataclass(frozen=True, slots=True)
class CreateSshKey:
    """Create the key pair for the workers in a home folder that has none."""

    home: str
    command = "tpuctl ssh-key renew"


@dataclass(frozen=True, slots=True)
class AddKeyToSshAgent:
    """Add a key to the ssh agent, which asks for the passphrase."""

    path: str

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return join_command(["ssh-add", fitting("path", self.path)])


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


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A problem that one rule has found with one subject, or a value that it could not read.

    `facts` are values for scripts, with stable names. `is_passing`: a value could not be read now and may be readable
    later. `measure` is a number from one worker and its text; for several workers its range replaces `{}` in the text.
    """

    level: Level
    subject: str
    text: str
    why: str | None = None
    remedies: tuple[Remedy, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON
    is_passing: bool = False
    measure: tuple[float, str] | None = None

    @classmethod
    def of(
        cls,
        level: Level,
        subject: str,
        text: str,
        *remedies: Remedy | str,
        why: str | None = None,
        facts: Mapping[str, Any] | None = None,  # JSON
    ) -> RuleResult:
        """Return a result; a remedy without a command may be a plain text."""
        advice = tuple(Remedy(one) if isinstance(one, str) else one for one in remedies)
        return cls(level, subject, text, why, advice, facts or {})


note = partial(RuleResult.of, Level.NOTE)
warning = partial(RuleResult.of, Level.WARNING)
error = partial(RuleResult.of, Level.ERROR)


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

    @property
    def is_downgraded(self) -> bool:
        """Return whether accepting the finding has changed its level."""
        return self.level is not self.found.level

    @property
    def headline(self) -> str:
        """The id and what was found; with the subject only if the text does not name it."""
        name = self.found.subject.rpartition(" ")[2]
        subject = "" if f"`{name}`" in self.found.text else f"{self.found.subject}: "
        return f"{self.id} {subject}{self.found.text}"


@dataclass(frozen=True, slots=True)
class CheckRule(Generic[FactsT]):
    """A rule: a function from facts to problems; it yields nothing if there is none.

    `text` explains in the reference what is checked and why.
    """

    id: str
    title: str
    text: str
    judge: Callable[[FactsT], Iterable[RuleResult]]


def check_rule(id_: str, title: str) -> Callable[[Callable[[FactsT], Iterable[RuleResult]]], CheckRule[FactsT]]:
    """Make a rule of a function; its docstring is the text of the reference."""

    def decorate(judge: Callable[[FactsT], Iterable[RuleResult]]) -> CheckRule[FactsT]:
        return CheckRule(id_, title, " ".join((judge.__doc__ or "").split()), judge)

    return decorate


def join_words(words: Iterable[object], *, last: str = "and") -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    *most, end = [str(word) for word in words] or [""]
    return f"{', '.join(most)} {last} {end}" if most else end


def ticked(names: Iterable[str]) -> list[str]:
    """Return names in backticks."""
    return [f"`{name}`" for name in names]


def some_of(words: Sequence[str], most: int) -> str:
    """Return the first words and the number of the others: `a, b and 3 more`."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


ALL_CHECKS = "all"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Findings sorted by level, id and subject, the worst first; and the titles of the rules that were run, by id."""

    findings: tuple[Finding, ...]
    examined: Mapping[str, str] = field(default_factory=dict)

    def of(self, *levels: Level) -> tuple[Finding, ...]:
        """Return the findings of these levels."""
        return tuple(finding for finding in self.findings if finding.level in levels)

    def fails(self, *, strict: bool = False) -> bool:
        """Return whether the check has failed: on an error; with `strict` on everything except notes."""
        return any(one.level is Level.ERROR or (strict and one.level is not Level.NOTE) for one in self.findings)

    @property
    def is_lasting(self) -> bool:
        """Return whether the report may be cached: it has no error, and no value that could not be read just now."""
        return not any(finding.found.level is Level.ERROR or finding.found.is_passing for finding in self.findings)


def evaluate_rules(facts: FactsT, rules: Iterable[CheckRule[FactsT]], *, accepted: Collection[str] = ()) -> CheckReport:
    """Run the rules and return a report.

    A finding whose id is `accepted` (or `all`) is one level milder and blocks nothing.
    """
    rules = tuple(rules)
    findings = [Finding(rule.id, rule.title, found) for rule in rules for found in rule.judge(facts)]
    return join_reports(CheckReport(tuple(findings), {rule.id: rule.title for rule in rules}), accepted=accepted)


def join_reports(*reports: CheckReport, accepted: Collection[str] = ()) -> CheckReport:
    """Return one report of several, with each finding once; `accepted` as for `evaluate_rules`."""
    found = {(one.id, one.found.subject, one.found.text): one for report in reports for one in report.findings}
    marked = [
        replace(one, accepted=one.accepted or bool({one.id, ALL_CHECKS} & set(accepted))) for one in found.values()
    ]
    marked.sort(key=lambda finding: (finding.level.rank, finding.id, finding.found.subject))
    return CheckReport(tuple(marked), {id_: title for report in reports for id_, title in report.examined.items()})


ACCEPTED_MARK = "(accepted)"
_MAX_REASON_LENGTH = 120


def warning_line(finding: Finding) -> str:
    """Return one line: what was found, a short reason, and a mark if the finding was accepted."""
    # The first part of the reason, shortened if it is long.
    reason = (finding.found.why or "").partition("; ")[0]
    if len(reason) > _MAX_REASON_LENGTH:
        reason = reason[: _MAX_REASON_LENGTH - 1].rpartition(" ")[0] + "…"
    why = f" ({reason})" if reason else ""
    end = f" {ACCEPTED_MARK}" if finding.is_downgraded else ""
    return " ".join(f"{finding.headline}{why}{end}".split())


def refer_to_rule(fact: Unknown, other: Fact[Any], rule_id: str) -> Unknown:
    """Return a refusal that points to the rule with the full text, if `other` was refused for the same place."""
    if not isinstance(other, Unknown) or fact.permission is None or other.permission is None:
        return fact
    return replace(fact, reason=f"see {rule_id}")


def unread_result(
    fact: Unknown | Absent,
    subject: str,
    what: str,
    *,
    permission: str,
    project: str | None = None,
    role: str | None = None,
) -> RuleResult:
    """Return the result that `what` is unknown.

    Reading it takes `permission` on the project, or on a bucket: there `role` has it. An `Absent` here means that the API
    does not know the project itself.
    """
    unknown = fact if isinstance(fact, Unknown) else Unknown(fact.reason or f"the API knows no project `{project}`")
    needed = unknown.permission or permission
    words = f"the permission `{needed}`" + (f" on project `{project}`" if project else "")
    if unknown.is_passing:
        advice = f"check again; reading it takes {words}"
    elif role is not None:
        advice = f"ask the bucket's owner for {words}, which the role `{role}` has"
    elif unknown.permission:
        advice = f"ask for {words}"
    else:
        advice = f"fix that and check again; reading it takes {words}"
    # The service explains these errors in long paragraphs, which TPU501 and TPU502 show once.
    is_long = unknown.error_id in {"api-disabled", "billing-disabled"}
    reason = unknown.reason.partition(". ")[0] if is_long else unknown.reason
    text = f"{what} could not be read: {reason}"
    result = RuleResult.of(Level.UNKNOWN, subject, text, advice, facts={"permission": needed})
    return replace(result, is_passing=unknown.is_passing)


def create_or_check_command(
    wanted: WantedNode,
    *,
    zone: str | None = None,
    accelerator_type: str | None = None,
    tier: Tier | None = None,
    more: tuple[str, ...] = (),
) -> str:
    """Return the command that creates or checks the same node in another zone, with another type or tier.

    It repeats all options of the node. It is a `tpuctl check` if the node has no name, if a part of the spec cannot be
    written as an option, or if that part would not fit in the other zone.
    """
    spec = wanted.spec
    # Disks and subnetworks cannot move to another zone; scripts and keys are too long for a command. The ssh key that
    # tpuctl adds itself, a single line, needs no option.
    cannot_move = bool(spec.data_disks) or "/" in (spec.subnetwork or "")
    is_own_key = set(spec.metadata) == {"ssh-keys"} and "\n" not in spec.metadata["ssh-keys"].strip()
    has_metadata = bool(spec.metadata) and not is_own_key
    has_no_option = has_metadata or spec.setup or spec.kept or (cannot_move and zone not in {None, wanted.zone})
    is_creation = wanted.name is not None and not has_no_option
    options = [
        ("project", wanted.project),
        ("zone", zone or wanted.zone),
        *_type_options(wanted, accelerator_type or spec.accelerator_type, more),
        (tier or spec.tier or "", bool(tier or spec.tier)),
        *(
            (option.names[0].removeprefix("--"), value)
            for option, value in option_values(
                FIELDS, replace(spec, labels=without_own_labels(spec.labels), metadata={}, setup=None)
            )
            if option.group != "PURCHASE" or (tier is None and zone in {None, wanted.zone})
        ),
    ]
    for use in wanted.buckets:
        kind = "bucket" if use.reads and use.writes else "data-bucket" if use.reads else "checkpoint-bucket"
        options.append((kind, use.url))
    options += [
        ("dataset-size", None if wanted.dataset_size is None else str(wanted.dataset_size)),
        ("billing-project", wanted.billing_project),
        ("no-billing-outside-grants", wanted.no_billing_outside_grants),
        # Mutually exclusive as options; different sources of settings may set both.
        ("iap", wanted.iap and not wanted.internal_ip),
        ("internal-ip", wanted.internal_ip and not wanted.iap),
    ]
    if not is_creation:
        options += [("for", wanted.purpose if wanted.purpose is Purpose.SERVE else None), ("vm", wanted.machine)]
        more = tuple(word for word in more if word != "--replace")  # only `up` has this option
    name = [wanted.name.node_id] if wanted.name else []
    return join_command(["tpuctl", "up" if is_creation else "check", *name, *_flags(options), *more])


def _type_options(wanted: WantedNode, accelerator_type: str, more: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield type, shape and image. An image fits one generation only, and the default image need not be named."""
    spec, accelerator, other = wanted.spec, wanted.accelerator, find_accelerator_type(accelerator_type)
    is_same = accelerator_type == spec.accelerator_type
    if spec.topology and accelerator and is_same:
        yield from (("type", accelerator.generation.name), ("topology", spec.topology))
    else:
        yield "type", accelerator_type
    default = accelerator.runtime_version if accelerator else None
    is_requested = "runtime_version" in spec.named or (not spec.named and spec.runtime_version != default)
    fits = is_same or (accelerator is not None and other is not None and accelerator.generation == other.generation)
    if is_requested and fits and not any(word.startswith("--version=") for word in more):
        yield "version", spec.runtime_version


def delete_node_command(project: str, zone: str, node_id: str) -> str:
    """Delete a node, or the record of a dead one."""
    return tpuctl_command("delete", fitting("node", f"{zone}/{node_id}"), project=project)


def delete_queued_resource_command(project: str, zone: str, node_id: str, *, all_nodes: bool = False) -> str:
    """Delete the queued resource of a node, including the node."""
    return tpuctl_command("down", fitting("node", f"{zone}/{node_id}"), project=project, all_nodes=all_nodes)


def clean_up_command(project: str, zones: str, options: str) -> str:
    """Show what is dead or has expired in these zones, also what others created."""
    return join_command(
        ["tpuctl", "gc", *options.split(), "--everyones", f"--zone={zones}", *_flags([("project", project)])]
    )


def list_projects_command() -> str:
    """List the projects that the account can see."""
    return gcloud_command("projects list")
