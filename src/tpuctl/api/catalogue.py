"""What zones offer: the part of the Cloud TPU API that is about places, not nodes. Raises tpuctl's exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.api.client import Client
from tpuctl.api.errors import translated
from tpuctl.api.listing import Listing, all_pages, list_everywhere
from tpuctl.api.requests import Requests
from tpuctl.model.project import Reservation
from tpuctl.names import short

if TYPE_CHECKING:
    from tpuctl.api.calls import PlainRequest

T = TypeVar("T")
_Page = Callable[[str, str, str | None], "PlainRequest"]


class CatalogueClient(Client):
    """Calls the TPU API about its zones."""

    @cached_property
    def _requests(self) -> Requests:
        return Requests(self._caller, self._url)

    def locations(self, project: str) -> tuple[str, ...]:
        """Return the zones that the API knows for a project."""
        with translated():
            listing = all_pages(
                self._caller,
                lambda token: self._requests.list_locations(project, token),
                "locations",
                lambda entry: str(entry.get("locationId") or short(entry["name"])),
            )
        return listing.items

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers to a project."""
        return self._catalogue(self._requests.list_accelerator_types, "acceleratorTypes", "type", project, zone)

    def runtime_versions(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the runtime versions that a zone offers to a project."""
        return self._catalogue(self._requests.list_runtime_versions, "runtimeVersions", "version", project, zone)

    def offers(self, project: str) -> Mapping[str, tuple[str, ...]]:
        """Return the accelerator types of every zone that answers; a zone that is not there may offer any.

        Source for the wildcard: unverified; where it is refused each zone is asked.
        """
        build = self._requests.list_accelerator_types
        offered: dict[str, list[str]] = {}
        for zone, accelerator_type in self._list(build, "acceleratorTypes", _offer, project, ()).items:
            offered.setdefault(zone, []).append(accelerator_type)
        return {zone: tuple(types) for zone, types in offered.items()}

    def reservations(self, project: str, zone: str) -> tuple[Reservation, ...]:
        """Return the reservations of a zone [API v2alpha1, the only version that has them]."""
        with translated():
            return all_pages(
                self._caller,
                lambda token: self._requests.list_reservations(project, zone, token),
                "reservations",
                Reservation.from_api,
            ).items

    def _list(
        self, build: _Page, key: str, read: Callable[[Mapping[str, Any]], T], project: str, zones: Sequence[str]
    ) -> Listing[T]:
        return list_everywhere(
            self._caller,
            lambda zone: all_pages(self._caller, lambda token: build(project, zone, token), key, read),
            zones=zones,
            locations=lambda: self._caller.zones.recall(project, lambda: self.locations(project)),
        )

    def _catalogue(self, build: _Page, key: str, word: str, project: str, zone: str) -> tuple[str, ...]:
        with translated():
            listing = all_pages(
                self._caller,
                lambda token: build(project, zone, token),
                key,
                lambda entry: str(entry.get(word) or short(entry["name"])),
            )
        return listing.items


def _offer(data: Mapping[str, Any]) -> tuple[str, str]:
    """Return zone and type of `projects/P/locations/ZONE/acceleratorTypes/TYPE`."""
    parts = str(data["name"]).split("/")
    return parts[3], str(data.get("type") or parts[-1])
