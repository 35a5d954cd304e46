"""Rules about what a zone offers: accelerator types, images, and whether the name is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.accelerators import (
    documented_zones_of,
    find_accelerator_type,
    find_type_of_other_service,
    load_accelerators,
)
from tpuctl.check.facts import Absent, Known, Unknown, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    create_or_check_command,
    delete_queued_resource_command,
    list_types_command,
    unread_result,
)
from tpuctl.check.runtime_images import ImageFit, is_documented_image, judge_image
from tpuctl.names import closest_match, last_segment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.check.facts import CheckFacts, ProjectResources, WantedNode
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName


_FIT_LEVELS = {
    ImageFit.FITS: Level.OK,
    ImageFit.DOUBTFUL: Level.WARNING,
    ImageFit.MISFIT: Level.ERROR,
    ImageFit.UNKNOWN: Level.NOTE,
}
_FIT_REASONS = {
    ImageFit.DOUBTFUL: "this pair is not documented to work, and the node is billed before a failure shows",
    ImageFit.MISFIT: "with an image that does not fit, a node becomes READY and its chips are not visible",
    ImageFit.UNKNOWN: "with an image that does not fit, a node becomes READY and its chips are not visible",
}


@check_rule("TPU303", "runtime version fits the accelerator")
def image_fits_accelerator(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check by name that the runtime version (image) is for the accelerator's generation and number of workers.

    An error if it is for generations with other drivers: the service accepts it, the node becomes READY, and its chips are not
    visible [documentation "TPU software versions"; observed: dstack#2148, pytorch/xla#9753]. A warning for a pair that is not
    documented and is reported to work, or may work: an image for another generation with the same device files, or a
    TensorFlow image without `-pod` on a slice. A note for an image that tpuctl does not know.
    """
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, last_segment(facts.wanted.spec.runtime_version)
    if accelerator is None or not name:
        return
    verdict = judge_image(name, accelerator)
    fits = verdict.match is ImageFit.FITS
    yield RuleResult(
        _FIT_LEVELS[verdict.match],
        name,
        f"`{name}` fits {accelerator.name}" if fits else f"`{name}` on {accelerator.name}: {verdict.reason}",
        why=_FIT_REASONS.get(verdict.match),
        remedies=() if fits else (_other_image_remedy(wanted, verdict.better or accelerator.runtime_version),),
        facts={
            "runtimeVersion": name,
            "acceleratorType": accelerator.name,
            "match": str(verdict.match),
            "better": verdict.better,
        },
    )


