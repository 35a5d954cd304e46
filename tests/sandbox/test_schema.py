"""Validation of requests before any handler, and its error messages."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import tpu_v1, tpu_v2, tpu_v2alpha1

from tests.sandbox.response_schema import check_response_body
from tpuctl.sandbox.api_calls import ApiError, Call
from tpuctl.sandbox.discovery import (
    check_request,
    decode_json,
    enum_numbers,
    load_document,
    route_request,
    snake_case,
)

ZONE = "/v2/projects/p/locations/us-central2-b"
CREATE = f"{ZONE}/nodes"


def check(method: str, path: str, query: tuple[tuple[str, str], ...] = (), body: Any = None) -> Call:
    found = route_request(method, path)
    assert found is not None
    return check_request(found, query, body)


def refusals(
    method: str, path: str, query: tuple[tuple[str, str], ...] = (), body: Any = None
) -> list[tuple[Any, str]]:
    with pytest.raises(ApiError) as caught:
        check(method, path, query, body)
    error = caught.value
    (detail,) = error.details
    violations = [(v.get("field"), v["description"]) for v in detail["fieldViolations"]]
    assert (error.code, error.status, detail["@type"]) == (
        400,
        "INVALID_ARGUMENT",
        "type.googleapis.com/google.rpc.BadRequest",
    )
    assert error.message == "\n".join(description for _, description in violations)
    return violations


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", f"{ZONE}/nodes/x", ("v2", "tpu.projects.locations.nodes.get")),
        ("GET", "/v2/projects/p/locations/-/nodes", ("v2", "tpu.projects.locations.nodes.list")),
        ("POST", f"{ZONE}/nodes/x:start", ("v2", "tpu.projects.locations.nodes.start")),
        ("POST", f"{ZONE}/nodes/x", None),
        ("GET", f"{ZONE}/nodes/x/y", None),
        ("GET", "/v1/projects/p/locations", ("v1", "tpu.projects.locations.list")),
        ("GET", "/v1/projects/p/services/tpu.googleapis.com", ("v1", "serviceusage.services.get")),
        (
            "GET",
            "/v2alpha1/projects/p/locations/z/reservations",
            ("v2alpha1", "tpu.projects.locations.reservations.list"),
        ),
        ("GET", "/storage/v1/b/bucket/iam/testPermissions", ("v1", "storage.buckets.testIamPermissions")),
        ("GET", "/compute/v1/projects/example.com:p", ("v1", "compute.projects.get")),
        ("GET", "/v3/projects/p", ("v3", "cloudresourcemanager.projects.get")),
        ("GET", "/v9/projects/p", None),
    ],
)
def test_path_means_a_method_of_one_version(method: str, path: str, expected: tuple[str, str] | None) -> None:
    found = route_request(method, path)

    assert (found and (found.document.service.version, found.method.id)) == expected


def test_every_tpu_method_is_found_under_its_path() -> None:
    lost = []
    for version in ("v1", "v1alpha1", "v2", "v2alpha1"):
        for method in load_document("tpu", version).methods:
            path = "/".join("thing" + part.partition("}")[2] if part[0] == "{" else part for part in method.flat_path)
            found = route_request(method.http_method, f"/{version}/{path}")
            if found is None or (found.method, found.document.service.version) != (method, version):
                lost.append((version, method.id))

    assert lost == []


def test_request_is_read_as_proto3_json() -> None:
    """Enum numbers, snake_case names, numbers as text, null, and fields that only the service writes."""
    body = {
        "runtime_version": "tpu-ubuntu2204-base",
        "acceleratorConfig": {"type": 7, "topology": "2x2x1"},
        "schedulingConfig": {"spot": "true", "reserved": None},
        "networkConfig": {"queueCount": "4"},
        "bootDiskConfig": None,
        "state": 8,
        "id": 12,
        "createTime": "2026-01-01T00:00:00.123456789Z",
        "labels": {"someKey": "v"},
    }

    call = check("POST", CREATE, (("node_id", "x"), ("$alt", "json;enum-encoding=int"), ("prettyPrint", "false")), body)

    assert call == Call(
        "v2",
        "tpu.projects.locations.nodes.create",
        {"parent": "projects/p/locations/us-central2-b", "nodeId": "x"},
        {
            "runtimeVersion": "tpu-ubuntu2204-base",
            "acceleratorConfig": {"type": "V4", "topology": "2x2x1"},
            "schedulingConfig": {"spot": True},
            "networkConfig": {"queueCount": 4},
            "state": "STOPPED",
            "id": "12",
            "createTime": "2026-01-01T00:00:00.123456789Z",
            "labels": {"someKey": "v"},
        },
    )


def test_all_errors_of_a_body_are_reported_at_once() -> None:
    body = {
        "runtimeVersion": "r",
        "foo": 1,
        "networkConfig": {"enableExternalIps": "abc", "bar": 1, "network": ["n"]},
        "labels": {"a": 5},
        "acceleratorConfig": {"type": "V9", "topology": "1"},
        "schedulingConfig": 3,
        "dataDisks": [{"sourceDisk": "d"}, {"mode": 9, "x": 1}],
        "createTime": "yesterday",
    }
    unknown = "Invalid JSON payload received. Unknown name"
    invalid = "Invalid value at"
    package = "type.googleapis.com/google.cloud.tpu.v2"

    assert refusals("POST", CREATE, (("nodeId", "x"),), body) == [
        ("node", f"{unknown} \"foo\" at 'node': Cannot find field."),
        (
            "node.network_config.enable_external_ips",
            f"{invalid} 'node.network_config.enable_external_ips' (TYPE_BOOL), \"abc\"",
        ),
        ("node.network_config", f"{unknown} \"bar\" at 'node.network_config': Cannot find field."),
        (
            "node.network_config",
            f"{unknown} \"network\" at 'node.network_config': Proto field is not repeating, cannot start list.",
        ),
        ("node.labels[0].value", f"{invalid} 'node.labels[0].value' (TYPE_STRING), 5"),
        (
            "node.accelerator_config.type",
            f"{invalid} 'node.accelerator_config.type' ({package}.AcceleratorConfig.Type), \"V9\"",
        ),
        ("node.scheduling_config", f"{invalid} 'node.scheduling_config' ({package}.SchedulingConfig), 3"),
        ("node.data_disks[1].mode", f"{invalid} 'node.data_disks[1].mode' ({package}.AttachedDisk.DiskMode), 9"),
        ("node.data_disks[1]", f"{unknown} \"x\" at 'node.data_disks[1]': Cannot find field."),
        (
            "node.create_time",
            (
                f"{invalid} 'node.create_time' (type.googleapis.com/google.protobuf.Timestamp), Field 'createTime', Illegal "
                "timestamp format; timestamps must end with 'Z' or have a valid timezone offset."
            ),
        ),
    ]


def test_required_fields_are_checked_for_create_but_not_for_patch() -> None:
    text = 'Cloud TPU received an invalid argument. The field "RuntimeVersion" cannot be "".'

    assert refusals("POST", CREATE, (("nodeId", "x"),), {}) == [("node.runtime_version", text)]
    patched = check("PATCH", f"{ZONE}/nodes/x", (("updateMask", "data_disks,labels"),), {"labels": {}})
    assert patched.params["updateMask"] == "data_disks,labels"
    assert patched.body == {"labels": {}}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (("pageSize", "5"), 5),
        (("page_size", "5"), 5),
        (("pageSize", "x"), [("page_size", "Invalid value at 'page_size' (TYPE_INT32), \"x\"")]),
        (
            ("foo", "1"),
            [
                (
                    None,
                    (
                        'Invalid JSON payload received. Unknown name "foo": Cannot bind query parameter. '
                        "Field 'foo' could not be found in request message."
                    ),
                )
            ],
        ),
    ],
)
def test_query_is_checked(query: tuple[str, str], expected: Any) -> None:
    if isinstance(expected, int):
        assert check("GET", CREATE, (query,)).params["pageSize"] == expected
    else:
        assert refusals("GET", CREATE, (query,)) == expected


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_query_boolean_is_read_in_any_case(text: str) -> None:
    """Gcloud writes `force=True`, Google's Python library `force=true`."""
    assert check("DELETE", f"{ZONE}/queuedResources/q", (("force", text),)).params["force"] is True


