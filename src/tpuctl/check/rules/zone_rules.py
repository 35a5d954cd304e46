"""Rules about what a zone offers: accelerator types, images, and whether the name is free."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from tpuctl.accelerators import (
    AcceleratorType,
    documented_zones_of,
    find_accelerator_type,
    find_type_of_other_service,
    load_accelerators,
)
from tpuctl.check.facts import Absent, CheckFacts, Known, ProjectResources, Unknown, WantedNode, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    create_or_check_command,
    delete_queued_resource_command,
    error,
    note,
    some_of,
    tpuctl_command,
    unread_result,
)
from tpuctl.check.zone_ranking import single_tenant_zones
from tpuctl.command_text import fitting
from tpuctl.models.node import Node
from tpuctl.names import NodeName, last_segment, region_of_zone
from tpuctl.spelling import closest_match


class ImageFit(StrEnum):
    """How well an image fits an accelerator. DOUBTFUL: the pair is not documented, and works or may work."""

    FITS = "fits"
    DOUBTFUL = "doubtful"
    MISFIT = "misfit"
    UNKNOWN = "unknown"


_NOT_VISIBLE = "with an image that does not fit, a node becomes READY and its chips are not visible"
# The level of each fit, and the reason.
_IMAGE_FITS = {
    ImageFit.DOUBTFUL: (
        Level.WARNING,
        "this pair is not documented to work, and the node is billed before a failure shows",
    ),
    ImageFit.MISFIT: (Level.ERROR, _NOT_VISIBLE),
    ImageFit.UNKNOWN: (Level.NOTE, _NOT_VISIBLE),
}
_MAX_SHOWN = 6


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
    if verdict.match is ImageFit.FITS:
        return
    level, why = _IMAGE_FITS[verdict.match]
    text = f"`{name}` on {accelerator.name}: {verdict.reason}"
    remedy = _other_image_remedy(wanted, verdict.better or accelerator.runtime_version)
    values = {
        "runtimeVersion": name,
        "acceleratorType": accelerator.name,
        "match": str(verdict.match),
        "better": verdict.better,
    }
    yield RuleResult.of(level, name, text, remedy, why=why, facts=values)


@check_rule("TPU305", "runtime version offered in the zone")
def image_is_offered(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the zone's own list (runtimeVersions.list) has the runtime version.

    An error if it has not: the service rejects the node [observed: tensorflow/tpu#877]. A warning if the documentation
    nevertheless names it for the accelerator, as the lists of other API versions may have it; unknown if the list is empty.
    """
    wanted, name = facts.wanted, last_segment(facts.wanted.spec.runtime_version)
    if not wanted.creates or not name or facts.is_without_zone:
        return
    values = {"runtimeVersion": name, "zone": wanted.zone}
    what, permission = f"the list of runtime versions in {wanted.zone}", "tpu.runtimeversions.list"
    match facts.versions:
        case Known(versions) if name in versions:
            pass
        case Known(()):
            empty = Unknown("its list is empty")
            yield unread_result(empty, name, what, permission=permission, project=wanted.project)
        case Known(versions):
            near = _fitting_image(name, versions, wanted.accelerator)
            level, why = Level.ERROR, "the service rejects a node with it"
            if wanted.accelerator is not None and is_documented_image(name, wanted.accelerator):
                level = Level.WARNING
                why = "the documentation names it, but the service may reject what the zone's list lacks"
            listing = tpuctl_command("versions", project=wanted.project, zone=wanted.zone)
            remedies = [_other_image_remedy(wanted, near)] if near else []
            remedies.append(Remedy("list the runtime versions of the zone", listing))
            text = f"{wanted.zone} has no runtime version `{name}`" + (f"; the nearest is `{near}`" if near else "")
            yield RuleResult.of(level, name, text, *remedies, why=why, facts={**values, "nearest": near})
        case (Absent() | Unknown()) as fact:
            is_without_tpus = isinstance(fact, Absent) or fact.error_id == "zone-not-supported"
            if not is_without_tpus or isinstance(facts.types, Known):  # else TPU301 reports that there are no TPUs
                yield unread_result(fact, name, what, permission=permission, project=wanted.project)


