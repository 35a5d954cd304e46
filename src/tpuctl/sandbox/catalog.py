"""The offers of each zone: locations, accelerator types, runtime versions.

A snapshot of Google's documentation (data/accelerators.yaml). The images of a zone are not documented: every zone has all.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from tpuctl.accelerators import (
    accelerator_type_from_topology,
    documented_zones_of,
    load_accelerators,
    parse_accelerator_type,
)
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import api_calls
from tpuctl.sandbox.api_calls import (
    ResourceName,
    answers,
    bad_request,
    invalid_field,
    list_response,
    not_found,
    page_of,
    parse_resource_name,
    unknown_location,
)

if TYPE_CHECKING:
    from tpuctl.accelerators import AcceleratorType
    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

# Zones without TPUs of this API.
_NEIGHBOURS = (
    *("us-central1-ai1a", "us-south1-ai1b", "us-east1-b", "us-east1-c", "us-west1-a", "us-west1-b", "us-west4-b"),
    *("europe-west1-b", "europe-west1-c", "europe-west1-d", "europe-west4-c", "asia-east1-a", "asia-east1-b"),
    *("asia-northeast1-a", "asia-northeast1-c", "southamerica-west1-a", "us-east4-a", "us-east4-b", "us-east4-c"),
    *("us-west2-a", "us-west2-b", "us-west2-c", "us-west3-a", "us-west3-b", "us-west3-c"),
)
_TENSORFLOW = ("2.12.0", "2.13.0", "2.14.0", "2.15.0", "2.15.1", "2.16.1", "2.17.0", "2.17.1", "2.18.0", "2.19.0")
RUNTIME_VERSIONS = tuple(
    sorted(
        (
            *("tpu-ubuntu2204-base", "tpu-vm-base", "tpu-vm-v4-base", "v2-alpha-tpuv5", "v2-alpha-tpuv5-lite"),
            *("v2-alpha-tpuv6e", "tpu-vm-tf-2.18.0-pjrt"),
            *(f"tpu-vm-tf-{version}{kind}" for version in _TENSORFLOW for kind in ("", "-pod")),
            *(
                f"tpu-vm-tf-{version}-{kind}"
                for version in ("2.15.0", "2.16.1", "2.17.0")
                for kind in ("pjrt", "pod-pjrt")
            ),
        )
    )
)


# Versions of TPU Nodes: unverified, from the legacy documentation's examples; its list has the images of TPU VMs too (gcloud).
TENSORFLOW_VERSIONS = tuple(sorted((*RUNTIME_VERSIONS, *_TENSORFLOW, "nightly", "pytorch-2.0", "pytorch-nightly")))
_OFFERED = ("acceleratorTypes", "runtimeVersions", "tensorflowVersions")


@cache
def _offers() -> dict[str, tuple[AcceleratorType, ...]]:
    """Return the accelerator types of each zone with TPUs, by size within a generation."""
    table = load_accelerators()
    offers: dict[str, list[AcceleratorType]] = {}
    for generation in table.generations.values():
        for size in sorted({*generation.sizes, *generation.topologies}):
            accelerator = parse_accelerator_type(generation.type_of(size))
            zones = documented_zones_of(accelerator)
            if accelerator.name in {"v2-8", "v3-8"}:  # the types of research grants (documentation)
                zones += (table.research_zone,)
            for zone in dict.fromkeys(zones):
                offers.setdefault(zone, []).append(accelerator)
    return {zone: tuple(offers[zone]) for zone in sorted(offers)}


@cache
def zone_names() -> tuple[str, ...]:
    """Return the zones that host TPUs."""
    return tuple(_offers())


@cache
def location_names() -> tuple[str, ...]:
    """Return all zones, with and without TPUs."""
    return tuple(sorted({*_offers(), *_NEIGHBOURS}))


def zone_offers(zone: str, accelerator_type: str) -> bool:
    """Return whether a zone's list contains a type."""
    return any(offer.name == accelerator_type for offer in _offers().get(zone, ()))


def offers_type(pattern: str) -> bool:
    """Return whether a zone offers a type that matches a glob, or could offer the type of this name, a large slice."""
    if any(fnmatchcase(offer.name, pattern) for offers in _offers().values() for offer in offers):
        return True
    try:
        return parse_accelerator_type(pattern).is_listed
    except InvalidInputError:
        return False


def check_location(project: str, zone: str) -> None:
    """Raise `ApiError` 403 for a zone that does not exist, with the message of the real service (observed)."""
    if zone not in _offers() and zone not in _NEIGHBOURS:
        raise unknown_location(project, zone)


def check_tpu_zone(project: str, zone: str) -> None:
    """Raise `ApiError` for a zone without TPUs: 403 if it is unknown, else 400 (both observed)."""
    check_location(project, zone)
    if zone not in _offers():
        raise bad_request(f'The requested zone "{zone}" is not supported.')


