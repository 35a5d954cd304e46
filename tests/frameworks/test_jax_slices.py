"""JAX's own start over two slices of two workers, on CPU: it proves the variables of `run --multislice`."""

from __future__ import annotations

import shlex
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.conftest import Slices, until

pytestmark = [pytest.mark.sshd, pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")]

# Isolated: the workers have the sandbox's stand-in for JAX on PYTHONPATH.
PROGRAM = (sys.executable, "-I", str(Path(__file__).with_name("sum_over_slices.py")))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_jax_sums_over_all_processes_of_both_slices(slices: Slices) -> None:
    out, err, code = slices.tpuctl(
        "run", "s-*", "--multislice", "--env", f"JAX_COORDINATOR_PORT={free_port()}", "--", *PROGRAM
    )

    results = sorted(line for line in out.splitlines() if "sum" in line)
    assert results == [
        "[s-0-0] process 0 of 4 sum 10",
        "[s-0-1] process 1 of 4 sum 10",
        "[s-1-0] process 2 of 4 sum 10",
        "[s-1-1] process 3 of 4 sum 10",
    ], err
    assert code == 0


@pytest.mark.timeout(400)
def test_kept_job_that_loses_a_slice_ends_with_the_same_sum(slices: Slices, tmp_path: Path) -> None:
    program = shlex.join(PROGRAM)
    begin = f"touch '{tmp_path}'/began-$TPUCTL_NODE-$TPUCTL_WORKER_ID; sleep 300"
    line = f"if [ $TPUCTL_ATTEMPT = 1 ]; then {begin}; fi; exec {program}"
    port = f"JAX_COORDINATOR_PORT={free_port()}"
    job = slices.start("run", "s-*", "--keep", "--multislice", "--name", "sum", "--env", port, "--", line)
    until(lambda: len([*tmp_path.glob("began-*")]) == 4, 200)
    slices.tpuctl("sandbox", "fault", "preempt", "--node", "s-1")
    out, err = job.communicate(timeout=200)

    assert sorted(text.partition("] ")[2] for text in out.splitlines() if "sum" in text) == [
        f"process {number} of 4 sum 10" for number in range(4)
    ], err
    assert job.returncode == 0