def _fitting_image(name: str, offered: Sequence[str], accelerator: AcceleratorType | None) -> str | None:
    """Return the offered image that fits the type and is spelled like `name`, else the default of the type, if offered."""
    if accelerator is None:
        return closest_match(name, offered)
    fitting = [one for one in offered if judge_image(one, accelerator).match is ImageFit.FITS]
    default = accelerator.runtime_version
    # A misspelled version, not another framework's image.
    return closest_match(name, fitting, similarity=0.8) or (default if default in fitting else None)


def _other_image_remedy(wanted: WantedNode, version: str) -> Remedy:
    if wanted.creates:
        return Remedy(f"use `{version}`", create_or_check_command(wanted, more=(f"--version={version}",)))
    # A node keeps the image that it was created with [API v2: nodes.patch does not accept it].
    command = create_or_check_command(wanted, more=(f"--version={version}", "--replace"))
    return Remedy(f"recreate the node with `{version}`", command)


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
    subject, permission = wanted.name.node_id if wanted.name else wanted.project, "tpu.nodes.list"
    if not isinstance(facts.resources, Known):
        what = "the nodes and queued resources of the project, and their use of quota and grants,"
        yield unread_result(facts.resources, subject, what, permission=permission, project=wanted.project)
        return
    resources = facts.resources.value
    yield from _difference_results(wanted)
    if wanted.name:
        yield from _same_name_results(wanted, wanted.name, resources)
    if resources.unreachable:
        zones = ", ".join(resources.unreachable)
        does_not = "it does not" if len(resources.unreachable) == 1 else "they do not"
        yield RuleResult(
            Level.UNKNOWN,
            subject,
            f"the nodes in {zones} could not be read: {does_not} answer",
            "nodes there count against quota and grants, and may have the same name",
            (Remedy(f"check again; reading it takes the permission `{permission}` on project `{wanted.project}`"),),
            {"unreachable": list(resources.unreachable), "permission": permission},
            is_passing=True,
        )


def _difference_results(wanted: WantedNode) -> Iterator[RuleResult]:
    """Yield how the existing node differs from the requested one."""
    node = wanted.replaces
    if node is None or node.state.is_dead:
        return
    if differences := wanted.spec.differences(node):
        node_id = node.name.node_id
        yield note(
            node_id,
            f"`{node_id}` exists ({node.state}) and differs: {'; '.join(map(str, differences))}",
            Remedy("to recreate it", create_or_check_command(wanted, more=("--replace",))),
            why="`up` refuses it without `--replace`, which deletes the node and its boot disk",
            facts={
                "nodeId": node_id,
                "zone": node.name.zone,
                "state": str(node.state),
                "differences": [difference.field for difference in differences],
            },
        )


def _same_name_results(wanted: WantedNode, name: NodeName, resources: ProjectResources) -> Iterator[RuleResult]:
    own, node_id = [node for node in (wanted.node, wanted.replaces) if node], name.node_id
    for node in resources.nodes:
        if node.name.node_id == node_id and node.name not in {known.name for known in own}:
            yield _same_name_node_result(wanted, node)
    # An existing node is reported instead of its request.
    listed = {node.name.zone for node in resources.nodes if node.name.node_id == node_id}
    owners = {node.queued_resource for node in own}
    for request in resources.requests:
        if not request.owns(node_id) or request.zone in listed or request.name in owners:
            continue
        zone, state, request_id = request.zone, request.state, last_segment(request.name)
        level, will, why = Level.WARNING, "will create", "there may be two nodes with this name, each of them billed"
        if state.is_dead:
            level, will, why = Level.NOTE, "requested", "it has ended, and its record holds name and quota"
        command = delete_queued_resource_command(wanted.project, zone, node_id, all_nodes=len(request.node_ids) > 1)
        yield RuleResult.of(
            level,
            node_id,
            f"the queued resource `{request_id}` in {zone} ({state}) {will} a node `{node_id}`",
            Remedy("delete the request if you do not need it", command),
            why=why,
            facts={"nodeId": node_id, "zone": zone, "queuedResource": request_id, "state": str(state)},
        )


