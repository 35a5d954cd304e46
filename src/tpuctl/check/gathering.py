"""Gather the facts about a node: as many queries as possible in parallel, none twice, all with one deadline."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.check.colocation import is_colocated
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
    BucketUse,
    CheckFacts,
    Fact,
    Known,
    NetworkInterface,
    ProjectResources,
    Unknown,
    WantedNode,
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
    from tpuctl.clock import Clock
    from tpuctl.cloud.projects import ComputeClient, ProjectsClient
    from tpuctl.cloud.storage import BucketsClient
    from tpuctl.cloud.tpu import NodeListing, TpuClient
    from tpuctl.models.bucket import BucketPlacement
    from tpuctl.models.project import QuotaLimit

# The error id of a project that does not exist, or that the caller may not see.
_NO_PROJECT_ERROR = "iam-project-not-found"
_CONSTRAINTS = (EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM)
_CHECKED_APIS = (TPU_API, COMPUTE_API, STORAGE_API, IAP_API)
# A disk or a machine by name, path or link.
_RESOURCE_LINK = re.compile(
    r"(?:.*?projects/(?P<project>[^/]+)/)?(?:zones/(?P<zone>[^/]+)/|regions/[^/]+/)?"
    r"(?:(?:disks|instances)/)?(?P<name>[^/]+)"
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The API clients that the checks call; bucket requests name the project that pays."""

    tpu: TpuClient
    buckets: BucketsClient
    compute: ComputeClient
    projects: ProjectsClient


class ApiCall(NamedTuple):
    """A request to the cloud, and the permission that it takes. Equal calls are sent once."""

    permission: str | None
    method: Callable[..., Any]
    arguments: tuple[Hashable, ...]
    options: tuple[tuple[str, Hashable], ...] = ()

    @classmethod
    def of(
        cls, permission: str | None, method: Callable[..., Any], *arguments: Hashable, **options: Hashable
    ) -> ApiCall:
        """Return the call of a method with these arguments."""
        return cls(permission, method, arguments, tuple(options.items()))

    def send(self) -> Any:
        """Send the request and return the answer. Raises the errors of the method."""
        return self.method(*self.arguments, **dict(self.options))


def project_calls(sources: Sources, project: str) -> dict[str, ApiCall]:
    """Return the calls about a project, by the names of the facts."""
    tpu, projects = sources.tpu, sources.projects
    return {
        "project": ApiCall.of("resourcemanager.projects.get", projects.project, project),
        "services": ApiCall.of("serviceusage.services.get", projects.services, project, _CHECKED_APIS),
        "billing": ApiCall.of("resourcemanager.projects.get", projects.billing, project),
        "project_policy": ApiCall.of("resourcemanager.projects.getIamPolicy", projects.policy, project),
        "offers": ApiCall.of("tpu.acceleratortypes.list", tpu.offers, project),
        "quotas": ApiCall.of("serviceusage.quotas.get", projects.quotas, project, TPU_API),
        "nodes": ApiCall.of("tpu.nodes.list", tpu.list_nodes, project),
        "requests": ApiCall.of("tpu.nodes.list", tpu.list_queued_resources, project),
        **{name: ApiCall.of("orgpolicy.policy.get", projects.org_policy, project, name) for name in _CONSTRAINTS},
    }


def node_calls(sources: Sources, wanted: WantedNode) -> dict[str, ApiCall]:
    """Return the calls about a node that depend on no answer, by the names of the facts. See `disk_calls` for its disks."""
    tpu, compute, spec, zone = sources.tpu, sources.compute, wanted.spec, wanted.zone
    project, interface = wanted.project, NetworkInterface.of(wanted)
    calls = project_calls(sources, project)
    names = [*(["project_policy"] if wanted.buckets else []), "project", "services"]
    # If none is named, the subnetwork that a network in auto mode has in the region.
    subnetwork, region = interface.subnetwork or interface.network, interface.region or wanted.region
    found = {
        "network": ApiCall.of("compute.networks.get", compute.network, interface.project, interface.network),
        "subnetwork": ApiCall.of("compute.subnetworks.get", compute.subnetwork, interface.project, region, subnetwork),
        "firewalls": ApiCall.of("compute.firewalls.list", compute.firewalls, interface.project),
    }
    if wanted.machine:
        owner, place, name = _parse_link(wanted.machine)
        found["machine"] = ApiCall.of(
            "compute.instances.list", compute.find_machine, owner or project, name, zone=place
        )
    if wanted.creates:
        names += ["nodes", "requests", "quotas", "billing", *_CONSTRAINTS]
        found |= {
            "types": ApiCall.of("tpu.acceleratortypes.list", tpu.accelerator_types, project, zone),
            "versions": ApiCall.of("tpu.runtimeversions.list", tpu.runtime_versions, project, zone),
        }
        if not spec.internal_ips:
            found["region_quotas"] = ApiCall.of("compute.regions.get", compute.region_quotas, project, wanted.region)
        if spec.tier is Tier.RESERVED:
            found["reservations"] = ApiCall.of("tpu.nodes.list", tpu.reservations, project, zone)
    return {**{name: calls[name] for name in names}, **found}


