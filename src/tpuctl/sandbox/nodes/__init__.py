"""Nodes: handlers of `tpu.projects.locations.nodes`, and the workers that ssh reaches."""
