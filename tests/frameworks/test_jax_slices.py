"""JAX's own start over two slices of two workers, on CPU: it proves the variables of `run --multislice`."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.conftest import Slices

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
