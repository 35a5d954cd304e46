"""Grants of free TPU capacity, such as those of the TPU Research Cloud.

A grant for a generation (`v4`) counts chips, a grant for an accelerator type (`v2-8`) counts nodes. The mails of the
programme name "32 Cloud TPU v4 chips" and "5 v2-8 devices" [documentation: TPU Research Cloud; unverified].
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from tpuctl.accelerators import (
    check_accelerator_type,
    find_accelerator_type,
    find_generation,
    load_accelerators,
    parse_accelerator_type,
)
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Tier
from tpuctl.names import check_zone
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.accelerators import AcceleratorType, Generation

# Reserved capacity is billed separately; no programme grants it.
GRANT_TIERS = (Tier.ON_DEMAND, Tier.SPOT, Tier.PREEMPTIBLE)


@dataclass(frozen=True, slots=True)
class Grant:
    """A count of a type, in one zone and tier, until and including a day; None means without end.

    `type` is a generation, with `count` in chips, or an accelerator type, with `count` in nodes.
    """

    zone: str
    type: str
    tier: str
    count: int
    until: date | None

    @classmethod
    def parse(cls, record: Mapping[str, str]) -> Grant:
        """Return the grant that the keys `zone`, `type`, `tier`, `count` and the optional `until` describe.

        Raises `ValueError` with a message for the user if a value is invalid.
        """
        try:
            zone = check_zone(record["zone"])
        except InvalidInputError as error:
            raise ValueError(f"`zone`: {error.message}") from None
        count = record["count"].strip()
        if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count)):
            raise ValueError(f"`count` is `{count}`: it must be a whole number, 1 or more")
        kind, tier, until = _parse_type(record["type"].strip()), record["tier"].strip(), record.get("until")
        if tier not in GRANT_TIERS:
            guess = closest_match(tier, GRANT_TIERS)
            meant = f"; did you mean `{guess}`?" if guess else ""
            raise ValueError(f"`tier` is `{tier}`: it must be one of {', '.join(GRANT_TIERS)}{meant}")
        try:
            last_day = date.fromisoformat(until.strip()) if until else None
        except ValueError:
            raise ValueError(f"`until` is `{until}`: it must be a day like 2026-12-31") from None
        return cls(zone, kind, tier, int(count), last_day)

    def __str__(self) -> str:
        what = "chips of " if self.is_of_chips else ""
        end = f" until {self.until}" if self.until else ""
        return f"{self.count} {what}{self.type} {self.tier} in {self.zone}{end}"

    @property
    def is_of_chips(self) -> bool:
        """Return whether the grant counts chips of a generation, not nodes of a type."""
        return find_accelerator_type(self.type) is None

    @property
    def generation(self) -> Generation | None:
        """The generation; None if the table lacks it."""
        accelerator = find_accelerator_type(self.type)
        return accelerator.generation if accelerator else find_generation(self.type)

    @property
    def chips(self) -> int:
        """The number of chips that the grant covers."""
        accelerator = find_accelerator_type(self.type)
        return self.count * (accelerator.chips if accelerator else 1)

    def is_of_tier(self, tier: Tier | None) -> bool:
        """Return whether the grant is for a tier. Spot and preemptible are one pool; None means on-demand."""
        return capacity_pool(Tier(self.tier)) is capacity_pool(tier)

    def is_of_type(self, accelerator: AcceleratorType) -> bool:
        """Return whether the grant covers nodes of a type."""
        return self.generation == accelerator.generation if self.is_of_chips else self.type == accelerator.name

    def covers(self, zone: str, accelerator: AcceleratorType, tier: Tier | None) -> bool:
        """Return whether the grant is for nodes of this zone, type and tier."""
        return self.zone == zone and self.is_of_type(accelerator) and self.is_of_tier(tier)

    def has_ended(self, today: date) -> bool:
        """Return whether the last day has passed."""
        return self.until is not None and self.until < today


def capacity_pool(tier: Tier | None) -> Tier:
    """Return the tier whose capacity is counted: spot and preemptible share one pool; None means on-demand."""
    return Tier.SPOT if tier is Tier.PREEMPTIBLE else tier or Tier.ON_DEMAND


def _parse_type(text: str) -> str:
    if generation := find_generation(text):
        return generation.name
    try:
        return parse_accelerator_type(check_accelerator_type(text)).name
    except InvalidInputError as error:
        known = ", ".join(load_accelerators().generations)
        hint = (
            error.hint
            if error.hint and error.hint.startswith("did you mean")
            else f"a generation ({known}) or a type like v2-8"
        )
        raise ValueError(f"`type` is `{text}`: {hint}") from None
