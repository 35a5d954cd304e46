"""`tpuctl create`: one request, strictly."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, one_face, put, said, told

CREATE = ("create", "demo", "--type", "v4-8", "--zone", ZONE)


def test_creates_and_waits_until_it_is_ready(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl(*CREATE) == (
        "demo\tREADY\n",
        said("demo: CREATING", "demo: READY", "demo: ready after 3m28s; its health is not reported yet"),
        0,
    )
    assert sandbox.changes() == ["create"]


@one_face
@pytest.mark.parametrize("flag", ["--no-wait", "--async"])
def test_returns_at_once_where_nobody_waits(tpuctl: Console, sandbox: Sandbox, flag: str) -> None:
    assert tpuctl(*CREATE, flag) == ("demo\tCREATING\n", "demo: CREATING\n", 0)


@one_face
@pytest.mark.parametrize("state", ["READY", "PREEMPTED"])
def test_a_name_that_is_taken_is_refused_before_any_call(tpuctl: Console, sandbox: Sandbox, state: str) -> None:
    put(sandbox, state=state)

    assert tpuctl(*CREATE) == (
        "",
        said(
            f"error: node `demo` already exists in us-central2-b; its state is {state}",
            "  hint: `tpuctl up demo --zone us-central2-b` continues with it; "
            "`tpuctl delete demo --zone us-central2-b` deletes it",
        ),
        8,
    )
    assert sandbox.changes() == []


@pytest.mark.parametrize("lost", ["drop-before", "drop-after"])
def test_an_answer_that_is_lost_does_not_make_a_second_node(tpuctl: Console, sandbox: Sandbox, lost: str) -> None:
    sandbox.fault(lost, method="*.nodes.create")

    out, _, code = tpuctl(*CREATE)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])


def test_a_node_that_is_broken_is_reported_not_repaired(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")

    out, err, code = tpuctl(*CREATE)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert told(err)[-1] == "ready after 3m28s; the service reports UNHEALTHY_TENSORFLOW"


def test_a_full_zone_ends_it(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error")

    out, err, code = tpuctl(*CREATE, "-o", "json")

    error = json.loads(err.splitlines()[-1])["error"]
    assert (out, code, error["kind"], error["exit_code"]) == ("", 6, "no_capacity", 6)


@one_face
def test_it_takes_what_gcloud_takes(tpuctl: Console, sandbox: Sandbox) -> None:
    flags = (
        "--accelerator-type", "v4-8", "--runtime-version", "tpu-ubuntu2204-base", "--preemptible", "--network", "default",
        "--internal-ips", "--scopes", "a,b", "--labels", "team=vision", "--tags", "web", "--metadata", "k=v",
        "--shielded-secure-boot", "--description", "for ada",
    )  # fmt: skip

    tpuctl("create", "demo", "--zone", ZONE, *flags, "--no-wait")

    node = json.loads(tpuctl("status", "demo", "-o", "json", "--show-metadata")[0])
    assert node["schedulingConfig"] == {"preemptible": True}
    assert node["networkConfig"]["enableExternalIps"] is False
    assert node["serviceAccount"]["scope"] == ["a", "b"]
    assert (node["labels"]["team"], node["tags"], node["metadata"]["k"]) == ("vision", ["web"], "v")
    assert (node["shieldedInstanceConfig"], node["description"]) == ({"enableSecureBoot": True}, "for ada")


@one_face
def test_a_type_is_needed_and_no_request_is_sent_without(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("create", "demo", "--zone", ZONE) == (
        "",
        said("error: no accelerator type given", "  hint: name one: `--type v4-8`; see `tpuctl types`"),
        2,
    )
