"""Compute Engine v1 (and alpha, with the same fields): the resources that clients of TPUs use.

A project's metadata, operations, zones and regions with quotas, networks, firewall rules, disks, virtual machines. Each
project has a network `default` with its subnetworks and firewall rules. Only filters that name one resource are
applied; other filters, and orders, are ignored: gcloud applies its own too. Every change completes at once: its operation
is finished when it is returned. Disks and virtual machines come from seeds: the API does not create them here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import ApiError, Call, page_of
from tpuctl.sandbox.catalog import location_names, number_of_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state_session import StateSession

COMPUTE_BASE = "https://www.googleapis.com/compute/v1/"
_PACIFIC = timezone(timedelta(hours=-8))
_LARGEST_COMPUTE_PAGE = 500  # API field text of maxResults
_NAME_FILTER = re.compile(r"\(?\s*name(?P<operator>\s*=\s*|\s+eq\s+)(?P<value>\S+?)\s*\)?")
# API field text of each resource's name.
_RESOURCE_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def resource_identity(session: StateSession, kind: str, path: str) -> Json:
    """Return the first fields of every resource. `path` is its name below the API: `projects/P/zones/Z/disks/D`."""
    return {
        "kind": f"compute#{kind}",
        "id": resource_number(path),
        "creationTimestamp": compute_timestamp(session.now),
        "name": path.rpartition("/")[2],
        "selfLink": COMPUTE_BASE + path,
    }


def compute_timestamp(moment: datetime) -> str:
    """Return a time in compute's format: Pacific standard time, with three digits of a second."""
    return moment.astimezone(_PACIFIC).isoformat(timespec="milliseconds")


def resource_number(path: str) -> str:
    """Return the numeric id of a resource: the same for the same name."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return str(10**18 + int.from_bytes(digest) % (8 * 10**18))


def resource_link(project: str, collection: str, given: str) -> str:
    """Return the full link of a resource given by id, path or link; `collection` as in `global/networks`."""
    if "projects/" in given:
        return COMPUTE_BASE + given[given.index("projects/") :]
    return f"{COMPUTE_BASE}projects/{project}/{collection}/{given.rpartition('/')[2]}"


def list_document(call: Call, kind: str, path: str, entries: Sequence[Json]) -> Json:
    """Return a page of a list; `kind` as in `compute#diskList`, `path` its name below the API."""
    is_wanted = _name_predicate(call)
    page, next_token = page_of(_compute_page(call), [entry for entry in entries if is_wanted(entry)])
    answer: Json = {"kind": f"compute#{kind}", "id": path, "selfLink": COMPUTE_BASE + path}
    if page:
        answer["items"] = list(page)
    return {**answer, "nextPageToken": next_token} if next_token else answer


def aggregated_document(
    call: Call, kind: str, key: str, *, entries: Iterable[tuple[str, Json]], scopes: Iterable[str]
) -> Json:
    """Return an aggregated list: entries by scope (`zones/Z`), and a warning for each empty scope."""
    path = f"projects/{call.params['project']}/aggregated/{key}"
    is_wanted = _name_predicate(call)
    page, next_token = page_of(_compute_page(call), [(scope, entry) for scope, entry in entries if is_wanted(entry)])
    items: dict[str, Json] = {}
    for scope in scopes:
        message = f"There are no results for scope '{scope}' on this page."
        data = [{"key": "scope", "value": scope}]
        items[scope] = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}}
    for scope, entry in page:
        if key not in items.setdefault(scope, {key: []}):
            items[scope] = {key: []}
        items[scope][key].append(entry)
    answer: Json = {"kind": f"compute#{kind}", "id": path, "selfLink": COMPUTE_BASE + path, "items": items}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def stored_resources(session: StateSession, kind: str, project: str, defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Return the resources of a kind by name: the defaults of every project, and added ones; an empty document hides one."""
    found = {**defaults, **{entry.name: entry.document for entry in session.resources.list_records(kind, project)}}
    return {name: found[name] for name in sorted(found) if found[name]}


def check_resource_name(name: str) -> None:
    """Raise `ApiError` 400 for an invalid resource name (words unverified)."""
    if not _RESOURCE_NAME.fullmatch(name):
        raise invalid_compute_value("resource.name", name, f"Must be a match of regex '{_RESOURCE_NAME.pattern}'")