def _same_name_node_result(wanted: WantedNode, node: Node) -> RuleResult:
    zone, node_id, is_dead = node.name.zone, node.name.node_id, node.state.is_dead
    if zone == wanted.zone:
        why = f"{'`up` deletes it first' if is_dead else '`up` uses it'}; `create` refuses"
        advice = "delete it first if you want a new one"
    else:
        why = "two nodes with the same name are easily confused, and each is billed"
        advice = "delete that one if you do not need it, or choose another name"
    what = f"the record of a dead node `{node_id}`" if is_dead else f"a node `{node_id}`"
    return RuleResult.of(
        Level.NOTE if is_dead else Level.WARNING,
        node_id,
        f"{what} is in {zone} ({node.state})",
        Remedy(advice, delete_queued_resource_command(wanted.project, zone, node_id)),
        why=why,
        facts={"nodeId": node_id, "zone": zone, "state": str(node.state)},
    )


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
            if name in types or (generation and wanted.spec.topology):
                return
            # The lists of zones have the usual sizes of the large generations, not every possible one.
            if (
                like
                and generation
                and generation.multiples_of
                and like.is_listed
                and like.size not in generation.topologies
            ):
                text = f"{wanted.zone} offers {generation.name}, but {name} is not in its list"
                why = "the documentation allows this size; the service decides"
                yield note(wanted.zone, text, why=why, facts=values)
            else:
                yield _type_not_offered(facts, types)
        case Absent() | Unknown(error_id="zone-not-supported"):
            yield _type_not_offered(facts, ())
        case Unknown() if facts.is_without_zone:
            yield _missing_zone_result(facts)
        case Unknown() as fact:
            what, permission = f"what {wanted.zone} offers", "tpu.acceleratortypes.list"
            yield unread_result(fact, wanted.zone, what, permission=permission, project=wanted.project)


@check_rule("TPU302", "zone open to all projects")
def zone_is_open(facts: CheckFacts) -> Iterator[RuleResult]:
    """Warn if the zone is a single-tenant zone for the type.

    Such zones need an agreement with Google [documentation, a snapshot]. A warning; a note if the zone's own list has the
    type, as it may for a project with such an agreement.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    if not wanted.creates or not accelerator:
        return
    generation = accelerator.generation.name
    if wanted.zone not in single_tenant_zones(accelerator):
        return
    is_listed = accelerator.name in (value_or_none(facts.types) or ())
    others = _sort_by_distance(wanted.zone, documented_zones_of(accelerator))
    advice = f"open zones for it, according to the documentation: {', '.join(others)}"
    text = f"{wanted.zone} is a single-tenant zone for {generation}"
    yield RuleResult.of(
        Level.NOTE if is_listed else Level.WARNING,
        wanted.zone,
        text + (", and its list has the type" if is_listed else ""),
        *([Remedy(advice, create_or_check_command(wanted, zone=others[0]))] if others else ()),
        why="the documentation says that such a zone needs an agreement with Google",
        facts={"zone": wanted.zone, "acceleratorType": accelerator.name, "isListed": is_listed},
    )


@check_rule("TPU304", "type available through this API")
def type_is_in_this_api(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the type is available through the Cloud TPU API.

    An error for the newest chips (TPU7x, Ironwood), which are available only through Compute Engine and Google Kubernetes
    Engine [documentation].
    """
    name = facts.wanted.spec.accelerator_type
    if facts.wanted.creates and (entry := find_type_of_other_service(name)):
        yield error(
            name,
            f"`{name}` ({entry['name']}) is not available through the Cloud TPU API",
            f"use {entry['through']}",
            why="the service answers that it does not know the type",
            facts={"acceleratorType": name, "through": entry["through"]},
        )


