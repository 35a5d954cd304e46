"""Queued resources: handlers of `tpu.projects.locations.queuedResources`, and what moves their turn in the queue."""
