"""Compute Engine v1 (and alpha, with the same fields): the resources that clients of TPUs use.

All kinds share get, list, aggregated list and insert; `_KINDS` has what differs. Each project has a network `default`
with its subnetworks and firewall rules. Only filters that name one resource are applied; other filters, and orders, are
ignored: gcloud applies its own too. Every change completes at once: its operation is finished when it is returned. Disks and
virtual machines come from seeds: the API does not create them here.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tpuctl.sandbox.api_calls import (
    DEFAULT_PROJECT,
    DEFAULT_ZONE,
    ApiError,
    answers,
    etag_of,
    list_response,
    numeric_id,
    page_of,
)
from tpuctl.sandbox.catalog import default_service_account, location_names, number_of_project
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

COMPUTE_BASE = "https://www.googleapis.com/compute/v1/"
DEFAULT_NETWORK = "default"
_COLLECTIONS = ("zones", "regions", "networks", "subnetworks", "firewalls", "disks", "instances")
_ChangeHandler: TypeAlias = "Callable[[StateSession, Call], Json]"
_PACIFIC = timezone(timedelta(hours=-8))
_NAME_FILTER = re.compile(r"\(?\s*name(?P<operator>\s*=\s*|\s+eq\s+)(?P<value>\S+?)\s*\)?")
# API field text of each resource's name.
_RESOURCE_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


class Place(NamedTuple):
    """A resource, or with an empty name a collection; `scope` is `global`, `zones/Z`, `regions/R`, or empty for those two."""

    project: str
    scope: str
    collection: str
    name: str = ""

    @property
    def path(self) -> str:
        """The name below the API, as in links and errors."""
        return "/".join(filter(None, ("projects", *self)))

    @property
    def key(self) -> str:
        """The name under which it is stored in its project."""
        return f"{self.scope.partition('/')[2]}/{self.name}".removeprefix("/")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of resource.

    `document` returns its fields from those of a seed or request and the defaults. `builtin` returns what each project has, by
    key.
    """

    word: str
    document: Callable[[Place, Json], Json] = lambda _place, fields: fields
    builtin: Callable[[StateSession, str], dict[str, Json]] = lambda _session, _project: {}


def put_resource(
    collection: str,
    session: StateSession,
    name: str,
    *,
    project: str = DEFAULT_PROJECT,
    region: str = "",
    zone: str = "",
    **fields: Any,
) -> Json:
    """Store a resource and return it; `fields` override the defaults. Region or zone may be a link."""
    if collection in {"disks", "instances"}:
        zone = zone or DEFAULT_ZONE
    scope = "global"
    if zone or region:
        scope = f"{'zones' if zone else 'regions'}/{(zone or region).rpartition('/')[2]}"
    return _put(session, Place(project, scope, collection, name), fields)


def drop_resource(collection: str, session: StateSession, name: str, *, project: str = DEFAULT_PROJECT) -> None:
    """Remove a global resource, one that each project has too."""
    session.resources.put(f"compute.{_KINDS[collection].word}", project, name, {})


def network_exists(session: StateSession, project: str, network: str) -> bool:
    """Return whether a network exists, given by id, path or link (of another project with a shared network)."""
    owner = network.partition("projects/")[2].partition("/")[0] or project
    return network.rpartition("/")[2] in _resources(session, "networks", owner)


def put_region_quota(
    session: StateSession,
    region: str,
    metric: str,
    *,
    limit: float,
    usage: float | None = None,
    project: str = DEFAULT_PROJECT,
) -> None:
    """Set a quota in a region (`IN_USE_ADDRESSES`); without `usage` the usage is counted where the sandbox can, else 0."""
    session.resources.put(_QUOTA_KIND, project, f"{region}/{metric}", {"limit": limit, "usage": usage})


