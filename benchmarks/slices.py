"""Create a sandbox with slices: `python -m benchmarks.slices FILE LOGIN PUBLIC_KEY SIZE...`, in a process of its own.

Prints JSON: for each size its node's name, zone, the addresses of its workers, and the file of its host key.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import DEFAULT_ZONE
from tpuctl.sandbox.sshd.daemon import host_key
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import find_worker, worker_directory

_CHIPS_PER_WORKER = 8  # in the name of a v4 slice, which counts cores


def make_slices(path: Path, login: str, public_key: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Create a READY slice with so many workers for each size; its metadata authorizes the key for `login`."""
    kind, blob = public_key.read_text("ascii").split()[:2]
    metadata = {"ssh-keys": f"{login}:{kind} {blob} {login}"}
    with SandboxState.open(path) as sandbox_state:
        return [_slice(sandbox_state, size, metadata) for size in sizes]


def _slice(sandbox_state: SandboxState, size: int, metadata: dict[str, str]) -> dict[str, Any]:
    name, accelerator_type = f"slice-{size}", f"v4-{size * _CHIPS_PER_WORKER}"
    node = administration.add_node(
        sandbox_state, name, zone=DEFAULT_ZONE, acceleratorType=accelerator_type, metadata=metadata
    )
    addresses = [endpoint["accessConfig"]["externalIp"] for endpoint in node["networkEndpoints"]]
    with sandbox_state.read() as session:
        worker = find_worker(session, addresses[0])
    assert worker is not None
    folder = worker_directory(sandbox_state.path.absolute(), worker)
    host_key(folder)
    return {"name": name, "addresses": addresses, "host_key": str(folder / "ssh_host_ed25519_key")}


if __name__ == "__main__":
    slices = make_slices(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), [int(size) for size in sys.argv[4:]])
    print(json.dumps(slices))
