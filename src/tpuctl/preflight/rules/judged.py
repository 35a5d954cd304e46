"""What the policies come to for each bucket: what the node's account may do there, and what grants it the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.preflight.access import READ, WRITE, Doubt, NotGranted, Perhaps, Policies, needed, resolve
from tpuctl.preflight.fact import known
from tpuctl.preflight.findings import GrantBucketRole, Level
from tpuctl.preflight.rules import identity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tpuctl.preflight.access import Access
    from tpuctl.preflight.facts import BucketFacts, Facts

VERBS = {"read": READ, "write to": WRITE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one rule says of one bucket: the permissions that it asks for, and what came of them.

    `above` are, in words, the folder or organisation whose roles may yet grant what is lacking; nothing where there is none.
    `is_foreign` tells that the account is one of another project.
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
        """What is certainly not granted."""
        return tuple(name for name, access in self.access.items() if isinstance(access, NotGranted))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Why some of it cannot be told."""
        found = (doubt for access in self.access.values() if isinstance(access, Perhaps) for doubt in access.doubts)
        return tuple(dict.fromkeys(found))

    @property
    def level(self) -> Level:
        """How bad that is."""
        if self.lacking:
            return Level.WARNING if self.above else Level.ERROR
        return Level.UNKNOWN if self.doubts else Level.OK

    @property
    def verbs(self) -> tuple[str, ...]:
        """What it is about, in words."""
        return tuple(word for word, names in VERBS.items() if set(names) & set(self.access))

    def part(self, rule_id: str, names: Collection[str]) -> Judged:
        """Return what a rule has to say of some of the permissions."""
        access = {name: access for name, access in self.access.items() if name in names}
        return replace(self, rule=rule_id, access=access)

    @property
    def grant(self) -> GrantBucketRole:
        """The role that settles it [documentation of Cloud Storage: objectUser reads, lists, creates and deletes]."""
        role = "roles/storage.objectUser" if set(WRITE) & set(self.access) else "roles/storage.objectViewer"
        return GrantBucketRole(self.facts.use.bucket, role, f"serviceAccount:{self.account}", self.user_project)


def judge(facts: Facts) -> Iterator[Judged]:
    """Yield what each rule has to judge: reading and writing apart, both by TPU201 where they fail alike."""
    account = facts.account
    for bucket, names in _needs(facts) if account else ():
        policies = Policies.of(bucket, facts)
        if account is None or policies is None or bucket.is_unpaid:
            continue
        whole = Judged(
            rule="TPU201",
            facts=bucket,
            policies=policies,
            account=account,
            access={name: access for name, access in resolve(account, policies).items() if name in names},
            user_project=_payer(bucket, facts),
            above=_above(facts),
            is_foreign=identity.is_of_another_project(facts),
        )
        parts = [part for part in (whole.part("TPU201", READ), whole.part("TPU202", WRITE)) if part.access]
        fail_alike = len(parts) > 1 and parts[0].level is parts[1].level is not Level.OK
        yield from [whole] if fail_alike else parts


def _needs(facts: Facts) -> Iterable[tuple[BucketFacts, set[str]]]:
    """Return each bucket once, with what is needed of it below all of its prefixes."""
    found: dict[str, tuple[BucketFacts, set[str]]] = {}
    for bucket in facts.buckets:
        found.setdefault(bucket.use.bucket, (bucket, set()))[1].update(needed(facts.wanted, bucket.use))
    return found.values()


def _payer(bucket: BucketFacts, facts: Facts) -> str | None:
    about = known(bucket.bucket)
    return facts.wanted.billing_project if about and about.requester_pays else None


def _above(facts: Facts) -> str | None:
    project = known(facts.project)
    if project is None:
        return f"a folder or organisation above project `{facts.wanted.project}`"
    return f"`{project.parent}`, above project `{project.id}`," if project.parent else None
