"""Buckets of Cloud Storage, JSON API v1, with their IAM policies and Anywhere Caches; and Cloud Storage's error messages.

An Anywhere Cache is a zonal read cache of a bucket; a new one runs at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.sandbox.api_calls import ApiError, Call, page_of
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
    visible_policy,
)

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state_session import StateSession

BUCKET_KIND = "storage.bucket"
_BUCKET_LINK = "https://www.googleapis.com/storage/v1/b"
# Source: the documentation of bucket locations. All other locations are regions or zones.
_MULTI_REGIONS = frozenset({"US", "EU", "ASIA"})
_DUAL_REGIONS = frozenset({"ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4"})
_ZONE_LOCATION = re.compile(r".+\d-[A-Z]")
_LARGEST_PAGE = 1000  # API field text of buckets.list and objects.list


class OpenedBucket(NamedTuple):
    """A bucket as the API shows it, its project, and the permissions that the caller lacks on it."""

    project: str
    document: Json
    denied: tuple[str, ...]


def put_bucket(session: StateSession, project: str, name: str, *, fields: Json, denied: tuple[str, ...]) -> Json:
    """Store a bucket; `fields` override the service's defaults. Return it as the API shows it."""
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
        "selfLink": f"{_BUCKET_LINK}/{name}",
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
    if found := session.resources.find(BUCKET_KIND, name):
        session.resources.delete(BUCKET_KIND, found.parent, name)
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
    name = str(call.params["bucket"])
    found = session.resources.find(BUCKET_KIND, name)
    if found is None:
        raise bucket_not_found()
    bucket = OpenedBucket(found.parent, found.document["document"], tuple(found.document["denied"]))
    # Documentation: a caller with resourcemanager.projects.createBillingAssignment on the bucket's project needs no project
    # to bill. The sandbox's caller does not have it, as an editor does not.
    payer = str(call.params.get("userProject") or "")
    if not payer and (bucket.document.get("billing") or {}).get("requesterPays"):
        raise requester_pays()
    if payer and not is_known_project(session, payer):
        raise invalid_user_project()
    if payer and is_permission_denied("serviceusage.services.use", denied_permissions(session, payer)):
        raise billing_forbidden()
    if permission and is_permission_denied(permission, (*bucket.denied, *denied_permissions(session, bucket.project))):
        raise storage_forbidden(permission)
    if not is_billing_enabled(session, bucket.project):
        raise billing_disabled()
    return bucket


def get_bucket(session: StateSession, call: Call) -> Json:
    """Answer buckets.get. Access control lists are never shown: all buckets have uniform access."""
    return open_bucket(session, call, "storage.buckets.get").document


def get_storage_layout(session: StateSession, call: Call) -> Json:
    """Answer buckets.getStorageLayout, which needs the permission to list objects (API method text)."""
    document = open_bucket(session, call, "storage.objects.list").document
    fields = ("location", "locationType", "customPlacementConfig", "hierarchicalNamespace")
    return {
        "kind": "storage#storageLayout",
        "bucket": document["name"],
        **{key: document[key] for key in fields if key in document},
    }


def list_buckets(session: StateSession, call: Call) -> Json:
    """Answer buckets.list."""
    project = resolve_project(session, str(call.params["project"]))
    if not is_known_project(session, project):
        raise unknown_billing_project(project)
    prefix = str(call.params.get("prefix") or "")
    # Only its owner sees a bucket in lists.
    found = [entry.document for entry in session.resources.list_records(BUCKET_KIND, project, prefix=prefix)]
    mine = [entry["document"] for entry in found if not is_permission_denied("storage.buckets.list", entry["denied"])]
    page, next_token = page_of(storage_page(call), mine)
    answer: Json = {"kind": "storage#buckets"}
    if page:
        answer["items"] = list(page)
    return {**answer, "nextPageToken": next_token} if next_token else answer


def storage_page(call: Call) -> Call:
    """Return a call with the usual paging parameters. Raises `ApiError` 400 for a negative size."""
    size = int(call.params.get("maxResults") or _LARGEST_PAGE)
    if size < 0:
        raise storage_invalid(f"Invalid value for maxResults: {size}.")
    params = {"pageSize": min(size, _LARGEST_PAGE), "pageToken": call.params.get("pageToken")}
    return Call(call.version, call.method, params, {})


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


def insert_bucket(session: StateSession, call: Call) -> Json:
    """Answer buckets.insert."""
    name, project = str(call.body.get("name") or ""), resolve_project(session, str(call.params["project"]))
    session.log_request(call.method, name)
    if not is_known_project(session, project):
        raise unknown_billing_project(project)
    check_bucket_name(name)
    if (found := session.resources.find(BUCKET_KIND, name)) is not None:
        raise bucket_name_taken(is_own=found.parent == project)
    fields = {key: call.body[key] for key in _BUCKET_FIELDS if call.body.get(key) is not None}
    return put_bucket(
        session, project, name, fields={"location": call.body.get("location") or "US", **fields}, denied=()
    )


