"""Fill a sandbox with nodes: `python -m benchmarks.fill FILE COUNT`, in a process of its own."""

from __future__ import annotations

import sys
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path

from benchmarks.stage import ZONE
from tpuctl.sandbox import administration
from tpuctl.sandbox.catalog import zone_names, zone_offers
from tpuctl.sandbox.state import SandboxState

_TYPES = ("v4-8", "v5litepod-8", "v6e-8", "v5p-8", "v3-8", "v2-8")


def fill(path: Path, count: int) -> None:
    """Create a sandbox with `count` READY nodes, in turn in each zone that has TPUs."""
    offered = [(zone, next(kind for kind in _TYPES if zone_offers(zone, kind))) for zone in _zones()]
    with SandboxState.open(path) as sandbox_state:
        for number, (zone, kind) in enumerate(islice(cycle(offered), count)):
            age = timedelta(minutes=number)
            administration.add_node(sandbox_state, f"node-{number:05d}", zone=zone, acceleratorType=kind, age=age)


def _zones() -> list[str]:
    """Return the zones that have TPUs; `ZONE` is the first, so that `node-00000` is there."""
    found = [zone for zone in zone_names() if any(zone_offers(zone, kind) for kind in _TYPES)]
    return sorted(found, key=lambda zone: zone != ZONE)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]))
