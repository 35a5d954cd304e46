"""`tpuctl ray` on folders of this machine, with a stand-in for Ray; tests/frameworks has a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.workers.running import Slice

RAY = """#!/bin/sh
case $1 in
    start) exec sleep 300 ;;
    health-check) exit 0 ;;
esac
"""
PYTHON = """#!/bin/sh
case $2 in
    *tpuctl-cluster*) printf '\\ntpuctl-cluster %s\\n' "$(cat HOSTS)" ;;
    *) printf '\\ntpuctl-ray ray=2.60.0 python=3.10 listens=0\\n' ;;
esac
"""


class Cluster:
    """The slice `s-0`, a v4-16, whose two workers have the stand-in; `hosts` is what it reports."""

    def __init__(self, slice_: Slice, folder: Path) -> None:
        self.slice, self.ray, self._hosts = slice_, str(folder / "ray"), folder / "hosts"
        for name, text in (("ray", RAY), ("python3", PYTHON.replace("HOSTS", str(self._hosts)))):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        shown = json.loads(slice_.tpuctl("env", "s-0", "-o", "json")[0])
        self.addresses = shown["TPU_WORKER_HOSTNAMES"].split(",")

    def reports(self, *chips: int) -> None:
        """Let Ray report a host with so many chips for each of the first workers."""
        heads: tuple[list[str], ...] = (["TPU-v4-16-head"], [])
        hosts = [
            {"address": address, "chips": count, "heads": head, "slice": "s-0"}
            for address, count, head in zip(self.addresses, chips, heads, strict=False)
        ]
        self._hosts.write_text(json.dumps(hosts))

    def __call__(self, *words: str) -> tuple[str, str, int]:
        return self.slice.tpuctl("ray", words[0], "s-0", "--ray", self.ray, *words[1:])


@pytest.fixture
def cluster(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path) -> Iterator[Cluster]:
    made = Slice(tpuctl, fake_ssh, tmp_path / "workers")
    put(sandbox, "s-0", acceleratorType="v4-16")
    tpuctl("ssh", "s-0", "--worker", "0", "--", "true")
    made.log_in()
    (tmp_path / "ray").mkdir()
    yield Cluster(made, tmp_path / "ray")
    made.end_all()


def test_cluster_is_started_shown_and_ended(cluster: Cluster) -> None:
    cluster.reports(4, 4)
    out, err, code = cluster("up", "-o", "json")
    assert code == 0, err
    first, second = cluster.addresses
    assert json.loads(out) == {
        "address": f"{first}:6379",
        "head": {"nodeId": "s-0", "worker": 0},
        "chips": 8,
        "workers": [
            {"nodeId": "s-0", "zone": "us-central2-b", "worker": 0, "address": first, "chips": 4, "problem": None},
            {"nodeId": "s-0", "zone": "us-central2-b", "worker": 1, "address": second, "chips": 4, "problem": None},
        ],
        "sandbox": True,
    }

    cluster.reports(4)
    out, err, code = cluster("status", "-o", "json")
    assert ([one["problem"] for one in json.loads(out)["workers"]], code) == ([None, "has not joined"], 10)
    assert "Ray lacks 1 of 2 workers" in err

    out, _, code = cluster("down", "-o", "json")
    assert (json.loads(out), code) == ({"ended": ["s-0-0", "s-0-1"], "sandbox": True}, 0)
    assert cluster("status")[2] == 3


def test_what_was_started_is_ended_if_a_worker_does_not_join(cluster: Cluster) -> None:
    cluster.reports(4, 0)

    _, err, code = cluster("up", "--timeout", "1s")

    assert "Ray does not have all workers: worker s-0-1 joined with 0 of 4 chips" in err
    assert code == 5
    assert "running" not in cluster.slice.tpuctl("jobs", "s-0")[0]


def test_second_up_that_fails_ends_only_what_it_started(cluster: Cluster) -> None:
    cluster.reports(4, 4)
    assert cluster("up")[2] == 0
    assert cluster.slice.tpuctl("kill", "s-0", "ray-worker", "--signal", "KILL", "--wait")[2] == 0
    cluster.reports(4)

    _, err, code = cluster("up", "--timeout", "1s")

    assert ("worker s-0-1 has not joined" in err, code) == (True, 5)
    running = [line.split("\t")[0] for line in cluster.slice.tpuctl("jobs", "s-0")[0].splitlines() if "running" in line]
    assert running == ["ray-head"]


def test_cluster_whose_head_died_is_started_whole(cluster: Cluster) -> None:
    cluster.reports(4, 4)
    assert cluster("up")[2] == 0
    assert cluster.slice.tpuctl("kill", "s-0", "ray-head", "--signal", "KILL", "--wait")[2] == 0

    _, err, dead = cluster("status")
    _, _, code = cluster("up")

    assert ("no Ray head of tpuctl runs on worker s-0-0" in err, dead, code) == (True, 3, 0)
    lines = [line.split("\t") for line in cluster.slice.tpuctl("jobs", "s-0")[0].splitlines()]
    assert sorted(line[0] for line in lines if line[2] == "running") == ["ray-head", "ray-worker"]
    assert len([line for line in lines if line[0].startswith("ray-worker.")]) == 1
