"""Gather the facts about a node: as many queries as possible in parallel, none twice, all with one deadline."""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tpuctl.check.colocation import placement_relation
from tpuctl.check.facts import (
    COMPUTE_API,
    EXTERNAL_IPS,
    IAP_API,
    OBJECT_PERMISSIONS,
    OS_LOGIN,
    SHIELDED_VM,
    STORAGE_API,
    TPU_API,
    Absent,
    BucketFacts,
    CheckFacts,
    Fact,
    Known,
    NetworkInterface,
    ProjectResources,
    Unknown,
    value_or_none,
)
from tpuctl.check.iam import roles_to_read
from tpuctl.durations import format_duration
from tpuctl.errors import (
    AccessError,
    CredentialsError,
    InvalidInputError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.node import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.check.facts import BucketUse, WantedNode
    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import NodeListing, QueuedListing
    from tpuctl.models.bucket import AnywhereCache, Bucket, BucketContents, BucketPlacement
    from tpuctl.models.compute_resources import (
        ComputeInstance,
        ComputeNetwork,
        FirewallRule,
        PersistentDisk,
        RegionQuota,
        Subnetwork,
    )
    from tpuctl.models.project import IamPolicy, OrgPolicy, Project, QuotaLimit, Reservation

FactT = TypeVar("FactT")
# The error id of a project that does not exist, or that the caller may not see.
_NO_PROJECT_ERROR = "iam-project-not-found"
_CONSTRAINTS = (EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM)


class ZoneFacts(NamedTuple):
    """The facts that differ between zones."""

    offers: Fact[Mapping[str, tuple[str, ...]]]
    quotas: Fact[tuple[QuotaLimit, ...]]
    resources: Fact[ProjectResources]
    buckets: tuple[BucketFacts, ...]


class FactGatherer:
    """Gathers facts. One instance serves several nodes, which share the answers.

    `clock` is the real clock, as a network takes real time. Queries without an answer are given up after `timeout`.
    """

    def __init__(self, sources: Sources, clock: Clock, timeout: timedelta) -> None:
        self._sources = sources
        self._pool = QueryPool(clock, timeout)
        self._has_begun = False

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query."""
        return self._pool.has_answer

    def nodes(self, project: str) -> Fact[NodeListing]:
        """Return the nodes of all zones. The next facts share the deadline."""
        self._pool.begin()
        self._has_begun = True
        return self._pool.answer(query_nodes(project, self._sources.tpu, self._pool))

    def facts(self, wanted: WantedNode, now: datetime) -> CheckFacts:
        """Return all facts that the rules need. Raises `CredentialsError` without valid credentials."""
        if not self._has_begun:
            self._pool.begin()
        self._has_begun = False
        queries = NodeQueries(self._sources, self._pool, wanted)
        buckets = self._buckets(wanted.buckets, wanted.zone, wanted.billing_project)
        for start in (*_independent_queries(queries, wanted), *(bucket.start for bucket in buckets)):
            start()
        answer, creates = self._pool.answer, wanted.creates

        def if_created(query: Callable[[], Query[FactT]], *, needed: bool = True) -> Fact[FactT] | None:
            return answer(query()) if creates and needed else None

        # First the answers on which most queries depend: after a timeout there is no time left for dependent queries.
        placements = [bucket.follow_bucket() for bucket in buckets]
        types = if_created(queries.types)
        _require_project(types)
        # Rules need the offers of other zones if this zone lacks the type, or a bucket is elsewhere.
        offered = value_or_none(types)
        is_elsewhere = any(
            place is not None and not placement_relation(place, wanted.zone).is_colocated for place in placements
        )
        is_missing = offered is not None and wanted.spec.accelerator_type not in offered
        offers = queries.offers() if is_missing or is_elsewhere else None
        roles: dict[str, Query[frozenset[str]]] = {}
        if buckets:
            # Which roles the table lacks is known only with the policies.
            first = tuple(bucket.follow_policy() for bucket in buckets)
            project, policy = answer(queries.project()), answer(queries.policy())
            known_by_now = CheckFacts(now=now, wanted=wanted, project=project, project_policy=policy, buckets=first)
            roles = {name: queries.role(name) for name in roles_to_read(known_by_now)}
        return CheckFacts(
            now=now,
            wanted=wanted,
            project=answer(queries.project()),
            types=types,
            versions=if_created(queries.versions),
            resources=self._resources(queries) if creates else None,
            quotas=if_created(queries.quotas),
            region_quotas=if_created(queries.region_quotas, needed=not wanted.spec.internal_ips),
            services=answer(queries.services()),
            billing=if_created(queries.billing),
            org_policies={name: answer(queries.org_policy(name)) for name in _CONSTRAINTS if creates},
            network=answer(queries.network()),
            subnetwork=answer(queries.subnetwork()),
            firewalls=answer(queries.firewalls()),
            machine=answer(queries.machine(wanted.machine)) if wanted.machine else None,
            disks={disk.source: answer(queries.disk(disk.source)) for disk in wanted.spec.data_disks if creates},
            reservations=if_created(queries.reservations, needed=wanted.spec.tier is Tier.RESERVED),
            project_policy=answer(queries.policy()) if buckets else None,
            buckets=tuple(bucket.facts() for bucket in buckets),
            offers=answer(offers) if offers else None,
            roles={name: answer(query) for name, query in roles.items()},
        )

    def zone_facts(self, wanted: WantedNode) -> ZoneFacts:
        """Return the facts that differ between zones, for a node without a zone. Raises `CredentialsError`."""
        self._pool.begin()
        queries, answer = NodeQueries(self._sources, self._pool, wanted), self._pool.answer
        buckets = self._buckets(wanted.buckets, None, wanted.billing_project)
        for start in (queries.offers, queries.quotas, queries.nodes, queries.requests):
            start()
        for bucket in buckets:
            bucket.start()
        for bucket in buckets:
            bucket.follow_bucket()
        for bucket in buckets:
            bucket.follow_policy()
        offers = answer(queries.offers())
        _require_project(offers)
        return ZoneFacts(
            offers=offers,
            quotas=answer(queries.quotas()),
            resources=self._resources(queries),
            buckets=tuple(bucket.facts() for bucket in buckets),
        )

    def _resources(self, queries: NodeQueries) -> Fact[ProjectResources]:
        """Return nodes and queued resources of the project; unknown if either of them is unknown."""
        nodes, requests = self._pool.answer(queries.nodes()), self._pool.answer(queries.requests())
        if not isinstance(nodes, Known):
            return nodes
        if not isinstance(requests, Known):
            return requests
        unreachable = dict.fromkeys((*nodes.value.unreachable, *requests.value.unreachable))
        return Known(ProjectResources(nodes.value.nodes, requests.value.queued_resources, tuple(unreachable)))

    def _buckets(self, uses: Sequence[BucketUse], zone: str | None, payer: str | None) -> list[BucketQueries]:
        return [BucketQueries(self._sources.buckets, self._pool, use, zone=zone, payer=payer) for use in uses]


def _require_project(fact: Fact[object] | None) -> None:
    """Raise `AccessError` if the project does not exist, as the other answers mean nothing then."""
    if isinstance(fact, Unknown) and fact.error_id == _NO_PROJECT_ERROR:
        raise AccessError(
            fact.reason, hint="check `--project`: `gcloud projects list` shows the ids", error_id=_NO_PROJECT_ERROR
        )


def _independent_queries(queries: NodeQueries, wanted: WantedNode) -> Iterator[Callable[[], object]]:
    """Yield the queries that depend on no answer. Those on which other queries depend come first."""
    if wanted.buckets:
        yield queries.policy
    if wanted.creates:
        yield from (queries.types, queries.nodes, queries.requests, queries.quotas, queries.versions)
    yield from (queries.project, queries.services, queries.network, queries.subnetwork, queries.firewalls)
    if name := wanted.machine:
        yield lambda: queries.machine(name)
    if not wanted.creates:
        return
    yield queries.billing
    for constraint in _CONSTRAINTS:
        yield lambda constraint=constraint: queries.org_policy(constraint)  # type: ignore[misc]  # a default binds it now
    for disk in wanted.spec.data_disks:
        yield lambda disk=disk: queries.disk(disk.source)  # type: ignore[misc]  # as above
    if not wanted.spec.internal_ips:
        yield queries.region_quotas
    if wanted.spec.tier is Tier.RESERVED:
        yield queries.reservations


_CHECKED_APIS = (TPU_API, COMPUTE_API, STORAGE_API, IAP_API)
_RESOURCE_LINK = re.compile(
    r"(?:.*?projects/(?P<project>[^/]+)/)?(?:zones/(?P<zone>[^/]+)/|regions/[^/]+/)?"
    r"(?:(?:disks|instances)/)?(?P<name>[^/]+)"
)


class _ResourceLink(NamedTuple):
    """A disk or a machine by name, path or link; a part that is not named is None."""

    project: str | None
    zone: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> _ResourceLink:
        found = _RESOURCE_LINK.fullmatch(text)
        if found is None:
            raise InvalidInputError(f"`{text}` is not a resource name", hint="use its name, or `projects/P/…/NAME`")
        return cls(found["project"], found["zone"], found["name"])


def query_nodes(project: str, source: TpuSource, pool: QueryPool) -> Query[NodeListing]:
    """Query the nodes of all zones of a project."""
    return pool.ask(("nodes", project), lambda: source.list_nodes(project), permission="tpu.nodes.list")


class NodeQueries:
    """The queries about one node. No method waits for an answer; a repeated call returns the earlier query."""

    def __init__(self, sources: Sources, pool: QueryPool, wanted: WantedNode) -> None:
        self._tpu, self._compute, self._projects = sources.tpu, sources.compute, sources.projects
        self._pool, self._ask = pool, pool.ask
        self._wanted, self._project = wanted, wanted.project

    def project(self) -> Query[Project]:
        """Query the project and its number."""
        return self._ask(
            ("project", self._project),
            lambda: self._projects.project(self._project),
            permission="resourcemanager.projects.get",
        )

    def services(self) -> Query[Mapping[str, bool]]:
        """Query which APIs are enabled."""
        return self._ask(
            ("services", self._project),
            lambda: self._projects.services(self._project, _CHECKED_APIS),
            permission="serviceusage.services.get",
        )

    def policy(self) -> Query[IamPolicy]:
        """Query the IAM policy of the project."""
        return self._ask(
            ("policy", self._project),
            lambda: self._projects.policy(self._project),
            permission="resourcemanager.projects.getIamPolicy",
        )

    def role(self, name: str) -> Query[frozenset[str]]:
        """Query the permissions of a role."""
        return self._ask(("role", name), lambda: self._projects.role(name), permission="iam.roles.get")

    def types(self) -> Query[tuple[str, ...]]:
        """Query the accelerator types of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("types", self._project, zone),
            lambda: self._tpu.accelerator_types(self._project, zone),
            permission="tpu.acceleratortypes.list",
        )

    def offers(self) -> Query[Mapping[str, tuple[str, ...]]]:
        """Query the accelerator types of every zone."""
        return self._ask(
            ("offers", self._project), lambda: self._tpu.offers(self._project), permission="tpu.acceleratortypes.list"
        )

    def versions(self) -> Query[tuple[str, ...]]:
        """Query the runtime versions of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("versions", self._project, zone),
            lambda: self._tpu.runtime_versions(self._project, zone),
            permission="tpu.runtimeversions.list",
        )

    def nodes(self) -> Query[NodeListing]:
        """Query the nodes of all zones."""
        return query_nodes(self._project, self._tpu, self._pool)

    def requests(self) -> Query[QueuedListing]:
        """Query the queued resources of all zones."""
        return self._ask(
            ("requests", self._project),
            lambda: self._tpu.list_queued_resources(self._project),
            permission="tpu.nodes.list",
        )

    def reservations(self) -> Query[tuple[Reservation, ...]]:
        """Query the reservations of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("reservations", self._project, zone),
            lambda: self._tpu.reservations(self._project, zone),
            permission="tpu.nodes.list",
        )

    def quotas(self) -> Query[tuple[QuotaLimit, ...]]:
        """Query the quota limits of the Cloud TPU API."""
        return self._ask(
            ("quotas", self._project),
            lambda: self._projects.quotas(self._project, TPU_API),
            permission="serviceusage.quotas.get",
        )

    def region_quotas(self) -> Query[Mapping[str, RegionQuota]]:
        """Query the Compute Engine quotas of the region."""
        region = self._wanted.region
        return self._ask(
            ("region", self._project, region),
            lambda: self._compute.region_quotas(self._project, region),
            permission="compute.regions.get",
        )

    def billing(self) -> Query[bool]:
        """Query whether the project is billed."""
        return self._ask(
            ("billing", self._project),
            lambda: self._projects.billing(self._project),
            permission="resourcemanager.projects.get",
        )

    def org_policy(self, constraint: str) -> Query[OrgPolicy]:
        """Query the effective policy of an organisation constraint."""
        return self._ask(
            ("constraint", self._project, constraint),
            lambda: self._projects.org_policy(self._project, constraint),
            permission="orgpolicy.policy.get",
        )

    def network(self) -> Query[ComputeNetwork]:
        """Query the node's network, which may belong to another project."""
        interface = NetworkInterface.of(self._wanted)
        return self._ask(
            ("network", interface.project, interface.network),
            lambda: self._compute.network(interface.project, interface.network),
            permission="compute.networks.get",
        )

    def subnetwork(self) -> Query[Subnetwork]:
        """Query the node's subnetwork; if none is named, the one that a network in auto mode has in the region."""
        interface = NetworkInterface.of(self._wanted)
        project, region = interface.project, interface.region or self._wanted.region
        name = interface.subnetwork or interface.network
        return self._ask(
            ("subnetwork", project, region, name),
            lambda: self._compute.subnetwork(project, region, name),
            permission="compute.subnetworks.get",
        )

    def firewalls(self) -> Query[tuple[FirewallRule, ...]]:
        """Query the firewall rules of the project that owns the network."""
        project = NetworkInterface.of(self._wanted).project
        return self._ask(
            ("firewalls", project), lambda: self._compute.firewalls(project), permission="compute.firewalls.list"
        )

    def machine(self, name: str) -> Query[ComputeInstance]:
        """Query the virtual machine that works with the node, in all zones unless one is named."""
        machine = _ResourceLink.parse(name)
        project = machine.project or self._project
        return self._ask(
            ("machine", project, machine.zone, machine.name),
            lambda: self._compute.find_machine(project, machine.name, zone=machine.zone),
            permission="compute.instances.list",
        )

    def disk(self, source: str) -> Query[PersistentDisk]:
        """Query a data disk of the node."""
        disk = _ResourceLink.parse(source)
        project, zone = disk.project or self._project, disk.zone or self._wanted.zone
        return self._ask(
            ("disk", project, zone, disk.name),
            lambda: self._compute.disk(project, zone, disk.name),
            permission="compute.disks.get",
        )


