"""Queued resources: handlers of `tpu.projects.locations.queuedResources`, and their planning."""
