"""The reports of workers that `tpuctl top` reads: one that drops out says so, and the others go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from tpuctl.models.node import Node
from tpuctl.ssh.connection import Connection, Target
from tpuctl.ssh.tpu_metrics import MetricsStream

REPORT = json.dumps(
    {"chips": 4, "programs": [], "hidden": 0, "devices": [], "cores": [], "problem": None}
    | {"cpu": 1.0, "memory": None, "diskFree": None}
)
NODE = Node.from_api({"name": "projects/p/locations/z/nodes/demo"})


def _target(worker: int) -> Target:
    connection = Connection("a", f"worker-{worker}", "x", (Path("/a"), Path("/b")), Path("/key"))
    return Target(NODE, worker, connection, str(worker))


def test_worker_that_drops_out_says_so_and_the_others_go_on(fake_ssh: Callable[[str], None], tmp_path: Path) -> None:
    frame = "x" + len(REPORT).to_bytes(4, "big").decode("latin-1") + REPORT
    (tmp_path / "mark").write_text("\n\0tpuctl-agent\n", "latin-1")
    (tmp_path / "frame").write_text(frame, "latin-1")
    fake_ssh(
        f"cd '{tmp_path}'; cat mark frame\n"
        "case \"$*\" in *worker-1*) sleep 0.2; echo 'Connection to worker-1 closed by remote host.' >&2; exit 255 ;; esac\n"
        "for one in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; cat frame; done"
    )
    with MetricsStream([_target(0), _target(1)], lambda _: None, timedelta(seconds=0.2)) as stream:
        until = time.monotonic() + 20
        first, second = stream.workers
        while (second.error is None or not first.received) and time.monotonic() < until:
            stream.serve(0.1)
        before = first.received
        while first.received == before and time.monotonic() < until:
            stream.serve(0.1)

    assert (second.report, second.error is not None and "worker 1" in second.error.message) == (None, True)
    assert (first.error, first.report is not None, first.received > before) == (None, True, True)
