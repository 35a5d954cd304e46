"""Gather the facts about a node: as many queries as possible in parallel, none twice, all with one deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tpuctl.actions.checking.asking import Asking
from tpuctl.actions.checking.bucket_questions import BucketQuestions
from tpuctl.actions.checking.questions import Questions, nodes_of
from tpuctl.colocation.places import relation
from tpuctl.errors import AccessError
from tpuctl.model import Tier
from tpuctl.preflight.access import roles_to_read
from tpuctl.preflight.fact import Fact, Known, Unknown, known
from tpuctl.preflight.facts import EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM, Facts, Held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from tpuctl.actions.checking.asking import Question
    from tpuctl.actions.checking.sources import Sources
    from tpuctl.actions.cloud import NodeListing
    from tpuctl.clock import Clock
    from tpuctl.model.project import QuotaLimit
    from tpuctl.preflight.facts import BucketFacts
    from tpuctl.preflight.wanted import BucketUse, Wanted

T = TypeVar("T")
# The error id of a project that does not exist, or that the caller may not see.
_NO_PROJECT = "iam-project-not-found"
_CONSTRAINTS = (EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM)


class Everywhere(NamedTuple):
    """The facts that differ between zones."""

    offers: Fact[Mapping[str, tuple[str, ...]]]
    quotas: Fact[tuple[QuotaLimit, ...]]
    held: Fact[Held]
    buckets: tuple[BucketFacts, ...]


class Gathering:
    """Gathers facts. One instance serves several nodes, which share the answers.

    `clock` is the real clock, as a network takes real time. Queries without an answer are given up after `timeout`.
    """

    def __init__(self, sources: Sources, clock: Clock, timeout: timedelta) -> None:
        self._sources = sources
        self._asking = Asking(clock, timeout)
        self._is_begun = False

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query."""
        return self._asking.has_answer

    def nodes(self, project: str) -> Fact[NodeListing]:
        """Return the nodes of all zones. The next facts share the deadline."""
        self._asking.begin()
        self._is_begun = True
        return self._asking.answer(nodes_of(project, self._sources.tpu, self._asking))

    def facts(self, wanted: Wanted, now: datetime, *, meanwhile: Callable[[], object] = tuple) -> Facts:
        """Return all facts that the rules need. `meanwhile` is called while the first queries are running.

        Raises `CredentialsError` without valid credentials.
        """
        if not self._is_begun:
            self._asking.begin()
        self._is_begun = False
        questions = Questions(self._sources, self._asking, wanted)
        buckets = self._buckets(wanted.buckets, wanted.zone, wanted.billing_project)
        for start in (*_at_once(questions, wanted), *(bucket.start for bucket in buckets)):
            start()
        meanwhile()
        answer, creates = self._asking.answer, wanted.creates

        def if_created(question: Callable[[], Question[T]], *, needed: bool = True) -> Fact[T] | None:
            return answer(question()) if creates and needed else None

        # First the answers on which most queries depend: after a timeout there is no time left for dependent queries.
        placements = [bucket.follow_bucket() for bucket in buckets]
        types = if_created(questions.types)
        _check_project(types)
        # Rules need the offers of other zones if this zone lacks the type, or a bucket is elsewhere.
        offered = known(types)
        is_elsewhere = any(place is not None and not relation(place, wanted.zone).is_colocated for place in placements)
        is_missing = offered is not None and wanted.spec.accelerator_type not in offered
        offers = questions.offers() if is_missing or is_elsewhere else None
        roles = self._roles(questions, wanted, buckets, now)
        return Facts(
            now=now,
            wanted=wanted,
            project=answer(questions.project()),
            types=types,
            versions=if_created(questions.versions),
            held=self._held(questions) if creates else None,
            quotas=if_created(questions.quotas),
            region_quotas=if_created(questions.region_quotas, needed=not wanted.spec.internal_ips),
            services=answer(questions.services()),
            billing=if_created(questions.billing),
            org_policies={name: answer(questions.org_policy(name)) for name in _CONSTRAINTS if creates},
            network=answer(questions.network()),
            subnetwork=answer(questions.subnetwork()),
            firewalls=answer(questions.firewalls()),
            machine=answer(questions.machine(wanted.machine)) if wanted.machine else None,
            disks={disk.source: answer(questions.disk(disk.source)) for disk in wanted.spec.data_disks if creates},
            reservations=if_created(questions.reservations, needed=wanted.spec.tier is Tier.RESERVED),
            project_policy=answer(questions.policy()) if buckets else None,
            buckets=tuple(bucket.facts() for bucket in buckets),
            offers=answer(offers) if offers else None,
            roles={name: answer(question) for name, question in roles.items()},
        )

    def everywhere(self, wanted: Wanted) -> Everywhere:
        """Return the facts that differ between zones, for a node without a zone. Raises `CredentialsError`."""
        self._asking.begin()
        questions, answer = Questions(self._sources, self._asking, wanted), self._asking.answer
        buckets = self._buckets(wanted.buckets, None, wanted.billing_project)
        for start in (questions.offers, questions.quotas, questions.nodes, questions.requests):
            start()
        for bucket in buckets:
            bucket.start()
        for bucket in buckets:
            bucket.follow_bucket()
        for bucket in buckets:
            bucket.follow_policy()
        offers = answer(questions.offers())
        _check_project(offers)
        return Everywhere(
            offers=offers,
            quotas=answer(questions.quotas()),
            held=self._held(questions),
            buckets=tuple(bucket.facts() for bucket in buckets),
        )

    def _roles(
        self, questions: Questions, wanted: Wanted, buckets: Sequence[BucketQuestions], now: datetime
    ) -> dict[str, Question[frozenset[str]]]:
        """Wait for the policies and start queries for the roles that the table lacks."""
        if not buckets:
            return {}
        first = tuple(bucket.follow_policy() for bucket in buckets)
        project, policy = (self._asking.answer(question()) for question in (questions.project, questions.policy))
        known_by_now = Facts(now=now, wanted=wanted, project=project, project_policy=policy, buckets=first)
        return {name: questions.role(name) for name in roles_to_read(known_by_now)}

    def _held(self, questions: Questions) -> Fact[Held]:
        """Return nodes and queued resources of the project; unknown if either of them is unknown."""
        nodes, requests = self._asking.answer(questions.nodes()), self._asking.answer(questions.requests())
        if not isinstance(nodes, Known):
            return nodes
        if not isinstance(requests, Known):
            return requests
        unreachable = dict.fromkeys((*nodes.value.unreachable, *requests.value.unreachable))
        return Known(Held(nodes.value.nodes, requests.value.queued_resources, tuple(unreachable)))

    def _buckets(self, uses: Sequence[BucketUse], zone: str | None, payer: str | None) -> list[BucketQuestions]:
        return [BucketQuestions(self._sources.buckets, self._asking, use, zone=zone, payer=payer) for use in uses]