def resolve_accelerator(body: Json, zone: str) -> AcceleratorType:
    """Return the accelerator that a request body names by type or by configuration.

    Raises `ApiError` 400 if it names both and they differ, if the zone does not offer it (observed message), and if it names
    neither (unverified).
    """
    name, config = str(body.get("acceleratorType") or ""), body.get("acceleratorConfig") or {}
    topology = str(config.get("topology", ""))
    if not name and not config:
        raise invalid_field("AcceleratorType", "")
    try:
        by_name = parse_accelerator_type(name) if name else None
        by_config = accelerator_type_from_topology(str(config.get("type", "")), topology) if config else None
    except InvalidInputError as error:
        raise _not_offered(name or f"{config.get('type')}:{topology}", zone) from error
    if by_name and by_config and (by_name.name != by_config.name):
        raise bad_request(f'The accelerator type "{name}" does not match the accelerator config.')  # unverified
    accelerator = by_config or by_name
    if accelerator is None:
        raise _not_offered(name, zone)
    is_listed = any(offer.name == accelerator.name for offer in _offers().get(zone, ()))
    # Large slices are offered where their generation is.
    if not is_listed and not (accelerator.is_listed and zone in documented_zones_of(accelerator)):
        raise _not_offered(accelerator.name, zone)
    return accelerator


def check_runtime_version(version: str) -> None:
    """Raise `ApiError` 400 for an image that no zone has (observed message, of API v1)."""
    if version not in RUNTIME_VERSIONS:
        raise invalid_field("RuntimeVersion", version)


def check_tensorflow_version(version: str) -> None:
    """Raise `ApiError` 400 for a version of TPU Nodes that does not exist (observed: tensorflow/tpu#877)."""
    if version not in TENSORFLOW_VERSIONS:
        raise invalid_field("TensorflowVersion", version)


@answers("tpu.projects.locations.get")
def _get_location(_session: StateSession, call: Call) -> Json:
    """Return a location. Zones without TPUs are not locations of this API."""
    where = parse_resource_name(call["name"])
    if where.zone not in _offers():
        raise unknown_location(where.project, where.zone)
    return _location(where.project, where.zone)


@answers("tpu.projects.locations.list")
def _list_locations(_session: StateSession, call: Call) -> Json:
    """List the zones with TPUs; the filter is ignored."""
    project = call["name"].split("/")[1]
    return list_response(call, "locations", [_location(project, zone) for zone in zone_names()])


def _offered_names(collection: str, zone: str) -> tuple[str, ...]:
    """Return the accelerator types, runtime versions or (of v1) TensorFlow versions of a zone."""
    match collection:
        case "acceleratorTypes":
            return tuple(offer.name for offer in _offers()[zone])
        case "runtimeVersions":
            return RUNTIME_VERSIONS
        case _:
            return TENSORFLOW_VERSIONS


@answers(*(f"tpu.projects.locations.{collection}.get" for collection in _OFFERED))
def _get_offered(_session: StateSession, call: Call) -> Json:
    where, collection = parse_resource_name(call["name"]), call.method.split(".")[-2]
    check_tpu_zone(where.project, where.zone)
    if where.resource_id not in _offered_names(collection, where.zone):
        raise not_found(call["name"])
    return _offered(where, collection, call.version)


@answers(*(f"tpu.projects.locations.{collection}.list" for collection in _OFFERED))
def _list_offered(_session: StateSession, call: Call) -> Json:
    """List what a zone offers, or all zones; filter and order are ignored."""
    where, collection = parse_resource_name(call["parent"]), call.method.split(".")[-2]
    zones = zone_names()
    if where.zone != api_calls.ANYWHERE:
        check_tpu_zone(where.project, where.zone)
        zones = (where.zone,)
    offers = [ResourceName(where.project, zone, name) for zone in zones for name in _offered_names(collection, zone)]
    page, following = page_of(call, offers)
    return {collection: [_offered(offer, collection, call.version) for offer in page], **following}


def _offered(where: ResourceName, collection: str, version: str) -> Json:
    name = f"projects/{where.project}/locations/{where.zone}/{collection}/{where.resource_id}"
    if collection != "acceleratorTypes":
        return {"name": name, "version": where.resource_id}
    document: Json = {"name": name, "type": where.resource_id}
    if version.startswith("v2"):
        accelerator = parse_accelerator_type(where.resource_id)
        config = {"type": accelerator.generation.config_type, "topology": accelerator.topology}
        document["acceleratorConfigs"] = [config]
    return document


@answers("tpu.projects.locations.generateServiceIdentity")
def _generate_service_identity(_session: StateSession, call: Call) -> Json:
    """Return the TPU service agent; the account's name has the form of Google's service agents."""
    where = parse_resource_name(call["parent"])
    check_location(where.project, where.zone)
    return {"identity": {"email": f"service-{number_of_project(where.project)}@cloud-tpu.iam.gserviceaccount.com"}}


def number_of_project(project: str) -> int:
    """Return a project's number: twelve digits that follow from its name."""
    return 100_000_000_000 + int.from_bytes(project.encode(), "big") % 899_999_999_999


def default_service_account(project: str) -> str:
    """Return the address of a project's Compute Engine default service account."""
    return f"{number_of_project(project)}-compute@developer.gserviceaccount.com"


def _location(project: str, zone: str) -> Json:
    return {
        "name": f"projects/{project}/locations/{zone}",
        "locationId": zone,
        "labels": {"cloud.googleapis.com/region": zone.rpartition("-")[0]},
    }


def _not_offered(name: str, zone: str) -> Exception:
    return bad_request(
        f'The requested accelerator configuration for accelerator type, "{name}", could not be found in the zonal '
        f'accelerator configurations for "{zone}".; the accelerator {name} was not found in zone {zone}'
    )
