"""Creation and changes of buckets: locations, caches, and policies with conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

B = "/storage/v1/b"
GRANT: dict[str, Any] = {"role": "roles/storage.objectViewer", "members": ["user:a@example.com"]}
ONCE: dict[str, Any] = {**GRANT, "condition": {"title": "t", "expression": "request.time < timestamp('2027-01-01')"}}


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    administration.add_bucket(sandbox_state, "data", location="us-central2")
    return Wire(sandbox_state)


def test_insert_bucket_returns_the_requested_fields(wire: Wire) -> None:
    body = {"name": "new", "location": "us-central2", "versioning": {"enabled": True}, "projectNumber": "1"}

    made = wire("POST", f"{B}?project=sandbox", body)

    assert wire("GET", f"{B}/new") == made
    assert (made["location"], made["versioning"], made["projectNumber"]) == (
        "US-CENTRAL2",
        {"enabled": True},
        administration.project_number("sandbox"),
    )
    own = "Your previous request to create the named bucket succeeded and you already own it."
    assert wire("POST", f"{B}?project=sandbox", body) == (409, "conflict", own)
    assert wire("POST", f"{B}?project=other", body)[2].startswith("The requested bucket name is not available.")
    assert wire("POST", f"{B}?project=sandbox", {"name": "NO"})[0] == 400


def test_patch_bucket_keeps_unnamed_fields(wire: Wire) -> None:
    administration.add_bucket(
        wire.state, "kept", retentionPolicy={"retentionPeriod": "60"}, labels={"a": "1", "b": "2"}
    )

    changed = wire("PATCH", f"{B}/kept?ifMetagenerationMatch=1", {"retentionPolicy": None, "labels": {"a": None}})

    assert ("retentionPolicy" in changed, changed["labels"], changed["metageneration"]) == (False, {"b": "2"}, "2")
    assert wire("GET", f"{B}/kept") == changed
    assert wire("PATCH", f"{B}/kept?ifMetagenerationMatch=1", {})[0] == 412


def test_patch_of_a_locked_retention_policy_is_rejected(wire: Wire) -> None:
    administration.add_bucket(wire.state, "locked", retentionPolicy={"retentionPeriod": "60", "isLocked": True})

    assert wire("PATCH", f"{B}/locked", {"retentionPolicy": None})[0] == 403


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"location": "EUROPE-WEST4"}, "region"),
        ({"location": "EUR4"}, "dual-region"),
        ({"location": "EU", "customPlacementConfig": {"dataLocations": ["EUROPE-WEST1", "EUROPE-WEST4"]}}, "dual-region"),
        ({"location": "US"}, "multi-region"),
        (
            {
                "location": "US-CENTRAL1",
                "customPlacementConfig": {"dataLocations": ["US-CENTRAL1-A"]},
                "hierarchicalNamespace": {"enabled": True},
            },
            "zone",
        ),
    ],
)  # fmt: skip
def test_storage_layout_needs_only_the_list_permission(wire: Wire, fields: dict[str, Any], kind: str) -> None:
    administration.add_bucket(wire.state, "placed", denied=["storage.buckets.get"], **fields)

    assert wire("GET", f"{B}/placed")[0] == 403
    assert wire("GET", f"{B}/placed/storageLayout") == {
        "kind": "storage#storageLayout",
        "bucket": "placed",
        "locationType": kind,
        **fields,
    }
    administration.add_bucket(wire.state, "placed", denied=["storage.objects.list"], **fields)
    assert wire("GET", f"{B}/placed/storageLayout")[0] == 403


def test_zonal_bucket_is_in_the_region_with_a_placement(wire: Wire) -> None:
    made = administration.add_bucket(wire.state, "rapid", location="us-central1-a")

    assert wire("GET", f"{B}/rapid") == made
    assert (made["location"], made["locationType"], made["storageClass"]) == ("US-CENTRAL1", "zone", "RAPID")
    assert wire("GET", f"{B}/rapid/storageLayout")["customPlacementConfig"] == {"dataLocations": ["US-CENTRAL1-A"]}


def test_caches_of_a_bucket_are_those_added(wire: Wire) -> None:
    first = administration.add_cache(wire.state, "data", "us-central2-a")
    second = administration.add_cache(wire.state, "data", "us-central2-b", state="PAUSED")

    assert wire("GET", f"{B}/data/anywhereCaches")["items"] == [first, second]
    assert (first["state"], first["zone"], second["state"]) == ("RUNNING", "us-central2-a", "PAUSED")
    with pytest.raises(ApiError, match="does not exist"):
        administration.add_cache(wire.state, "none", "us-central2-a")


def test_rewrite_copies_bytes_and_metadata(wire: Wire) -> None:
    administration.add_bucket(wire.state, "far", location="EUROPE-WEST4", denied=["storage.objects.create"])
    administration.add_bucket(wire.state, "near", location="US-CENTRAL2", storageClass="ARCHIVE")
    administration.add_object(wire.state, "data", "a/b", "content", contentType="text/plain", metadata={"k": "v"})
    path = f"{B}/data/o/a%2Fb/rewriteTo/b"

    answer = wire("POST", f"{path}/near/o/c", {})

    copy = answer["resource"]
    assert (answer["done"], answer["objectSize"], copy["name"], copy["bucket"]) == (True, "7", "c", "near")
    assert (copy["contentType"], copy["metadata"], copy["storageClass"]) == ("text/plain", {"k": "v"}, "ARCHIVE")
    assert wire.send("GET", f"{B}/near/o/c?alt=media").body == b"content"
    over = wire("POST", f"{B}/near/o/c/rewriteTo/b/near/o/c", {"storageClass": "STANDARD"})
    assert over["resource"]["storageClass"] == "STANDARD"
    assert wire("POST", f"{path}/near/o/c?ifGenerationMatch=0", {})[0] == 412
    assert wire("POST", f"{path}/far/o/c", {})[0] == 403
    assert wire("POST", f"{B}/data/o/none/rewriteTo/b/near/o/c", {})[:2] == (404, "notFound")


def test_policy_conditions_are_shown_only_for_version_3(wire: Wire) -> None:
    administration.set_iam_policy(wire.state, [GRANT, ONCE], bucket="data")

    whole = wire("GET", f"{B}/data/iam?optionsRequestedPolicyVersion=3")
    short = wire("GET", f"{B}/data/iam")

    assert (whole["version"], whole["bindings"]) == (3, [GRANT, ONCE])
    hidden = short["bindings"][1]
    assert (short["version"], short["bindings"][0], set(hidden)) == (1, GRANT, {"role", "members"})
    assert hidden["role"].startswith("roles/storage.objectViewer_withcond_")
    administration.set_iam_policy(wire.state, [GRANT])
    asked = {"options": {"requestedPolicyVersion": 3}}
    assert wire("POST", "/v3/projects/sandbox:getIamPolicy", asked)["version"] == 1


def test_set_policy_with_conditions_needs_version_3(wire: Wire) -> None:
    assert wire("PUT", f"{B}/data/iam", {"bindings": [ONCE]})[0] == 400
    assert wire("PUT", f"{B}/data/iam", {"version": 3, "bindings": [ONCE]})["bindings"] == [ONCE]


def test_test_iam_permissions_on_another_owners_bucket_is_allowed(wire: Wire) -> None:
    administration.add_bucket(wire.state, "strange", project="other", denied=["*"])

    asked = "iam/testPermissions?permissions=storage.objects.get"

    assert wire("GET", f"{B}/strange/{asked}") == {"kind": "storage#testIamPermissionsResponse"}
    assert wire("GET", f"{B}/strange/iam")[0] == 403
