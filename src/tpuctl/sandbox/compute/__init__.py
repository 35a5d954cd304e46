"""Compute Engine v1 (and alpha, in the same words): what clients of TPUs touch of it.

A project's metadata, operations, zones and regions with quotas, networks, firewall rules, disks, virtual machines. Each
project has a network `default` with its subnetworks and firewall rules. Of filters those that name one resource are
applied; the others, and orders, are ignored: gcloud applies its own again.
"""

from tpuctl.sandbox.compute.firewalls import delete as delete_firewall
from tpuctl.sandbox.compute.firewalls import get as get_firewall
from tpuctl.sandbox.compute.firewalls import insert as insert_firewall
from tpuctl.sandbox.compute.firewalls import list_ as list_firewalls
from tpuctl.sandbox.compute.machine_changes import set_service_account
from tpuctl.sandbox.compute.machine_changes import start as start_instance
from tpuctl.sandbox.compute.machine_changes import stop as stop_instance
from tpuctl.sandbox.compute.machines import (
    aggregate_disks,
    aggregate_instances,
    get_disk,
    get_instance,
    list_disks,
    list_instances,
)
from tpuctl.sandbox.compute.metadata import get_project, set_common_instance_metadata
from tpuctl.sandbox.compute.network_changes import insert_network, set_private_ip_google_access
from tpuctl.sandbox.compute.networks import (
    aggregate_subnetworks,
    get_network,
    get_subnetwork,
    list_networks,
    list_subnetworks,
)
from tpuctl.sandbox.compute.operations import get as get_operation
from tpuctl.sandbox.compute.places import get_region, get_zone, list_regions, list_zones

__all__ = [
    "aggregate_disks",
    "aggregate_instances",
    "aggregate_subnetworks",
    "delete_firewall",
    "get_disk",
    "get_firewall",
    "get_instance",
    "get_network",
    "get_operation",
    "get_project",
    "get_region",
    "get_subnetwork",
    "get_zone",
    "insert_firewall",
    "insert_network",
    "list_disks",
    "list_firewalls",
    "list_instances",
    "list_networks",
    "list_regions",
    "list_subnetworks",
    "list_zones",
    "set_common_instance_metadata",
    "set_private_ip_google_access",
    "set_service_account",
    "start_instance",
    "stop_instance",
]
