"""Buckets of Cloud Storage, JSON API v1, with their IAM policies and Anywhere Caches.

An Anywhere Cache is a zonal read cache of a bucket; a new one runs at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.sandbox.api_calls import DEFAULT_PROJECT, ApiError, answers, list_response
from tpuctl.sandbox.catalog import number_of_project
from tpuctl.sandbox.representation import millisecond_timestamp
from tpuctl.sandbox.resource_manager import (
    allowed_permissions,
    denied_permissions,
    is_billing_enabled,
    is_known_project,
    is_permission_denied,
    read_iam_policy,
    replace_iam_policy,
    resolve_project,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession, StoredResource

BUCKET_KIND = "storage.bucket"
BUCKET_LINK = "https://www.googleapis.com/storage/v1/b"
# Source: the documentation of bucket locations. All other locations are regions or zones.
_MULTI_REGIONS = frozenset({"US", "EU", "ASIA"})
_DUAL_REGIONS = frozenset({"ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4"})
_ZONE_LOCATION = re.compile(r".+\d-[A-Z]")
CALLER = "user@example.com"


class OpenedBucket(NamedTuple):
    """A bucket as the API shows it, its project, and the permissions that the caller lacks on it."""

    project: str
    document: Json
    denied: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["name"])


def put_bucket(
    session: StateSession, /, name: str, *, project: str = DEFAULT_PROJECT, denied: Iterable[str] = (), **fields: Any
) -> Json:
    """Store a bucket and return it as the API shows it; `fields` override the service's defaults.

    `denied` are the permissions that the caller lacks on it; `("*",)`: a bucket of another owner, 403.
    """
    requested = str(fields.get("location") or "").upper()
    if _ZONE_LOCATION.fullmatch(requested):
        # A zonal bucket is in the region, placed in the zone. Observed in what two programs read of such buckets; gcloud 528
        # creates them so, with `--placement`.
        placement = {
            "customPlacementConfig": {"dataLocations": [requested]},
            "hierarchicalNamespace": {"enabled": True},
        }
        fields = {"storageClass": "RAPID", **placement, **fields, "location": requested.rpartition("-")[0]}
    location = str(fields.get("location") or "US").upper()
    placed = bool(fields.get("customPlacementConfig"))
    now = millisecond_timestamp(session.now)
    document: Json = {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "selfLink": f"{BUCKET_LINK}/{name}",
        "projectNumber": str(number_of_project(project)),
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
    if existing := session.resources.find(BUCKET_KIND, name):
        session.resources.delete(BUCKET_KIND, existing.parent, name)
    session.resources.put(BUCKET_KIND, project, name, {"document": document, "denied": list(denied)})
    return document


def location_type(location: str, *, is_placed: bool) -> str:
    """Return the type of a location in upper case; `is_placed`: the bucket names the data locations in it.

    A bucket in a region with a placement is a zonal bucket.
    """
    if location in _DUAL_REGIONS or (is_placed and location in _MULTI_REGIONS):
        return "dual-region"
    if location in _MULTI_REGIONS:
        return "multi-region"
    return "zone" if is_placed or _ZONE_LOCATION.fullmatch(location) else "region"


def open_bucket(session: StateSession, call: Call, permission: str) -> OpenedBucket:
    """Return the bucket of a call. Raises `ApiError` unless the caller has the permission and the call can be billed.

    With an empty permission only billing is checked.
    """
    name = call["bucket"]
    record = find_bucket(session, name)
    bucket = OpenedBucket(record.parent, record.document["document"], tuple(record.document["denied"]))
    # Documentation: a caller with resourcemanager.projects.createBillingAssignment on the bucket's project needs no project
    # to bill. The sandbox's caller does not have it, as an editor does not.
    payer = call["userProject"]
    if not payer and (bucket.document.get("billing") or {}).get("requesterPays"):
        # Observed: laravel-google-cloud-storage#44.
        raise storage_invalid("Bucket is requester pays bucket but no user project provided.", reason="required")
    if payer and not is_known_project(session, payer):
        raise storage_invalid("User project specified in the request is invalid.")  # observed: java-storage#42
    if payer and is_permission_denied("serviceusage.services.use", denied_permissions(session, payer)):
        # Observed: cyberduck#13745.
        message = f"{CALLER} does not have serviceusage.services.use access to the Google Cloud project."
        raise ApiError(403, "PERMISSION_DENIED", message)
    if permission and is_permission_denied(permission, (*bucket.denied, *denied_permissions(session, bucket.project))):
        resource = "object" if permission.startswith("storage.objects.") and permission[-5:] != ".list" else "bucket"
        message = (
            f"{CALLER} does not have {permission} access to the Google Cloud Storage {resource}. "
            f"Permission '{permission}' denied on resource (or it may not exist)."
        )
        raise ApiError(403, "PERMISSION_DENIED", message)  # observed: ansible-collections/google.cloud#575
    if not is_billing_enabled(session, bucket.project):
        message = "The billing account for the owning project is disabled in state absent"  # unverified words
        raise ApiError(403, "PERMISSION_DENIED", message, reason="accountDisabled")
    return bucket


def find_bucket(session: StateSession, name: str) -> StoredResource:
    """Return the record of a bucket. Raises `ApiError` 404."""
    record = session.resources.find(BUCKET_KIND, name)
    if record is None:
        raise ApiError(404, "NOT_FOUND", "The specified bucket does not exist.")  # unverified words
    return record


@answers("storage.buckets.get")
def _get_bucket(session: StateSession, call: Call) -> Json:
    """Return a bucket. Access control lists are never shown: all buckets have uniform access."""
    return open_bucket(session, call, "storage.buckets.get").document


@answers("storage.buckets.getStorageLayout")
def _get_storage_layout(session: StateSession, call: Call) -> Json:
    """Return the layout, which needs the permission to list objects (API method text)."""
    document = open_bucket(session, call, "storage.objects.list").document
    fields = ("location", "locationType", "customPlacementConfig", "hierarchicalNamespace")
    return {
        "kind": "storage#storageLayout",
        "bucket": document["name"],
        **{key: document[key] for key in fields if key in document},
    }


@answers("storage.buckets.list")
def _list_buckets(session: StateSession, call: Call) -> Json:
    project = _billed_project(session, call)
    prefix = call["prefix"]
    # Only its owner sees a bucket in lists.
    buckets = [entry.document for entry in session.resources.list_records(BUCKET_KIND, project, prefix=prefix)]
    mine = [entry["document"] for entry in buckets if not is_permission_denied("storage.buckets.list", entry["denied"])]
    return list_response(call, "items", mine, kind="storage#buckets")


def _billed_project(session: StateSession, call: Call) -> str:
    project = resolve_project(session, call["project"])
    if not is_known_project(session, project):
        raise storage_invalid(f"Unknown project id: {project}")  # observed: replicate/keepsake#275
    return project


# Documentation: 3 to 63 characters; with dots 222, at most 63 for each part; no address, no name that begins with goog.
_NAME = re.compile(
    r"(?!goog)(?!\d+(\.\d+){3}$)(?=.{3,222}$)[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)*"
)
# The fields that a client may set; without access control lists, since access is uniform.
_BUCKET_FIELDS = (
    *("autoclass", "billing", "cors", "customPlacementConfig", "defaultEventBasedHold", "encryption"),
    *("hierarchicalNamespace", "iamConfiguration", "labels", "lifecycle", "logging", "retentionPolicy", "rpo"),
    *("softDeletePolicy", "storageClass", "versioning", "website"),
)


@answers("storage.buckets.insert")
def _insert_bucket(session: StateSession, call: Call) -> Json:
    name = str(call.body.get("name") or "")
    project = _billed_project(session, call)
    check_bucket_name(name)
    if (existing := session.resources.find(BUCKET_KIND, name)) is not None:
        message = "Your previous request to create the named bucket succeeded and you already own it."
        if existing.parent != project:
            message = (
                "The requested bucket name is not available. The bucket namespace is shared by all users of the system. "
                "Please select a different name and try again."
            )
        raise ApiError(409, "ALREADY_EXISTS", message)  # observed: substratusai/runbooks#31, users of gcloud
    fields = {key: call.body[key] for key in ("location", *_BUCKET_FIELDS) if call.body.get(key) is not None}
    return put_bucket(session, name, project=project, **fields)


@answers("storage.buckets.patch")
def _patch_bucket(session: StateSession, call: Call) -> Json:
    """Change a bucket: null removes a field, objects are merged, all other values are replaced."""
    bucket = open_bucket(session, call, "storage.buckets.update")
    current = bucket.document
    expected = call.params.get("ifMetagenerationMatch")
    if expected is not None and str(expected) != current["metageneration"]:
        raise condition_not_met()
    if (current.get("retentionPolicy") or {}).get("isLocked") and "retentionPolicy" in call.body:
        message = f"Cannot change a locked Retention Policy for bucket '{current['name']}'."  # unverified words
        raise ApiError(403, "PERMISSION_DENIED", message)
    document = {**current, **merge_patch(current, {key: call.body[key] for key in _BUCKET_FIELDS if key in call.body})}
    document = {key: value for key, value in document.items() if value is not None}
    document |= {
        "metageneration": str(int(current["metageneration"]) + 1),
        "updated": millisecond_timestamp(session.now),
    }
    kept = {"document": document, "denied": list(bucket.denied)}
    session.resources.put(BUCKET_KIND, bucket.project, current["name"], kept)
    return document


def check_bucket_name(name: str) -> None:
    """Raise `ApiError` 400 for an invalid bucket name (documentation; words unverified)."""
    if not _NAME.fullmatch(name):
        raise storage_invalid(f"Invalid bucket name: '{name}'")


def merge_patch(current: Json, change: Json) -> Json:
    """Return the fields that a patch sets: objects merged with the current ones, other values as given; null is kept."""
    result: Json = {}
    for key, value in change.items():
        before = current.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            result[key] = {k: v for k, v in {**before, **merge_patch(before, value)}.items() if v is not None}
        else:
            result[key] = value
    return result


@answers("storage.buckets.getIamPolicy")
def _get_policy(session: StateSession, call: Call) -> Json:
    bucket = open_bucket(session, call, "storage.buckets.getIamPolicy")
    version = int(call.params.get("optionsRequestedPolicyVersion") or 1)
    default = _default_bucket_policy(bucket.project)
    return _policy_response(
        bucket, read_iam_policy(session, BUCKET_KIND, bucket.name, default=default, version=version)
    )


@answers("storage.buckets.setIamPolicy")
def _set_policy(session: StateSession, call: Call) -> Json:
    """Replace the policy: 412 if the etag is not the current one."""
    bucket = open_bucket(session, call, "storage.buckets.setIamPolicy")
    default = _default_bucket_policy(bucket.project)
    kept = replace_iam_policy(
        session, BUCKET_KIND, bucket.name, call.body, default=default, conflict=condition_not_met()
    )
    return _policy_response(bucket, kept)


@answers("storage.buckets.testIamPermissions")
def _test_permissions(session: StateSession, call: Call) -> Json:
    """Return the requested permissions that the caller has. The call itself needs none (documentation of each method)."""
    bucket = open_bucket(session, call, "")
    requested = call.params.get("permissions") or []
    granted = allowed_permissions(requested, (*bucket.denied, *denied_permissions(session, bucket.project)))
    answer: Json = {"kind": "storage#testIamPermissionsResponse"}
    return {**answer, "permissions": granted} if granted else answer


def _default_bucket_policy(project: str) -> Json:
    """Return the initial policy of a bucket with uniform access (documentation: the convenience values of basic roles)."""
    owners = [f"projectEditor:{project}", f"projectOwner:{project}"]
    readers = [f"projectViewer:{project}"]
    return {
        "bindings": [
            {"role": "roles/storage.legacyBucketOwner", "members": owners},
            {"role": "roles/storage.legacyBucketReader", "members": readers},
            {"role": "roles/storage.legacyObjectOwner", "members": owners},
            {"role": "roles/storage.legacyObjectReader", "members": readers},
        ]
    }


def _policy_response(bucket: OpenedBucket, policy: Json) -> Json:
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket.name}", **policy}


CACHE_KIND = "storage.anywhereCache"


def put_cache(session: StateSession, /, bucket: str, zone: str, **fields: Any) -> Json:
    """Store a cache of a bucket and return it. Raises `ApiError` 404 for a bucket that does not exist."""
    record = find_bucket(session, bucket)
    now = millisecond_timestamp(session.now)
    # Documentation: a cache is named after its zone; its states are RUNNING, PAUSED, DISABLED, CREATING.
    document: Json = {
        "kind": "storage#anywhereCache",
        "id": f"{record.document['document']['projectNumber']}/{bucket}/{zone}",
        "selfLink": f"{BUCKET_LINK}/{bucket}/anywhereCaches/{zone}",
        "bucket": bucket,
        "anywhereCacheId": zone,
        "zone": zone,
        "state": "RUNNING",
        "ttl": "86400s",
        "admissionPolicy": "admit-on-first-miss",
        "createTime": now,
        "updateTime": now,
        **fields,
    }
    session.resources.put(CACHE_KIND, bucket, zone, document)
    return document


@answers("storage.anywhereCaches.list")
def _list_caches(session: StateSession, call: Call) -> Json:
    open_bucket(session, call, "storage.anywhereCaches.list")
    caches = [entry.document for entry in session.resources.list_records(CACHE_KIND, call["bucket"])]
    return list_response(call, "items", caches, kind="storage#anywhereCaches")


def storage_invalid(message: str, reason: str = "invalid") -> ApiError:
    """Return the error for an invalid parameter."""
    return ApiError(400, "INVALID_ARGUMENT", message, reason=reason)


def condition_not_met() -> ApiError:
    """Return the error for a failed precondition (words unverified)."""
    return ApiError(412, "FAILED_PRECONDITION", "At least one of the pre-conditions you specified did not hold.")
