"""Which handler answers which method of the discovery documents. What is not here is not implemented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, compute, nodes, operations, queued

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

_LOCATIONS = "tpu.projects.locations"

METHODS: Mapping[str, Callable[[Session, Call], Json]] = {
    f"{_LOCATIONS}.get": catalog.get_location,
    f"{_LOCATIONS}.list": catalog.list_locations,
    f"{_LOCATIONS}.generateServiceIdentity": catalog.generate_service_identity,
    f"{_LOCATIONS}.acceleratorTypes.get": catalog.get_accelerator_type,
    f"{_LOCATIONS}.acceleratorTypes.list": catalog.list_accelerator_types,
    f"{_LOCATIONS}.runtimeVersions.get": catalog.get_runtime_version,
    f"{_LOCATIONS}.runtimeVersions.list": catalog.list_runtime_versions,
    f"{_LOCATIONS}.tensorflowVersions.get": catalog.get_runtime_version,
    f"{_LOCATIONS}.tensorflowVersions.list": catalog.list_tensorflow_versions,
    f"{_LOCATIONS}.nodes.create": nodes.create,
    f"{_LOCATIONS}.nodes.get": nodes.get,
    f"{_LOCATIONS}.nodes.list": nodes.list_,
    f"{_LOCATIONS}.nodes.delete": nodes.delete,
    f"{_LOCATIONS}.nodes.start": nodes.start,
    f"{_LOCATIONS}.nodes.stop": nodes.stop,
    f"{_LOCATIONS}.nodes.patch": nodes.patch,
    f"{_LOCATIONS}.nodes.getGuestAttributes": nodes.get_guest_attributes,
    f"{_LOCATIONS}.operations.get": operations.get,
    f"{_LOCATIONS}.operations.list": operations.list_,
    f"{_LOCATIONS}.operations.cancel": operations.cancel,
    f"{_LOCATIONS}.operations.delete": operations.delete,
    f"{_LOCATIONS}.queuedResources.create": queued.create,
    f"{_LOCATIONS}.queuedResources.get": queued.get,
    f"{_LOCATIONS}.queuedResources.list": queued.list_,
    f"{_LOCATIONS}.queuedResources.delete": queued.delete,
    f"{_LOCATIONS}.queuedResources.reset": queued.reset,
    "compute.projects.get": compute.get_project,
    "compute.projects.setCommonInstanceMetadata": compute.set_common_instance_metadata,
    "compute.globalOperations.get": compute.get_operation,
    "compute.globalOperations.wait": compute.get_operation,
    "compute.zones.list": compute.list_zones,
}
