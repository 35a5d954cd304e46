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
# Rules that are gone, each with what replaced it. Their ids are not used for another rule.
RETIRED_RULES = {
    "TPU807": "TPU803 reports a TPU that AI Platform Training never offered, TPU812 a region without the type",
    "TPU819": "TPU817 reports what is not translated, also a location in Cloud Storage that is invalid",
    "TPU820": "the comments in the translated file say what the job did not name",
    "TPU902": "`tpuctl --version` prints the version; `tpuctl doctor -o json` has how it was installed",
    "TPU905": "TPU904 names the command that updates gcloud",
    "TPU951": "TPU950 reports the health of the node too; `tpuctl status NODE` shows it",
    "TPU954": "`tpuctl status NODE` shows the tier and the age of a node",
    "TPU955": "`tpuctl status NODE` shows the queued resource of a node and its state",
    "TPU956": "`tpuctl history NODE` shows the changes of a node that failed",
    "TPU957": "TPU303, which `tpuctl doctor NODE` runs too, compares the runtime version with the accelerator",
    "TPU959": "TPU203, which `tpuctl doctor NODE` runs too, compares the scopes of the node with its buckets",
    "TPU960": "`tpuctl status NODE` shows the data disks of a node; all of its fields are in `-o json`",
    "TPU962": "`tpuctl history NODE` shows changes by tpuctl; `tpuctl bundle NODE` has the operations of any client",
}
