"""Buckets in the sandbox, lists of their objects, permissions, and the errors of Cloud Storage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.storage_buckets import location_type
from tpuctl.sandbox.storage_objects import select_names

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

B = "/storage/v1/b"
UP = "/upload/storage/v1/b/data/o?uploadType=media"
FAILED = (412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    administration.add_bucket(sandbox_state, "data", location="us-central2")
    return Wire(sandbox_state)


def test_bucket_needs_only_a_name_and_a_location(wire: Wire) -> None:
    assert wire("GET", f"{B}/data?projection=full") == {
        "kind": "storage#bucket",
        "id": "data",
        "name": "data",
        "selfLink": "https://www.googleapis.com/storage/v1/b/data",
        "projectNumber": administration.project_number("sandbox"),
        "generation": "1767225600000000",
        "metageneration": "1",
        "location": "US-CENTRAL2",
        "locationType": "region",
        "storageClass": "STANDARD",
        "etag": "CAE=",
        "timeCreated": "2026-01-01T00:00:00.000Z",
        "updated": "2026-01-01T00:00:00.000Z",
        "iamConfiguration": {
            "bucketPolicyOnly": {"enabled": True},
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "inherited",
        },
        "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": "2026-01-01T00:00:00.000Z"},
    }


@pytest.mark.parametrize(
    ("location", "is_placed", "kind"),
    [
        ("EUROPE-WEST4", False, "region"),
        ("US-CENTRAL1-A", False, "zone"),
        ("NAM4", False, "dual-region"),
        ("US", True, "dual-region"),
        ("EU", False, "multi-region"),
    ],
)
def test_location_type_follows_from_the_name(location: str, is_placed: bool, kind: str) -> None:
    assert location_type(location, is_placed=is_placed) == kind


def test_list_buckets_returns_the_projects_buckets_in_pages(wire: Wire) -> None:
    for name in ("b", "a"):
        administration.add_bucket(wire.state, name, labels={"of": name})
    administration.add_bucket(wire.state, "elsewhere", project="other")
    administration.add_bucket(wire.state, "strange", denied=["*"])

    first = wire("GET", f"{B}?project=sandbox&maxResults=2")
    second = wire("GET", f"{B}?project={administration.project_number('sandbox')}&pageToken={first['nextPageToken']}")

    pages = [[bucket["name"] for bucket in page["items"]] for page in (first, second)]
    assert (pages, "nextPageToken" in second) == ([["a", "b"], ["data"]], False)
    assert wire("GET", f"{B}?project=none") == {"kind": "storage#buckets"}
    assert wire("GET", f"{B}?project=sandbox&maxResults=-1")[0] == 400


def _denied(permission: str, thing: str) -> tuple[int, str, str]:
    message = (
        f"user@example.com does not have {permission} access to the Google Cloud Storage {thing}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )
    return 403, "forbidden", message


def test_errors_have_the_messages_of_the_service(wire: Wire) -> None:
    administration.add_bucket(wire.state, "strange", denied=["*"])
    administration.add_bucket(wire.state, "full", denied=["storage.objects.create"])
    administration.add_bucket(wire.state, "unpaid", project="poor")
    administration.set_billing(wire.state, enabled=False, project="poor")

    assert wire("GET", f"{B}/none") == (404, "notFound", "The specified bucket does not exist.")
    assert wire("GET", f"{B}/data/o/a%2Fb") == (404, "notFound", "No such object: data/a/b")
    assert wire("GET", f"{B}/strange") == _denied("storage.buckets.get", "bucket")
    assert wire("GET", f"{B}/strange/o") == _denied("storage.objects.list", "bucket")
    assert wire("POST", UP.replace("data", "full") + "&name=x", b"x") == _denied("storage.objects.create", "object")
    assert wire("GET", f"{B}/unpaid")[1] == "accountDisabled"
    assert wire("POST", f"{B}/data/o?name=x", {})[1] == "wrongUrlForUpload"
    assert json.loads(wire.send("GET", f"{B}/none").body) == {
        "error": {
            "code": 404,
            "message": "The specified bucket does not exist.",
            "errors": [{"message": "The specified bucket does not exist.", "domain": "global", "reason": "notFound"}],
        }
    }


def test_requester_pays_bucket_needs_a_project_to_bill(wire: Wire) -> None:
    administration.add_bucket(wire.state, "paid", billing={"requesterPays": True})
    error = (400, "required", "Bucket is requester pays bucket but no user project provided.")

    assert wire("GET", f"{B}/paid") == error
    assert wire("GET", f"{B}/paid?userProject=mine")["billing"] == {"requesterPays": True}
    assert wire("GET", f"{B}/paid", x_goog_user_project="mine")["name"] == "paid"

    administration.add_project(wire.state, "mine", denied=["serviceusage.services.use"])
    assert wire("GET", f"{B}/paid?userProject=mine")[::2] == (
        403,
        "user@example.com does not have serviceusage.services.use access to the Google Cloud project.",
    )
    assert wire("GET", f"{B}/paid?userProject=typo")[::2] == (400, "User project specified in the request is invalid.")
    assert wire("GET", f"{B}?project=typo") == (400, "invalid", "Unknown project id: typo")


def test_set_bucket_policy_with_an_old_etag_is_rejected(wire: Wire) -> None:
    before = wire("GET", f"{B}/data/iam")
    grant = {"role": "roles/storage.objectViewer", "members": ["user:a@example.com"]}
    wanted = {**before, "bindings": [*before["bindings"], grant]}
    # gcloud sends bytes in the URL-safe alphabet.
    wanted["etag"] = before["etag"].replace("+", "-").replace("/", "_")

    after = wire("PUT", f"{B}/data/iam", wanted)

    assert (after["bindings"], after["etag"] == before["etag"]) == (wanted["bindings"], False)
    assert wire("PUT", f"{B}/data/iam", wanted) == FAILED
    assert wire("GET", f"{B}/data/iam") == after


def test_test_iam_permissions_returns_the_callers_permissions(wire: Wire) -> None:
    administration.add_bucket(wire.state, "full", denied=["storage.objects.create"])
    asked = "iam/testPermissions?permissions=storage.objects.get&permissions=storage.objects.create"

    assert wire("GET", f"{B}/data/{asked}")["permissions"] == ["storage.objects.get", "storage.objects.create"]
    assert wire("GET", f"{B}/full/{asked}")["permissions"] == ["storage.objects.get"]


@pytest.mark.parametrize(
    ("query", "items", "prefixes"),
    [
        ("", ["a", "a/", "a/b/c", "a/d", "e.txt"], []),
        ("prefix=a/", ["a/", "a/b/c", "a/d"], []),
        ("delimiter=/", ["a", "e.txt"], ["a/"]),
        ("prefix=a/&delimiter=/", ["a/", "a/d"], ["a/b/"]),
        ("matchGlob=**.txt", ["e.txt"], []),
        ("matchGlob=a/*", ["a/", "a/d"], []),
        ("matchGlob={e,f}.*", ["e.txt"], []),
        ("prefix=z", [], []),
        ("softDeleted=true", [], []),
    ],
)
def test_list_objects_selects_names_and_has_the_same_entries_in_pages(
    wire: Wire, query: str, items: list[str], prefixes: list[str]
) -> None:
    for name in ("a/d", "a", "a/", "e.txt", "a/b/c"):
        administration.add_object(wire.state, "data", name)
    seen: tuple[list[str], list[str]] = ([], [])
    token = ""
    for _ in range(9):
        page = wire("GET", f"{B}/data/o?maxResults=1&pageToken={token}&{query}")
        seen[0].extend(entry["name"] for entry in page.get("items", []))
        seen[1].extend(page.get("prefixes", []))
        token = page.get("nextPageToken", "")
        if not token:
            break

    assert seen == (items, prefixes)


def test_invalid_glob_matches_itself() -> None:
    assert [bool(select_names(["a["], {"matchGlob": glob})) for glob in ("a[", "a*", "[z-a]")] == [True, True, False]
