"""Compute Engine v1 (and alpha, with the same fields): the resources that clients of TPUs use.

A project's metadata, operations, zones and regions with quotas, networks, firewall rules, disks, virtual machines. Each
project has a network `default` with its subnetworks and firewall rules. Only filters that name one resource are
applied; other filters, and orders, are ignored: gcloud applies its own again.
"""
