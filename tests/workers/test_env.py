"""`tpuctl env`: what a shell, fish and programs are told of a node."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, both_faces, put, said


@both_faces
def test_env_output_is_evaluated_by_a_shell(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-8")

    out, err, code = tpuctl("env", "demo")

    assert (out, err, code) == (
        said(
            "export TPUCTL_NODE=demo",
            f"export TPUCTL_ZONE={ZONE}",
            "export TPUCTL_PROJECT=sandbox",
            "export TPUCTL_WORKER_ID=0",
            "export TPUCTL_WORKER_COUNT=1",
            "export TPU_NAME=demo",
            f'export TPU_CONFIG=\'{{"tpu_node_name": "demo", "zone": "{ZONE}", "project": "sandbox"}}\'',
            "export TPU_WORKER_ID=0",
            "export TPU_WORKER_HOSTNAMES=10.128.0.1",
            "export TPU_ACCELERATOR_TYPE=v4-8",
            "export TPU_TOPOLOGY=2x2x1",
        ),
        "",
        0,
    )
    told = subprocess.run(["sh", "-c", out + 'printf %s "$TPU_CONFIG"'], capture_output=True, check=True).stdout
    assert json.loads(told) == {"tpu_node_name": "demo", "zone": ZONE, "project": "sandbox"}


def test_env_of_slice_worker_has_its_number_and_all_addresses(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-64")
    addresses = ",".join(f"10.128.0.{number}" for number in range(1, 9))

    out, err, code = tpuctl("env", "demo", "--worker", "5", "-o", "json")

    assert (json.loads(out), err, code) == (
        {
            "TPUCTL_NODE": "demo",
            "TPUCTL_ZONE": ZONE,
            "TPUCTL_PROJECT": "sandbox",
            "TPUCTL_WORKER_ID": "5",
            "TPUCTL_WORKER_COUNT": "8",
            "TPU_NAME": "demo",
            "TPU_CONFIG": json.dumps({"tpu_node_name": "demo", "zone": ZONE, "project": "sandbox"}),
            "TPU_WORKER_ID": "5",
            "TPU_WORKER_HOSTNAMES": addresses,
            "TPU_ACCELERATOR_TYPE": "v4-64",
            "TPU_TOPOLOGY": "2x4x4",
            "sandbox": True,
        },
        "",
        0,
    )
    fish = tpuctl("env", "demo", "-o", "fish", TPUCTL_OUTPUT="json")[0].splitlines()
    assert (fish[0], fish[8]) == ("set -gx TPUCTL_NODE 'demo'", f"set -gx TPU_WORKER_HOSTNAMES '{addresses}'")


@pytest.mark.parametrize("state", ["STOPPED", "PREEMPTED"])
def test_env_of_unusable_node_warns(tpuctl: Console, sandbox: Sandbox, state: str) -> None:
    put(sandbox, acceleratorType="v4-8", state=state)

    out, err, code = tpuctl("env", "demo")

    assert out.startswith("export TPUCTL_NODE=demo\n")
    assert (err, code) == (f"warning: `demo` is {state}: its TPU cannot be used now\n", 0)


def test_env_of_missing_worker_or_node_exports_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-64")

    assert tpuctl("env", "demo", "--worker", "8") == (
        "",
        "error: `demo` has no worker 8\n  hint: it has workers 0 to 7\n",
        2,
    )
    assert json.loads(tpuctl("env", "nobody", "-o", "json")[1])["error"]["kind"] == "not_found"


def test_env_of_a_slice_of_one_job_has_the_variables_of_run(tpuctl: Console, sandbox: Sandbox) -> None:
    for name in ("s-10", "s-2"):
        put(sandbox, name, acceleratorType="v4-16")

    out, err, code = tpuctl("env", "s-*", "--multislice", "--slice", "1", "--worker", "1", "-o", "json")

    found = json.loads(out)
    assert (err, code, found["TPUCTL_NODE"], found["TPUCTL_WORKER_ID"]) == ("", 0, "s-10", "1")
    first = json.loads(tpuctl("env", "s-2", "-o", "json")[0])["TPU_WORKER_HOSTNAMES"].partition(",")[0]
    assert {name: value for name, value in found.items() if name.startswith("MEGASCALE")} == {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{first}:8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_PORT": "8081",
    }


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("s-*", "--multislice"), "choose one with `--slice N`: 0 (s-2), 1 (s-10)"),
        (("s-*", "--multislice", "--slice", "2"), "there is no slice 2"),
        (("s-2", "s-10"), "several nodes are for one job over several slices"),
        (("s-2", "--slice", "0"), "`--slice` is for one job over several slices"),
        (("s-2", "--multislice", "--slice", "0"), "needs two nodes or more"),
    ],
)
def test_env_of_slices_names_what_is_missing(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], text: str
) -> None:
    for name in ("s-10", "s-2"):
        put(sandbox, name, acceleratorType="v4-16")

    out, err, code = tpuctl("env", *words)

    assert (out, code) == ("", 2)
    assert text in err
