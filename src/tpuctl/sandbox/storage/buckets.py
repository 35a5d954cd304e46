"""Buckets, and who may do what with them."""

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
# Source: the documentation of bucket locations. What is neither, and not a zone, is a region.
_MULTI_REGIONS = frozenset({"US", "EU", "ASIA"})
_DUAL_REGIONS = frozenset({"ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4"})
_ZONE = re.compile(r".+\d-[A-Z]")
_LARGEST_PAGE = 1000  # API field text of buckets.list and objects.list


class Bucket(NamedTuple):
    """A bucket as the API shows it, the project that has it, and the permissions that the caller lacks on it."""

    project: str
    document: Json
    denied: tuple[str, ...]


def add(session: Session, project: str, name: str, *, fields: Json, denied: tuple[str, ...]) -> Json:
    """Keep a bucket; `fields` win over what the service fills in. Return it as the API shows it."""
    fields = _in_a_zone(fields)
    location = str(fields.get("location") or "US").upper()
    placed = bool(fields.get("customPlacementConfig"))
    now = rendering.milliseconds(session.now)
    document: Json = {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "selfLink": f"{_LINK}/{name}",
        "projectNumber": str(catalog.project_number(project)),
        "generation": _microseconds(session),
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
    if found := session.resources.named(KIND, name):
        session.resources.delete(KIND, found.parent, name)
    session.resources.put(KIND, project, name, {"document": document, "denied": list(denied)})
    return document


def _in_a_zone(fields: Json) -> Json:
    """Return the fields of a bucket; one whose location is a zone is in its region, and placed in the zone.

    Observed in what two programs read of zonal buckets; gcloud 528 makes them so, with `--placement`.
    """
    location = str(fields.get("location") or "").upper()
    if not _ZONE.fullmatch(location):
        return fields
    in_zone = {"customPlacementConfig": {"dataLocations": [location]}, "hierarchicalNamespace": {"enabled": True}}
    return {"storageClass": "RAPID", **in_zone, **fields, "location": location.rpartition("-")[0]}


def location_type(location: str, *, is_placed: bool) -> str:
    """Return the kind of place that a location in upper case is; `is_placed` when the bucket says where in it the data is.

    A region with a placement is that of a zonal bucket (see `_in_a_zone`).
    """
    if location in _DUAL_REGIONS or (is_placed and location in _MULTI_REGIONS):
        return "dual-region"
    if location in _MULTI_REGIONS:
        return "multi-region"
    return "zone" if is_placed or _ZONE.fullmatch(location) else "region"


def opened(session: Session, call: Call, permission: str) -> Bucket:
    """Return the bucket that a call names. Raises `ApiError` unless the caller may use it so, and somebody pays.

    Without a permission nothing is asked of the caller.
    """
    name = str(call.params["bucket"])
    found = session.resources.named(KIND, name)
    if found is None:
        raise refusals.no_bucket()
    bucket = Bucket(found.parent, found.document["document"], tuple(found.document["denied"]))
    _check_payer(session, call, bucket)
    if permission and iam.is_denied(permission, (*bucket.denied, *projects.denied(session, bucket.project))):
        raise refusals.forbidden(permission)
    if not cloudbilling.is_enabled(session, bucket.project):
        raise refusals.billing_disabled()
    return bucket


def _check_payer(session: Session, call: Call, bucket: Bucket) -> None:
    # The documentation lets also those pass without a project who have resourcemanager.projects.createBillingAssignment
    # on the bucket's: the sandbox's caller has not, as an editor has not.
    payer = str(call.params.get("userProject") or "")
    if not payer and (bucket.document.get("billing") or {}).get("requesterPays"):
        raise refusals.requester_pays()
    if payer and not projects.is_known(session, payer):
        raise refusals.invalid_user_project()
    if payer and iam.is_denied("serviceusage.services.use", projects.denied(session, payer)):
        raise refusals.may_not_bill()


def get(session: Session, call: Call) -> Json:
    """Answer buckets.get. Access control lists are never shown: the buckets' access is uniform."""
    return opened(session, call, "storage.buckets.get").document


def get_layout(session: Session, call: Call) -> Json:
    """Answer buckets.getStorageLayout: for whoever may list objects (API method text)."""
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
    # Another's bucket is listed to nobody but its owner.
    found = [entry.document for entry in session.resources.under(KIND, project, prefix=prefix)]
    mine = [entry["document"] for entry in found if not iam.is_denied("storage.buckets.list", entry["denied"])]
    shown, following = paging.page(paged(call), mine)
    answer: Json = {"kind": "storage#buckets"}
    if shown:
        answer["items"] = list(shown)
    return {**answer, "nextPageToken": following} if following else answer


def paged(call: Call) -> Call:
    """Return a call with the paging parameters called as everywhere else. Raises `ApiError` 400 for a negative size."""
    size = int(call.params.get("maxResults") or _LARGEST_PAGE)
    if size < 0:
        raise refusals.invalid(f"Invalid value for maxResults: {size}.")
    params = {"pageSize": min(size, _LARGEST_PAGE), "pageToken": call.params.get("pageToken")}
    return Call(call.version, call.method, params, {})


def _microseconds(session: Session) -> str:
    return str(int(session.now.timestamp() * 1_000_000))
