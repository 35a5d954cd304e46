"""Ports between workers: what `doctor` says of those that are closed, and the connections with a real sshd."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.node.examinations import problems, python, seen
from tests.lifecycle import ZONE
from tests.tpuctl_process import run_tpuctl
from tpuctl.check.facts import Known, Unknown
from tpuctl.doctor.worker_rules import check_ports
from tpuctl.models.worker_ports import WORKER_PORTS
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.port_probe import PortProbe

OLD_JAX, NEW_JAX = ({"environments": Known((python(jax=version),))} for version in ("0.8.0", "0.8.1"))


def probe(*closed: int, listener: str = "0", others: tuple[str, ...] = ("1",), **fields: Any) -> Known[PortProbe]:
    ports = {port: "no answer" if port in closed else "open" for port in WORKER_PORTS}
    made = PortProbe(listener, WORKER_PORTS, dict.fromkeys(others, ports), {}, {})
    return Known(replace(made, **fields))


@pytest.mark.parametrize(
    ("ports", "workers", "lines"),
    [
        pytest.param(probe(), {}, [], id="open"),
        pytest.param(
            probe(8471),
            {},
            ["error demo: worker 1 does not reach worker 0 at 8471 (libtpu, for the slice): no answer"],
            id="slice",
        ),
        pytest.param(
            probe(8482, others=("1", "2", "10")),
            {},
            [
                "warning demo: workers 1, 2, 10 do not reach worker 0 at 8482 (JAX's coordinator from 0.8.1 on): no answer"
            ],
            id="new coordinator",
        ),
        pytest.param(probe(8482), OLD_JAX, [], id="old JAX"),
        pytest.param(
            probe(8482),
            NEW_JAX,
            ["warning demo: worker 1 does not reach worker 0 at 8482 (JAX's coordinator from 0.8.1 on): no answer"],
            id="new JAX",
        ),
        pytest.param(
            probe(8476, 8482),
            OLD_JAX,
            [
                (
                    "error demo: worker 1 does not reach worker 0 at 8476 (JAX's coordinator up to 0.8.0), "
                    "8482 (JAX's coordinator from 0.8.1 on): no answer"
                )
            ],
            id="both coordinators",
        ),
        pytest.param(
            probe(8081),
            {},
            ["note demo: worker 1 does not reach worker 0 at 8081 (multislice): no answer"],
            id="multislice, one node",
        ),
        pytest.param(
            probe(8081, listener="a/0", others=("a/1", "b/0")),
            {},
            ["warning demo: workers a/1, b/0 do not reach worker a/0 at 8081 (multislice): no answer"],
            id="multislice",
        ),
        pytest.param(
            probe(8081, unheard={8081: "permission denied"}),
            {},
            [
                (
                    "unknown demo: not all ports between its workers could be tried: "
                    "worker 0 cannot listen at 8081: permission denied"
                )
            ],
            id="cannot listen",
        ),
        pytest.param(
            probe(failed={"2": UnexpectedAnswerError("x")}),
            {},
            ["unknown demo: not all ports between its workers could be tried: worker 2 does not answer"],
            id="silent worker",
        ),
        pytest.param(
            Unknown("no python3"),
            {},
            ["unknown demo: the ports between its workers could not be tried: no python3"],
            id="unknown",
        ),
    ],
)
def test_closed_ports(ports: Known[PortProbe] | Unknown, workers: Mapping[str, Any], lines: list[str]) -> None:
    assert problems(check_ports, replace(seen(dict(workers), dict(workers)), ports=ports)) == lines


@pytest.mark.sshd
def test_doctor_connects_the_workers_of_all_named_nodes(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as state:
        for name in ("a", "b"):
            administration.add_node(state, name, zone=ZONE, acceleratorType="v4-16")
    environ = {"HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state"), "TPUCTL_SANDBOX": "1"}

    def run(*arguments: str) -> str:
        done = run_tpuctl(arguments, env={**environ, "PATH": os.environ["PATH"]}, cwd=tmp_path, text=True)
        return str(done.stdout)

    def found(*nodes: str) -> list[dict[str, Any]]:
        report = json.loads(run("doctor", *nodes, "-o", "json"))
        assert report["target"]["nodeIds"] == list(nodes)
        return [one for one in report["findings"] if one["id"] == "TPU990"]

    run("ssh", "a", "--", "true")
    run("ssh", "b", "--", "true")
    assert found("a", "b") == []

    for port in (8081, 8482):
        run("sandbox", "fault", "port-blocked", "--node", "a", "--port", str(port))

    assert found("b") == []
    (one,) = found("a", "b")
    assert one["text"] == (
        "workers a/1, b/0, b/1 do not reach worker a/0 at 8482 (JAX's coordinator from 0.8.1 on), 8081 (multislice): no answer"
    )
    assert one["facts"]["ports"]["8482"] == dict.fromkeys(("a/1", "b/0", "b/1"), "no answer")
    run("down", "a", "b", "--yes")  # which ends the processes that hold the ports
    assert [remedy["command"] for remedy in one["remedies"]][:1] == [
        (
            "gcloud compute firewall-rules create allow-tpu-workers --project=sandbox --network=default --direction=INGRESS "
            "--allow=tcp:8482,tcp:8081 --source-ranges=10.0.0.0/8"
        )
    ]
