"""Which handler answers which method of the discovery documents. What is not here is not implemented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import (
    capacity,
    catalog,
    cloudbilling,
    compute,
    iam,
    nodes,
    operations,
    orgpolicy,
    oslogin,
    queued,
    quota_metrics,
    resourcemanager,
    serviceusage,
    storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.sandbox.calls import Call, Json, Response
    from tpuctl.sandbox.world import Session

_LOCATIONS = "tpu.projects.locations"

METHODS: Mapping[str, Callable[[Session, Call], Json | Response]] = {
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
    f"{_LOCATIONS}.nodes.performMaintenance": nodes.perform_maintenance,
    f"{_LOCATIONS}.nodes.reimage": nodes.reimage,
    f"{_LOCATIONS}.nodes.simulateMaintenanceEvent": nodes.simulate_maintenance_event,
    f"{_LOCATIONS}.nodes.getGuestAttributes": nodes.get_guest_attributes,
    f"{_LOCATIONS}.operations.get": operations.get,
    f"{_LOCATIONS}.operations.list": operations.list_,
    f"{_LOCATIONS}.operations.cancel": operations.cancel,
    f"{_LOCATIONS}.operations.delete": operations.delete,
    f"{_LOCATIONS}.queuedResources.create": queued.create,
    f"{_LOCATIONS}.queuedResources.get": queued.get,
    f"{_LOCATIONS}.queuedResources.list": queued.list_,
    f"{_LOCATIONS}.queuedResources.delete": queued.delete,
    f"{_LOCATIONS}.queuedResources.getMaintenanceInfo": queued.get_maintenance_info,
    f"{_LOCATIONS}.queuedResources.performMaintenanceQueuedResource": queued.perform_maintenance,
    f"{_LOCATIONS}.queuedResources.reset": queued.reset,
    f"{_LOCATIONS}.reservations.list": capacity.list_reservations,
    "compute.projects.get": compute.get_project,
    "compute.projects.setCommonInstanceMetadata": compute.set_common_instance_metadata,
    **{
        f"compute.{scope}Operations.{verb}": compute.get_operation
        for scope in ("global", "region", "zone")
        for verb in ("get", "wait")
    },
    "compute.zones.get": compute.get_zone,
    "compute.zones.list": compute.list_zones,
    "compute.regions.get": compute.get_region,
    "compute.regions.list": compute.list_regions,
    "compute.networks.get": compute.get_network,
    "compute.networks.list": compute.list_networks,
    "compute.networks.insert": compute.insert_network,
    "compute.subnetworks.get": compute.get_subnetwork,
    "compute.subnetworks.list": compute.list_subnetworks,
    "compute.subnetworks.aggregatedList": compute.aggregate_subnetworks,
    "compute.subnetworks.setPrivateIpGoogleAccess": compute.set_private_ip_google_access,
    "compute.firewalls.get": compute.get_firewall,
    "compute.firewalls.list": compute.list_firewalls,
    "compute.firewalls.insert": compute.insert_firewall,
    "compute.firewalls.delete": compute.delete_firewall,
    "compute.disks.get": compute.get_disk,
    "compute.disks.list": compute.list_disks,
    "compute.disks.aggregatedList": compute.aggregate_disks,
    "compute.instances.get": compute.get_instance,
    "compute.instances.list": compute.list_instances,
    "compute.instances.aggregatedList": compute.aggregate_instances,
    "storage.buckets.get": storage.get_bucket,
    "storage.buckets.list": storage.list_buckets,
    "storage.buckets.getIamPolicy": storage.get_iam_policy,
    "storage.buckets.setIamPolicy": storage.set_iam_policy,
    "storage.buckets.testIamPermissions": storage.test_iam_permissions,
    "storage.buckets.getStorageLayout": storage.get_layout,
    "storage.anywhereCaches.get": storage.get_cache,
    "storage.anywhereCaches.list": storage.list_caches,
    "storage.objects.get": storage.get_object,
    "storage.objects.list": storage.list_objects,
    "storage.objects.insert": storage.insert_object,
    "storage.objects.delete": storage.delete_object,
    "serviceusage.services.get": serviceusage.get,
    "serviceusage.services.list": serviceusage.list_,
    "serviceusage.services.enable": serviceusage.enable,
    "serviceusage.services.disable": serviceusage.disable,
    "serviceusage.services.batchEnable": serviceusage.batch_enable,
    "serviceusage.services.batchGet": serviceusage.batch_get,
    "serviceusage.services.consumerQuotaMetrics.list": quota_metrics.list_,
    "serviceusage.operations.get": serviceusage.get_operation,
    "cloudresourcemanager.projects.get": resourcemanager.get,
    "cloudresourcemanager.projects.getIamPolicy": resourcemanager.get_iam_policy,
    "cloudresourcemanager.projects.setIamPolicy": resourcemanager.set_iam_policy,
    "cloudresourcemanager.projects.testIamPermissions": resourcemanager.test_iam_permissions,
    "iam.roles.get": iam.get_role,
    "iam.projects.roles.get": iam.get_custom_role,
    "orgpolicy.projects.policies.get": orgpolicy.get,
    "orgpolicy.projects.policies.list": orgpolicy.list_,
    "orgpolicy.projects.policies.getEffectivePolicy": orgpolicy.get_effective,
    "orgpolicy.projects.policies.create": orgpolicy.create,
    "orgpolicy.projects.policies.patch": orgpolicy.patch,
    "orgpolicy.projects.policies.delete": orgpolicy.delete,
    "oslogin.users.getLoginProfile": oslogin.get_login_profile,
    "oslogin.users.importSshPublicKey": oslogin.import_ssh_public_key,
    "oslogin.users.sshPublicKeys.patch": oslogin.patch_ssh_public_key,
    "cloudbilling.projects.getBillingInfo": cloudbilling.get_billing_info,
}

# Methods of the TPU API, in any of its versions, that are not served, and why. They answer 501. At present there are none.
NOT_SERVED: Mapping[str, str] = {}
