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

    An error if it has not, or if the project cannot use the zone: the service rejects such a node. The zones that offer the
    type come from their own lists or, if those could not be read, from a snapshot of the documentation; the finding says
    which. A shape (type and topology) is compared by its generation. A note for large slices that are missing in the list and
    that the documentation allows.
    """
    wanted, name = facts.wanted, facts.wanted.spec.accelerator_type
    if not wanted.creates or accelerators.sold_elsewhere(name):
        return
    match facts.types:
        case Known(types):
            like = wanted.accelerator
            generation = like.generation if like and _sizes(types, like) else None
            about = {"acceleratorType": name, "zone": wanted.zone}
            if name in types:
                yield Found(level=Level.OK, subject=wanted.zone, text=f"{wanted.zone} offers {name}", facts=about)
            elif generation and wanted.spec.topology:
                text = f"{wanted.zone} offers {generation.name}"
                yield Found(level=Level.OK, subject=wanted.zone, text=text, facts=about)
            # The lists of zones have the usual sizes of the large generations, not every possible one.
            elif (
                like
                and generation
                and (generation.multiples_of and like.is_listed and like.size not in generation.topologies)
            ):
                text = f"{wanted.zone} offers {generation.name}, but {name} is not in its list"
                why = "the documentation allows this size; the service decides"
                yield Found(level=Level.NOTE, subject=wanted.zone, text=text, why=why, facts=about)
            else:
                yield _not_offered(facts, types)
        case Absent() | Unknown(error_id="zone-not-supported"):
            yield _not_offered(facts, ())
        case Unknown() if facts.is_without_zone:
            yield _no_zone(facts)
        case Unknown() as unknown:
            what = f"what {wanted.zone} offers"
            yield unread(unknown, wanted.zone, what, permission="tpu.acceleratortypes.list", project=wanted.project)


@rule("TPU302", "zone open to all projects")
def zone_is_open(facts: Facts) -> Iterator[Found]:
    """Warn if the zone is a single-tenant zone for the type.

    Such zones need an agreement with Google [documentation, a snapshot]. A warning; a note if the zone's own list has the
    type, as it may for a project with such an agreement.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    if not wanted.creates or not accelerator:
        return
    if wanted.zone not in accelerators.load().zones.get(accelerator.generation.name, {}).get("single_tenant", ()):
        return
    is_listed = accelerator.name in (known(facts.types) or ())
    others = _near(wanted.zone, accelerators.zones_of(accelerator))
    text = f"open zones for it, according to the documentation: {', '.join(others)}"
    yield Found(
        level=Level.NOTE if is_listed else Level.WARNING,
        subject=wanted.zone,
        text=f"{wanted.zone} is a single-tenant zone for {accelerator.generation.name}"
        + (", and its list has the type" if is_listed else ""),
        why="the documentation says that such a zone needs an agreement with Google",
        remedies=(Remedy(text, own_commands.again(wanted, zone=others[0])),) if others else (),
        facts={"zone": wanted.zone, "acceleratorType": accelerator.name, "isListed": is_listed},
    )


@rule("TPU304", "type available through this API")
def type_is_of_this_api(facts: Facts) -> Iterator[Found]:
    """Check that the type is available through the Cloud TPU API.

    An error for the newest chips (TPU7x, Ironwood), which are available only through Compute Engine and Google Kubernetes
    Engine [documentation].
    """
    name = facts.wanted.spec.accelerator_type
    entry = accelerators.sold_elsewhere(name) if facts.wanted.creates else None
    if entry:
        yield Found(
            level=Level.ERROR,
            subject=name,
            text=f"`{name}` ({entry['name']}) is not available through the Cloud TPU API",
            why="the service answers that it does not know the type",
            remedies=(Remedy(f"use {entry['through']}"),),
            facts={"acceleratorType": name, "through": entry["through"]},
        )


def _not_offered(facts: Facts, types: tuple[str, ...]) -> Found:
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, facts.wanted.spec.accelerator_type
    zones, is_from_table = _where(facts)
    near = sorted(_sizes(types, accelerator), key=lambda size: abs(size - accelerator.size)) if accelerator else []
    remedies = []
    if zones:
        source = "offered, according to the (incomplete) documentation, in" if is_from_table else "offered in"
        remedies.append(Remedy(f"{name} is {source} {_some(zones)}", own_commands.again(wanted, zone=zones[0])))
    if near and accelerator:
        others = [accelerator.generation.type_of(size) for size in near]
        text = f"sizes of {accelerator.generation.name} in {wanted.zone}: {_some(others)}"
        remedies.append(Remedy(text, own_commands.again(wanted, accelerator_type=others[0])))
    if not remedies:
        remedies.append(Remedy("no zone that answered offers it; list what each has", own_commands.types_of(wanted)))
    found = [(each, accelerators.find(each)) for each in types]
    generations = ", ".join(dict.fromkeys(like.generation.name if like else each for each, like in found))
    return Found(
        level=Level.ERROR,
        subject=wanted.zone,
        text=f"{wanted.zone} does not offer {name}; it offers {generations or 'no TPUs'}",
        why="the service rejects types that the zone does not offer",
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
    """Return that the project cannot use the zone. The service answers alike for a mistyped zone and for a reserved one."""
    wanted = facts.wanted
    offers = known(facts.offers)
    zones, is_from_table = _where(facts)
    documented = {
        zone for places in accelerators.load().zones.values() for listed in places.values() for zone in listed
    }
    near = None
    if wanted.zone not in documented:
        # First a zone that offers the type and has a similar name, then one of the same continent, then any similar name.
        continent = wanted.zone.partition("-")[0]
        same_continent = (zone for zone in zones if zone.partition("-")[0] == continent)
        near = nearest(wanted.zone, zones) or next(same_continent, None)
        near = near or nearest(wanted.zone, sorted(offers or documented))
    remedies = []
    if near:
        remedies.append(Remedy(f"use `{near}`, if that is what you mean", own_commands.again(wanted, zone=near)))
    if zones and zones != (near,):
        source = ", according to the (incomplete) documentation" if is_from_table else ""
        text = f"zones that offer {wanted.spec.accelerator_type}{source}: {_some(zones)}"
        remedies.append(Remedy(text, own_commands.again(wanted, zone=zones[0])))
    if not remedies:
        remedies.append(Remedy("list the zones of the project", own_commands.types_of(wanted)))
    meant = f"; did you mean `{near}`?" if near else ""
    return Found(
        level=Level.ERROR,
        subject=wanted.zone,
        text=f"the project cannot use the zone `{wanted.zone}`, or it does not exist{meant}",
        why="the service rejects every request for it, and no role changes that; the mail of a grant names its zones",
        remedies=tuple(remedies),
        facts={"zone": wanted.zone, "nearest": near, "offeredIn": list(zones), "isFromTable": is_from_table},
    )


def _where(facts: Facts) -> tuple[tuple[str, ...], bool]:
    """Return the zones that offer the type, the nearest first, and whether they come from the table."""
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


def _some(items: Collection[str]) -> str:
    shown = list(items)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")


RULES = (
    type_is_offered,
    zone_is_open,
    images.version_fits,
    type_is_of_this_api,
    images.version_is_offered,
    names.name_is_free,
)
