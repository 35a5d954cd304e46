"""List zones and their offers with the Cloud TPU API. Raises tpuctl's exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.api.calls import UNEXPECTED
from tpuctl.api.client import Client
from tpuctl.api.errors import translated
from tpuctl.api.failures import GarbledAnswerError
from tpuctl.api.listing import Listing, all_pages, list_everywhere
from tpuctl.api.requests import Requests
from tpuctl.model.project import Reservation
from tpuctl.names import short
from tpuctl.shapes import RESOURCE, SEGMENT, Page, Shape, ShapeError

if TYPE_CHECKING:
    from tpuctl.api.calls import PlainRequest

T = TypeVar("T")
_Build = Callable[[str, str, str | None], "PlainRequest"]

_LOCATION = Shape("tpu.v2 Location", {"name": str, "locationId": SEGMENT})
_LOCATIONS = Page("tpu.v2 ListLocationsResponse", "locations")
_TYPE = Shape("tpu.v2 AcceleratorType", {"name": str, "type": str})
_TYPES = Page("tpu.v2 ListAcceleratorTypesResponse", "acceleratorTypes")
_VERSION = Shape("tpu.v2 RuntimeVersion", {"name": str, "version": str})
_VERSIONS = Page("tpu.v2 ListRuntimeVersionsResponse", "runtimeVersions")


class CatalogueClient(Client):
    """Calls the methods of the TPU API for zones."""

    @cached_property
    def _requests(self) -> Requests:
        return Requests(self._caller, self._url)

    def locations(self, project: str) -> tuple[str, ...]:
        """Return the zones of the API for a project. Raises for an empty list, which cannot be true."""
        with translated():
            listing = all_pages(
                self._caller,
                lambda token: self._requests.list_locations(project, token),
                _LOCATIONS,
                _location,
            )
            if not listing.items:
                # A caller that lists each zone would report that no nodes exist.
                raise GarbledAnswerError(f"{UNEXPECTED}: {_LOCATIONS.key}: none")
        return listing.items

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers to a project."""
        return self._catalogue(self._requests.list_accelerator_types, _TYPES, _type, project, zone)

    def runtime_versions(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the runtime versions that a zone offers to a project."""
        return self._catalogue(
            self._requests.list_runtime_versions,
            _VERSIONS,
            lambda data: _named(_VERSION, data, "version"),
            project,
            zone,
        )

    def offers(self, project: str) -> Mapping[str, tuple[str, ...]]:
        """Return the accelerator types of every zone that answers; the offers of missing zones are unknown.

        Source for the wildcard: unverified; if the service refuses it, each zone is listed.
        """
        build = self._requests.list_accelerator_types
        offered: dict[str, list[str]] = {}
        for zone, accelerator_type in self._list(build, _TYPES, _offer, project, ()).items:
            offered.setdefault(zone, []).append(accelerator_type)
        return {zone: tuple(types) for zone, types in offered.items()}

    def reservations(self, project: str, zone: str) -> tuple[Reservation, ...]:
        """Return the reservations of a zone [API v2alpha1, the only version that has them]."""
        with translated():
            return all_pages(
                self._caller,
                lambda token: self._requests.list_reservations(project, zone, token),
                Page("tpu.v2alpha1 ListReservationsResponse", "reservations"),
                Reservation.from_api,
            ).items

    def _list(
        self, build: _Build, page: Page, read: Callable[[Mapping[str, Any]], T], project: str, zones: Sequence[str]
    ) -> Listing[T]:
        return list_everywhere(
            self._caller,
            lambda zone: all_pages(self._caller, lambda token: build(project, zone, token), page, read),
            zones=zones,
            locations=lambda: self._caller.zones.get_or_load(project, lambda: self.locations(project)),
        )

    def _catalogue(
        self, build: _Build, page: Page, read: Callable[[Mapping[str, Any]], str], project: str, zone: str
    ) -> tuple[str, ...]:
        with translated():
            return all_pages(self._caller, lambda token: build(project, zone, token), page, read).items


def _location(data: Mapping[str, Any]) -> str:
    zone = _named(_LOCATION, data, "locationId")
    SEGMENT.check(zone)
    return zone


def _offer(data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the zone and the type of `projects/P/locations/ZONE/acceleratorTypes/TYPE`."""
    offered = _type(data)
    RESOURCE.check(data.get("name"))
    return str(data["name"]).split("/")[3], offered


def _type(data: Mapping[str, Any]) -> str:
    return _named(_TYPE, data, "type")


def _named(shape: Shape, data: Mapping[str, Any], field: str) -> str:
    """Return a field, or the last part of the name if the field is missing."""
    found = shape.read(data).get(field) or short(data.get("name") or "")
    if not found:
        raise ShapeError("missing", field)
    return str(found)
