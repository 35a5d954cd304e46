"""All rules, in the order of their ids."""

from __future__ import annotations

from tpuctl.preflight.rules import access, buckets, companions, money, network, offer, project, quota

CATEGORIES = {
    "TPU1": "Where the data is",
    "TPU2": "Who may read and write it",
    "TPU3": "Whether the zone has such a TPU",
    "TPU4": "Quota, grants and reservations",
    "TPU5": "The project",
    "TPU6": "The network",
    "TPU7": "Machines and disks beside the node",
    "TPU8": "AI Platform Training",
}
RULES = (
    *buckets.RULES,
    *access.RULES,
    *offer.RULES,
    *quota.RULES,
    *money.RULES,
    *project.RULES,
    *network.RULES,
    *companions.RULES,
)