def compute_not_found(path: str) -> ApiError:
    """Return the error for a missing resource (words unverified)."""
    return ApiError(404, "NOT_FOUND", f"The resource '{path}' was not found", reason="notFound")


def compute_already_exists(path: str) -> ApiError:
    """Return the error for a second insert (words unverified)."""
    return ApiError(409, "ALREADY_EXISTS", f"The resource '{path}' already exists", reason="alreadyExists")


def invalid_compute_value(field: str, value: str, problem: str) -> ApiError:
    """Return the error for an invalid field value (words unverified)."""
    message = f"Invalid value for field '{field}': '{value}'. {problem}"
    return ApiError(400, "INVALID_ARGUMENT", message, reason="invalid")


def _name_predicate(call: Call) -> Callable[[Json], bool]:
    """Return the predicate of a list's filter if it has one of two forms; other filters accept everything.

    API field text: `name = value`, and `name eq pattern`, an RE2 expression for the whole name.
    """
    found = _NAME_FILTER.fullmatch(str(call.params.get("filter") or "").strip())
    if found is None:
        return lambda _: True
    wanted = found["value"].strip("\"'")
    pattern = wanted if found["operator"].strip() == "eq" else re.escape(wanted)
    try:
        expression = re.compile(pattern)
    except re.error:
        raise invalid_compute_value("filter", str(call.params["filter"]), "Invalid list filter expression.") from None
    return lambda entry: expression.fullmatch(str(entry["name"])) is not None


def _compute_page(call: Call) -> Call:
    size = int(call.params.get("maxResults") or _LARGEST_COMPUTE_PAGE)
    if size < 0:
        raise invalid_compute_value("maxResults", str(size), "Values must be between [0, 500]")  # unverified words
    params = {"pageSize": min(size, _LARGEST_COMPUTE_PAGE), "pageToken": call.params.get("pageToken")}
    return Call(call.version, call.method, params, {})


COMPUTE_OPERATION_KIND = "compute.operation"
_OPERATIONS_KEPT = 1000


def begin_compute_operation(session: StateSession, call: Call, verb: str, *, target: str) -> Json:
    """Store and return the finished operation of a call, in the scope of its resource. `target` is a path."""
    project, place = str(call.params["project"]), _operation_scope(call)
    count = session.next_incarnation(f"{COMPUTE_OPERATION_KIND}/{project}")
    digest = hashlib.blake2b(f"{session.seed}/{project}/{count}".encode(), digest_size=14).hexdigest()
    moment = int(session.now.timestamp() * 1000)
    name = f"operation-{moment:013d}-{count:07d}{digest[:6]}-{digest[6:14]}-{digest[14:22]}"
    now = compute_timestamp(session.now)
    path = f"projects/{project}/{place}/operations/{name}"
    document: Json = {
        "kind": "compute#operation",
        "id": resource_number(path),
        "name": name,
        "operationType": verb,
        "targetLink": COMPUTE_BASE + target,
        "targetId": resource_number(target),
        "status": "DONE",
        "progress": 100,
        "user": "user@example.com",
        **dict.fromkeys(("insertTime", "startTime", "endTime"), now),
        "selfLink": COMPUTE_BASE + path,
    }
    if place != "global":
        document[place.partition("s/")[0]] = f"{COMPUTE_BASE}projects/{project}/{place}"
    session.resources.put(COMPUTE_OPERATION_KIND, project, name, document)
    session.resources.trim(COMPUTE_OPERATION_KIND, project, keep=_OPERATIONS_KEPT)
    return document


def get_compute_operation(session: StateSession, call: Call) -> Json:
    """Answer get and wait of global, regional and zonal operations."""
    project, name = str(call.params["project"]), str(call.params["operation"])
    path = f"projects/{project}/{_operation_scope(call)}/operations/{name}"
    found = session.resources.get(COMPUTE_OPERATION_KIND, project, name)
    if found is None or found["selfLink"] != COMPUTE_BASE + path:
        raise compute_not_found(path)
    return found


def _operation_scope(call: Call) -> str:
    scopes = (f"{word}s/{call.params[word]}" for word in ("region", "zone") if word in call.params)
    return next(scopes, "global")


