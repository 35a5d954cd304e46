"""When programs read the API, in real seconds, and by the model of gcloud: `python -m benchmarks.real_waits FOLDER SECONDS`.

gcloud and tpuctl each create a node that takes so long, on one `tpuctl sandbox serve`. Prints JSON: the times of each read, in
seconds after the response to the create. A process of its own, since it opens the state file of the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from benchmarks.creations import PROJECT, TYPE, VERSION, ZONE, set_creation_time
from benchmarks.gcloud_waiter import notice_time
from benchmarks.stage import GCLOUD, Stage, served
from tpuctl.names import NodeName
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from benchmarks.measurement import Program

_DRAWS = 1000
_SPEC = ("--accelerator-type", TYPE, "--version", VERSION, "--zone", ZONE)


def main(folder: Path, length: float) -> dict[str, list[float]]:
    """Return the times of reads; `model` has the earliest, the median and the latest time at which gcloud should notice."""
    quiet = Stage(folder)
    quiet.state_file.parent.mkdir(parents=True)
    with SandboxState.open(quiet.state_file, speed=1) as sandbox_state, served(quiet) as stage:
        seen = {
            "tpuctl": _read_times(sandbox_state, stage.tpuctl("up", "ours", *_SPEC, "--for", "ready"), "ours", length)
        }
        if GCLOUD:
            create = stage.gcloud("compute", "tpus", "tpu-vm", "create", "theirs", *_SPEC)
            seen["gcloud"] = _read_times(sandbox_state, create, "theirs", length)
    random = Random(1)  # noqa: S311  # a simulation
    modelled = sorted(notice_time(length, random)[0] for _ in range(_DRAWS))
    return {**seen, "model": [modelled[0], modelled[_DRAWS // 2], modelled[-1]]}


def _read_times(sandbox_state: SandboxState, program: Program, node_id: str, length: float) -> list[float]:
    """Run a program that creates a node, set the time of the creation, and return the times of the program's reads."""
    name = NodeName(PROJECT, ZONE, node_id)
    with subprocess.Popen(
        program.command,
        env=dict(program.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        while not _exists(sandbox_state, name):
            assert child.poll() is None, f"{program.command[0]} ended early"
            time.sleep(0.05)
        set_creation_time(sandbox_state, name, length)
        assert child.wait() == 0, f"{program.command[0]} ended with {child.returncode}"
    entries = read_log(sandbox_state.path)
    created = next(entry.at for entry in entries if entry.method == "POST" and f"nodeId={node_id}" in entry.path)
    return [(entry.at - created).total_seconds() for entry in entries if entry.method == "GET" and entry.at > created]


def _exists(sandbox_state: SandboxState, name: NodeName) -> bool:
    with sandbox_state.read() as session:
        return session.node(name.project, name.zone, name.node_id) is not None


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), float(sys.argv[2]))))
