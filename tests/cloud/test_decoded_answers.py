"""Models of answers: each agrees with the API's discovery document, and no value of a field causes a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints

import pytest

from tests.cloud.discovered import load, plain
from tpuctl.cloud import projects, requests, storage, tpu
from tpuctl.cloud.projects import LoginProfile
from tpuctl.decoding import MAX_JSON_DEPTH, By, ShapeError, decoder_of, json_paths, parse_json
from tpuctl.models import bucket, compute_resources, project
from tpuctl.models.bucket import AnywhereCache, Bucket, BucketPlacement
from tpuctl.models.compute_resources import (
    ComputeInstance,
    ComputeNetwork,
    FirewallRule,
    PersistentDisk,
    RegionQuota,
    Subnetwork,
)
from tpuctl.models.node import Maintenance, Node
from tpuctl.models.operation import Operation, OperationError
from tpuctl.models.project import GrantedPermissions, IamPolicy, OrgPolicy, Project, QuotaLimit, Reservation
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import NodeSpec
from tpuctl.nodes.costs import CostFacts, node_rates
from tpuctl.nodes.rendering import node_details, node_json, node_rows

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)


def undocumented(kind: Any, spec: Json, document: Json, path: str) -> Iterator[str]:
    """Yield the declared fields of a class that a schema of a discovery document does not have."""
    hints = get_type_hints(kind, include_extras=True)
    for name, place in json_paths(kind).items():
        inner, at = spec, path
        for key in place.split("."):
            inner = document["schemas"][inner["$ref"]] if "$ref" in inner else inner
            if key not in inner.get("properties", {}):
                yield f"{at}.{key}"
                break
            inner, at = inner["properties"][key], f"{at}.{key}"
        else:
            for of_items in classes_in(hints[name]):
                yield from undocumented(of_items, within(inner, document), document, at)


def classes_in(kind: Any) -> Iterator[Any]:
    """Yield the dataclasses of an annotation that its decoder reads field by field."""
    if isinstance(kind, type) and is_dataclass(kind) and kind not in {ComputeInstance, LoginProfile}:
        yield kind
    parts = get_args(kind)
    if not any(isinstance(part, By) for part in parts):
        for part in parts:
            yield from classes_in(part)


def within(spec: Json, document: Json) -> Json:
    while "items" in spec or "$ref" in spec or "additionalProperties" in spec:
        inner = spec.get("items") or spec.get("additionalProperties") or spec
        spec = document["schemas"][inner["$ref"]] if "$ref" in inner else inner
    return spec


# Each class that is declared for an answer of an API, and its schema. They say nothing of other classes.
DECLARED: tuple[tuple[type[Any], str], ...] = (
    (Node, "tpu.v2 Node"),
    (QueuedResource, "tpu.v2 QueuedResource"),
    (Maintenance, "tpu.v2 UpcomingMaintenance"),
    (Operation, "tpu.v2 Operation"),
    (OperationError, "tpu.v2 Status"),
    (Reservation, "tpu.v2alpha1 Reservation"),
    (tpu._Entry, "tpu.v2 Location"),
    (tpu._Resource, "tpu.v2 AcceleratorType"),
    (tpu._GuestAttributes, "tpu.v2 GetGuestAttributesResponse"),
    (requests._Page, "compute.v1 InstanceAggregatedList"),
    (bucket.BucketPlacement, "storage.v1 BucketStorageLayout"),
    (bucket.Bucket, "storage.v1 Bucket"),
    (bucket._Cache, "storage.v1 AnywhereCache"),
    (storage._Head, "storage.v1 Object"),
    (storage._Listed, "storage.v1 Object"),
    (Project, "cloudresourcemanager.v3 Project"),
    (IamPolicy, "cloudresourcemanager.v3 Policy"),
    (IamPolicy, "storage.v1 Policy"),
    (GrantedPermissions, "cloudresourcemanager.v3 TestIamPermissionsResponse"),
    (project._Policy, "orgpolicy.v2 GoogleCloudOrgpolicyV2Policy"),
    (project._QuotaMetric, "serviceusage.v1beta1 ConsumerQuotaMetric"),
    (projects._Service, "serviceusage.v1 GoogleApiServiceusageV1Service"),
    (projects._Billing, "cloudbilling.v1 ProjectBillingInfo"),
    (projects._Role, "iam.v1 Role"),
    (projects._ProjectMetadata, "compute.v1 Project"),
    (projects._Region, "compute.v1 Region"),
    (projects._ComputeOperation, "compute.v1 Operation"),
    (projects._ZoneOfMachines, "compute.v1 InstancesScopedList"),
    (projects._Profile, "oslogin.v1 LoginProfile"),
    (projects._Imported, "oslogin.v1 ImportSshPublicKeyResponse"),
    (projects._User, "oauth2.v2 Userinfo"),
    (compute_resources._Instance, "compute.v1 Instance"),
    (PersistentDisk, "compute.v1 Disk"),
    (ComputeNetwork, "compute.v1 Network"),
    (Subnetwork, "compute.v1 Subnetwork"),
    (FirewallRule, "compute.v1 Firewall"),
    (compute_resources._Traffic, "compute.v1 Firewall"),
    (RegionQuota, "compute.v1 Quota"),
)
# Not of the API.
OWN = {"raw", "placement", "wasSent", "denies", "protocols"}
# API v2alpha1 alone has these of a node and of a queued resource.
ALPHA = {
    *("multiNodeParams", "bestEffort", "provisioningModel", "runDuration", "reservationName", "diskSizeGb"),
    *("autocheckpointEnabled", "guaranteed", "reserved"),
}


@pytest.mark.parametrize(("kind", "schema"), DECLARED)
def test_declared_fields_are_in_the_discovery_document(kind: type[Any], schema: str) -> None:
    """A field that the document does not have would never be read."""
    document, name = schema.split()
    found = load(*document.split("."))

    missing = {path.rpartition(".")[2] for path in undocumented(kind, {"$ref": name}, found, name)}

    assert missing - OWN - (ALPHA if document == "tpu.v2" else {"unreachable"}) == set()


def read_node(data: Any) -> Any:
    """Read a node, and every property of it."""
    node = Node.from_api(data)
    spec = NodeSpec.from_node(node)
    (rate,) = node_rates([node], CostFacts(NOW))
    shown = (
        node_rows([node], NOW),
        list(node_details(node, NOW)),
        node_json(node, rate, NOW, since=node.created),
        spec.differences(node),
    )
    return properties(node), spec.to_api(), json.dumps(spec.to_json()), shown


def properties(noun: Any) -> Any:
    return {name: getattr(noun, name) for name in dir(type(noun)) if not name.startswith("_") and name != "raw"}


NOUNS: dict[str, tuple[Callable[[Any], Any], tuple[str, str, str], type[Any]]] = {
    "node": (read_node, ("tpu", "v2", "Node"), Node),
    "queued resource": (
        lambda data: properties(QueuedResource.from_api(data)),
        ("tpu", "v2", "QueuedResource"),
        QueuedResource,
    ),
    "operation": (lambda data: properties(Operation.from_api(data)), ("tpu", "v2", "Operation"), Operation),
    "reservation": (decoder_of(Reservation), ("tpu", "v2alpha1", "Reservation"), Reservation),
    "bucket": (decoder_of(Bucket), ("storage", "v1", "Bucket"), Bucket),
    "layout": (decoder_of(BucketPlacement), ("storage", "v1", "BucketStorageLayout"), BucketPlacement),
    "cache": (decoder_of(AnywhereCache), ("storage", "v1", "AnywhereCache"), bucket._Cache),
    "policy": (decoder_of(IamPolicy), ("cloudresourcemanager", "v3", "Policy"), IamPolicy),
    "project": (lambda data: properties(decoder_of(Project)(data)), ("cloudresourcemanager", "v3", "Project"), Project),
    "constraint": (decoder_of(OrgPolicy), ("orgpolicy", "v2", "GoogleCloudOrgpolicyV2Policy"), project._Policy),
    "limits": (QuotaLimit.all_from_api, ("serviceusage", "v1beta1", "ConsumerQuotaMetric"), project._QuotaMetric),
    "network": (decoder_of(ComputeNetwork), ("compute", "v1", "Network"), ComputeNetwork),
    "subnetwork": (decoder_of(Subnetwork), ("compute", "v1", "Subnetwork"), Subnetwork),
    "firewall": (decoder_of(FirewallRule), ("compute", "v1", "Firewall"), FirewallRule),
    "region quota": (decoder_of(RegionQuota), ("compute", "v1", "Quota"), RegionQuota),
    "machine": (decoder_of(ComputeInstance), ("compute", "v1", "Instance"), compute_resources._Instance),
    "disk": (decoder_of(PersistentDisk), ("compute", "v1", "Disk"), PersistentDisk),
}
DEEP: Any = []
for _ in range(MAX_JSON_DEPTH + 1):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    *(None, True, 7, -7, 10**19, 0.5, "", "x", "a\nb", "-oProxyCommand=x", "9" * 30, "٣", "x" * 100_000),
    *("9999-12-31T23:59:59Z", "2026-02-31T00:00:00Z", "v4-" + "9" * 9, "1" * 5000),
    *([], [None], [[]], [5], ["x"], [{}], {}, {"k": None}, {"k": 5}, {"k": []}, {"a\nb": "x"}, DEEP, {"k": DEEP}),
)


def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value within a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (key,)
        yield from ((key, *rest) for rest in places(inner))


def changed(value: Any, path: tuple[str | int, ...], to: Any) -> Any:
    copied = copy.copy(value)
    copied[path[0]] = changed(value[path[0]], path[1:], to) if path[1:] else to
    return copied


@pytest.mark.parametrize("noun", NOUNS)
def test_each_field_with_each_odd_value_is_read_or_is_one_error(noun: str) -> None:
    """Any other exception fails here, also one of a property that reads the model later."""
    read, schema, kind = NOUNS[noun]
    whole = plain(*schema)
    read(whole)
    errors = []
    keys = {path.partition(".")[0] for path in json_paths(kind).values()}
    for path in places({key: whole[key] for key in keys if key in whole}):
        for odd in ODD:
            try:
                read(changed(whole, path, odd))
            except ShapeError as error:
                errors.append((str(path[0]), str(error)))

    assert errors
    assert [text for field, text in errors if not text.startswith(field) or not text.isprintable()] == []


@pytest.mark.parametrize("noun", NOUNS)
def test_unknown_fields_and_unknown_values_of_enums_are_accepted(noun: str) -> None:
    read, schema, _ = NOUNS[noun]
    whole = plain(*schema)

    read(
        {
            **whole,
            "newField": {"x": [None, 1.5]},
            **({"state": "NEW_STATE"} if isinstance(whole.get("state"), str) else {}),
        }
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param({}, "`name` is missing", id="no name"),
        pytest.param([], "expected an object", id="no object"),
        pytest.param(
            {"name": "projects/p/locations/z/nodes/n\n"}, "name: expected a full resource name", id="line end"
        ),
        pytest.param({"name": "projects/p/locations/z/nodes/../x"}, "name: expected a full resource name", id="path"),
        pytest.param({"labels": {"a\x1b": 1}}, r'labels["a\u001b"]: expected a string', id="key"),
        pytest.param({"networkEndpoints": [{}, None]}, "networkEndpoints[1]: expected an object", id="null item"),
        pytest.param(
            {"networkEndpoints": [{"accessConfig": {"externalIp": "-oX"}}]},
            "networkEndpoints[0].accessConfig.externalIp: expected an IP address",
            id="address",
        ),
        pytest.param({"createTime": "yesterday"}, "createTime: expected a time like 2026-01-31T08:00:00Z", id="time"),
        pytest.param({"new": DEEP}, "new: expected at most 64 levels", id="deep"),
        pytest.param({"serviceAccount": 5}, "serviceAccount: expected an object", id="parent"),
        pytest.param({"serviceAccount": {"email": 5}}, "serviceAccount.email: expected a string", id="path"),
        pytest.param({"labels": None}, "labels: expected an object", id="null"),
        pytest.param(
            {"metadata": {"key": ["a secret"]}}, "metadata.key: expected a string", id="no value in the error"
        ),
        pytest.param(
            {"bootDiskConfig": {"diskSizeGb": "-1"}},
            "bootDiskConfig.diskSizeGb: expected a whole number, not negative",
            id="number in a text",
        ),
    ],
)
def test_error_names_the_path_and_the_expected_type(data: Any, text: str) -> None:
    with pytest.raises(ShapeError) as raised:
        Node.from_api(data)

    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(b"[" * 100_000, "nested too deep", id="brackets"),
        pytest.param(b'{"a":' * 100_000, "nested too deep", id="braces"),
        pytest.param(b"1" * 5000, "a number is too large", id="5,000 digits"),
        pytest.param(b"-Infinity", "-Infinity is not JSON", id="infinity"),
        pytest.param(b'"\\ud83d"', "not UTF-8", id="half of a pair"),
        pytest.param('"ä"'.encode("utf-16"), "not UTF-8", id="utf-16"),
        pytest.param(b" " * (64 << 20) + b"1", "more than 64 MiB", id="too long"),
    ],
)
def test_json_with_unusable_numbers_or_depth_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(ShapeError) as raised:
        parse_json(content)

    assert str(raised.value) == text


def test_request_for_a_billion_nodes_is_refused_before_names_are_created() -> None:
    several = {"nodeCount": 10**9, "nodeIdPrefix": "n"}
    request = {"name": "projects/p/locations/z/queuedResources/q", "tpu": {"nodeSpec": [{"multisliceParams": several}]}}

    with pytest.raises(
        ShapeError, match=r"nodeSpec\[0\].multisliceParams.nodeCount: expected a number of nodes, at most"
    ):
        QueuedResource.from_api(request)