REGION_QUOTA_KIND = "compute.quota"
# Invented: high enough not to matter unless a seed sets them.
_DEFAULT_LIMITS = {
    "CPUS": 2400.0,
    "DISKS_TOTAL_GB": 102400.0,
    "INSTANCES": 6000.0,
    "IN_USE_ADDRESSES": 575.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "SSD_TOTAL_GB": 40960.0,
    "STATIC_ADDRESSES": 8.0,
}
_WITHOUT_ADDRESS = frozenset({"STOPPED", "PREEMPTED", "TERMINATED"})  # unverified


def region_names() -> tuple[str, ...]:
    """Return the regions of all zones."""
    return tuple(sorted({region_of(zone) for zone in location_names()}))


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0]


def check_compute_zone(zone: str) -> None:
    """Raise `ApiError` 400 for a zone that does not exist (words unverified)."""
    if zone not in location_names():
        raise invalid_compute_value("zone", zone, "Unknown zone.")


def check_region(region: str) -> None:
    """Raise `ApiError` 400 for a region that does not exist (words unverified)."""
    if region not in region_names():
        raise invalid_compute_value("region", region, "Unknown region.")


def put_region_quota(
    session: StateSession, project: str, region: str, *, metric: str, limit: float, usage: float | None
) -> None:
    """Store a quota of a region; without a usage it is counted where the sandbox can, else 0."""
    session.resources.put(REGION_QUOTA_KIND, project, f"{region}/{metric}", {"limit": limit, "usage": usage})


def get_zone(session: StateSession, call: Call) -> Json:
    """Answer zones.get."""
    del session
    project, zone = str(call.params["project"]), str(call.params["zone"])
    if zone not in location_names():
        raise compute_not_found(f"projects/{project}/zones/{zone}")
    return _zone_document(project, zone)


def list_zones(session: StateSession, call: Call) -> Json:
    """Answer zones.list: zones with TPUs and some without."""
    del session
    project = str(call.params["project"])
    zones = [_zone_document(project, zone) for zone in location_names()]
    return list_document(call, "zoneList", f"projects/{project}/zones", zones)


def get_region(session: StateSession, call: Call) -> Json:
    """Answer regions.get, with quotas."""
    project, region = str(call.params["project"]), str(call.params["region"])
    if region not in region_names():
        raise compute_not_found(f"projects/{project}/regions/{region}")
    return _region_document(session, project, region)


def list_regions(session: StateSession, call: Call) -> Json:
    """Answer regions.list, with quotas."""
    project = str(call.params["project"])
    found = [_region_document(session, project, region) for region in region_names()]
    return list_document(call, "regionList", f"projects/{project}/regions", found)


def _zone_document(project: str, zone: str) -> Json:
    path = f"projects/{project}/zones/{zone}"
    return {
        "kind": "compute#zone",
        "id": resource_number(f"zones/{zone}"),
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": f"{COMPUTE_BASE}projects/{project}/regions/{region_of(zone)}",
        "selfLink": COMPUTE_BASE + path,
    }


def _region_document(session: StateSession, project: str, region: str) -> Json:
    path = f"projects/{project}/regions/{region}"
    zones = [zone for zone in location_names() if region_of(zone) == region]
    stored = {
        found.name.partition("/")[2]: found.document
        for found in session.resources.list_records(REGION_QUOTA_KIND, project, prefix=f"{region}/")
    }
    quotas = []
    for metric in sorted({*_DEFAULT_LIMITS, *stored}):
        quota = stored.get(metric, {})
        usage = quota.get("usage")
        if usage is None:
            usage = _count_addresses(session, project, region) if metric == "IN_USE_ADDRESSES" else 0
        limit = float(quota.get("limit", _DEFAULT_LIMITS.get(metric, 0)))
        quotas.append({"metric": metric, "limit": limit, "usage": float(usage)})
    return {
        "kind": "compute#region",
        "id": resource_number(f"regions/{region}"),
        "name": region,
        "description": region,
        "status": "UP",
        "zones": [f"{COMPUTE_BASE}projects/{project}/zones/{zone}" for zone in zones],
        "quotas": quotas,
        "selfLink": COMPUTE_BASE + path,
    }


