"""Fetch the offers of many zones in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.api.listing import side_by_side
from tpuctl.errors import AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The offers of each zone, and the zones that did not answer."""

    by_zone: Mapping[str, tuple[str, ...]]
    unreachable: tuple[str, ...]


def offered(
    ask: Callable[[str, str], tuple[str, ...]],
    locations: Callable[[str], tuple[str, ...]],
    project: str,
    zones: Sequence[str] = (),
) -> Catalogue:
    """Return the offers of the named zones, or of all zones. A zone that is closed to the project is left out."""
    asked = list(zones) or sorted(locations(project))
    found = {}

    def fetch(zone: str) -> tuple[str, ...] | None:
        """Return the offers of one zone, empty if it is closed to the project, None if it did not answer."""
        try:
            return ask(project, zone)
        except ServiceUnavailableError:
            return None
        except (AccessError, NotFoundError, InvalidRequestError):
            if zones:
                raise
            return ()

    for zone, answer in side_by_side(fetch, asked).items():
        if isinstance(answer, BaseException):
            raise answer
        found[zone] = answer
    return Catalogue(
        {zone: names for zone, names in found.items() if names},
        tuple(zone for zone, names in found.items() if names is None),
    )
