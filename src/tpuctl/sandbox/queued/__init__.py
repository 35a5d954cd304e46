"""Queued resources: handlers of `tpu.projects.locations.queuedResources`, and what moves their turn in the queue."""

from tpuctl.sandbox.queued.maintenance import get_maintenance_info, perform_maintenance
from tpuctl.sandbox.queued.planning import requeue
from tpuctl.sandbox.queued.requests import create, delete, get, list_, reset

__all__ = ["create", "delete", "get", "get_maintenance_info", "list_", "perform_maintenance", "requeue", "reset"]
