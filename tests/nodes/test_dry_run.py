"""`--dry-run` of every command that changes nodes: steps, requests and gcloud commands; no change is sent."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, both_faces

DONE = "dry run: nothing was changed\n"
ELSEWHERE = "gcloud uses Google's endpoint unless CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU names this one\n"
HIDDEN = "metadata values are hidden: add `--show-metadata` for commands that can be run unchanged\n"
NEW = ("--type", "v4-8", "--zone", "us-central2-b", "--spot", "--metadata", "token=geheim", "--labels", "team=vision")


@pytest.fixture
def fleet(sandbox: Sandbox) -> Sandbox:
    """Nodes in the states that plans begin with."""
    sandbox.add_node("demo", labels={"a": "1"}, tags=["old"], metadata={"ssh-keys": "ada:geheim", "token": "geheim"})
    sandbox.add_node("pod", zone="us-central1-a", acceleratorType="v5litepod-16")
    sandbox.add_node("stopped", state="STOPPED")
    sandbox.add_node("preempted", state="PREEMPTED", schedulingConfig={"spot": True})
    sandbox.add_node("owned", queued_resource="request")
    sandbox.add_queued_resource("request", node_ids=("owned",))
    return sandbox


def plan(tpuctl: Console, *arguments: str) -> tuple[list[str], list[str]]:
    """Return the steps, with their requests, and the gcloud commands, as a dry run prints them."""
    out, err, code = tpuctl(*arguments, "--dry-run")
    elsewhere = ELSEWHERE if "TPUCTL_ENDPOINT" in tpuctl.environ and "   $ gcloud" in out else ""
    assert (err, code) == (DONE + elsewhere + (HIDDEN if "<hidden" in out else ""), 0)
    lines = [re.sub(r"https?://[^/]+/v2/projects/sandbox/locations/", "…/", line) for line in out.splitlines()]
    steps = [line.strip() for line in lines if not line.startswith(("   $", "   {"))]
    return steps, [line.removeprefix("   $ ") for line in lines if line.startswith("   $")]


GCLOUD = "gcloud compute tpus"
B = "--zone us-central2-b --project sandbox"
FOLLOWS = "a creation follows, once the node is gone"


@both_faces
@pytest.mark.parametrize(
    ("arguments", "steps", "gcloud"),
    [
        (
            ("up", "new", *NEW),
            ["1. create new in us-central2-b: there is none yet", "price: ?", "POST …/us-central2-b/nodes?nodeId=new"],
            [(f"tpu-vm create new {B} --accelerator-type=v4-8 --version=tpu-ubuntu2204-base --spot --labels=team=vision "
             "'--metadata=token=<hidden: 6 bytes>'")],
        ),
        (
            ("create", "new", *NEW),
            ["1. create new in us-central2-b: requested", "price: ?", "POST …/us-central2-b/nodes?nodeId=new"],
            [(f"tpu-vm create new {B} --accelerator-type=v4-8 --version=tpu-ubuntu2204-base --spot --labels=team=vision "
             "'--metadata=token=<hidden: 6 bytes>'")],
        ),
        (
            ("up", "stopped"),
            ["1. start stopped in us-central2-b: it is STOPPED", "POST …/us-central2-b/nodes/stopped:start"],
            [f"tpu-vm start stopped {B}"],
        ),
        (
            ("start", "stopped", "demo"),
            ["1. start stopped in us-central2-b: requested", "POST …/us-central2-b/nodes/stopped:start"],
            [f"tpu-vm start stopped {B}"],
        ),
        (
            ("stop", "stopped", "demo"),
            ["1. stop demo in us-central2-b: requested", "POST …/us-central2-b/nodes/demo:stop"],
            [f"tpu-vm stop demo {B}"],
        ),
        (("stop", "stopped"), ["nothing to do"], []),
        (
            ("up", "preempted"),
            ["1. delete preempted in us-central2-b: it was preempted: only its record is left",
             "DELETE …/us-central2-b/nodes/preempted", FOLLOWS],
            [f"tpu-vm delete preempted {B} --quiet"],
        ),
        (
            ("reset", "demo"),
            ["1. stop demo in us-central2-b: requested", "POST …/us-central2-b/nodes/demo:stop"],
            [f"tpu-vm stop demo {B}"],
        ),
        (
            ("reset", "demo", "--mode", "recreate"),
            ["1. delete demo in us-central2-b: requested", "DELETE …/us-central2-b/nodes/demo", FOLLOWS],
            [f"tpu-vm delete demo {B} --quiet"],
        ),
        (
            ("up", "demo", "--type", "v4-16", "--replace"),
            ["1. delete demo in us-central2-b: it differs: accelerator_type: wanted `v4-16`, found `v4-8`",
             "DELETE …/us-central2-b/nodes/demo", FOLLOWS],
            [f"tpu-vm delete demo {B} --quiet"],
        ),
        (
            ("reset", "pod"),
            ["1. reboot pod in us-central1-a: requested"],
            ["tpu-vm ssh pod --zone us-central1-a --project sandbox --worker=all '--command=sudo reboot'"],
        ),
        (
            ("down", "demo", "owned"),
            ["1. delete demo in us-central2-b: the v4-8 node (READY)", "DELETE …/us-central2-b/nodes/demo",
             "2. delete owned in us-central2-b: the queued resource `request` (ACTIVE) with the v4-8 node (READY)",
             "DELETE …/us-central2-b/queuedResources/request?force=true"],
            [f"tpu-vm delete demo {B} --quiet", f"queued-resources delete request {B} --force --quiet"],
        ),
        (
            ("delete", "demo"),
            ["1. delete demo in us-central2-b: the v4-8 node (READY)", "DELETE …/us-central2-b/nodes/demo"],
            [f"tpu-vm delete demo {B} --quiet"],
        ),
        (
            ("update", "demo", "--labels", "b=2", "--remove-labels", "a", "--tags", "new", "--remove-tags", "old",
             "--metadata", "^:^token=new:other=a,b", "--description", "d e"),
            ["1. update demo in us-central2-b: labels, tags, metadata, description",
             "PATCH …/us-central2-b/nodes/demo?updateMask=labels,tags,metadata,description"],
            [(f"tpu-vm update demo {B} --update-labels=b=2 --remove-labels=a "
             "'--update-metadata=token=<hidden: 3 bytes>,other=<hidden: 3 bytes>' "
             "--add-tags=new --remove-tags=old '--description=d e'")],
        ),
        (
            ("update", "demo", "--attach-disk", "d", "--internal-ips"),
            ["1. update demo in us-central2-b: dataDisks, networkConfig",
             "PATCH …/us-central2-b/nodes/demo?updateMask=dataDisks,networkConfig.enableExternalIps"],
            [f"tpu-vm update demo {B} --internal-ips",
             (f"tpu-vm update demo {B} "
              "--attach-disk=source=projects/sandbox/zones/us-central2-b/disks/d,mode=read-write")],
        ),
        (("update", "demo", "--labels", "a=1"), ["nothing to do"], []),
    ],
)  # fmt: skip
def test_dry_run_prints_request_and_gcloud_command_of_each_step(
    tpuctl: Console, fleet: Sandbox, arguments: tuple[str, ...], steps: list[str], gcloud: list[str]
) -> None:
    assert plan(tpuctl, *arguments) == (steps, [f"{GCLOUD} {line}" for line in gcloud])
    assert fleet.changes() == []


def test_dry_run_hides_metadata_values(tpuctl: Console, fleet: Sandbox) -> None:
    for arguments in (
        ("up", "new", *NEW), ("create", "new", *NEW), ("reset", "demo", "--mode", "recreate"),
        ("update", "demo", "--metadata", "token=geheim2"), ("up", "demo", "--type", "v4-16", "--replace"),
    ):  # fmt: skip
        for form in ("table", "json", "yaml"):
            out, err, code = tpuctl(*arguments, "--dry-run", "-o", form)
            assert ("geheim" in out + err, code) == (False, 0)
    assert fleet.changes() == []


@both_faces
def test_dry_run_in_json_is_an_array_of_steps(tpuctl: Console, fleet: Sandbox, face: dict[str, str]) -> None:
    mark = {"sandbox": True} if "TPUCTL_SANDBOX" in face else {}
    origin = face.get("TPUCTL_ENDPOINT", "https://tpu.googleapis.com")

    out, err, code = tpuctl("up", "new", *NEW, "--dry-run", "-o", "json")
    (step,) = json.loads(out)

    body: dict[str, Any] = step["request"].pop("body")
    assert (err, code) == ("", 0)
    owner = body["labels"].pop("tpuctl-owner")
    assert "_" in owner
    assert body.pop("labels") == {"team": "vision", "tpuctl-request": body_label(out)}
    assert body == {
        "acceleratorType": "v4-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "networkConfig": {"enableExternalIps": True},
        "schedulingConfig": {"spot": True},
        "metadata": {"token": "<hidden: 6 bytes>"},
    }
    assert step == {
        "step": "create",
        "node": "new",
        "zone": "us-central2-b",
        "project": "sandbox",
        "reason": "there is none yet",
        "price": {"perHour": None, "isAbout": True, "asOf": "2026-08"},
        "request": {
            "method": "POST",
            "url": f"{origin}/v2/projects/sandbox/locations/us-central2-b/nodes?nodeId=new",
        },
        "gcloud": [
            (
                f"{GCLOUD} tpu-vm create new {B} --accelerator-type=v4-8 --version=tpu-ubuntu2204-base --spot "
                "--labels=team=vision '--metadata=token=<hidden: 6 bytes>'"
            )
        ],
        **mark,
    }
    assert [entry["step"] for entry in json.loads(tpuctl("down", "demo", "pod", "--dry-run", "-o", "json")[0])] == [
        "delete",
        "delete",
    ]
    assert json.loads(tpuctl("stop", "stopped", "--dry-run", "-o", "json")[0]) == []


def body_label(out: str) -> str:
    """Return the label that tells this request from every other: it is new each time."""
    found = re.search(r'"tpuctl-request": "([0-9a-f]{32})"', out)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "demo", "--type", "v4-8", "--zone", "us-central2-b"), 8),
        (("up", "demo", "--type", "v4-16"), 8),
        (("stop", "pod"), 8),
        (("start", "preempted"), 8),
        (("delete", "nope"), 3),
        (("reset", "nope"), 3),
    ],
)
def test_dry_run_has_the_exit_code_of_the_run(
    tpuctl: Console, fleet: Sandbox, arguments: tuple[str, ...], code: int
) -> None:
    out, err, ended = tpuctl(*arguments, "--dry-run")
    run = tpuctl(*arguments)

    assert (out, ended) == (run[0], run[2]) == ("", code)
    assert run[1].endswith(err)  # the run may tell before what it sees
    assert fleet.changes() == []


def test_gcloud_command_with_a_script_is_quoted_for_bash(tpuctl: Console, sandbox: Sandbox) -> None:
    script = '#!/bin/bash\necho "it\'s \\ me"\t$HOME \x1b[1m\n'
    (tpuctl.folder / "start.sh").write_text(script)
    account = ("--impersonate-service-account", "ci@p.iam.gserviceaccount.com")

    out, err, code = tpuctl(
        *UP, "--startup-script", "start.sh", "--setup", "make", *account, "--dry-run", "--show-metadata"
    )

    line = next(line.removeprefix("   $ gcloud ") for line in out.splitlines() if line.startswith("   $ gcloud "))
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert (code, [word for word in words if word.startswith("--metadata=")]) == (
        0,
        [f"--metadata=startup-script={script}"],
    )
    assert "--impersonate-service-account=ci@p.iam.gserviceaccount.com" in words
    assert err.splitlines()[-1] == "the setup commands run over ssh once the node is usable; gcloud has no equivalent"
