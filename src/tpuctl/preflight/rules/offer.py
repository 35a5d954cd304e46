"""Rules about what a zone offers: accelerator types, images, and whether the name is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.names import nearest
from tpuctl.preflight import own_commands
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules import images, names
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.preflight.facts import Facts

_SHOWN = 6


@rule("TPU301", "type offered in the zone")
def type_is_offered(facts: Facts) -> Iterator[Found]:
    """Check that the zone's own list (acceleratorTypes.list) has the accelerator type.

    An error where it has not, or where the project has no such zone: the service refuses such a node. The zones that
    offer the type are named from their own lists, or from a snapshot of the documentation where those could not be read,
    and the finding says which. A shape (type and topology) is compared by its generation. A note for large slices that no
    list has and the documentation allows.
    """
    wanted = facts.wanted
    if not wanted.creates or accelerators.sold_elsewhere(wanted.spec.accelerator_type):
        return
    match facts.types:
        case Known(types):
            yield _judged(facts, types)
        case Absent() | Unknown(error_id="zone-not-supported"):
            yield _not_offered(facts, ())
        case Unknown() if facts.is_without_zone:
            yield _no_zone(facts)
        case Unknown() as unknown:
            what = f"what {wanted.zone} offers"
            yield unread(unknown, wanted.zone, what, permission="tpu.acceleratortypes.list", project=wanted.project)


@rule("TPU302", "zone open to everybody")
def zone_is_open(facts: Facts) -> Iterator[Found]:
    """Tell that a zone is a single-tenant one for the type.

    Such zones need an agreement with Google [documentation, a snapshot]. A warning; a note where the zone's own list has the
    type all the same, as it may for whoever has the agreement.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    if not wanted.creates or not accelerator or wanted.zone not in _single_tenant(accelerator):
        return
    is_listed = accelerator.name in (known(facts.types) or ())
    others = _near(wanted.zone, accelerators.zones_of(accelerator))
    text = f"open zones for it, by the documentation: {', '.join(others)}"
    yield Found(
        level=Level.NOTE if is_listed else Level.WARNING,
        subject=wanted.zone,
        text=f"{wanted.zone} is a single-tenant zone for {accelerator.generation.name}"
        + (", and its list has the type" if is_listed else ""),
        why="the documentation says that such a zone needs an agreement with Google",
        remedies=(Remedy(text, own_commands.again(wanted, zone=others[0])),) if others else (),
        facts={"zone": wanted.zone, "acceleratorType": accelerator.name, "isListed": is_listed},
    )


@rule("TPU304", "type rented through this API")
def type_is_of_this_api(facts: Facts) -> Iterator[Found]:
    """Check that the type is one of the Cloud TPU API.

    An error for the newest chips (TPU7x, Ironwood), which are rented through Compute Engine and Google Kubernetes Engine only
    [documentation].
    """
    name = facts.wanted.spec.accelerator_type
    entry = accelerators.sold_elsewhere(name) if facts.wanted.creates else None
    if entry:
        yield Found(
            level=Level.ERROR,
            subject=name,
            text=f"`{name}` ({entry['name']}) is not served by the Cloud TPU API",
            why="the service answers that it does not know the type",
            remedies=(Remedy(f"rent it through {entry['through']}"),),
            facts={"acceleratorType": name, "through": entry["through"]},
        )


def _judged(facts: Facts, types: tuple[str, ...]) -> Found:
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, facts.wanted.spec.accelerator_type
    ok = {"acceleratorType": name, "zone": wanted.zone}
    if name in types:
        return Found(level=Level.OK, subject=wanted.zone, text=f"{wanted.zone} offers {name}", facts=ok)
    if accelerator and _sizes(types, accelerator):
        generation = accelerator.generation
        if wanted.spec.topology:
            return Found(level=Level.OK, subject=wanted.zone, text=f"{wanted.zone} offers {generation.name}", facts=ok)
        # The lists of zones name the usual sizes of the large generations, and not each that can be had.
        if generation.multiples_of and accelerator.is_listed and accelerator.size not in generation.topologies:
            text = f"{wanted.zone} offers {generation.name}, and its list does not have {name}"
            why = "the documentation allows this size; the service decides"
            return Found(level=Level.NOTE, subject=wanted.zone, text=text, why=why, facts=ok)
    return _not_offered(facts, types)


