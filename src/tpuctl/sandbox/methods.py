"""The handler of each method of the discovery documents. A method without one is not implemented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import (
    capacity,
    catalog,
    cloudbilling,
    iam,
    operations,
    orgpolicy,
    oslogin,
    quota_metrics,
    resourcemanager,
    serviceusage,
)
from tpuctl.sandbox.compute import firewalls as compute_firewalls
from tpuctl.sandbox.compute import machine_changes as compute_machine_changes
from tpuctl.sandbox.compute import machines as compute_machines
from tpuctl.sandbox.compute import metadata as compute_metadata
from tpuctl.sandbox.compute import network_changes as compute_network_changes
from tpuctl.sandbox.compute import networks as compute_networks
from tpuctl.sandbox.compute import operations as compute_operations
from tpuctl.sandbox.compute import places as compute_places
from tpuctl.sandbox.nodes import changes as nodes_changes
from tpuctl.sandbox.nodes import creation as nodes_creation
from tpuctl.sandbox.nodes import maintenance as nodes_maintenance
from tpuctl.sandbox.nodes import reading as nodes_reading
from tpuctl.sandbox.nodes import workers as nodes_workers
from tpuctl.sandbox.queued import maintenance as queued_maintenance
from tpuctl.sandbox.queued import requests as queued_requests
from tpuctl.sandbox.storage import bucket_changes as storage_bucket_changes
from tpuctl.sandbox.storage import buckets as storage_buckets
from tpuctl.sandbox.storage import caches as storage_caches
from tpuctl.sandbox.storage import copies as storage_copies
from tpuctl.sandbox.storage import object_changes as storage_object_changes
from tpuctl.sandbox.storage import objects as storage_objects
from tpuctl.sandbox.storage import policies as storage_policies

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
    f"{_LOCATIONS}.nodes.create": nodes_creation.create,
    f"{_LOCATIONS}.nodes.get": nodes_reading.get,
    f"{_LOCATIONS}.nodes.list": nodes_reading.list_,
    f"{_LOCATIONS}.nodes.delete": nodes_changes.delete,
    f"{_LOCATIONS}.nodes.start": nodes_changes.start,
    f"{_LOCATIONS}.nodes.stop": nodes_changes.stop,
    f"{_LOCATIONS}.nodes.patch": nodes_changes.patch,
    f"{_LOCATIONS}.nodes.performMaintenance": nodes_maintenance.perform_maintenance,
    f"{_LOCATIONS}.nodes.reimage": nodes_changes.reimage,
    f"{_LOCATIONS}.nodes.simulateMaintenanceEvent": nodes_maintenance.simulate_maintenance_event,
    f"{_LOCATIONS}.nodes.getGuestAttributes": nodes_workers.get_guest_attributes,
    f"{_LOCATIONS}.operations.get": operations.get,
    f"{_LOCATIONS}.operations.list": operations.list_,
    f"{_LOCATIONS}.operations.cancel": operations.cancel,
    f"{_LOCATIONS}.operations.delete": operations.delete,
    f"{_LOCATIONS}.queuedResources.create": queued_requests.create,
    f"{_LOCATIONS}.queuedResources.get": queued_requests.get,
    f"{_LOCATIONS}.queuedResources.list": queued_requests.list_,
    f"{_LOCATIONS}.queuedResources.delete": queued_requests.delete,
    f"{_LOCATIONS}.queuedResources.getMaintenanceInfo": queued_maintenance.get_maintenance_info,
    f"{_LOCATIONS}.queuedResources.performMaintenanceQueuedResource": queued_maintenance.perform_maintenance,
    f"{_LOCATIONS}.queuedResources.reset": queued_requests.reset,
    f"{_LOCATIONS}.reservations.list": capacity.list_reservations,
    "compute.projects.get": compute_metadata.get_project,
    "compute.projects.setCommonInstanceMetadata": compute_metadata.set_common_instance_metadata,
    **{
        f"compute.{scope}Operations.{verb}": compute_operations.get
        for scope in ("global", "region", "zone")
        for verb in ("get", "wait")
    },
    "compute.zones.get": compute_places.get_zone,
    "compute.zones.list": compute_places.list_zones,
    "compute.regions.get": compute_places.get_region,
    "compute.regions.list": compute_places.list_regions,
    "compute.networks.get": compute_networks.get_network,
    "compute.networks.list": compute_networks.list_networks,
    "compute.networks.insert": compute_network_changes.insert_network,
    "compute.subnetworks.get": compute_networks.get_subnetwork,
    "compute.subnetworks.list": compute_networks.list_subnetworks,
    "compute.subnetworks.aggregatedList": compute_networks.aggregate_subnetworks,
    "compute.subnetworks.setPrivateIpGoogleAccess": compute_network_changes.set_private_ip_google_access,
    "compute.firewalls.get": compute_firewalls.get,
    "compute.firewalls.list": compute_firewalls.list_,
    "compute.firewalls.insert": compute_firewalls.insert,
    "compute.firewalls.delete": compute_firewalls.delete,
    "compute.disks.get": compute_machines.get_disk,
    "compute.disks.list": compute_machines.list_disks,
    "compute.disks.aggregatedList": compute_machines.aggregate_disks,
    "compute.instances.get": compute_machines.get_instance,
    "compute.instances.list": compute_machines.list_instances,
    "compute.instances.aggregatedList": compute_machines.aggregate_instances,
    "compute.instances.setServiceAccount": compute_machine_changes.set_service_account,
    "compute.instances.start": compute_machine_changes.start,
    "compute.instances.stop": compute_machine_changes.stop,
    "storage.buckets.get": storage_buckets.get,
    "storage.buckets.list": storage_buckets.list_,
    "storage.buckets.insert": storage_bucket_changes.insert,
    "storage.buckets.patch": storage_bucket_changes.patch,
    "storage.buckets.getIamPolicy": storage_policies.get_iam_policy,
    "storage.buckets.setIamPolicy": storage_policies.set_iam_policy,
    "storage.buckets.testIamPermissions": storage_policies.test_iam_permissions,
    "storage.buckets.getStorageLayout": storage_buckets.get_layout,
    "storage.anywhereCaches.get": storage_caches.get,
    "storage.anywhereCaches.insert": storage_caches.insert,
    "storage.anywhereCaches.list": storage_caches.list_,
    "storage.objects.get": storage_objects.get,
    "storage.objects.list": storage_objects.list_,
    "storage.objects.insert": storage_objects.insert,
    "storage.objects.patch": storage_object_changes.patch,
    "storage.objects.update": storage_object_changes.update,
    "storage.objects.rewrite": storage_copies.rewrite,
    "storage.objects.delete": storage_objects.delete,
    "serviceusage.services.get": serviceusage.get,
    "serviceusage.services.list": serviceusage.list_,
    "serviceusage.services.enable": serviceusage.enable,
    "serviceusage.services.disable": serviceusage.disable,
    "serviceusage.services.batchEnable": serviceusage.batch_enable,
    "serviceusage.services.batchGet": serviceusage.batch_get,
    "serviceusage.services.consumerQuotaMetrics.list": quota_metrics.list_,
    "serviceusage.operations.get": serviceusage.get_operation,
    "cloudresourcemanager.projects.get": resourcemanager.get,
    "cloudresourcemanager.projects.list": resourcemanager.list_,
    "cloudresourcemanager.projects.undelete": resourcemanager.undelete,
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
    "cloudbilling.projects.updateBillingInfo": cloudbilling.update_billing_info,
    "cloudbilling.billingAccounts.list": cloudbilling.list_accounts,
}

# Methods of the TPU API, in any of its versions, that are not implemented, with the reason. They answer 501. There are none.
NOT_SERVED: Mapping[str, str] = {}