def _answers_change(*methods: str) -> Callable[[_ChangeHandler], _ChangeHandler]:
    """Register the handler of changes. A repeated `requestId` returns the operation of the first call (API field text).

    What the service does with the id of another call is not documented: here it returns the operation of that call.
    """

    def register(change: _ChangeHandler) -> _ChangeHandler:
        @answers(*methods)
        def change_once(session: StateSession, call: Call) -> Json:
            if not (request_id := call["requestId"]):
                return change(session, call)
            for earlier in session.resources.list_records(_OPERATION_KIND, call["project"]):
                if earlier.document.get("clientOperationId") == request_id:
                    return earlier.document
            operation = {**change(session, call), "clientOperationId": request_id}
            session.resources.put(_OPERATION_KIND, call["project"], operation["name"], operation)
            return operation

        return change

    return register


@answers(*(f"compute.{collection}.get" for collection in _COLLECTIONS))
def _get(session: StateSession, call: Call) -> Json:
    place = _place_of(call)
    return _shown(session, place.project, _find(session, place))


@answers(*(f"compute.{collection}.list" for collection in _COLLECTIONS))
def _list(session: StateSession, call: Call) -> Json:
    place = _place_of(call)
    kind = _KINDS[place.collection]
    _check_scope(place)
    is_wanted = _name_predicate(call)
    resources = [
        _shown(session, place.project, document)
        for key, document in _resources(session, place.collection, place.project).items()
        if key.startswith(place.key) and is_wanted(document)
    ]
    document = {"kind": f"compute#{kind.word}List", "id": place.path, "selfLink": COMPUTE_BASE + place.path}
    return list_response(call, "items", resources, **document)