def _not_offered(facts: Facts, types: tuple[str, ...]) -> Found:
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, facts.wanted.spec.accelerator_type
    zones, is_from_table = _where(facts)
    near = sorted(_sizes(types, accelerator), key=lambda size: abs(size - accelerator.size)) if accelerator else []
    remedies = []
    if zones:
        source = "offered, by the documentation, which is never complete, in" if is_from_table else "offered in"
        remedies.append(Remedy(f"{name} is {source} {_some(zones)}", own_commands.again(wanted, zone=zones[0])))
    if near and accelerator:
        others = [accelerator.generation.type_of(size) for size in near]
        text = f"sizes of {accelerator.generation.name} in {wanted.zone}: {_some(others)}"
        remedies.append(Remedy(text, own_commands.again(wanted, accelerator_type=others[0])))
    if not remedies:
        remedies.append(
            Remedy("no zone that could be asked offers it; see what each has", own_commands.types_of(wanted))
        )
    return Found(
        level=Level.ERROR,
        subject=wanted.zone,
        text=f"{wanted.zone} does not offer {name}; it offers {_summary(types)}",
        why="the service refuses to create what the zone does not have",
        remedies=tuple(remedies),
        facts={
            "acceleratorType": name,
            "zone": wanted.zone,
            "acceleratorTypes": list(types),
            "offeredIn": list(zones),
            "isFromTable": is_from_table,
        },
    )


def _no_zone(facts: Facts) -> Found:
    """Return that the project has no such zone: the service does not tell a mistyped one from one that it keeps to others."""
    wanted = facts.wanted
    offers = known(facts.offers)
    zones, is_from_table = _where(facts)
    documented = {
        zone for places in accelerators.load().zones.values() for listed in places.values() for zone in listed
    }
    near = None if wanted.zone in documented else _meant(wanted.zone, zones, offers or documented)
    remedies = []
    if near:
        remedies.append(Remedy(f"take `{near}`, if that is what you mean", own_commands.again(wanted, zone=near)))
    if zones and zones != (near,):
        source = ", by the documentation, which is never complete" if is_from_table else ""
        text = f"zones that offer {wanted.spec.accelerator_type}{source}: {_some(zones)}"
        remedies.append(Remedy(text, own_commands.again(wanted, zone=zones[0])))
    if not remedies:
        remedies.append(Remedy("see which zones the project has", own_commands.types_of(wanted)))
    meant = f"; did you mean `{near}`?" if near else ""
    return Found(
        level=Level.ERROR,
        subject=wanted.zone,
        text=f"the project is not offered the zone `{wanted.zone}`, or there is none of that name{meant}",
        why="the service refuses whatever names it, and no role changes that; zones of a grant are named in its mail",
        remedies=tuple(remedies),
        facts={"zone": wanted.zone, "nearest": near, "offeredIn": list(zones), "isFromTable": is_from_table},
    )


def _meant(zone: str, offering: Collection[str], every: Collection[str]) -> str | None:
    """Return what a mistyped zone may be: one that offers the type before any other, else one of the same continent."""
    continent = zone.partition("-")[0]
    near = (one for one in offering if one.partition("-")[0] == continent)
    return nearest(zone, offering) or next(near, None) or nearest(zone, sorted(every))


def _where(facts: Facts) -> tuple[tuple[str, ...], bool]:
    """Return the zones that offer the type, the nearest first, and whether only the table says so."""
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    offers = known(facts.offers)
    if offers is not None:
        return _near(
            wanted.zone, [zone for zone, types in offers.items() if wanted.spec.accelerator_type in types]
        ), False
    zones = accelerators.zones_of(accelerator) if accelerator else ()
    return _near(wanted.zone, [zone for zone in zones if zone != wanted.zone]), True


def _near(zone: str, zones: Collection[str]) -> tuple[str, ...]:
    """Return zones in order: of the same region, of the same continent, the others."""
    region, continent = zone.rpartition("-")[0], zone.partition("-")[0]
    return tuple(
        sorted(
            zones, key=lambda other: (other.rpartition("-")[0] != region, other.partition("-")[0] != continent, other)
        )
    )


def _sizes(types: tuple[str, ...], like: AcceleratorType) -> list[int]:
    found = [accelerators.find(name) for name in types]
    return [other.size for other in found if other and other.generation == like.generation]


def _summary(types: tuple[str, ...]) -> str:
    """Return the generations of a list of types."""
    found = [(name, accelerators.find(name)) for name in types]
    generations = dict.fromkeys(accelerator.generation.name if accelerator else name for name, accelerator in found)
    return ", ".join(generations) or "no TPUs"


def _some(items: Collection[str]) -> str:
    shown = list(items)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")


def _single_tenant(accelerator: AcceleratorType) -> tuple[str, ...]:
    return accelerators.load().zones.get(accelerator.generation.name, {}).get("single_tenant", ())


RULES = (
    type_is_offered,
    zone_is_open,
    images.version_fits,
    type_is_of_this_api,
    images.version_is_offered,
    names.name_is_free,
)