class BucketQueries:
    """The queries about one bucket. A query that another answer makes needless is not sent."""

    def __init__(
        self, source: BucketSource, pool: QueryPool, use: BucketUse, *, zone: str | None, payer: str | None
    ) -> None:
        self._source, self._pool = source, pool
        self._use, self._name, self._zone, self._payer = use, use.bucket, zone, payer

    def start(self) -> None:
        """Start the queries that depend on no answer."""
        self._bucket()
        self._policy()
        if self._use.reads:
            self._contents()

    def follow_bucket(self) -> BucketPlacement | None:
        """Wait for the bucket and start the queries that depend on it; return its location, None if unknown."""
        bucket = self._pool.answer(self._bucket())
        if isinstance(bucket, Unknown):
            self._layout()
        placement = bucket.value.placement if isinstance(bucket, Known) else None
        if self._has_use_for_caches(placement):
            self._caches()
        return placement

    def follow_policy(self) -> BucketFacts:
        """Wait for the policy and start the queries that depend on it; return the facts known so far."""
        answer = self._pool.answer
        policy = answer(self._policy())
        if isinstance(policy, Unknown):
            self._caller()
        return BucketFacts(use=self._use, bucket=answer(self._bucket()), policy=policy)

    def facts(self) -> BucketFacts:
        """Wait for all answers and return them."""
        answer = self._pool.answer
        bucket, policy = answer(self._bucket()), answer(self._policy())
        placement = bucket.value.placement if isinstance(bucket, Known) else None
        return BucketFacts(
            use=self._use,
            bucket=bucket,
            policy=policy,
            layout=answer(self._layout()) if isinstance(bucket, Unknown) else None,
            caller=answer(self._caller()) if isinstance(policy, Unknown) else None,
            contents=answer(self._contents()) if self._use.reads else None,
            caches=answer(self._caches()) if self._has_use_for_caches(placement) else None,
        )

    def _has_use_for_caches(self, placement: BucketPlacement | None) -> bool:
        return (
            placement is not None
            and self._zone is not None
            and not placement_relation(placement, self._zone).is_colocated
        )

    def _bucket(self) -> Query[Bucket]:
        return self._pool.ask(
            ("bucket", self._name),
            lambda: self._source.bucket(self._name, user_project=self._payer),
            permission="storage.buckets.get",
        )

    def _policy(self) -> Query[IamPolicy]:
        return self._pool.ask(
            ("bucket policy", self._name),
            lambda: self._source.policy(self._name, user_project=self._payer),
            permission="storage.buckets.getIamPolicy",
        )

    def _contents(self) -> Query[BucketContents]:
        return self._pool.ask(
            ("contents", self._name, self._use.prefix),
            lambda: self._source.contents(self._name, self._use.prefix, user_project=self._payer),
            permission="storage.objects.list",
        )

    def _layout(self) -> Query[BucketPlacement]:
        return self._pool.ask(
            ("layout", self._name),
            lambda: self._source.layout(self._name, user_project=self._payer),
            permission="storage.objects.list",
        )

    def _caller(self) -> Query[frozenset[str]]:
        return self._pool.ask(
            ("caller", self._name),
            lambda: self._source.test_permissions(self._name, OBJECT_PERMISSIONS, user_project=self._payer),
        )

    def _caches(self) -> Query[tuple[AnywhereCache, ...]]:
        return self._pool.ask(
            ("caches", self._name),
            lambda: self._source.caches(self._name, user_project=self._payer),
            permission="storage.anywhereCaches.list",
        )


