"""Compute Engine v1 (and alpha, in the same words): what clients of TPUs touch of it.

A project's metadata, operations, zones and regions with quotas, networks, firewall rules, disks, virtual machines. Each
project has a network `default` with its subnetworks and firewall rules. Of filters those that name one resource are
applied; the others, and orders, are ignored: gcloud applies its own again.
"""
