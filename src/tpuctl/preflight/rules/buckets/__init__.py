"""Rules about the buckets of the node: their location, what using them costs, and what they forbid."""

from __future__ import annotations

from tpuctl.preflight.rules.buckets.keeping import held, kept, storage_class
from tpuctl.preflight.rules.buckets.ownership import other_project, requester_pays
from tpuctl.preflight.rules.buckets.placement import in_place
from tpuctl.preflight.rules.buckets.presence import empty, readable

RULES = (in_place, readable, other_project, requester_pays, storage_class, held, kept, empty)