def patch_bucket(session: StateSession, call: Call) -> Json:
    """Answer buckets.patch: null removes a field, objects are merged, all other values are replaced."""
    session.log_request(call.method, str(call.params["bucket"]))
    bucket = open_bucket(session, call, "storage.buckets.update")
    current = bucket.document
    wanted = call.params.get("ifMetagenerationMatch")
    if wanted is not None and str(wanted) != current["metageneration"]:
        raise condition_not_met()
    if (current.get("retentionPolicy") or {}).get("isLocked") and "retentionPolicy" in call.body:
        raise bucket_locked(current["name"])
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


def get_bucket_iam_policy(session: StateSession, call: Call) -> Json:
    """Answer buckets.getIamPolicy."""
    bucket = open_bucket(session, call, "storage.buckets.getIamPolicy")
    name = bucket.document["name"]
    requested = int(call.params.get("optionsRequestedPolicyVersion") or 1)
    return _policy_response(
        name,
        read_iam_policy(session, BUCKET_KIND, name, default=default_bucket_policy(bucket.project), version=requested),
    )


def set_bucket_iam_policy(session: StateSession, call: Call) -> Json:
    """Answer buckets.setIamPolicy: 412 if the etag is not the current one."""
    session.log_request(call.method, str(call.params["bucket"]))
    bucket = open_bucket(session, call, "storage.buckets.setIamPolicy")
    name = bucket.document["name"]
    kept = replace_iam_policy(session, BUCKET_KIND, name, call.body, default=default_bucket_policy(bucket.project))
    if kept is None:
        raise condition_not_met()
    return _policy_response(name, kept)


def test_bucket_iam_permissions(session: StateSession, call: Call) -> Json:
    """Answer buckets.testIamPermissions with the requested permissions that the caller has.

    The call itself needs no permission (documentation of the permissions of each method).
    """
    bucket = open_bucket(session, call, "")
    requested = call.params.get("permissions") or []
    granted = allowed_permissions(requested, (*bucket.denied, *denied_permissions(session, bucket.project)))
    answer: Json = {"kind": "storage#testIamPermissionsResponse"}
    return {**answer, "permissions": granted} if granted else answer


def default_bucket_policy(project: str) -> Json:
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


def _policy_response(name: str, policy: Json) -> Json:
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{name}", **visible_policy(policy)}


CACHE_KIND = "storage.anywhereCache"
_CACHE_FIELDS = ("admissionPolicy", "ingestOnWrite", "ttl")
_CACHE_LINK = "https://www.googleapis.com/storage/v1/b"