def disk_calls(sources: Sources, wanted: WantedNode) -> dict[str, ApiCall]:
    """Return the calls about the disks of a new node, by the source of each."""
    found = {}
    for disk in wanted.spec.data_disks if wanted.creates else ():
        project, zone, name = _parse_link(disk.source)
        place = (project or wanted.project, zone or wanted.zone)
        found[disk.source] = ApiCall.of("compute.disks.get", sources.compute.disk, *place, name)
    return found


def _parse_link(text: str) -> tuple[str | None, str | None, str]:
    """Return the project, the zone and the name of a resource; a part that is not named is None."""
    found = _RESOURCE_LINK.fullmatch(text)
    if found is None:
        raise InvalidInputError(f"`{text}` is not a resource name", hint="use its name, or `projects/P/…/NAME`")
    return found["project"], found["zone"], found["name"]


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
        return self._pool.result(project_calls(self._sources, project)["nodes"])

    def resources(self, project: str) -> Fact[ProjectResources]:
        """Return the nodes and queued resources of all zones."""
        self._pool.begin()
        every = project_calls(self._sources, project)
        calls = (every["nodes"], every["requests"])
        for call in calls:
            self._pool.start(call)
        return _join_resources(*map(self._pool.result, calls))

    def facts(self, wanted: WantedNode, now: datetime) -> CheckFacts:
        """Return all facts that the rules need. Raises `CredentialsError` without valid credentials."""
        if not self._has_begun:
            self._pool.begin()
        self._has_begun = False
        calls, disks = node_calls(self._sources, wanted), disk_calls(self._sources, wanted)
        buckets, result = self._start((*calls.values(), *disks.values()), wanted), self._pool.result
        # First the answers on which most queries depend: after a timeout there is no time left for dependent queries.
        placements = [bucket.follow_bucket() for bucket in buckets]
        types = result(calls["types"]) if wanted.creates else None
        _require_project(types)
        # Rules need the offers of other zones if this zone lacks the type, or a bucket is elsewhere.
        offered = value_or_none(types)
        is_missing = offered is not None and wanted.spec.accelerator_type not in offered
        if is_missing or any(place is not None and not is_colocated(place, wanted.zone) for place in placements):
            calls["offers"] = project_calls(self._sources, wanted.project)["offers"]
            self._pool.start(calls["offers"])
        roles: dict[str, ApiCall] = {}
        if buckets:
            # Which roles the table lacks is known only with the policies.
            known_by_now = CheckFacts(
                now=now,
                wanted=wanted,
                buckets=tuple(bucket.follow_policy() for bucket in buckets),
                project=result(calls["project"]),
                project_policy=result(calls["project_policy"]),
            )
            read_role = self._sources.projects.role
            roles = {name: ApiCall.of("iam.roles.get", read_role, name) for name in roles_to_read(known_by_now)}
            for call in roles.values():
                self._pool.start(call)
        answers = {name: result(call) for name, call in calls.items()}
        return CheckFacts(
            now=now,
            wanted=wanted,
            org_policies={name: answers.pop(name) for name in _CONSTRAINTS if wanted.creates},
            disks={source: result(call) for source, call in disks.items()},
            resources=_join_resources(answers.pop("nodes"), answers.pop("requests")) if wanted.creates else None,
            buckets=tuple(bucket.facts() for bucket in buckets),
            roles={name: result(call) for name, call in roles.items()},
            **answers,
        )

    def zone_facts(self, wanted: WantedNode) -> ZoneFacts:
        """Return the facts that differ between zones, for a node without a zone. Raises `CredentialsError`."""
        self._pool.begin()
        all_calls, result = project_calls(self._sources, wanted.project), self._pool.result
        calls = {name: all_calls[name] for name in ("offers", "quotas", "nodes", "requests")}
        buckets = self._start(calls.values(), wanted)
        for bucket in buckets:
            bucket.follow_bucket()
        for bucket in buckets:
            bucket.follow_policy()
        offers = result(calls["offers"])
        _require_project(offers)
        resources = _join_resources(result(calls["nodes"]), result(calls["requests"]))
        return ZoneFacts(offers, result(calls["quotas"]), resources, tuple(bucket.facts() for bucket in buckets))

    def _start(self, calls: Iterable[ApiCall], wanted: WantedNode) -> list[BucketQueries]:
        """Start all queries that depend on no answer; return those about the buckets."""
        for call in calls:
            self._pool.start(call)
        return [BucketQueries(self._sources.buckets, self._pool, use, wanted) for use in wanted.buckets]


def _require_project(fact: Fact[object] | None) -> None:
    """Raise `AccessError` if the project does not exist, as the other answers mean nothing then."""
    if isinstance(fact, Unknown) and fact.error_id == _NO_PROJECT_ERROR:
        raise AccessError(
            fact.reason, hint="check `--project`: `gcloud projects list` shows the ids", error_id=_NO_PROJECT_ERROR
        )