def _type_not_offered(facts: CheckFacts, types: tuple[str, ...]) -> RuleResult:
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, facts.wanted.spec.accelerator_type
    zones, is_from_table = _zones_with_type(facts)
    remedies = []
    if zones:
        source = "offered, according to the (incomplete) documentation, in" if is_from_table else "offered in"
        command = create_or_check_command(wanted, zone=zones[0])
        remedies.append(Remedy(f"{name} is {source} {some_of(zones, _MAX_SHOWN)}", command))
    if accelerator and (sizes := _sizes_offered(types, accelerator)):
        near = sorted(sizes, key=lambda size: abs(size - accelerator.size))
        others = [accelerator.generation.type_of(size) for size in near]
        text = f"sizes of {accelerator.generation.name} in {wanted.zone}: {some_of(others, _MAX_SHOWN)}"
        remedies.append(Remedy(text, create_or_check_command(wanted, accelerator_type=others[0])))
    if not remedies:
        remedies.append(Remedy("no zone that answered offers it; list what each has", _list_types_command(wanted)))
    known = [(each, find_accelerator_type(each)) for each in types]
    generations = ", ".join(dict.fromkeys(like.generation.name if like else each for each, like in known))
    return error(
        wanted.zone,
        f"{wanted.zone} does not offer {name}; it offers {generations or 'no TPUs'}",
        *remedies,
        why="the service rejects types that the zone does not offer",
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
    wanted, offers = facts.wanted, value_or_none(facts.offers)
    zones, is_from_table = _zones_with_type(facts)
    table = load_accelerators().zones.values()
    documented = {zone for places in table for listed in places.values() for zone in listed}
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
        text = f"zones that offer {wanted.spec.accelerator_type}{source}: {some_of(zones, _MAX_SHOWN)}"
        remedies.append(Remedy(text, create_or_check_command(wanted, zone=zones[0])))
    if not remedies:
        remedies.append(Remedy("list the zones of the project", _list_types_command(wanted)))
    meant = f"; did you mean `{near}`?" if near else ""
    return error(
        wanted.zone,
        f"the project cannot use the zone `{wanted.zone}`, or it does not exist{meant}",
        *remedies,
        why="the service rejects every request for it, and no role changes that; the mail of a grant names its zones",
        facts={"zone": wanted.zone, "nearest": near, "offeredIn": list(zones), "isFromTable": is_from_table},
    )


def _list_types_command(wanted: WantedNode) -> str:
    return tpuctl_command("types", fitting("type", wanted.spec.accelerator_type), project=wanted.project)


def _zones_with_type(facts: CheckFacts) -> tuple[tuple[str, ...], bool]:
    """Return the zones that offer the type, the nearest first, and whether they come from the table."""
    wanted, offers = facts.wanted, value_or_none(facts.offers)
    if offers is not None:
        zones = [zone for zone, types in offers.items() if wanted.spec.accelerator_type in types]
    else:
        documented = documented_zones_of(wanted.accelerator) if wanted.accelerator else ()
        zones = [zone for zone in documented if zone != wanted.zone]
    return _sort_by_distance(wanted.zone, zones), offers is None


def _sort_by_distance(zone: str, zones: Collection[str]) -> tuple[str, ...]:
    """Return zones in order: of the same region, of the same continent, the others."""

    def distance(other: str) -> tuple[bool, bool, str]:
        return region_of_zone(other) != region_of_zone(zone), other.partition("-")[0] != zone.partition("-")[0], other

    return tuple(sorted(zones, key=distance))


def _sizes_offered(types: tuple[str, ...], like: AcceleratorType) -> list[int]:
    found = [find_accelerator_type(name) for name in types]
    return [other.size for other in found if other and other.generation == like.generation]


# The service accepts an image that does not fit the accelerator: the node becomes READY, and its chips are not visible
# [observed: pytorch/xla#8295, jax#13260, dstack#2148].
_TENSORFLOW_IMAGE = re.compile(
    r"tpu-vm-tf-(?P<version>\d{1,9}\.\d{1,9}\.\d{1,9})(?P<pod>-pod)?(?:-(?P<generation>v\d\w*))?(?P<api>-pjrt|-se)?"
)


@dataclass(frozen=True, slots=True)
class ImageVerdict:
    """How well an image fits, the reason, and an image that fits."""

    match: ImageFit
    reason: str
    better: str | None = None


def judge_image(runtime_version: str, accelerator: AcceleratorType) -> ImageVerdict:
    """Return how well an image fits an accelerator, judged by its name and the table."""
    name = last_segment(runtime_version)
    if tensorflow := _TENSORFLOW_IMAGE.fullmatch(name):
        return _judge_tensorflow_image(tensorflow, accelerator)
    for pattern, entry in load_accelerators().images.items():
        if fnmatchcase(name, pattern):
            fits, works, generation = entry["fits"], entry.get("works", ()), accelerator.generation.name
            if generation in fits:
                return ImageVerdict(ImageFit.FITS, f"it is for {generation}")
            documented = " and ".join(filter(None, (", ".join(fits[:-1]), fits[-1])))
            reason = f"it is documented for {documented}, not for {generation}"
            # Generations with the same device files have similar drivers: v2-alpha-tpuv5 works on v5e [observed: xla#8295].
            devices = {load_accelerators().generations[name].devices for name in fits}
            is_doubtful = generation in works or accelerator.generation.devices in devices
            return ImageVerdict(
                ImageFit.DOUBTFUL if is_doubtful else ImageFit.MISFIT, reason, accelerator.runtime_version
            )
    return ImageVerdict(ImageFit.UNKNOWN, "tpuctl does not know this image", accelerator.runtime_version)


def is_documented_image(runtime_version: str, accelerator: AcceleratorType) -> bool:
    """Return whether the documentation names exactly this image for the accelerator's generation."""
    entry = load_accelerators().images.get(last_segment(runtime_version))
    return entry is not None and accelerator.generation.name in entry["fits"]


def _judge_tensorflow_image(found: re.Match[str], accelerator: AcceleratorType) -> ImageVerdict:
    table, generation = load_accelerators().tensorflow_images, accelerator.generation.name
    version = tuple(int(part) for part in found["version"].split("."))
    needs_pjrt, pjrt_since = generation in table["pjrt_only"], tuple(table["pjrt_since"])
    has_suffix = version <= tuple(table["own_suffix"].get(generation, ()))
    if needs_pjrt and version < pjrt_since:
        since = ".".join(map(str, pjrt_since))
        reason = f"{generation} needs TensorFlow {since} or later, with PJRT"
        return ImageVerdict(ImageFit.MISFIT, reason, _tensorflow_image_name(since, accelerator, suffix="-pjrt"))
    suffix = f"-{generation}" if has_suffix else "-pjrt" if needs_pjrt else found["api"] or ""
    better = _tensorflow_image_name(found["version"], accelerator, suffix=suffix)
    if (found["generation"] or "") != (generation if has_suffix else ""):
        # The driver is installed anyway: another framework than the image's TensorFlow can use the chips.
        reason = f"it is for {found['generation'] or 'other generations'}, not for {generation}"
        return ImageVerdict(ImageFit.MISFIT if needs_pjrt else ImageFit.DOUBTFUL, reason, better)
    if needs_pjrt and found["api"] != "-pjrt":
        return ImageVerdict(ImageFit.MISFIT, f"{generation} needs an image with PJRT", better)
    if accelerator.is_slice and not found["pod"]:
        reason = f"{accelerator.name} has {accelerator.workers} workers; an image without `-pod` is for a single worker"
        return ImageVerdict(ImageFit.DOUBTFUL, reason, better)
    if found["pod"] and not accelerator.is_slice:
        reason = f"{accelerator.name} has one worker; an image with `-pod` is for slices with several workers"
        return ImageVerdict(ImageFit.DOUBTFUL, reason, better)
    return ImageVerdict(ImageFit.FITS, f"it is for {generation}")


def _tensorflow_image_name(version: str, accelerator: AcceleratorType, *, suffix: str) -> str:
    return f"tpu-vm-tf-{version}{'-pod' if accelerator.is_slice else ''}{suffix}"


ZONE_RULES = (
    type_is_offered_in_zone,
    zone_is_open,
    image_fits_accelerator,
    type_is_in_this_api,
    image_is_offered,
    node_name_is_free,
)
