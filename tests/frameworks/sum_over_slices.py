"""Sum over all processes of all slices, with what JAX itself reads from the environment of a worker; run by a test.

On a TPU VM `jax.distributed.initialize()` finds the same three values with the same code: here it would look for chips first.
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"

import jax
from jax._src.clusters.cloud_tpu_cluster import GkeTpuCluster
from jax.experimental import multihost_utils

jax.distributed.initialize(
    GkeTpuCluster.get_coordinator_address(60, os.environ.get("JAX_COORDINATOR_PORT")),
    GkeTpuCluster.get_process_count(),
    GkeTpuCluster.get_process_id(),
    initialization_timeout=100,
)
total = multihost_utils.process_allgather(jax.numpy.asarray(jax.process_index() + 1)).sum()
sys.stdout.write(f"process {jax.process_index()} of {jax.process_count()} sum {int(total)}\n")
jax.distributed.shutdown()