def _count_addresses(session: StateSession, project: str, region: str) -> int:
    """Count the external addresses of TPU workers in a region (that they count is unverified)."""
    count = 0
    for node in session.nodes(project):
        phase = node.phase(session.now)
        network = node.document.get("networkConfig") or {}
        has_address = network.get("enableExternalIps") and phase and phase.state not in _WITHOUT_ADDRESS
        count += node.workers if has_address and region_of(node.zone) == region else 0
    return count


DISK, INSTANCE = "compute.disk", "compute.instance"
# Documentation: the default scopes of a machine.
_DEFAULT_SCOPES = [
    f"https://www.googleapis.com/auth/{scope}"
    for scope in (
        *("devstorage.read_only", "logging.write", "monitoring.write", "service.management.readonly"),
        *("servicecontrol", "trace.append"),
    )
]


def put_disk(session: StateSession, project: str, zone: str, name: str, *, fields: Json) -> Json:
    """Store a disk and return it."""
    zone = zone.rpartition("/")[2]
    document = {
        **resource_identity(session, "disk", f"projects/{project}/zones/{zone}/disks/{name}"),
        "zone": f"{COMPUTE_BASE}projects/{project}/zones/{zone}",
        "status": "READY",
        "sizeGb": "100",
        "physicalBlockSizeBytes": "4096",
        "labelFingerprint": "42WmSpB8rSM=",
        **fields,
        "type": resource_link(project, f"zones/{zone}/diskTypes", str(fields.get("type", "pd-balanced"))),
    }
    if "users" in fields:
        document["users"] = [resource_link(project, f"zones/{zone}/instances", user) for user in fields["users"]]
    session.resources.put(DISK, project, f"{zone}/{name}", document)
    return document


def put_instance(session: StateSession, project: str, zone: str, name: str, *, fields: Json) -> Json:
    """Store a virtual machine and return it."""
    zone = zone.rpartition("/")[2]
    region = region_of(zone)
    network = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": f"{COMPUTE_BASE}projects/{project}/global/networks/default",
        "subnetwork": f"{COMPUTE_BASE}projects/{project}/regions/{region}/subnetworks/default",
        "networkIP": "10.128.15.2",
        "stackType": "IPV4_ONLY",
    }
    email = f"{number_of_project(project)}-compute@developer.gserviceaccount.com"
    document = {
        **resource_identity(session, "instance", f"projects/{project}/zones/{zone}/instances/{name}"),
        "zone": f"{COMPUTE_BASE}projects/{project}/zones/{zone}",
        "status": "RUNNING",
        "networkInterfaces": [network],
        "serviceAccounts": [{"email": email, "scopes": _DEFAULT_SCOPES}],
        "scheduling": {"onHostMaintenance": "MIGRATE", "automaticRestart": True, "preemptible": False},
        "metadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
        "tags": {"fingerprint": "42WmSpB8rSM="},
        "labelFingerprint": "42WmSpB8rSM=",
        **fields,
        "machineType": resource_link(
            project, f"zones/{zone}/machineTypes", str(fields.get("machineType", "n1-standard-2"))
        ),
    }
    session.resources.put(INSTANCE, project, f"{zone}/{name}", document)
    return document


def get_disk(session: StateSession, call: Call) -> Json:
    """Answer disks.get."""
    return _get_zonal(session, call, DISK, "disk")


def list_disks(session: StateSession, call: Call) -> Json:
    """Answer disks.list."""
    return _list_zonal(session, call, DISK, "disk")


def get_instance(session: StateSession, call: Call) -> Json:
    """Answer instances.get."""
    return _get_zonal(session, call, INSTANCE, "instance")


def list_instances(session: StateSession, call: Call) -> Json:
    """Answer instances.list."""
    return _list_zonal(session, call, INSTANCE, "instance")


def aggregate_disks(session: StateSession, call: Call) -> Json:
    """Answer disks.aggregatedList."""
    return _aggregate_zonal(session, call, DISK, "disk")


def aggregate_instances(session: StateSession, call: Call) -> Json:
    """Answer instances.aggregatedList."""
    return _aggregate_zonal(session, call, INSTANCE, "instance")


def _aggregate_zonal(session: StateSession, call: Call, kind: str, word: str) -> Json:
    stored = session.resources.list_records(kind, str(call.params["project"]))
    found = [(f"zones/{entry.name.partition('/')[0]}", entry.document) for entry in stored]
    scopes = [f"zones/{zone}" for zone in location_names()]
    return aggregated_document(call, f"{word}AggregatedList", f"{word}s", entries=found, scopes=scopes)


