"""What exists where: the offers of many zones, asked at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.api.listing import side_by_side
from tpuctl.errors import AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What each zone offers, and the zones that could not be asked."""

    by_zone: Mapping[str, tuple[str, ...]]
    unreachable: tuple[str, ...]


def offered(
    ask: Callable[[str, str], tuple[str, ...]],
    locations: Callable[[str], tuple[str, ...]],
    project: str,
    zones: Sequence[str] = (),
) -> Catalogue:
    """Return what zones offer: those named, or all of the project. A zone closed to the project offers nothing."""
    asked = list(zones) or sorted(locations(project))
    found = {}
    for zone, answer in side_by_side(lambda zone: _ask(ask, project, zone, is_named=bool(zones)), asked).items():
        if isinstance(answer, BaseException):
            raise answer
        found[zone] = answer
    return Catalogue(
        {zone: names for zone, names in found.items() if names},
        tuple(zone for zone, names in found.items() if names is None),
    )


def _ask(
    ask: Callable[[str, str], tuple[str, ...]], project: str, zone: str, *, is_named: bool
) -> tuple[str, ...] | None:
    """Return the offers of one zone, none for a zone that is not open, nothing when it did not answer."""
    try:
        return ask(project, zone)
    except ServiceUnavailableError:
        return None
    except (AccessError, NotFoundError, InvalidRequestError):
        if is_named:
            raise
        return ()
