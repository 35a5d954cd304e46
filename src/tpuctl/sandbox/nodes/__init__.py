"""Nodes: handlers of `tpu.projects.locations.nodes`, and the workers that ssh reaches."""

from tpuctl.sandbox.nodes.changes import delete, patch, reimage, start, stop
from tpuctl.sandbox.nodes.creation import create
from tpuctl.sandbox.nodes.maintenance import perform_maintenance, simulate_maintenance_event
from tpuctl.sandbox.nodes.reading import get, list_
from tpuctl.sandbox.nodes.workers import Worker, find_worker, get_guest_attributes, node_directory

__all__ = [
    "Worker",
    "create",
    "delete",
    "find_worker",
    "get",
    "get_guest_attributes",
    "list_",
    "node_directory",
    "patch",
    "perform_maintenance",
    "reimage",
    "simulate_maintenance_event",
    "start",
    "stop",
]
