"""A real Ray of PyPI on the workers of two slices: `tpuctl ray up`, a task on each slice, `status`, `down`."""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.conftest import Slices

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
]

RAY = str(Path(sys.executable).with_name("ray"))
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "ray" / "one_task_per_slice.py")


def ray_processes(slices: Slices) -> list[str]:
    """Return the processes of Ray that still run with the environment of these workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ, name = (process / "environ").read_bytes(), (process / "comm").read_text().strip()
        except OSError:
            continue
        if str(slices.folder).encode() in environ and name in {"raylet", "gcs_server", "ray"}:
            found.append(name)
    return found


def test_cluster_is_started_used_and_ended(slices: Slices) -> None:
    out, err, code = slices.tpuctl("ray", "up", "s-*", "--ray", RAY, "--timeout", "4m", "-o", "json")
    assert code == 0, err
    cluster = json.loads(out)
    assert (cluster["chips"], [one["problem"] for one in cluster["workers"]]) == (16, [None] * 4)
    try:
        done, err, code = slices.tpuctl(
            *("run", "s-0", "--worker", "0", "--env", f"RAY_ADDRESS={cluster['address']}"),
            *("--", sys.executable, "-I", EXAMPLE),
        )
        places = {line.split()[-1] for line in done.splitlines() if line.startswith("a slice whose worker 0 is")}
        assert (places, code) == ({"127.128.0.1", "127.128.0.3"}, 0), err
        # It starts nothing twice.
        again, err, code = slices.tpuctl("ray", "up", "s-*", "--ray", RAY, "-o", "json")
        assert (json.loads(again)["chips"], code) == (16, 0), err
        assert slices.tpuctl("kill", "s-1", "ray-worker", "--signal", "KILL", "--wait")[2] == 0
        until = time.monotonic() + 90  # Ray notices by its heartbeats
        while (status := slices.tpuctl("ray", "status", "s-*", "--ray", RAY))[2] == 0 and time.monotonic() < until:
            time.sleep(1)
        assert (status[2], status[0].count("has not joined")) == (10, 2), status[1]
        out, err, code = slices.tpuctl("ray", "up", "s-*", "--ray", RAY, "--timeout", "4m", "-o", "json")
        assert (json.loads(out)["chips"], code) == (16, 0), err
    finally:
        out, err, code = slices.tpuctl("ray", "down", "s-*", "-o", "json")
    assert (sorted(json.loads(out)["ended"]), code) == (["s-0-0", "s-0-1", "s-1-0", "s-1-1"], 0), err
    assert ray_processes(slices) == []
    _, err, code = slices.tpuctl("ray", "down", "s-*")
    assert ("no Ray of tpuctl runs" in err, code) == (True, 3)


def test_cluster_of_another_is_left_alone(slices: Slices) -> None:
    """A program listens at the port on worker 0 which no job of tpuctl started."""
    listen = (
        "import socket,time; s=socket.create_server(('127.128.0.1', 6379)); print('up', flush=True); time.sleep(60)"
    )
    slices.tpuctl("run", "s-0", "--worker", "0", "-d", "--name", "other", "--", sys.executable, "-I", "-c", listen)

    started = slices.tpuctl("ray", "up", "s-*", "--ray", RAY)
    ended = slices.tpuctl("ray", "down", "s-*", "--ray", RAY)

    assert "a program that is not of tpuctl listens at 127.128.0.1:6379" in started[1]
    assert "was not started by `tpuctl ray up`" in ended[1]
    assert (started[2], ended[2]) == (8, 8)
    assert slices.tpuctl("kill", "s-0", "other", "--wait")[2] == 0