def _check_project(fact: Fact[object] | None) -> None:
    """Raise `AccessError` if the project does not exist, as the other answers mean nothing then."""
    if isinstance(fact, Unknown) and fact.error_id == _NO_PROJECT:
        raise AccessError(
            fact.reason, hint="check `--project`: `gcloud projects list` shows the ids", error_id=_NO_PROJECT
        )


def _at_once(questions: Questions, wanted: Wanted) -> Iterator[Callable[[], object]]:
    """Yield the queries that depend on no answer. Those on which other queries depend come first."""
    if wanted.buckets:
        yield questions.policy
    if wanted.creates:
        yield from (questions.types, questions.nodes, questions.requests, questions.quotas, questions.versions)
    yield from (questions.project, questions.services, questions.network, questions.subnetwork, questions.firewalls)
    if name := wanted.machine:
        yield lambda: questions.machine(name)
    if not wanted.creates:
        return
    yield questions.billing
    for constraint in _CONSTRAINTS:
        yield lambda constraint=constraint: questions.org_policy(constraint)  # type: ignore[misc]  # a default binds it now
    for disk in wanted.spec.data_disks:
        yield lambda disk=disk: questions.disk(disk.source)  # type: ignore[misc]  # as above
    if not wanted.spec.internal_ips:
        yield questions.region_quotas
    if wanted.spec.tier is Tier.RESERVED:
        yield questions.reservations