# More than a typical check needs; each thread has its own connection, and the services allow that many.
_MAX_THREADS = 32
# Refusals for another reason than a missing permission.
_NO_PERMISSION_HELPS = frozenset(
    {"api-disabled", "auth-no-quota-project", "billing-disabled", "perimeter-violated", "project-suspended"}
)


class Query(Generic[FactT]):
    """One query, answered by a thread."""

    def __init__(self, call: Callable[[], FactT], permission: str | None) -> None:
        self.permission = permission
        self.is_answered = threading.Event()
        self.value: FactT | None = None
        self.failure: BaseException | None = None
        self._call = call

    def run(self) -> None:
        """Call the API and keep its answer, or the exception."""
        try:
            self.value = self._call()
        except BaseException as failure:  # noqa: BLE001  # handed to the waiting thread, which raises bugs
            self.failure = failure
        self.is_answered.set()


class QueryPool:
    """Runs queries in daemon threads, each once, all with one deadline. Every query has a fact as its result, also on failure.

    `clock` is the real clock, as a network takes real time.
    """

    def __init__(self, clock: Clock, timeout: timedelta) -> None:
        self._clock, self._timeout = clock, timeout
        self.begin()
        self._queries: dict[Hashable, Query[Any]] = {}
        self._waiting: deque[Query[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the deadline now."""
        self._ends = self._clock.monotonic() + self._timeout

    def ask(self, key: Hashable, call: Callable[[], FactT], *, permission: str | None = None) -> Query[FactT]:
        """Start a query; return the earlier one with the same key, if any. `permission` is what the answer takes."""
        if key in self._queries:
            return self._queries[key]
        query = self._queries[key] = Query(call, permission)
        with self._lock:
            self._waiting.append(query)
            if len(self._threads) >= _MAX_THREADS:
                return query
            # Not a pool: its threads would keep an interrupted process alive until the last answer.
            thread = threading.Thread(target=self._run_queries, daemon=True)
            self._threads.append(thread)
        thread.start()
        return query

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query, even with a refusal."""
        answered = [query for query in self._queries.values() if query.is_answered.is_set()]
        return not all(isinstance(query.failure, ServiceUnavailableError) for query in answered)

    def answer(self, query: Query[FactT]) -> Fact[FactT]:
        """Wait for the answer and return it, at the deadline at the latest.

        Raises `CredentialsError`, as no query can be answered without credentials.
        """
        left = max(self._ends - self._clock.monotonic(), timedelta())
        if not query.is_answered.wait(left.total_seconds()):
            return Unknown(f"no answer within {format_duration(self._timeout)}", is_passing=True)
        if query.failure is None:
            return Known(query.value)  # type: ignore[arg-type]  # the answer of a call that returned
        return fact_from_failure(query.failure, query.permission)

    def _run_queries(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads.remove(threading.current_thread())
                    return
                query = self._waiting.popleft()
            query.run()


def fact_from_failure(failure: BaseException, permission: str | None = None) -> Absent | Unknown:
    """Return the fact that an exception stands for. Raises `CredentialsError`, and exceptions that are bugs."""
    match failure:
        case CredentialsError():
            raise failure
        case NotFoundError():
            return Absent(failure.message)
        case AccessError():
            helps = failure.error_id not in _NO_PERMISSION_HELPS
            return Unknown(failure.message, permission if helps else None, error_id=failure.error_id)
        case TpuctlError():
            is_passing = isinstance(failure, ServiceUnavailableError | QuotaError)
            return Unknown(failure.message, is_passing=is_passing, error_id=failure.error_id)
        case _:
            raise failure


class TpuSource(Protocol):
    """The Cloud TPU API."""

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListing:
        """Return the nodes of all zones."""

    def list_queued_resources(self, project: str, zones: Sequence[str] = ()) -> QueuedListing:
        """Return the queued resources of all zones."""

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers."""

    def runtime_versions(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the runtime versions that a zone offers."""

    def offers(self, project: str) -> Mapping[str, tuple[str, ...]]:
        """Return the accelerator types of every zone that answers."""

    def reservations(self, project: str, zone: str) -> tuple[Reservation, ...]:
        """Return the reservations of a zone."""


class BucketSource(Protocol):
    """Cloud Storage; `user_project` pays for requester-pays buckets."""

    def bucket(self, name: str, *, user_project: str | None = None) -> Bucket:
        """Return a bucket's metadata; needs storage.buckets.get."""

    def layout(self, name: str, *, user_project: str | None = None) -> BucketPlacement:
        """Return the location of a bucket; needs only storage.objects.list."""

    def policy(self, name: str, *, user_project: str | None = None) -> IamPolicy:
        """Return the IAM policy with its conditions; needs storage.buckets.getIamPolicy."""

    def test_permissions(
        self, name: str, permissions: Collection[str], *, user_project: str | None = None
    ) -> frozenset[str]:
        """Return those of the permissions that the caller has; needs none."""

    def contents(self, name: str, prefix: str, *, user_project: str | None = None) -> BucketContents:
        """Return a summary of the first page of objects; needs storage.objects.list."""

    def caches(self, name: str, *, user_project: str | None = None) -> tuple[AnywhereCache, ...]:
        """Return the Anywhere Caches; needs storage.anywhereCaches.list."""

    def grant(self, name: str, role: str, member: str, *, user_project: str | None = None) -> None:
        """Add a member to a role and keep everything else, even if the policy is changed concurrently."""


class ComputeSource(Protocol):
    """Compute Engine."""

    def network(self, project: str, name: str) -> ComputeNetwork:
        """Return a network; needs compute.networks.get."""

    def subnetwork(self, project: str, region: str, name: str) -> Subnetwork:
        """Return a subnetwork; needs compute.subnetworks.get."""

    def firewalls(self, project: str) -> tuple[FirewallRule, ...]:
        """Return all firewall rules; needs compute.firewalls.list."""

    def region_quotas(self, project: str, region: str) -> Mapping[str, RegionQuota]:
        """Return the quotas of a region by metric; needs compute.regions.get."""

    def find_machine(self, project: str, name: str, *, zone: str | None = None) -> ComputeInstance:
        """Return the virtual machine of that name, in any zone if none is named; needs compute.instances.list.

        Raises `ConflictError` if several zones have one.
        """

    def disk(self, project: str, zone: str, name: str) -> PersistentDisk:
        """Return a disk; needs compute.disks.get."""

    def open_firewall(
        self, project: str, network: str, name: str, source_ranges: Sequence[str], ports: Sequence[str]
    ) -> None:
        """Create an ingress rule that allows TCP ports. Raises `AlreadyExistsError` if the name is taken."""


class ProjectSource(Protocol):
    """The parts of Resource Manager, Service Usage, Cloud Billing, Organization Policy and IAM that concern a project."""

    def project(self, project: str) -> Project:
        """Return a project; needs resourcemanager.projects.get."""

    def policy(self, project: str) -> IamPolicy:
        """Return its IAM policy; needs resourcemanager.projects.getIamPolicy."""

    def test_permissions(self, project: str, permissions: Collection[str]) -> frozenset[str]:
        """Return those of the permissions that the caller has; needs none."""

    def services(self, project: str, names: Collection[str]) -> Mapping[str, bool]:
        """Return which of the services are enabled; needs serviceusage.services.get."""

    def enable(self, project: str, service: str) -> None:
        """Enable a service and wait until it is enabled."""

    def quotas(self, project: str, service: str) -> tuple[QuotaLimit, ...]:
        """Return the quota limits of a service; needs serviceusage.quotas.get."""

    def billing(self, project: str) -> bool:
        """Return whether the project is billed; needs resourcemanager.projects.get."""

    def org_policy(self, project: str, constraint: str) -> OrgPolicy:
        """Return the effective policy of a constraint; needs orgpolicy.policy.get."""

    def role(self, name: str) -> frozenset[str]:
        """Return the permissions of a role, predefined (`roles/…`) or custom (`projects/P/roles/…`); needs iam.roles.get."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All APIs that the checks call.

    Without an answer every method raises a `TpuctlError`: `NotFoundError` only if the API says that the resource does not
    exist, `AccessError` if access is denied.
    """

    tpu: TpuSource
    buckets: BucketSource
    compute: ComputeSource
    projects: ProjectSource
