"""The TCP ports at which the workers of a slice, or of several, reach one another.

Sources: JAX's `cloud_tpu_cluster.py` (the port of the coordinator is 8476 up to 0.8.0, and 8482 from 0.8.1 on, unless
`JAX_COORDINATOR_PORT` names another); libtpu's `TPU_PROCESS_PORT`; the launchers of multislice; Ray's documentation. Compute
Engine's own rule for TPUs opens 8470, 8471, 8474, 8476 and 11211 [jax#35905].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.names import natural_key

if TYPE_CHECKING:
    from collections.abc import Mapping

SLICE_BUILDER = 8471
OLD_COORDINATOR, COORDINATOR = 8476, 8482
MEGASCALE = (8080, 8081)
# Those that programs need whose framework is not known.
WORKER_PORTS = (SLICE_BUILDER, OLD_COORDINATOR, COORDINATOR, *MEGASCALE)
# The first of its workers' ports, 10002 to 19999, stands for all of them.
RAY_PORTS = (6379, 8265, 10001, 10002)
RAY_RANGES = ("6379", "8265", "10001-19999")
_SHOWN = 8
# How a program takes the port that Google's rule opens.
COORDINATOR_VARIABLE = f"JAX_COORDINATOR_PORT={OLD_COORDINATOR}"


def port_use(port: int) -> str:
    """Return what needs a port."""
    if port == SLICE_BUILDER:
        return "libtpu, for the slice"
    if port in {OLD_COORDINATOR, COORDINATOR}:
        return "JAX's coordinator " + ("up to 0.8.0" if port == OLD_COORDINATOR else "from 0.8.1 on")
    return "multislice" if port in MEGASCALE else "Ray"


def describe_closed(listener: str, closed: Mapping[int, Mapping[str, str]]) -> str:
    """Return which workers do not reach the listener, at which ports, and how those answer."""
    workers = sorted({label for seen in closed.values() for label in seen}, key=natural_key)
    states = sorted({state for seen in closed.values() for state in seen.values()})
    who = f"worker{'s' * (len(workers) > 1)} {', '.join(workers[:_SHOWN])}{' and others' * (len(workers) > _SHOWN)}"
    where = ", ".join(f"{port} ({port_use(port)})" for port in closed)
    verb = "do" if len(workers) > 1 else "does"
    return f"{who} {verb} not reach worker {listener} at {where}: {', '.join(states)}"