@check_rule("TPU305", "runtime version offered in the zone")
def image_is_offered(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the zone's own list (runtimeVersions.list) has the runtime version.

    An error if it has not: the service rejects the node [observed: tensorflow/tpu#877]. A warning if the documentation
    nevertheless names it for the accelerator, as the lists of other API versions may have it; unknown if the list is empty.
    """
    wanted, name = facts.wanted, last_segment(facts.wanted.spec.runtime_version)
    if not wanted.creates or not name or facts.is_without_zone:
        return
    match facts.versions:
        case Known(versions) if name in versions:
            text = f"{wanted.zone} offers `{name}`"
            yield RuleResult(Level.OK, name, text, facts={"runtimeVersion": name, "zone": wanted.zone})
        case Known(()):
            yield _unread_images(wanted, name, Unknown("its list is empty"))
        case Known(versions):
            default = wanted.accelerator.runtime_version if wanted.accelerator else None
            near = closest_match(name, versions) or (default if default in versions else None)
            is_documented = wanted.accelerator is not None and is_documented_image(name, wanted.accelerator)
            listing = f"tpuctl versions --project={wanted.project} --zone={wanted.zone}"
            yield RuleResult(
                Level.WARNING if is_documented else Level.ERROR,
                name,
                f"{wanted.zone} has no runtime version `{name}`" + (f"; the nearest is `{near}`" if near else ""),
                why="the documentation names it, but the service may reject what the zone's list lacks"
                if is_documented
                else "the service rejects a node with it",
                remedies=(
                    *((_other_image_remedy(wanted, near),) if near else ()),
                    Remedy("list the runtime versions of the zone", listing),
                ),
                facts={"runtimeVersion": name, "zone": wanted.zone, "nearest": near},
            )
        case (Absent() | Unknown()) as fact:
            is_without_tpus = isinstance(fact, Absent) or fact.error_id == "zone-not-supported"
            if not is_without_tpus or isinstance(facts.types, Known):  # else TPU301 reports that there are no TPUs
                yield _unread_images(wanted, name, fact)


def _unread_images(wanted: WantedNode, name: str, fact: Absent | Unknown) -> RuleResult:
    what = f"the list of runtime versions in {wanted.zone}"
    return unread_result(fact, name, what, permission="tpu.runtimeversions.list", project=wanted.project)


def _other_image_remedy(wanted: WantedNode, version: str) -> Remedy:
    if not wanted.creates:
        # A node keeps the image that it was created with [API v2: nodes.patch does not accept it].
        more = (f"--version={version}", "--replace")
        return Remedy(f"recreate the node with `{version}`", create_or_check_command(wanted, more=more))
    return Remedy(f"use `{version}`", create_or_check_command(wanted, more=(f"--version={version}",)))


@check_rule("TPU306", "name of the node free")
def node_name_is_free(facts: CheckFacts) -> Iterator[RuleResult]:
    """Find nodes and queued resources with the same name, in all zones.

    A warning for one in another zone, and for a live one in this zone: `up` uses it, and `create` refuses. A note for a dead
    record in this zone, which `up` deletes first. A note if the node itself exists and differs from the requested one: `up`
    recreates it only with `--replace`. The nodes and queued resources of the project are read once, and an error is reported
    here; the rules of quota and grants need them too. Zones that did not answer are `unknown`.
    """
    wanted = facts.wanted
    if not wanted.creates or facts.resources is None:
        return
    subject = wanted.name.node_id if wanted.name else wanted.project
    match facts.resources:
        case Known(resources):
            found = [
                *_difference_results(wanted),
                *(_same_name_results(wanted, wanted.name, resources) if wanted.name else ()),
            ]
            yield from found
            if resources.unreachable:
                zones = ", ".join(resources.unreachable)
                does_not = "it does not" if len(resources.unreachable) == 1 else "they do not"
                permission = f"`tpu.nodes.list` on project `{wanted.project}`"
                yield RuleResult(
                    Level.UNKNOWN,
                    subject,
                    f"the nodes in {zones} could not be read: {does_not} answer",
                    why="nodes there count against quota and grants, and may have the same name",
                    remedies=(Remedy(f"check again; reading it takes the permission {permission}"),),
                    facts={"unreachable": list(resources.unreachable), "permission": "tpu.nodes.list"},
                    is_passing=True,
                )
            elif wanted.name and not found:
                text = f"the name `{subject}` is free"
                yield RuleResult(Level.OK, subject, text, facts={"nodeId": subject})
        case Absent() | Unknown() as fact:
            what = "the nodes and queued resources of the project, and their use of quota and grants,"
            yield unread_result(fact, subject, what, permission="tpu.nodes.list", project=wanted.project)


def _difference_results(wanted: WantedNode) -> Iterator[RuleResult]:
    """Yield how the existing node differs from the requested one."""
    node = wanted.replaces
    if node is None or node.state.is_dead:
        return
    differences = wanted.spec.differences(node)
    if differences:
        node_id = node.name.node_id
        yield RuleResult(
            Level.NOTE,
            node_id,
            f"`{node_id}` exists ({node.state}) and differs: {'; '.join(map(str, differences))}",
            why="`up` refuses it without `--replace`, which deletes the node and its boot disk",
            remedies=(Remedy("to recreate it", create_or_check_command(wanted, more=("--replace",))),),
            facts={
                "nodeId": node_id,
                "zone": node.name.zone,
                "state": str(node.state),
                "differences": [difference.field for difference in differences],
            },
        )


def _same_name_results(wanted: WantedNode, name: NodeName, resources: ProjectResources) -> Iterator[RuleResult]:
    own = [node for node in (wanted.node, wanted.replaces) if node]
    for node in resources.nodes:
        if node.name.node_id == name.node_id and not any(node.name == known.name for known in own):
            yield _same_name_node_result(wanted, node)
    listed = {node.name for node in resources.nodes}
    owners = {node.queued_resource for node in own}
    for request in resources.requests:
        # An existing node is reported instead of its request.
        is_listed = any(there.zone == request.zone and there.node_id == name.node_id for there in listed)
        if request.owns(name.node_id) and not is_listed and request.name not in owners:
            zone, node_id, is_dead = request.zone, name.node_id, request.state.is_dead
            request_id = last_segment(request.name)
            will = "requested" if is_dead else "will create"
            command = delete_queued_resource_command(wanted.project, zone, node_id, all_nodes=len(request.node_ids) > 1)
            yield RuleResult(
                Level.NOTE if is_dead else Level.WARNING,
                node_id,
                f"the queued resource `{request_id}` in {zone} ({request.state}) {will} a node `{node_id}`",
                why="it has ended, and its record holds name and quota"
                if is_dead
                else "there may be two nodes with this name, each of them billed",
                remedies=(Remedy("delete the request if you do not need it", command),),
                facts={"nodeId": node_id, "zone": zone, "queuedResource": request_id, "state": str(request.state)},
            )


def _same_name_node_result(wanted: WantedNode, node: Node) -> RuleResult:
    zone, node_id, is_in_zone = node.name.zone, node.name.node_id, node.name.zone == wanted.zone
    is_dead = node.state.is_dead
    what = f"the record of a dead node `{node_id}`" if is_dead else f"a node `{node_id}`"
    command = delete_queued_resource_command(wanted.project, zone, node_id)
    if is_in_zone:
        what_up_does = "`up` deletes it first" if is_dead else "`up` uses it"
        why, advice = f"{what_up_does}; `create` refuses", "delete it first if you want a new one"
    else:
        why = "two nodes with the same name are easily confused, and each is billed"
        advice = "delete that one if you do not need it, or choose another name"
    return RuleResult(
        Level.NOTE if is_dead else Level.WARNING,
        node_id,
        f"{what} is in {zone} ({node.state})",
        why=why,
        remedies=(Remedy(advice, command),),
        facts={"nodeId": node_id, "zone": zone, "state": str(node.state)},
    )


_MAX_SHOWN = 6


@check_rule("TPU301", "type offered in the zone")
def type_is_offered_in_zone(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the zone's own list (acceleratorTypes.list) has the accelerator type.

    An error if it has not, or if the project cannot use the zone: the service rejects such a node. The zones that offer the
    type come from their own lists or, if those could not be read, from a snapshot of the documentation; the finding says
    which. A shape (type and topology) is compared by its generation. A note for large slices that are missing in the list and
    that the documentation allows.
    """
    wanted, name = facts.wanted, facts.wanted.spec.accelerator_type
    if not wanted.creates or find_type_of_other_service(name):
        return
    match facts.types:
        case Known(types):
            like = wanted.accelerator
            generation = like.generation if like and _sizes_offered(types, like) else None
            values = {"acceleratorType": name, "zone": wanted.zone}
            if name in types:
                yield RuleResult(Level.OK, wanted.zone, f"{wanted.zone} offers {name}", facts=values)
            elif generation and wanted.spec.topology:
                text = f"{wanted.zone} offers {generation.name}"
                yield RuleResult(Level.OK, wanted.zone, text, facts=values)
            # The lists of zones have the usual sizes of the large generations, not every possible one.
            elif (
                like
                and generation
                and (generation.multiples_of and like.is_listed and like.size not in generation.topologies)
            ):
                text = f"{wanted.zone} offers {generation.name}, but {name} is not in its list"
                why = "the documentation allows this size; the service decides"
                yield RuleResult(Level.NOTE, wanted.zone, text, why=why, facts=values)
            else:
                yield _type_not_offered(facts, types)
        case Absent() | Unknown(error_id="zone-not-supported"):
            yield _type_not_offered(facts, ())
        case Unknown() if facts.is_without_zone:
            yield _missing_zone_result(facts)
        case Unknown() as unknown:
            what = f"what {wanted.zone} offers"
            yield unread_result(
                unknown, wanted.zone, what, permission="tpu.acceleratortypes.list", project=wanted.project
            )


@check_rule("TPU302", "zone open to all projects")
def zone_is_open(facts: CheckFacts) -> Iterator[RuleResult]:
    """Warn if the zone is a single-tenant zone for the type.

    Such zones need an agreement with Google [documentation, a snapshot]. A warning; a note if the zone's own list has the
    type, as it may for a project with such an agreement.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    if not wanted.creates or not accelerator:
        return
    if wanted.zone not in load_accelerators().zones.get(accelerator.generation.name, {}).get("single_tenant", ()):
        return
    is_listed = accelerator.name in (value_or_none(facts.types) or ())
    others = _sort_by_distance(wanted.zone, documented_zones_of(accelerator))
    text = f"open zones for it, according to the documentation: {', '.join(others)}"
    yield RuleResult(
        Level.NOTE if is_listed else Level.WARNING,
        wanted.zone,
        f"{wanted.zone} is a single-tenant zone for {accelerator.generation.name}"
        + (", and its list has the type" if is_listed else ""),
        why="the documentation says that such a zone needs an agreement with Google",
        remedies=(Remedy(text, create_or_check_command(wanted, zone=others[0])),) if others else (),
        facts={"zone": wanted.zone, "acceleratorType": accelerator.name, "isListed": is_listed},
    )


@check_rule("TPU304", "type available through this API")
def type_is_in_this_api(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the type is available through the Cloud TPU API.

    An error for the newest chips (TPU7x, Ironwood), which are available only through Compute Engine and Google Kubernetes
    Engine [documentation].
    """
    name = facts.wanted.spec.accelerator_type
    entry = find_type_of_other_service(name) if facts.wanted.creates else None
    if entry:
        yield RuleResult(
            Level.ERROR,
            name,
            f"`{name}` ({entry['name']}) is not available through the Cloud TPU API",
            why="the service answers that it does not know the type",
            remedies=(Remedy(f"use {entry['through']}"),),
            facts={"acceleratorType": name, "through": entry["through"]},
        )


def _type_not_offered(facts: CheckFacts, types: tuple[str, ...]) -> RuleResult:
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, facts.wanted.spec.accelerator_type
    zones, is_from_table = _zones_with_type(facts)
    near = (
        sorted(_sizes_offered(types, accelerator), key=lambda size: abs(size - accelerator.size)) if accelerator else []
    )
    remedies = []
    if zones:
        source = "offered, according to the (incomplete) documentation, in" if is_from_table else "offered in"
        remedies.append(
            Remedy(f"{name} is {source} {_join_some(zones)}", create_or_check_command(wanted, zone=zones[0]))
        )
    if near and accelerator:
        others = [accelerator.generation.type_of(size) for size in near]
        text = f"sizes of {accelerator.generation.name} in {wanted.zone}: {_join_some(others)}"
        remedies.append(Remedy(text, create_or_check_command(wanted, accelerator_type=others[0])))
    if not remedies:
        remedies.append(Remedy("no zone that answered offers it; list what each has", list_types_command(wanted)))
    found = [(each, find_accelerator_type(each)) for each in types]
    generations = ", ".join(dict.fromkeys(like.generation.name if like else each for each, like in found))
    return RuleResult(
        Level.ERROR,
        wanted.zone,
        f"{wanted.zone} does not offer {name}; it offers {generations or 'no TPUs'}",
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


def _missing_zone_result(facts: CheckFacts) -> RuleResult:
    """Return that the project cannot use the zone. The service answers alike for a mistyped zone and for a reserved one."""
    wanted = facts.wanted
    offers = value_or_none(facts.offers)
    zones, is_from_table = _zones_with_type(facts)
    documented = {
        zone for places in load_accelerators().zones.values() for listed in places.values() for zone in listed
    }
    near = None
    if wanted.zone not in documented:
        # First a zone that offers the type and has a similar name, then one of the same continent, then any similar name.
        continent = wanted.zone.partition("-")[0]
        same_continent = (zone for zone in zones if zone.partition("-")[0] == continent)
        near = closest_match(wanted.zone, zones) or next(same_continent, None)
        near = near or closest_match(wanted.zone, sorted(offers or documented))
    remedies = []
    if near:
        remedies.append(Remedy(f"use `{near}`, if that is what you mean", create_or_check_command(wanted, zone=near)))
    if zones and zones != (near,):
        source = ", according to the (incomplete) documentation" if is_from_table else ""
        text = f"zones that offer {wanted.spec.accelerator_type}{source}: {_join_some(zones)}"
        remedies.append(Remedy(text, create_or_check_command(wanted, zone=zones[0])))
    if not remedies:
        remedies.append(Remedy("list the zones of the project", list_types_command(wanted)))
    meant = f"; did you mean `{near}`?" if near else ""
    return RuleResult(
        Level.ERROR,
        wanted.zone,
        f"the project cannot use the zone `{wanted.zone}`, or it does not exist{meant}",
        why="the service rejects every request for it, and no role changes that; the mail of a grant names its zones",
        remedies=tuple(remedies),
        facts={"zone": wanted.zone, "nearest": near, "offeredIn": list(zones), "isFromTable": is_from_table},
    )


def _zones_with_type(facts: CheckFacts) -> tuple[tuple[str, ...], bool]:
    """Return the zones that offer the type, the nearest first, and whether they come from the table."""
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    offers = value_or_none(facts.offers)
    if offers is not None:
        return _sort_by_distance(
            wanted.zone, [zone for zone, types in offers.items() if wanted.spec.accelerator_type in types]
        ), False
    zones = documented_zones_of(accelerator) if accelerator else ()
    return _sort_by_distance(wanted.zone, [zone for zone in zones if zone != wanted.zone]), True


def _sort_by_distance(zone: str, zones: Collection[str]) -> tuple[str, ...]:
    """Return zones in order: of the same region, of the same continent, the others."""
    region, continent = zone.rpartition("-")[0], zone.partition("-")[0]
    return tuple(
        sorted(
            zones, key=lambda other: (other.rpartition("-")[0] != region, other.partition("-")[0] != continent, other)
        )
    )


def _sizes_offered(types: tuple[str, ...], like: AcceleratorType) -> list[int]:
    found = [find_accelerator_type(name) for name in types]
    return [other.size for other in found if other and other.generation == like.generation]


def _join_some(items: Collection[str]) -> str:
    shown = list(items)[:_MAX_SHOWN]
    return ", ".join(shown) + (f" and {len(items) - _MAX_SHOWN} more" if len(items) > _MAX_SHOWN else "")


ZONE_RULES = (
    type_is_offered_in_zone,
    zone_is_open,
    image_fits_accelerator,
    type_is_in_this_api,
    image_is_offered,
    node_name_is_free,
)