def _join_resources(nodes: Fact[Any], requests: Fact[Any]) -> Fact[ProjectResources]:
    """Return nodes and queued resources of the project; unknown if either of them is unknown."""
    if not isinstance(nodes, Known):
        return nodes
    if not isinstance(requests, Known):
        return requests
    unreachable = dict.fromkeys((*nodes.value.unreachable, *requests.value.unreachable))
    return Known(ProjectResources(nodes.value.nodes, requests.value.queued_resources, tuple(unreachable)))


class BucketQueries:
    """The queries about one bucket. Those that depend on no answer are started at once."""

    def __init__(self, source: BucketsClient, pool: QueryPool, use: BucketUse, wanted: WantedNode) -> None:
        self._use, self._zone, self._result = use, wanted.zone, pool.result
        name, payer = use.bucket, wanted.billing_project

        def call(permission: str | None, method: Callable[..., Any], *arguments: Hashable) -> ApiCall:
            return ApiCall.of(permission, method, name, *arguments, user_project=payer)

        self._calls = {
            "bucket": call("storage.buckets.get", source.bucket),
            "policy": call("storage.buckets.getIamPolicy", source.policy),
            "contents": call("storage.objects.list", source.contents, use.prefix),
            "layout": call("storage.objects.list", source.layout),
            "caller": call(None, source.test_permissions, OBJECT_PERMISSIONS),
            "caches": call("storage.anywhereCaches.list", source.caches),
        }
        self._pool = pool
        self._needed: list[str] = []
        self._need("bucket", "policy", *(["contents"] if use.reads else []))

    def _need(self, *names: str) -> None:
        for name in names:
            self._needed.append(name)
            self._pool.start(self._calls[name])

    def follow_bucket(self) -> BucketPlacement | None:
        """Wait for the bucket and start the queries that depend on it; return its location, None if unknown."""
        bucket = self._result(self._calls["bucket"])
        if isinstance(bucket, Unknown):
            self._need("layout")
        placement: BucketPlacement | None = bucket.value.placement if isinstance(bucket, Known) else None
        if placement is not None and self._zone and not is_colocated(placement, self._zone):
            self._need("caches")
        return placement

    def follow_policy(self) -> BucketFacts:
        """Wait for the policy and start the queries that depend on it; return the facts known so far."""
        policy = self._result(self._calls["policy"])
        if isinstance(policy, Unknown):
            self._need("caller")
        return BucketFacts(use=self._use, bucket=self._result(self._calls["bucket"]), policy=policy)

    def facts(self) -> BucketFacts:
        """Wait for all answers and return them."""
        return BucketFacts(use=self._use, **{name: self._result(self._calls[name]) for name in self._needed})


# More than a typical check needs; each thread has its own connection, and the services allow that many.
_MAX_THREADS = 32
# Refusals for another reason than a missing permission.
_NO_PERMISSION_HELPS = frozenset(
    {"api-disabled", "auth-no-quota-project", "billing-disabled", "perimeter-violated", "project-suspended"}
)


class _Query:
    """One API call that was started, and its answer or its exception."""

    def __init__(self, call: ApiCall) -> None:
        self.call = call
        self.is_answered = threading.Event()
        self.value: Any = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Send the request and keep the answer, or the exception."""
        try:
            self.value = self.call.send()
        except BaseException as failure:  # noqa: BLE001  # handed to the waiting thread, which raises bugs
            self.failure = failure
        self.is_answered.set()


class QueryPool:
    """Sends API calls in daemon threads, each once, all with one deadline. The result of a call, even if it fails, is a fact.

    Not `fan_out`, which returns when all are done: answers are used as they come, to start the calls that depend on them.
    `clock` is the real clock, as a network takes real time.
    """

    def __init__(self, clock: Clock, timeout: timedelta) -> None:
        self._clock, self._timeout = clock, timeout
        self.begin()
        self._queries: dict[Hashable, _Query] = {}
        self._waiting: deque[_Query] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the deadline now."""
        self._ends = self._clock.monotonic() + self._timeout

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query, even with a refusal."""
        answered = [query for query in self._queries.values() if query.is_answered.is_set()]
        return not all(isinstance(query.failure, ServiceUnavailableError) for query in answered)

    def start(self, call: ApiCall) -> _Query:
        """Start an API call, unless an equal one was started before."""
        key = (call.method, call.arguments, call.options)
        if key in self._queries:
            return self._queries[key]
        query = self._queries[key] = _Query(call)
        with self._lock:
            self._waiting.append(query)
            if len(self._threads) >= _MAX_THREADS:
                return query
            # Not a pool: its threads would keep an interrupted process alive until the last answer.
            thread = threading.Thread(target=self._run_queries, daemon=True)
            self._threads.append(thread)
        thread.start()
        return query

    def result(self, call: ApiCall) -> Fact[Any]:
        """Return the answer of an API call. Waits for it until the deadline at the latest.

        Raises `CredentialsError`, as no query can be answered without credentials.
        """
        query, left = self.start(call), max(self._ends - self._clock.monotonic(), timedelta())
        if not query.is_answered.wait(left.total_seconds()):
            return Unknown(f"no answer within {format_duration(self._timeout)}", is_passing=True)
        return Known(query.value) if query.failure is None else fact_from_failure(query.failure, call.permission)

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
