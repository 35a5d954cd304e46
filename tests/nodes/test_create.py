"""`tpuctl create`: exactly one create request, and a wait until the node is READY."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, both_faces, put, said, told

CREATE = ("create", "demo", "--type", "v4-8", "--zone", ZONE)


@both_faces
def test_create_waits_until_the_node_is_ready(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl(*CREATE) == (
        "demo\tREADY\n",
        said("demo: CREATING", "demo: READY", "demo: ready after 3m28s"),
        0,
    )
    assert sandbox.changes() == ["create"]


@pytest.mark.parametrize("flag", ["--no-wait", "--async"])
def test_create_with_no_wait_returns_at_once(tpuctl: Console, sandbox: Sandbox, flag: str) -> None:
    assert tpuctl(*CREATE, flag) == ("demo\tCREATING\n", "demo: CREATING\n", 0)


@pytest.mark.parametrize("state", ["READY", "PREEMPTED"])
def test_create_of_an_existing_name_is_refused_before_any_call(tpuctl: Console, sandbox: Sandbox, state: str) -> None:
    put(sandbox, state=state)

    assert tpuctl(*CREATE) == (
        "",
        said(
            f"error: node `demo` already exists in us-central2-b; its state is {state}",
            "  hint: `tpuctl up demo --type v4-8 --zone us-central2-b` continues with it; "
            "`tpuctl delete demo --zone us-central2-b` deletes it",
        ),
        8,
    )
    assert sandbox.changes() == []


def test_create_of_a_broken_node_reports_without_repair(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")

    out, err, code = tpuctl(*CREATE)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert told(err)[-1] == "ready after 3m28s; the service reports UNHEALTHY_TENSORFLOW"


@both_faces
def test_create_without_capacity_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error")

    out, err, code = tpuctl(*CREATE, "-o", "json")

    error = json.loads(err.splitlines()[-1])["error"]
    assert (out, code, error["kind"], error["exit_code"]) == ("", 6, "no_capacity", 6)


def test_create_accepts_the_options_of_gcloud(tpuctl: Console, sandbox: Sandbox) -> None:
    flags = (
        "--accelerator-type", "v4-8", "--runtime-version", "tpu-ubuntu2204-base", "--preemptible", "--network", "default",
        "--internal-ips", "--scopes", "a,b", "--labels", "team=vision", "--tags", "web", "--metadata", "k=v",
        "--shielded-secure-boot", "--description", "for ada",
    )  # fmt: skip

    tpuctl("create", "demo", "--zone", ZONE, *flags, "--no-wait")

    node = json.loads(tpuctl("status", "demo", "-o", "json", "--show-metadata")[0])[0]
    assert node["schedulingConfig"] == {"preemptible": True}
    assert node["networkConfig"]["enableExternalIps"] is False
    assert node["serviceAccount"]["scope"] == ["a", "b"]
    assert (node["labels"]["team"], node["tags"], node["metadata"]["k"]) == ("vision", ["web"], "v")
    assert (node["shieldedInstanceConfig"], node["description"]) == ({"enableSecureBoot": True}, "for ada")


def test_create_without_a_type_sends_no_request(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("create", "demo", "--zone", ZONE) == (
        "",
        said("error: no accelerator type given", "  hint: name one: `--type v4-8`; see `tpuctl types`"),
        2,
    )