def test_body_must_be_an_object() -> None:
    root = 'Invalid JSON payload received. Unknown name "": Root element must be a message.'

    assert refusals("POST", CREATE, (), [1]) == [(None, root)]


@pytest.mark.parametrize(
    "body",
    [b'{"a":', b'{"a":1 "b":2}', b"{a:1}", b'{"a":NaN}', b'{"a":1}x', b"\xff", b'{"a":"\\ud800"}', b"9" * 5000],
    ids=["end", "comma", "key", "constant", "more", "UTF-8", "surrogate", "number"],
)
def test_broken_json_is_rejected(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decode_json(body)

    assert (caught.value.code, caught.value.message) == (400, "Invalid JSON payload received. Unexpected token.")


def test_too_deep_nesting_is_rejected() -> None:
    with pytest.raises(ApiError, match="Message too deep"):
        decode_json(b"[" * 100_000)


def test_response_outside_the_schema_is_described() -> None:
    good = {"name": "projects/p/locations/z/nodes/x", "state": "READY", "id": "1", "networkEndpoints": [{"port": 8470}]}
    bad = {"name": 1, "state": "GONE", "id": 1, "networkEndpoints": {"port": 1}, "zone": "z", "labels": {"a": 1}}

    assert check_response_body("v2", "Node", good) == []
    assert check_response_body("v2", "Node", bad) == [
        "name: 1 is not of the type string",
        "state: 'GONE' is not one of its values",
        "id: 1 is not of the type string",
        "networkEndpoints: {'port': 1} is not of the type array",
        "zone: unknown field",
        "labels.a: 1 is not of the type string",
    ]


@pytest.mark.parametrize(("version", "library"), [("v1", tpu_v1), ("v2", tpu_v2), ("v2alpha1", tpu_v2alpha1)])
def test_enum_numbers_are_those_of_googles_library(version: str, library: Any) -> None:
    checked, differing = 0, {}
    for name, schema in load_document("tpu", version).schemas.items():
        fields = getattr(library, name).meta.fields if hasattr(library, name) else {}
        for field, spec in schema.get("properties", {}).items():
            declared = fields.get(snake_case(field)) or fields.get(f"{snake_case(field)}_")
            if "enum" not in spec or declared is None:
                continue
            checked += 1
            known = {member.name: member.value for member in declared.enum}
            ours = enum_numbers(name, field, spec["enum"])
            wrong = {word: number for word, number in ours.items() if known.get(word, number) != number}
            differing.update({f"{name}.{field}": wrong} if wrong else {})

    assert (checked >= 4, differing) == (True, {})
