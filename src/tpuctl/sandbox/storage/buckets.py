"""Buckets, and access to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.sandbox import catalog, cloudbilling, iam, paging, projects, rendering
from tpuctl.sandbox.calls import Call
from tpuctl.sandbox.storage import refusals

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.world import Session

KIND = "storage.bucket"
_LINK = "https://www.googleapis.com/storage/v1/b"
# Source: the documentation of bucket locations. All other locations are regions or zones.
_MULTI_REGIONS = frozenset({"US", "EU", "ASIA"})
_DUAL_REGIONS = frozenset({"ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4"})
_ZONE = re.compile(r".+\d-[A-Z]")
_LARGEST_PAGE = 1000  # API field text of buckets.list and objects.list


class Bucket(NamedTuple):
    """A bucket as the API shows it, its project, and the permissions that the caller lacks on it."""

    project: str
    document: Json
    denied: tuple[str, ...]


def add(session: Session, project: str, name: str, *, fields: Json, denied: tuple[str, ...]) -> Json:
    """Store a bucket; `fields` override the service's defaults. Return it as the API shows it."""
    requested = str(fields.get("location") or "").upper()
    if _ZONE.fullmatch(requested):
        # A zonal bucket is in the region, placed in the zone. Observed in what two programs read of such buckets; gcloud 528
        # creates them so, with `--placement`.
        placement = {
            "customPlacementConfig": {"dataLocations": [requested]},
            "hierarchicalNamespace": {"enabled": True},
        }
        fields = {"storageClass": "RAPID", **placement, **fields, "location": requested.rpartition("-")[0]}
    location = str(fields.get("location") or "US").upper()
    placed = bool(fields.get("customPlacementConfig"))
    now = rendering.milliseconds(session.now)
    document: Json = {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "selfLink": f"{_LINK}/{name}",
        "projectNumber": str(catalog.project_number(project)),
        "generation": str(int(session.now.timestamp() * 1_000_000)),
        "metageneration": "1",
        "locationType": location_type(location, is_placed=placed),
        "storageClass": "STANDARD",
        "etag": "CAE=",
        "timeCreated": now,
        "updated": now,
        "iamConfiguration": {
            "bucketPolicyOnly": {"enabled": True},
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "inherited",
        },
        # API documentation: seven days unless the bucket says otherwise.
        "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": now},
        **fields,
        "location": location,
    }
    if location in _MULTI_REGIONS | _DUAL_REGIONS:
        document.setdefault("rpo", "DEFAULT")
    if found := session.resources.find(KIND, name):
        session.resources.delete(KIND, found.parent, name)
    session.resources.put(KIND, project, name, {"document": document, "denied": list(denied)})
    return document


def location_type(location: str, *, is_placed: bool) -> str:
    """Return the type of a location in upper case; `is_placed`: the bucket names the data locations in it.

    A bucket in a region with a placement is a zonal bucket.
    """
    if location in _DUAL_REGIONS or (is_placed and location in _MULTI_REGIONS):
        return "dual-region"
    if location in _MULTI_REGIONS:
        return "multi-region"
    return "zone" if is_placed or _ZONE.fullmatch(location) else "region"


def opened(session: Session, call: Call, permission: str) -> Bucket:
    """Return the bucket of a call. Raises `ApiError` unless the caller has the permission and the call can be billed.

    With an empty permission only billing is checked.
    """
    name = str(call.params["bucket"])
    found = session.resources.find(KIND, name)
    if found is None:
        raise refusals.no_bucket()
    bucket = Bucket(found.parent, found.document["document"], tuple(found.document["denied"]))
    # Documentation: a caller with resourcemanager.projects.createBillingAssignment on the bucket's project needs no project
    # to bill. The sandbox's caller does not have it, as an editor does not.
    payer = str(call.params.get("userProject") or "")
    if not payer and (bucket.document.get("billing") or {}).get("requesterPays"):
        raise refusals.requester_pays()
    if payer and not projects.is_known(session, payer):
        raise refusals.invalid_user_project()
    if payer and iam.is_denied("serviceusage.services.use", projects.denied(session, payer)):
        raise refusals.may_not_bill()
    if permission and iam.is_denied(permission, (*bucket.denied, *projects.denied(session, bucket.project))):
        raise refusals.forbidden(permission)
    if not cloudbilling.is_enabled(session, bucket.project):
        raise refusals.billing_disabled()
    return bucket


def get(session: Session, call: Call) -> Json:
    """Answer buckets.get. Access control lists are never shown: all buckets have uniform access."""
    return opened(session, call, "storage.buckets.get").document


def get_layout(session: Session, call: Call) -> Json:
    """Answer buckets.getStorageLayout, which needs the permission to list objects (API method text)."""
    document = opened(session, call, "storage.objects.list").document
    shown = ("location", "locationType", "customPlacementConfig", "hierarchicalNamespace")
    return {
        "kind": "storage#storageLayout",
        "bucket": document["name"],
        **{key: document[key] for key in shown if key in document},
    }


def list_(session: Session, call: Call) -> Json:
    """Answer buckets.list."""
    project = projects.named(session, str(call.params["project"]))
    if not projects.is_known(session, project):
        raise refusals.unknown_project(project)
    prefix = str(call.params.get("prefix") or "")
    # Only its owner sees a bucket in lists.
    found = [entry.document for entry in session.resources.list_records(KIND, project, prefix=prefix)]
    mine = [entry["document"] for entry in found if not iam.is_denied("storage.buckets.list", entry["denied"])]
    shown, next_token = paging.page(paged(call), mine)
    answer: Json = {"kind": "storage#buckets"}
    if shown:
        answer["items"] = list(shown)
    return {**answer, "nextPageToken": next_token} if next_token else answer


def paged(call: Call) -> Call:
    """Return a call with the usual paging parameters. Raises `ApiError` 400 for a negative size."""
    size = int(call.params.get("maxResults") or _LARGEST_PAGE)
    if size < 0:
        raise refusals.invalid(f"Invalid value for maxResults: {size}.")
    params = {"pageSize": min(size, _LARGEST_PAGE), "pageToken": call.params.get("pageToken")}
    return Call(call.version, call.method, params, {})
