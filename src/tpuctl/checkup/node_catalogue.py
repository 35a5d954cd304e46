"""All rules of `doctor NODE`: about the node, then about its workers; their ids are TPU950 to TPU989."""

from __future__ import annotations

from tpuctl.checkup import node_equipment, node_rules, worker_machine, worker_tpu, worker_variables, worker_versions

RULES_OF_NODES = (*node_rules.RULES, *node_equipment.RULES)
RULES_OF_WORKERS = (*worker_tpu.RULES, *worker_machine.RULES, *worker_variables.RULES, *worker_versions.RULES)