def put_cache(session: StateSession, bucket: str, zone: str, *, fields: Json) -> Json:
    """Store a cache of a bucket and return it. Raises `ApiError` 404 for a bucket that does not exist."""
    found = session.resources.find(BUCKET_KIND, bucket)
    if found is None:
        raise bucket_not_found()
    now = millisecond_timestamp(session.now)
    # Documentation: a cache is named after its zone; its states are RUNNING, PAUSED, DISABLED, CREATING.
    document: Json = {
        "kind": "storage#anywhereCache",
        "id": f"{found.document['document']['projectNumber']}/{bucket}/{zone}",
        "selfLink": f"{_CACHE_LINK}/{bucket}/anywhereCaches/{zone}",
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


def insert_cache(session: StateSession, call: Call) -> Json:
    """Answer anywhereCaches.insert with a finished operation; operations of Cloud Storage are not stored."""
    bucket, zone = str(call.params["bucket"]), str(call.body.get("zone") or "")
    session.log_request(call.method, f"{bucket}/{zone}")
    open_bucket(session, call, "storage.anywhereCaches.create")
    if not zone:
        raise storage_invalid("Required")  # unverified words
    if session.resources.get(CACHE_KIND, bucket, zone) is not None:
        raise cache_exists()
    made = put_cache(session, bucket, zone, fields={key: call.body[key] for key in _CACHE_FIELDS if call.body.get(key)})
    number = session.next_incarnation(f"storage.operation/{bucket}")
    # An operation's metadata is a message that the discovery document does not have.
    return {
        "kind": "storage#operation",
        "name": f"projects/_/buckets/{bucket}/operations/sandbox-{number}",
        "selfLink": f"{_CACHE_LINK}/{bucket}/operations/sandbox-{number}",
        "done": True,
        "response": {"@type": "type.googleapis.com/google.storage.control.v2.AnywhereCache", **made},
    }


def get_cache(session: StateSession, call: Call) -> Json:
    """Answer anywhereCaches.get."""
    open_bucket(session, call, "storage.anywhereCaches.get")
    found = session.resources.get(CACHE_KIND, str(call.params["bucket"]), str(call.params["anywhereCacheId"]))
    if found is None:
        raise cache_not_found()
    return found


def list_caches(session: StateSession, call: Call) -> Json:
    """Answer anywhereCaches.list."""
    open_bucket(session, call, "storage.anywhereCaches.list")
    found = [entry.document for entry in session.resources.list_records(CACHE_KIND, str(call.params["bucket"]))]
    page, next_token = page_of(call, found)
    answer: Json = {"kind": "storage#anywhereCaches"}
    if page:
        answer["items"] = list(page)
    return {**answer, "nextPageToken": next_token} if next_token else answer


CALLER = "user@example.com"


def bucket_not_found() -> ApiError:
    """Return the error for a missing bucket (words unverified)."""
    return ApiError(404, "NOT_FOUND", "The specified bucket does not exist.")


def bucket_name_taken(*, is_own: bool) -> ApiError:
    """Return the error for a bucket name in use (observed: substratusai/runbooks#31, users of gcloud)."""
    if is_own:
        message = "Your previous request to create the named bucket succeeded and you already own it."
    else:
        message = (
            "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please "
            "select a different name and try again."
        )
    return ApiError(409, "ALREADY_EXISTS", message)


def bucket_locked(bucket: str) -> ApiError:
    """Return the error for a change of a locked retention policy (words unverified)."""
    return ApiError(403, "PERMISSION_DENIED", f"Cannot change a locked Retention Policy for bucket '{bucket}'.")


def object_not_found(bucket: str, name: str) -> ApiError:
    """Return the error for a missing object (words unverified)."""
    return ApiError(404, "NOT_FOUND", f"No such object: {bucket}/{name}")


def cache_not_found() -> ApiError:
    """Return the error for a missing Anywhere Cache (words unverified)."""
    return ApiError(404, "NOT_FOUND", "The specified Anywhere Cache does not exist.")


def cache_exists() -> ApiError:
    """Return the error for a second Anywhere Cache in a zone (words unverified)."""
    return ApiError(409, "ALREADY_EXISTS", "The bucket already has an Anywhere Cache in this zone.")


def storage_forbidden(permission: str) -> ApiError:
    """Return the error for a missing permission (observed: ansible-collections/google.cloud#575)."""
    resource = "object" if permission.startswith("storage.objects.") and permission[-5:] != ".list" else "bucket"
    message = (
        f"{CALLER} does not have {permission} access to the Google Cloud Storage {resource}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )
    return ApiError(403, "PERMISSION_DENIED", message)


def condition_not_met() -> ApiError:
    """Return the error for a failed precondition (words unverified)."""
    message = "At least one of the pre-conditions you specified did not hold."
    return ApiError(412, "FAILED_PRECONDITION", message)


def requester_pays() -> ApiError:
    """Return the error for a request without a project to bill (observed: laravel-google-cloud-storage#44)."""
    message = "Bucket is requester pays bucket but no user project provided."
    return ApiError(400, "INVALID_ARGUMENT", message, reason="required")


def invalid_user_project() -> ApiError:
    """Return the error for a project to bill that does not exist (observed: googleapis/java-storage#42)."""
    return ApiError(400, "INVALID_ARGUMENT", "User project specified in the request is invalid.", reason="invalid")


def billing_forbidden() -> ApiError:
    """Return the error for a project that the caller may not bill (observed: cyberduck#13745)."""
    message = f"{CALLER} does not have serviceusage.services.use access to the Google Cloud project."
    return ApiError(403, "PERMISSION_DENIED", message)


def unknown_billing_project(project: str) -> ApiError:
    """Return the error for a list of a project that does not exist (observed: replicate/keepsake#275)."""
    return ApiError(400, "INVALID_ARGUMENT", f"Unknown project id: {project}", reason="invalid")


def billing_disabled() -> ApiError:
    """Return the error for resources of a project without billing (words unverified)."""
    message = "The billing account for the owning project is disabled in state absent"
    return ApiError(403, "PERMISSION_DENIED", message, reason="accountDisabled")


def storage_invalid(message: str) -> ApiError:
    """Return the error for an invalid parameter (words unverified)."""
    return ApiError(400, "INVALID_ARGUMENT", message, reason="invalid")


def wrong_upload_url() -> ApiError:
    """Return the error for an insert that is not an upload (words unverified)."""
    message = "Upload requests must include an uploadType URL parameter and a URL path beginning with /upload/"
    return ApiError(400, "INVALID_ARGUMENT", message, reason="wrongUrlForUpload")


def not_modified() -> ApiError:
    """Return the response to a conditional read of an unchanged object."""
    return ApiError(304, "NOT_MODIFIED", "")
