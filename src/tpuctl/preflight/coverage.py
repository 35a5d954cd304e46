"""Whether grants cover a node beside everything that is held; if not, the nearest grant and what it would cover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.accelerators import find
from tpuctl.model.states import Tier
from tpuctl.preflight.grants import pool_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.preflight.grants import Grant
    from tpuctl.preflight.holdings import Holding
    from tpuctl.preflight.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Coverage:
    """The chips that grants provide for a node. `grants` match its zone, type and tier.

    `used` chips are in use already; `needed` chips are for the nodes that the command creates.
    """

    grants: tuple[Grant, ...]
    granted: int
    used: int
    needed: int

    @property
    def is_enough(self) -> bool:
        """Return whether the grants cover the node."""
        return bool(self.grants) and self.used + self.needed <= self.granted

    @property
    def left(self) -> int:
        """The chips that are not used yet."""
        return max(self.granted - self.used, 0)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A node that a grant would cover instead."""

    zone: str
    accelerator_type: str
    tier: Tier


def matching(wanted: Wanted, accelerator: AcceleratorType) -> tuple[Grant, ...]:
    """Return the grants for the node's zone, type and tier, including grants that have ended."""
    return tuple(grant for grant in wanted.grants if not differences(grant, wanted, accelerator))


def cover(wanted: Wanted, accelerator: AcceleratorType, held: Iterable[Holding], today: date) -> Coverage:
    """Return the coverage by the grants that are valid today. Dead resources are not billed and use no chips."""
    grants = tuple(grant for grant in matching(wanted, accelerator) if not grant.has_ended(today))
    needed = accelerator.chips
    for spec in wanted.siblings:
        other = find(spec.accelerator_type)
        if (
            other
            and pool_of(spec.tier) is pool_of(wanted.spec.tier)
            and any(grant.is_of_type(other) for grant in grants)
        ):
            needed += other.chips
    used = sum(one.chips for one in held if any(_uses(one, grant) for grant in grants))
    return Coverage(grants, sum(grant.chips for grant in grants), used, needed)


def differences(grant: Grant, wanted: Wanted, accelerator: AcceleratorType) -> tuple[str, ...]:
    """Return, as text, how a grant differs from the node: zone, type or tier."""
    found = []
    if grant.zone != wanted.zone:
        found.append(f"it is for the zone {grant.zone}, not {wanted.zone}")
    if not grant.is_of_type(accelerator):
        found.append(f"it is for {grant.type}, not {accelerator.name}")
    if not grant.is_of_tier(wanted.spec.tier):
        found.append(f"it is for {grant.tier}, not {wanted.spec.tier or Tier.ON_DEMAND}")
    return tuple(found)


def nearest(wanted: Wanted, accelerator: AcceleratorType, today: date) -> Grant | None:
    """Return the grant that differs least: first a valid grant, then the same type, then zone, then tier."""

    def distance(grant: Grant) -> tuple[bool, bool, bool, bool]:
        generation = grant.generation
        return (
            grant.has_ended(today),
            generation != accelerator.generation,
            grant.zone != wanted.zone,
            not grant.is_of_tier(wanted.spec.tier),
        )

    return min(wanted.grants, key=distance, default=None)


def alternative(grant: Grant, accelerator: AcceleratorType, held: Iterable[Holding], today: date) -> Alternative | None:
    """Return what a grant would cover: the same type if possible, else the largest type that fits and is not larger."""
    left = grant.chips - sum(one.chips for one in held if _uses(one, grant))
    generation = grant.generation
    if grant.has_ended(today) or generation is None:
        return None
    if grant.is_of_type(accelerator) and accelerator.chips <= left:
        return Alternative(grant.zone, accelerator.name, Tier(grant.tier))
    names = [generation.type_of(size) for size in generation.sizes] if grant.is_of_chips else [grant.type]
    types = [found for found in map(find, names) if found and found.chips <= left]
    fitting = [one for one in types if one.chips <= accelerator.chips] or types[:1]
    best = max(fitting, key=lambda one: one.chips, default=None)
    return Alternative(grant.zone, best.name, Tier(grant.tier)) if best else None


def _uses(one: Holding, grant: Grant) -> bool:
    return (
        not one.is_dead and one.zone == grant.zone and grant.is_of_type(one.accelerator) and grant.is_of_tier(one.tier)
    )