@answers(*(f"compute.{kind}.aggregatedList" for kind in ("subnetworks", "disks", "instances")))
def _aggregated_list(session: StateSession, call: Call) -> Json:
    """Return the entries by scope (`zones/Z`), and a warning for each scope without."""
    place = _place_of(call)
    kind, project = _KINDS[place.collection], place.project
    is_wanted = _name_predicate(call)
    resources = [
        (key.partition("/")[0], document)
        for key, document in _resources(session, place.collection, project).items()
        if is_wanted(document)
    ]
    page, following = page_of(call, resources)
    places, word = (region_names(), "regions") if place.collection == "subnetworks" else (location_names(), "zones")
    items: dict[str, Json] = {}
    for name in places:
        scope = f"{word}/{name}"
        message = f"There are no results for scope '{scope}' on this page."
        warning = {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": [{"key": "scope", "value": scope}]}
        entries = [document for at, document in page if at == name]
        items[scope] = {place.collection: entries} if entries else {"warning": warning}
    path = f"projects/{project}/aggregated/{place.collection}"
    answer = {"kind": f"compute#{kind.word}AggregatedList", "id": path, "selfLink": COMPUTE_BASE + path}
    return {**answer, "items": items, **following}


@_answers_change("compute.networks.insert", "compute.firewalls.insert")
def _insert(session: StateSession, call: Call) -> Json:
    """Insert a resource. A network has no firewall rules then (documentation)."""
    place = _place_of(call)._replace(name=str(call.body.get("name") or ""))
    if not _RESOURCE_NAME.fullmatch(place.name):
        raise _invalid_value("resource.name", place.name, f"Must be a match of regex '{_RESOURCE_NAME.pattern}'")
    network = str(call.body.get("network") or DEFAULT_NETWORK)
    if place.collection == "firewalls" and not network_exists(session, place.project, network):
        link = _link(place.project, "global/networks", network)
        raise _invalid_value("resource.network", link, "The referenced network resource cannot be found.")
    if place.key in _resources(session, place.collection, place.project):
        raise ApiError(409, "ALREADY_EXISTS", f"The resource '{place.path}' already exists", reason="alreadyExists")
    if place.collection == "networks" and place.name == DEFAULT_NETWORK:
        for rule in _defaults()["firewalls"]:
            if session.resources.get("compute.firewall", place.project, rule) is None:
                drop_resource("firewalls", session, rule, project=place.project)
    _put(session, place, call.body)
    return _begin_operation(session, "insert", place)


@_answers_change("compute.subnetworks.setPrivateIpGoogleAccess")
def _set_private_access(session: StateSession, call: Call) -> Json:
    change = {"privateIpGoogleAccess": bool(call.body.get("privateIpGoogleAccess"))}
    return _change(session, call, change, verb="compute.subnetworks.setPrivateIpGoogleAccess")


@_answers_change("compute.instances.start", "compute.instances.stop")
def _start_or_stop(session: StateSession, call: Call) -> Json:
    verb = call.method.rpartition(".")[2]
    return _change(session, call, {"status": {"start": "RUNNING", "stop": "TERMINATED"}[verb]}, verb=verb)


@_answers_change("compute.instances.setServiceAccount")
def _set_service_account(session: StateSession, call: Call) -> Json:
    """Change the account of a stopped machine: a running one is refused (documentation)."""
    place = _place_of(call)
    if _find(session, place)["status"] != "TERMINATED":
        # Observed: the words that users of gcloud quote.
        message = "The instance must be stopped before the service account can be changed."
        raise ApiError(400, "INVALID_ARGUMENT", message, reason="resourceNotReady")
    email = str(call.body.get("email") or "default")
    if email == "default":
        email = default_service_account(place.project)
    account = {"email": email, "scopes": call.body.get("scopes") or []}
    return _change(session, call, {"serviceAccounts": [account]}, verb="setServiceAccount")


def _change(session: StateSession, call: Call, change: Json, *, verb: str) -> Json:
    place = _place_of(call)
    resource = _find(session, place)
    session.resources.put(f"compute.{_KINDS[place.collection].word}", place.project, place.key, {**resource, **change})
    return _begin_operation(session, verb, place)


def _place_of(call: Call) -> Place:
    """Return the resource or collection of a call, by its path parameters, which are named alike in all methods."""
    params, collection = call.params, call.method.split(".")[1]
    word = _KINDS[collection].word
    scopes = (f"{name}s/{params[name]}" for name in ("zone", "region") if name in params)
    scope = "" if collection in {"zones", "regions"} else next(scopes, "global")
    return Place(str(params["project"]), scope, collection, str(params.get(word) or ""))


def _check_scope(place: Place) -> None:
    """Raise `ApiError` 400 for a zone or region that does not exist (words unverified)."""
    kind, _, name = place.scope.partition("s/")
    if name and name not in (location_names() if kind == "zone" else region_names()):
        raise _invalid_value(kind, name, f"Unknown {kind}.")


def _find(session: StateSession, place: Place) -> Json:
    """Return a resource. Raises `ApiError` 404, or 400 for an unknown zone or region."""
    _check_scope(place)
    resource = _resources(session, place.collection, place.project).get(place.key)
    if resource is None:
        raise _not_found(place.path)
    return resource


def _resources(session: StateSession, collection: str, project: str) -> dict[str, Json]:
    """Return the resources of a kind by key: those of every project, and added ones; an empty document hides one."""
    kind = _KINDS[collection]
    resources = kind.builtin(session, project)
    for entry in session.resources.list_records(f"compute.{kind.word}", project):
        resources[entry.name] = entry.document
    return {key: resources[key] for key in sorted(resources) if resources[key]}


def _put(session: StateSession, place: Place, fields: Json) -> Json:
    kind = _KINDS[place.collection]
    before: Json = {}
    if place.collection == "subnetworks":  # one of an auto-mode network may be changed
        before = _resources(session, place.collection, place.project).get(place.key, {})
    document = _document(session, place, {**before, **fields})
    session.resources.put(f"compute.{kind.word}", place.project, place.key, document)
    return _shown(session, place.project, document)


def _document(session: StateSession, place: Place, fields: Json) -> Json:
    """Return a resource with the given fields and the defaults of all others."""
    kind = _KINDS[place.collection]
    return {**_identity(session, place), **kind.document(place, {**_defaults()["fields"][kind.word], **fields})}


@cache
def _defaults() -> Any:
    return load_data("compute_defaults.yaml")


def _identity(session: StateSession, place: Place) -> Json:
    """Return the first fields of every resource."""
    identity = {
        "kind": f"compute#{_KINDS[place.collection].word}",
        "id": numeric_id(place.path),
        "creationTimestamp": _timestamp(session.now),
        "name": place.name,
        "selfLink": COMPUTE_BASE + place.path,
    }
    word, _, name = place.scope.partition("s/")
    return {**identity, word: f"{COMPUTE_BASE}projects/{place.project}/{place.scope}"} if name else identity


def _link(project: str, collection: str, name: str) -> str:
    """Return the full link of a resource given by id, path or link; `collection` as in `global/networks`."""
    if "projects/" in name:
        return COMPUTE_BASE + name[name.index("projects/") :]
    return f"{COMPUTE_BASE}projects/{project}/{collection}/{name.rpartition('/')[2]}"


def _timestamp(moment: datetime) -> str:
    """Return a time in compute's format: Pacific standard time, with three digits of a second."""
    return moment.astimezone(_PACIFIC).isoformat(timespec="milliseconds")


def _not_found(path: str) -> ApiError:
    return ApiError(404, "NOT_FOUND", f"The resource '{path}' was not found")  # unverified words


def _invalid_value(field: str, value: str, problem: str) -> ApiError:
    message = f"Invalid value for field '{field}': '{value}'. {problem}"  # unverified words
    return ApiError(400, "INVALID_ARGUMENT", message)


def _name_predicate(call: Call) -> Callable[[Json], bool]:
    """Return the predicate of a list's filter if it has one of two forms; other filters accept everything.

    API field text: `name = value`, and `name eq pattern`, an RE2 expression for the whole name.
    """
    match = _NAME_FILTER.fullmatch(call["filter"].strip())
    if match is None:
        return lambda _: True
    name = match["value"].strip("\"'")
    pattern = name if match["operator"].strip() == "eq" else re.escape(name)
    try:
        expression = re.compile(pattern)
    except re.error:
        raise _invalid_value("filter", call["filter"], "Invalid list filter expression.") from None
    return lambda entry: expression.fullmatch(str(entry["name"])) is not None


_OPERATION_KIND = "compute.operation"
_OPERATIONS_KEPT = 1000


def _begin_operation(session: StateSession, verb: str, target: Place) -> Json:
    """Store and return the finished operation of a call, in the scope of its resource."""
    project, scope = target.project, target.scope or "global"
    count = session.next_incarnation(f"{_OPERATION_KIND}/{project}")
    digest = hashlib.blake2b(f"{project}/{count}".encode(), digest_size=14).hexdigest()
    moment = int(session.now.timestamp() * 1000)
    name = f"operation-{moment:013d}-{count:07d}{digest[:6]}-{digest[6:14]}-{digest[14:22]}"
    document: Json = {
        **_identity(session, Place(project, scope, "operations", name)),
        "operationType": verb,
        "targetLink": COMPUTE_BASE + target.path,
        "targetId": numeric_id(target.path),
        "status": "DONE",
        "progress": 100,
        "user": "user@example.com",
        **dict.fromkeys(("insertTime", "startTime", "endTime"), _timestamp(session.now)),
    }
    session.resources.put(_OPERATION_KIND, project, name, document)
    session.resources.trim(_OPERATION_KIND, project, keep=_OPERATIONS_KEPT)
    return document


@answers(*(f"compute.{scope}Operations.{verb}" for scope in ("global", "region", "zone") for verb in ("get", "wait")))
def _get_operation(session: StateSession, call: Call) -> Json:
    project, name = call["project"], call["operation"]
    scopes = (f"{word}s/{call.params[word]}" for word in ("region", "zone") if word in call.params)
    place = Place(project, next(scopes, "global"), "operations", name)
    operation = session.resources.get(_OPERATION_KIND, project, name)
    if operation is None or operation["selfLink"] != COMPUTE_BASE + place.path:
        raise _not_found(place.path)
    return operation


@answers("compute.projects.get")
def _get_project(session: StateSession, call: Call) -> Json:
    project = call["project"]
    metadata = session.project(project)
    common: Json = {"kind": "compute#metadata", "fingerprint": etag_of(metadata.get("items", []))}
    if metadata.get("items"):
        common["items"] = metadata["items"]
    return {
        "kind": "compute#project",
        "id": str(number_of_project(project)),
        "creationTimestamp": "2026-01-01T00:00:00.000-08:00",
        "name": project,
        "selfLink": f"{COMPUTE_BASE}projects/{project}",
        "commonInstanceMetadata": common,
        "defaultServiceAccount": default_service_account(project),
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


@_answers_change("compute.projects.setCommonInstanceMetadata")
def _set_project_metadata(session: StateSession, call: Call) -> Json:
    """Replace the metadata of a project: 412 if the fingerprint is not the current one."""
    project = call["project"]
    before = session.project(project)
    fingerprint = call.body.get("fingerprint")
    if fingerprint and fingerprint != etag_of(before.get("items", [])):
        # Observed: the message that gcloud prints after a concurrent change.
        message = "Supplied fingerprint does not match current metadata fingerprint."
        raise ApiError(412, "FAILED_PRECONDITION", message)
    session.put_project(project, {**before, "items": call.body.get("items", [])})
    return _begin_operation(session, "compute.projects.setCommonInstanceMetadata", Place(project, "", ""))


_QUOTA_KIND = "compute.quota"
_WITHOUT_ADDRESS = frozenset({"STOPPED", "PREEMPTED", "TERMINATED"})  # unverified


@cache
def region_names() -> tuple[str, ...]:
    """Return the regions of all zones."""
    return tuple(sorted({_region_of(zone) for zone in location_names()}))


def _region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def _zones(_session: StateSession, project: str) -> dict[str, Json]:
    """Return zones with TPUs and some without."""
    return {
        zone: {**_location(project, "zones", zone), "region": _link(project, "regions", _region_of(zone))}
        for zone in location_names()
    }


def _location(project: str, collection: str, name: str) -> Json:
    path = f"{collection}/{name}"
    return {
        "kind": f"compute#{_KINDS[collection].word}",
        "id": numeric_id(path),
        "name": name,
        "description": name,
        "status": "UP",
        "selfLink": f"{COMPUTE_BASE}projects/{project}/{path}",
    }


def _regions(session: StateSession, project: str) -> dict[str, Json]:
    """Return the regions with their quotas."""
    stored = {record.name: record.document for record in session.resources.list_records(_QUOTA_KIND, project)}
    addresses: Counter[str] = Counter()  # the external ones of TPU workers (that they count is unverified)
    for node in session.nodes(project):
        network = node.document.get("networkConfig") or {}
        has_address = session.exists(node) and node.state(session.now) not in _WITHOUT_ADDRESS
        if has_address and network.get("enableExternalIps"):
            addresses[_region_of(node.zone)] += node.workers
    regions: dict[str, Json] = {}
    for region in region_names():
        metrics = {key.partition("/")[2] for key in stored if key.startswith(f"{region}/")}
        quotas = []
        for metric in sorted({*_defaults()["quotas"], *metrics}):
            quota = {
                "limit": _defaults()["quotas"].get(metric, 0),
                "usage": None,
                **stored.get(f"{region}/{metric}", {}),
            }
            counted = addresses[region] if metric == "IN_USE_ADDRESSES" else 0
            usage = counted if quota["usage"] is None else quota["usage"]
            quotas.append({"metric": metric, "limit": float(quota["limit"]), "usage": float(usage)})
        zones = [_link(project, "zones", zone) for zone in location_names() if _region_of(zone) == region]
        regions[region] = {**_location(project, "regions", region), "zones": zones, "quotas": quotas}
    return regions


def _networks(session: StateSession, project: str) -> dict[str, Json]:
    return {DEFAULT_NETWORK: _document(session, Place(project, "global", "networks", DEFAULT_NETWORK), {})}


def _network(_place: Place, fields: Json) -> Json:
    # API field text: a legacy network has an address range, and no such field.
    return fields if "IPv4Range" in fields else {"autoCreateSubnetworks": True, **fields}


def _shown(session: StateSession, project: str, document: Json) -> Json:
    """Return a resource as the API shows it: a network has the links of its subnetworks."""
    if document["kind"] != "compute#network":
        return document
    subnetworks = _resources(session, "subnetworks", project).values()
    links = [subnetwork["selfLink"] for subnetwork in subnetworks if subnetwork["network"] == document["selfLink"]]
    return {**document, "subnetworks": links} if links else document


def _subnetworks(session: StateSession, project: str) -> dict[str, Json]:
    """Return one subnetwork per region of each auto-mode network."""
    subnetworks: dict[str, Json] = {}
    for network in _resources(session, "networks", project).values():
        for region in region_names() if network.get("autoCreateSubnetworks") else ():
            place = Place(project, f"regions/{region}", "subnetworks", network["name"])
            subnetworks[place.key] = _document(session, place, {"network": network["name"]})
    return subnetworks


def _subnetwork(place: Place, fields: Json) -> Json:
    # Auto mode uses a /20 of 10.128.0.0/9 for each region; the assignment here differs from the real one.
    region = place.scope.partition("/")[2]
    position = region_names().index(region) if region in region_names() else 0
    return {
        "ipCidrRange": f"10.{128 + 2 * position}.0.0/20",
        "gatewayAddress": f"10.{128 + 2 * position}.0.1",
        **fields,
        "network": _link(place.project, "global/networks", str(fields.get("network", DEFAULT_NETWORK))),
    }


def _firewalls(session: StateSession, project: str) -> dict[str, Json]:
    if not network_exists(session, project, DEFAULT_NETWORK):
        return {}
    rules = _defaults()["firewalls"].items()
    return {name: _document(session, Place(project, "global", "firewalls", name), rule) for name, rule in rules}


def _firewall(place: Place, fields: Json) -> Json:
    network = _link(place.project, "global/networks", str(fields.get("network", DEFAULT_NETWORK)))
    has_sources = {"sourceRanges", "sourceTags", "sourceServiceAccounts"} & fields.keys()
    sources: Json = {"sourceRanges": ["0.0.0.0/0"]}  # API field text
    if has_sources or fields.get("direction") == "EGRESS":
        sources = {}
    return {**fields, **sources, "network": network}


def _disk(place: Place, fields: Json) -> Json:
    users = [_link(place.project, f"{place.scope}/instances", user) for user in fields.get("users", ())]
    kind = _link(place.project, f"{place.scope}/diskTypes", str(fields["type"]))
    return {**fields, "type": kind, **({"users": users} if users else {})}


def _instance(place: Place, fields: Json) -> Json:
    region = _region_of(place.scope.partition("/")[2])
    network = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": _link(place.project, "global/networks", DEFAULT_NETWORK),
        "subnetwork": _link(place.project, f"regions/{region}/subnetworks", DEFAULT_NETWORK),
        "networkIP": "10.128.15.2",
        "stackType": "IPV4_ONLY",
    }
    return {
        "networkInterfaces": [network],
        "serviceAccounts": [{"email": default_service_account(place.project), "scopes": _defaults()["scopes"]}],
        **fields,
        "machineType": _link(place.project, f"{place.scope}/machineTypes", str(fields["machineType"])),
    }


_KINDS: Mapping[str, _Kind] = {
    "zones": _Kind("zone", builtin=_zones),
    "regions": _Kind("region", builtin=_regions),
    "networks": _Kind("network", _network, _networks),
    "subnetworks": _Kind("subnetwork", _subnetwork, _subnetworks),
    "firewalls": _Kind("firewall", _firewall, _firewalls),
    "disks": _Kind("disk", _disk),
    "instances": _Kind("instance", _instance),
    "operations": _Kind("operation"),
}
