"""All rules, in the order of their ids. Pure: from facts to findings, without a call of an API and without a clock."""

from __future__ import annotations

from tpuctl.check.rules.bucket_rules import BUCKET_RULES
from tpuctl.check.rules.iam_rules import IAM_RULES
from tpuctl.check.rules.network_rules import NETWORK_RULES
from tpuctl.check.rules.project_rules import PROJECT_RULES
from tpuctl.check.rules.quota_rules import GRANT_RULES, QUOTA_RULES
from tpuctl.check.rules.vm_rules import VM_RULES
from tpuctl.check.rules.zone_rules import ZONE_RULES

CATEGORIES = {
    "TPU1": "Location and cost of the buckets",
    "TPU2": "Access to the buckets",
    "TPU3": "Types, images and names in the zone",
    "TPU4": "Quota, grants and reservations",
    "TPU5": "The project",
    "TPU6": "The network",
    "TPU7": "Virtual machine and data disks",
    "TPU8": "AI Platform Training",
}
RULES = (*BUCKET_RULES, *IAM_RULES, *ZONE_RULES, *QUOTA_RULES, *GRANT_RULES, *PROJECT_RULES, *NETWORK_RULES, *VM_RULES)