def _get_zonal(session: StateSession, call: Call, kind: str, word: str) -> Json:
    project, zone, name = str(call.params["project"]), str(call.params["zone"]), str(call.params[word])
    check_compute_zone(zone)
    found = session.resources.get(kind, project, f"{zone}/{name}")
    if found is None:
        raise compute_not_found(f"projects/{project}/zones/{zone}/{word}s/{name}")
    return found


def _list_zonal(session: StateSession, call: Call, kind: str, word: str) -> Json:
    project, zone = str(call.params["project"]), str(call.params["zone"])
    check_compute_zone(zone)
    found = [entry.document for entry in session.resources.list_records(kind, project, prefix=f"{zone}/")]
    return list_document(call, f"{word}List", f"projects/{project}/zones/{zone}/{word}s", found)


def start_instance(session: StateSession, call: Call) -> Json:
    """Answer instances.start."""
    return _change_instance(session, call, {"status": "RUNNING"}, verb="start")


def stop_instance(session: StateSession, call: Call) -> Json:
    """Answer instances.stop."""
    return _change_instance(session, call, {"status": "TERMINATED"}, verb="stop")


def set_instance_service_account(session: StateSession, call: Call) -> Json:
    """Answer instances.setServiceAccount: only for a stopped machine (documentation)."""
    machine = get_instance(session, call)
    if machine["status"] != "TERMINATED":
        # Observed: the words that users of gcloud quote.
        message = "The instance must be stopped before the service account can be changed."
        raise ApiError(400, "INVALID_ARGUMENT", message, reason="resourceNotReady")
    email = str(call.body.get("email") or "default")
    if email == "default":
        email = f"{number_of_project(str(call.params['project']))}-compute@developer.gserviceaccount.com"
    account = {"email": email, "scopes": call.body.get("scopes") or []}
    return _change_instance(session, call, {"serviceAccounts": [account]}, verb="setServiceAccount")


def _change_instance(session: StateSession, call: Call, change: Json, *, verb: str) -> Json:
    project, zone, name = (str(call.params[key]) for key in ("project", "zone", "instance"))
    machine = get_instance(session, call)
    path = f"projects/{project}/zones/{zone}/instances/{name}"
    session.log_request(call.method, path)
    session.resources.put(INSTANCE, project, f"{zone}/{name}", {**machine, **change})
    return begin_compute_operation(session, call, verb, target=path)


def get_compute_project(session: StateSession, call: Call) -> Json:
    """Answer projects.get."""
    project = str(call.params["project"])
    metadata = session.project(project)
    common: Json = {"kind": "compute#metadata", "fingerprint": _metadata_fingerprint(metadata)}
    if metadata.get("items"):
        common["items"] = metadata["items"]
    return {
        "kind": "compute#project",
        "id": str(number_of_project(project)),
        "creationTimestamp": "2026-01-01T00:00:00.000-08:00",
        "name": project,
        "selfLink": f"{COMPUTE_BASE}projects/{project}",
        "commonInstanceMetadata": common,
        "defaultServiceAccount": f"{number_of_project(project)}-compute@developer.gserviceaccount.com",
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def set_common_instance_metadata(session: StateSession, call: Call) -> Json:
    """Answer projects.setCommonInstanceMetadata: 412 if the fingerprint is not the current one."""
    project = str(call.params["project"])
    session.log_request(call.method, project)
    before = session.project(project)
    given = call.body.get("fingerprint")
    if given and given != _metadata_fingerprint(before):
        # Observed: the message that gcloud prints after a concurrent change.
        message = "Supplied fingerprint does not match current metadata fingerprint."
        raise ApiError(412, "FAILED_PRECONDITION", message)
    session.put_project(project, {**before, "items": call.body.get("items", [])})
    return begin_compute_operation(
        session, call, "compute.projects.setCommonInstanceMetadata", target=f"projects/{project}"
    )


def _metadata_fingerprint(metadata: Json) -> str:
    digest = hashlib.blake2b(json.dumps(metadata.get("items", [])).encode(), digest_size=8).digest()
    return base64.b64encode(digest).decode()
