"""`tpuctl doctor NODE` on nodes of the sandbox: the findings about each problem."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.doctor.node.conftest import INODES, ROOM, Worker
from tests.lifecycle import put
from tests.tpuctl_process import run_tpuctl
from tests.workers.holding import holding
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import find_worker, worker_directory
from tpuctl.ssh.keys import ensure_key, metadata_key_line


def findings(tpuctl: Callable[..., Result]) -> list[dict[str, Any]]:
    """Return the findings about the node and its workers, in order."""
    out, _, code = tpuctl("doctor", "demo", "--all", "-o", "json")
    found = [one for one in json.loads(out)["findings"] if "TPU950" <= one["id"] <= "TPU990"]
    assert code == (9 if any(one["level"] == "error" for one in json.loads(out)["findings"]) else 0)
    return found


def bad(found: list[dict[str, Any]]) -> list[str]:
    """Return each error, warning and unknown finding as one line."""
    return [
        f"{one['level']} {one['id']} {one['subject']}: {one['text']}"
        for one in found
        if one["level"] in {"error", "warning", "unknown"}
    ]


def test_doctor_node_healthy_has_no_finding(tpuctl: Console, sandbox: Sandbox, workers: list[Worker]) -> None:
    put(sandbox, acceleratorType="v4-16")
    for worker in workers:
        worker.install("jax", "0.5.0")
        worker.install("libtpu", "0.0.8")

    found = findings(tpuctl)

    assert bad(found) == []
    # Equal findings on all workers become one.
    assert {one["subject"] for one in found if one["id"] >= "TPU966"} <= {"workers 0-1"}
    # Nothing was changed: no key was put on the node.
    assert sandbox.changes() == []


def test_doctor_node_finds_each_problem_of_one_worker(tpuctl: Console, sandbox: Sandbox, workers: list[Worker]) -> None:
    put(sandbox, acceleratorType="v4-16")
    for worker, version in zip(workers, ("0.5.0", "0.4.1"), strict=True):
        worker.install("jax", version)
        worker.install("jaxlib", "0.5.1")
    one = workers[1]
    one.uses(97)
    one.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 1 kB\n")
    one.write("proc/uptime", "600 1\n")
    one.says("dmesg", "Out of memory: Killed process 7 (python3)\n")
    one.says("cloud-init", "status: error\n")
    one.says("timedatectl", "NTPSynchronized=no\n")
    (one.root / "dev/accel0").unlink()
    one.lock_file.touch()
    one.logs_in("export JAX_PLATFORMS=cpu TPU_LOG_DIR=deaktiviert\n")

    with holding(workers[0].root / "dev" / "accel1"):
        found = findings(tpuctl)

    assert bad(found) == [
        "error TPU968 worker 1: `/` is 97 % full",
        "error TPU975 worker 1: it has 3 of the 4 chips of a `v4-16` worker",
        "error TPU984 worker 1: `jax` in `~/venv` is 0.5.0 on worker 0, 0.4.1 on worker 1",
        "warning TPU971 worker 1: it has 1 % of its memory left",
        "warning TPU972 worker 1: the kernel killed processes since the last boot because memory ran out: 1",
        f"warning TPU973 worker 0: `sleep` of {getuser()} holds the TPU, which is free on other workers",
        f"warning TPU974 worker 1: `/tmp/libtpu_lockfile` of {getuser()} is stale: no process holds it",
        "warning TPU976 worker 1: it booted 10m ago, long after other workers",
        "warning TPU977 worker 1: cloud-init failed",
        "warning TPU978 worker 1: its clock is not synchronized",
        "warning TPU980 worker 1: `TPU_LOG_DIR=deaktiviert` is set in login shells and ssh sessions",
        "warning TPU981 worker 1: `JAX_PLATFORMS=cpu` is set in login shells and ssh sessions",
        "warning TPU982 worker 1: `TPU_LOG_DIR` is not set on worker 0, `deaktiviert` on worker 1",
        "warning TPU982 worker 1: `JAX_PLATFORMS` is not set on worker 0, `cpu` on worker 1",
        # One finding per worker: their remedies differ, as the versions do.
        "warning TPU985 worker 0: `~/venv` has JAX but no libtpu",
        "warning TPU985 worker 1: `~/venv` has JAX but no libtpu",
    ]


def test_doctor_node_unreachable_worker_does_not_hide_the_others(
    tpuctl: Console, sandbox: Sandbox, workers: list[Worker]
) -> None:
    put(sandbox, acceleratorType="v4-32")
    workers[1].logs_in("echo 'sh: 1: exec: python3: not found' >&2; exit 127\n")

    found = findings(tpuctl)

    assert bad(found) == [
        "error TPU966 workers 2-3: cannot be reached: ssh: no route",
        "unknown TPU967 worker 1: it sent no report: `python3` is not installed there (sh: 1: exec: python3: not found)",
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("STOPPED", ["warning TPU950 demo: it is STOPPED"]),
        ("PREEMPTED", ["error TPU950 demo: it is PREEMPTED: the service took it back, with its boot disk"]),
        ("CREATING", ["warning TPU950 demo: it is CREATING, and not READY yet"]),
    ],
)
def test_doctor_node_stopped_does_not_call_workers(
    tpuctl: Console, sandbox: Sandbox, state: str, expected: list[str]
) -> None:
    put(sandbox, state=state, age=timedelta())

    skipped = f"unknown TPU965 demo: its workers were not examined: `demo` is {state}: ssh cannot reach it"
    assert bad(findings(tpuctl)) == [*expected, skipped]


def test_doctor_node_finds_problems_of_the_node(tpuctl: Console, sandbox: Sandbox, workers: list[Worker]) -> None:
    put(
        sandbox,
        acceleratorType="v4-8",
        health="UNHEALTHY_TENSORFLOW",
        runtimeVersion="v2-alpha-tpuv6e",
        symptoms=[{"symptomType": "LOW_MEMORY", "workerId": "0"}],
        serviceAccount={"email": "a@b.iam", "scope": ["https://www.googleapis.com/auth/devstorage.read_only"]},
    )
    workers[0].install("jax", "0.5.0")
    workers[0].install("libtpu", "0.0.8")

    assert bad(findings(tpuctl)) == [
        "error TPU950 demo: it is UNHEALTHY_TENSORFLOW",
        "warning TPU952 demo: the service reports LOW_MEMORY on worker 0",
    ]


def test_doctor_node_runs_the_rules_of_check_for_the_existing_node(
    tpuctl: Console, sandbox: Sandbox, workers: list[Worker]
) -> None:
    put(
        sandbox,
        acceleratorType="v4-8",
        runtimeVersion="v2-alpha-tpuv6e",
        serviceAccount={"email": "a@b.iam", "scope": ["https://www.googleapis.com/auth/devstorage.read_only"]},
    )
    administration.add_bucket(sandbox.state, "far", location="EUROPE-WEST4")
    administration.set_services(sandbox.state, {"compute.googleapis.com": "DISABLED"})
    (tpuctl.folder / "tpuctl.yaml").write_text("buckets: [gs://far]\n")

    out, _, code = tpuctl("doctor", "demo", "-o", "json")
    answer = json.loads(out)

    errors = [(one["id"], one["subject"]) for one in answer["findings"] if one["level"] == "error"]
    assert code == 9
    assert {("TPU101", "gs://far"), ("TPU203", "demo"), ("TPU303", "v2-alpha-tpuv6e")} <= set(errors)
    # The project is checked without a node too; each finding is reported once.
    assert len(errors) == len(set(errors))
    assert {"TPU101", "TPU303", "TPU401", "TPU901", "TPU950", "TPU966"} <= {rule["id"] for rule in answer["examined"]}


def test_doctor_node_absent_is_an_error(tpuctl: Console) -> None:
    _, err, code = tpuctl("doctor", "nowhere")

    assert ("`nowhere`" in err, code) == (True, 3)


@pytest.mark.sshd
def test_doctor_node_with_a_real_sshd_reads_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    key = ensure_key(folder / "sandbox", login=getuser())
    metadata = {"ssh-keys": metadata_key_line(getuser(), key)}
    with SandboxState.open(folder / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        node = administration.add_node(
            sandbox_state, "demo", acceleratorType="v4-8", metadata=metadata, age=timedelta(hours=1)
        )
        with sandbox_state.read() as session:
            worker = find_worker(session, node["networkEndpoints"][0]["accessConfig"]["externalIp"])
        assert worker is not None
        # Files here replace the output of programs of this machine.
        outputs = worker_directory(sandbox_state.path, worker) / "0/.tpu/said"
    outputs.mkdir(parents=True, mode=0o700)
    (outputs / "dmesg").write_text("Out of memory: Killed process 7\n")
    (outputs / "df").write_text(ROOM.format(90))
    (outputs / "df-inodes").write_text(INODES)
    environ = {"HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(folder), "TPUCTL_SANDBOX": "1"}

    def run(*arguments: str) -> Result:
        done = run_tpuctl(arguments, env={**environ, "PATH": os.environ["PATH"]}, cwd=tmp_path, text=True)
        return done.stdout, done.stderr, done.returncode

    assert bad(findings(run)) == [
        "warning TPU968 worker 0: `/` is 90 % full",
        "warning TPU972 worker 0: the kernel killed processes since the last boot because memory ran out: 1",
    ]
