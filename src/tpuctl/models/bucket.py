"""A Cloud Storage bucket: its location, storage class, access and retention settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

from tpuctl.decoding import By, decode, decoder_of, json_field, read_fields
from tpuctl.models.api_values import ApiNumber, ApiObject, ApiSeconds, ApiText, ApiTexts

_UpperText = Annotated[str, By(lambda value: decoder_of(ApiText)(value).upper())]
_LowerText = Annotated[str, By(lambda value: decoder_of(ApiText)(value).lower())]
_UpperTexts = Annotated[tuple[str, ...], By(lambda value: tuple(map(str.upper, decoder_of(ApiTexts)(value))))]


@dataclass(frozen=True, slots=True)
class BucketPlacement:
    """The location of a bucket, in the API's words, in upper case: EUROPE-WEST4, EUR4, US.

    `kind` is `region`, `dual-region`, `multi-region`, `zone`, or a value unknown to this version; `data_locations` are the two
    regions of a configurable dual-region, or the zone of a zonal bucket, whose `location` is its region [observed in two
    programs that read such buckets; gcloud 528 creates them with `--placement`]. Bucket and BucketStorageLayout share these
    fields [API storage v1].
    """

    location: _UpperText = ""
    kind: _LowerText = json_field("locationType", default="")
    data_locations: _UpperTexts = json_field("customPlacementConfig.dataLocations", default=())


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """What happens to objects that fit a condition."""

    action: ApiText = json_field("action.type", default="")
    condition: ApiObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket as the API reports it."""

    placement: BucketPlacement
    name: ApiText
    project_number: ApiNumber = ""
    storage_class: ApiText = ""
    requester_pays: bool = json_field("billing.requesterPays", default=False)
    uniform_access: bool = json_field("iamConfiguration.uniformBucketLevelAccess.enabled", default=False)
    public_access_prevention: ApiText = json_field("iamConfiguration.publicAccessPrevention", default="")
    versioning: bool = json_field("versioning.enabled", default=False)
    # 0 is none, for both.
    retention: ApiSeconds = json_field("retentionPolicy.retentionPeriod", default=timedelta())
    retention_is_locked: bool = json_field("retentionPolicy.isLocked", default=False)
    default_event_based_hold: bool = False
    soft_delete: ApiSeconds = json_field("softDeletePolicy.retentionDurationSeconds", default=timedelta())
    autoclass: bool = json_field("autoclass.enabled", default=False)
    lifecycle: tuple[LifecycleRule, ...] = json_field("lifecycle.rule", default=())

    @classmethod
    def from_json(cls, data: Any) -> Bucket:
        """Parse a Bucket [API storage v1]. Raises `ShapeError`."""
        return cls(**read_fields(cls, data, ("placement",)), placement=decode(BucketPlacement, data))


@dataclass(frozen=True, slots=True)
class _Cache:
    zone: ApiText = ""
    id: ApiText = json_field("anywhereCacheId", default="")
    state: ApiText = ""


@dataclass(frozen=True, slots=True)
class AnywhereCache:
    """A zonal read cache of a bucket: CREATING, RUNNING, PAUSED or DISABLED [documentation, AnywhereCache resource].

    Only a RUNNING one caches what is read; a PAUSED or DISABLED one serves its content until that expires.
    """

    zone: str
    state: str

    @classmethod
    def from_json(cls, data: Any) -> AnywhereCache:
        """Parse an AnywhereCache. Raises `ShapeError`."""
        cache = decode(_Cache, data)
        return cls(cache.zone or cache.id, cache.state)

    @property
    def is_running(self) -> bool:
        """Return whether it is RUNNING."""
        return self.state.upper() == "RUNNING"


@dataclass(frozen=True, slots=True)
class BucketContents:
    """The objects on the first page of a listing of a prefix.

    `size` in bytes is that of all objects if `is_complete`, else a lower bound.
    """

    objects: int
    size: int
    is_complete: bool
