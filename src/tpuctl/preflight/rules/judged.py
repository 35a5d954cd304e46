"""What the policies mean for each bucket: what the node's account may do there, and the role that grants the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.preflight.access import READ, WRITE, Doubt, NotGranted, Perhaps, Policies, needed, resolve
from tpuctl.preflight.fact import known
from tpuctl.preflight.findings import GrantBucketRole, Level
from tpuctl.preflight.rules import identity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tpuctl.preflight.access import Access
    from tpuctl.preflight.facts import BucketFacts, Facts

VERBS = {"read": READ, "write to": WRITE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one rule says about one bucket: the permissions that it asks for, and the access found for each.

    `above` names the folder or organisation whose roles may grant what is lacking; None if there is none. `is_foreign`: the
    account belongs to another project.
    """

    rule: str
    facts: BucketFacts
    policies: Policies
    account: str
    access: Mapping[str, Access]
    user_project: str | None
    above: str | None
    is_foreign: bool

    @property
    def url(self) -> str:
        """`gs://bucket`."""
        return f"gs://{self.facts.use.bucket}"

    @property
    def lacking(self) -> tuple[str, ...]:
        """The permissions that are certainly not granted."""
        return tuple(name for name, access in self.access.items() if isinstance(access, NotGranted))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Why some of the access is unknown."""
        found = (doubt for access in self.access.values() if isinstance(access, Perhaps) for doubt in access.doubts)
        return tuple(dict.fromkeys(found))

    @property
    def level(self) -> Level:
        """The level of the finding."""
        if self.lacking:
            return Level.WARNING if self.above else Level.ERROR
        return Level.UNKNOWN if self.doubts else Level.OK

    @property
    def verbs(self) -> tuple[str, ...]:
        """The permissions as text."""
        return tuple(word for word, names in VERBS.items() if set(names) & set(self.access))

    def part(self, rule_id: str, names: Collection[str]) -> Judged:
        """Return the part of the judgement that is about some of the permissions."""
        access = {name: access for name, access in self.access.items() if name in names}
        return replace(self, rule=rule_id, access=access)

    @property
    def grant(self) -> GrantBucketRole:
        """The role that is sufficient [documentation of Cloud Storage: objectUser reads, lists, creates and deletes]."""
        role = "roles/storage.objectUser" if set(WRITE) & set(self.access) else "roles/storage.objectViewer"
        return GrantBucketRole(self.facts.use.bucket, role, f"serviceAccount:{self.account}", self.user_project)


def judge(facts: Facts) -> Iterator[Judged]:
    """Yield the judgement of each rule: reading and writing separately, or both by TPU201 if they fail alike."""
    account = facts.account
    if account is None:
        return
    # Each bucket once, with the permissions needed below all of its prefixes.
    buckets: dict[str, tuple[BucketFacts, set[str]]] = {}
    for use in facts.buckets:
        buckets.setdefault(use.use.bucket, (use, set()))[1].update(needed(facts.wanted, use.use))
    project = known(facts.project)
    above = f"`{project.parent}`, above project `{project.id}`," if project and project.parent else None
    if project is None:
        above = f"a folder or organisation above project `{facts.wanted.project}`"
    for bucket, names in buckets.values():
        policies = Policies.of(bucket, facts)
        if policies is None or bucket.is_unpaid:
            continue
        about = known(bucket.bucket)
        whole = Judged(
            rule="TPU201",
            facts=bucket,
            policies=policies,
            account=account,
            access={name: access for name, access in resolve(account, policies).items() if name in names},
            user_project=facts.wanted.billing_project if about and about.requester_pays else None,
            above=above,
            is_foreign=identity.is_of_another_project(facts),
        )
        parts = [part for part in (whole.part("TPU201", READ), whole.part("TPU202", WRITE)) if part.access]
        fail_alike = len(parts) > 1 and parts[0].level is parts[1].level is not Level.OK
        yield from [whole] if fail_alike else parts
