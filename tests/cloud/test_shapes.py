"""Shapes of answers: each agrees with the API's discovery document, and no value of a field causes a traceback."""

from __future__ import annotations

import copy
import json
import pkgutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest

import tpuctl.cloud
import tpuctl.models
from tests.cloud.discovered import load, plain
from tpuctl.models.bucket import ANYWHERE_CACHE, BUCKET, STORAGE_LAYOUT, AnywhereCache, Bucket, BucketPlacement
from tpuctl.models.compute_resources import (
    DISK,
    FIREWALL,
    INSTANCE,
    NETWORK,
    REGION_QUOTA,
    SUBNETWORK,
    ComputeInstance,
    ComputeNetwork,
    FirewallRule,
    PersistentDisk,
    RegionQuota,
    Subnetwork,
)
from tpuctl.models.node import NODE, Node
from tpuctl.models.operation import OPERATION, Operation
from tpuctl.models.project import (
    IAM_POLICY,
    ORG_POLICY,
    PROJECT,
    QUOTA_METRIC,
    RESERVATION,
    IamPolicy,
    OrgPolicy,
    Project,
    QuotaLimit,
    Reservation,
)
from tpuctl.models.queued import QUEUED_RESOURCE, QueuedResource
from tpuctl.models.spec import NodeSpec
from tpuctl.nodes.costs import CostFacts, node_rates
from tpuctl.nodes.rendering import node_details, node_json, node_rows
from tpuctl.shapes import ANY, ITEM, MAX_JSON_DEPTH, ListOf, MapOf, Page, Scalar, Shape, ShapeError, parse_json

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)


def declared() -> Iterator[Any]:
    """Yield each shape and each page that a module of the client declares, with its module and name."""
    for package in (tpuctl.models, tpuctl.cloud):
        for found in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{found.name}")
            for name, value in vars(module).items():
                if isinstance(value, Shape | Page) and value.schema:
                    yield pytest.param(value, id=f"{found.name}.{name}")


def disagreements(kind: Any, spec: dict[str, Any], document: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the fields whose declared type differs from the discovery document."""
    spec = document["schemas"][spec["$ref"]] if "$ref" in spec else spec
    if isinstance(kind, Shape) and kind.schema and "properties" not in spec:
        # Of an operation's metadata the document tells only where its type is described.
        spec = document["schemas"].get(kind.schema.split()[1], spec)
    wanted, found = json_type(kind), spec.get("type")
    if spec.get("format") in {"int64", "uint64", "int32"}:
        found = "integer"
    if wanted not in {found, None}:
        yield f"{path}: {found}, not {wanted}"
    elif isinstance(kind, ListOf):
        yield from disagreements(kind.kind, spec["items"], document, f"{path}[]")
    elif isinstance(kind, Shape):
        for name, inner in kind.fields.items():
            if name in spec.get("properties", {}):
                yield from disagreements(inner, spec["properties"][name], document, f"{path}.{name}")
            else:
                yield f"{path}.{name}: not in the document"


def json_type(kind: Any) -> str | None:
    match kind:
        case ListOf():
            return "array"
        case Shape() | MapOf():
            return "object"
        case Scalar(json_type=found):
            return None if kind in {ANY, ITEM} else found
    return {str: "string", bool: "boolean"}[kind]


@pytest.mark.parametrize("shape", [*declared()])
def test_shape_agrees_with_the_discovery_document(shape: Shape | Page) -> None:
    """A field missing in the document would never be checked; one of another type would refuse valid answers."""
    document, schema = shape.schema.split()
    api, version = document.split(".")
    found = load(api, version)
    body = shape.shape if isinstance(shape, Page) else shape
    # Fields of all lists; API v2alpha1 alone has these of a node and of a queued resource.
    alpha = {"multiNodeParams", "bestEffort", "provisioningModel", "runDuration", "reservationName", "diskSizeGb"}
    own = {"unreachable", "unreachables", "nextPageToken"} if isinstance(shape, Page) else alpha
    wrong = [
        one
        for one in disagreements(body, {"$ref": schema}, found, schema)
        if one.split(":")[0].rpartition(".")[2] not in own
    ]

    assert [one for one in wrong if "guaranteed.reserved" not in one] == []


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


NOUNS: dict[str, tuple[Callable[[Any], Any], tuple[str, str, str], Shape]] = {
    "node": (read_node, ("tpu", "v2", "Node"), NODE),
    "queued resource": (
        lambda data: properties(QueuedResource.from_api(data)),
        ("tpu", "v2", "QueuedResource"),
        QUEUED_RESOURCE,
    ),
    "operation": (lambda data: properties(Operation.from_api(data)), ("tpu", "v2", "Operation"), OPERATION),
    "reservation": (Reservation.from_api, ("tpu", "v2alpha1", "Reservation"), RESERVATION),
    "bucket": (Bucket.from_api, ("storage", "v1", "Bucket"), BUCKET),
    "layout": (BucketPlacement.from_api, ("storage", "v1", "BucketStorageLayout"), STORAGE_LAYOUT),
    "cache": (AnywhereCache.from_api, ("storage", "v1", "AnywhereCache"), ANYWHERE_CACHE),
    "policy": (IamPolicy.from_api, ("cloudresourcemanager", "v3", "Policy"), IAM_POLICY),
    "project": (lambda data: properties(Project.from_api(data)), ("cloudresourcemanager", "v3", "Project"), PROJECT),
    "constraint": (OrgPolicy.from_api, ("orgpolicy", "v2", "GoogleCloudOrgpolicyV2Policy"), ORG_POLICY),
    "limits": (QuotaLimit.all_from_api, ("serviceusage", "v1beta1", "ConsumerQuotaMetric"), QUOTA_METRIC),
    "network": (ComputeNetwork.from_api, ("compute", "v1", "Network"), NETWORK),
    "subnetwork": (Subnetwork.from_api, ("compute", "v1", "Subnetwork"), SUBNETWORK),
    "firewall": (FirewallRule.from_api, ("compute", "v1", "Firewall"), FIREWALL),
    "region quota": (RegionQuota.from_api, ("compute", "v1", "Quota"), REGION_QUOTA),
    "machine": (ComputeInstance.from_api, ("compute", "v1", "Instance"), INSTANCE),
    "disk": (PersistentDisk.from_api, ("compute", "v1", "Disk"), DISK),
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
    read, schema, shape = NOUNS[noun]
    whole = plain(*schema)
    read(whole)
    errors = []
    for path in places({name: whole[name] for name in shape.fields if name in whole}):
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
        pytest.param({}, "name: missing", id="no name"),
        pytest.param([], "expected an object", id="no object"),
        pytest.param(
            {"name": "projects/p/locations/z/nodes/n\n"}, "name: expected a full resource name", id="line end"
        ),
        pytest.param({"name": "projects/p/locations/z/nodes/../x"}, "name: expected a full resource name", id="path"),
        pytest.param({"labels": {"a\x1b": 1}}, r'labels["a\u001b"]: expected text', id="key"),
        pytest.param({"networkEndpoints": [{}, None]}, "networkEndpoints[1]: expected an object", id="null item"),
        pytest.param(
            {"networkEndpoints": [{"accessConfig": {"externalIp": "-oX"}}]},
            "networkEndpoints[0].accessConfig.externalIp: expected an IP address",
            id="address",
        ),
        pytest.param({"createTime": "yesterday"}, "createTime: expected a time like 2026-01-31T08:00:00Z", id="time"),
        pytest.param({"new": DEEP}, "new: expected at most 64 levels", id="deep"),
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
