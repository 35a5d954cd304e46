"""A Cloud Storage bucket: its location, storage class, access and retention settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.shapes import ANY, INTEGER, SECONDS, Fields, ListOf, MapOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

_SWITCH = Shape("", {"enabled": bool})
_PLACEMENT: Fields = {
    "location": str,
    "locationType": str,
    "customPlacementConfig": Shape("", {"dataLocations": ListOf(str)}),
}
STORAGE_LAYOUT = Shape("storage.v1 BucketStorageLayout", _PLACEMENT)
_RULE = Shape("", {"action": Shape("", {"type": str}), "condition": MapOf(ANY)})
BUCKET = Shape(
    "storage.v1 Bucket",
    {
        **_PLACEMENT,
        "name": str,
        "projectNumber": INTEGER,
        "storageClass": str,
        "billing": Shape("", {"requesterPays": bool}),
        "iamConfiguration": Shape("", {"uniformBucketLevelAccess": _SWITCH, "publicAccessPrevention": str}),
        "versioning": _SWITCH,
        "retentionPolicy": Shape("", {"retentionPeriod": SECONDS, "isLocked": bool}),
        "defaultEventBasedHold": bool,
        "softDeletePolicy": Shape("", {"retentionDurationSeconds": SECONDS}),
        "autoclass": _SWITCH,
        "lifecycle": Shape("", {"rule": ListOf(_RULE)}),
    },
    required=("name",),
)
ANYWHERE_CACHE = Shape("storage.v1 AnywhereCache", {"zone": str, "anywhereCacheId": str, "state": str})


@dataclass(frozen=True, slots=True)
class BucketPlacement:
    """The location of a bucket, in the API's words, in upper case: EUROPE-WEST4, EUR4, US.

    `kind` is `region`, `dual-region`, `multi-region`, `zone`, or a value unknown to this version; `data_locations` are the two
    regions of a configurable dual-region, or the zone of a zonal bucket, whose `location` is its region [observed in two
    programs that read such buckets; gcloud 528 creates them with `--placement`].
    """

    location: str
    kind: str
    data_locations: tuple[str, ...] = ()

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> BucketPlacement:
        """Parse a Bucket or a BucketStorageLayout, which share these fields [API storage v1]. Raises `ShapeError`."""
        STORAGE_LAYOUT.check(data)
        placed = data.get("customPlacementConfig", {}).get("dataLocations") or ()
        return cls(
            data.get("location", "").upper(),
            data.get("locationType", "").lower(),
            tuple(region.upper() for region in placed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket as the API reports it; `raw` is its JSON."""

    name: str
    placement: BucketPlacement
    project_number: str
    storage_class: str
    requester_pays: bool
    uniform_access: bool
    versioning: bool
    retention: timedelta | None
    retention_is_locked: bool
    default_event_based_hold: bool
    soft_delete: timedelta
    raw: Mapping[str, Any]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Bucket:
        """Parse a Bucket [API storage v1].

        An absent soft-delete policy, or one of 0 seconds, means none. Raises `ShapeError`.
        """
        BUCKET.check(data)
        retention = data.get("retentionPolicy") or {}
        access = data.get("iamConfiguration") or {}
        return cls(
            name=data["name"],
            placement=BucketPlacement.from_api(data),
            project_number=str(data.get("projectNumber", "")),
            storage_class=data.get("storageClass", ""),
            requester_pays=bool(data.get("billing", {}).get("requesterPays")),
            uniform_access=bool((access.get("uniformBucketLevelAccess") or {}).get("enabled")),
            versioning=bool(data.get("versioning", {}).get("enabled")),
            retention=_seconds(retention.get("retentionPeriod")),
            retention_is_locked=bool(retention.get("isLocked")),
            default_event_based_hold=data.get("defaultEventBasedHold", False),
            soft_delete=_seconds(data.get("softDeletePolicy", {}).get("retentionDurationSeconds")) or timedelta(),
            raw=data,
        )


@dataclass(frozen=True, slots=True)
class AnywhereCache:
    """A zonal read cache of a bucket: CREATING, RUNNING, PAUSED or DISABLED [documentation, AnywhereCache resource].

    Only a RUNNING one caches what is read; a PAUSED or DISABLED one serves its content until that expires.
    """

    zone: str
    state: str

    @property
    def is_running(self) -> bool:
        """Return whether it is RUNNING."""
        return self.state.upper() == "RUNNING"

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> AnywhereCache:
        """Parse an AnywhereCache. Raises `ShapeError`."""
        ANYWHERE_CACHE.check(data)
        return cls(data.get("zone") or data.get("anywhereCacheId", ""), data.get("state", ""))


@dataclass(frozen=True, slots=True)
class BucketContents:
    """The objects on the first page of a listing of a prefix.

    `size` in bytes is that of all objects if `is_complete`, else a lower bound.
    """

    objects: int
    size: int
    is_complete: bool


def _seconds(value: Any) -> timedelta | None:  # the API writes 64-bit numbers as text
    return timedelta(seconds=int(value)) if value not in (None, "", "0", 0) else None
