"""Seeds: a file adds all of its resources or none, and errors name file, line and key."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import read_status
from tpuctl.sandbox.faults import list_faults
from tpuctl.sandbox.seeding import SeedError, apply_seed, read_seed

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-central2-b"
COMPUTE = "/compute/v1/projects/sandbox"
MISPLACED = Path(__file__).resolve().parents[2] / "examples" / "misplaced-project.yaml"
OF_ITSELF = "the sandbox computes it; leave it out"
WRITTEN = "write it like 90s, 30m, 2h or 1h30m"
EVERYTHING = f"""
settings: {{keep_failed_nodes: true}}
projects:
  - projectId: sandbox
    commonInstanceMetadata: {{items: [{{key: ssh-keys, value: "ada:ssh-ed25519 AAAA ada"}}]}}
services: [{{name: storage.googleapis.com, state: DISABLED}}]
quotas:
  - {{generation: v4, zone: us-central2-b, limit: 64}}
  - {{metric: IN_USE_ADDRESSES, region: us-central2, limit: 4}}
stock: [{{zone: us-east5-b, acceleratorType: v6e-8, tier: preemptible, nodes: 2, after: 1h}}]
stockouts: [{{zone: europe-west4-b, acceleratorType: "v5*", duration: 20m}}]
reservations: [{{name: "{ZONE}/reservations/ours", standard: {{size: 64, capacityUnits: CORES}}}}]
networks: [{{name: quiet, autoCreateSubnetworks: false}}]
subnetworks: [{{name: quiet-sub, region: us-central2, network: quiet, ipCidrRange: 10.9.0.0/20}}]
firewalls: [{{name: allow-ssh-quiet, network: quiet}}]
disks: [{{name: data, zone: us-central2-b, sizeGb: 100}}]
instances: [{{name: companion, zone: us-central2-b}}]
buckets: [{{name: checkpoints, location: US-CENTRAL2}}]
objects: [{{bucket: checkpoints, name: step/1, content: weights}}]
iamPolicies: [{{bucket: checkpoints, bindings: [{{role: roles/storage.admin, members: ["user:ada@example.org"]}}]}}]
anywhereCaches: [{{bucket: checkpoints, zone: us-central2-b, state: PAUSED}}]
roles: [{{name: reader, includedPermissions: [storage.objects.get]}}]
orgPolicies: [{{name: projects/sandbox/policies/compute.requireOsLogin, spec: {{rules: [{{enforce: true}}]}}}}]
faults: [{{kind: preempt, node: later, times: 2}}]
queuedResources:
  - name: dead
    zone: us-central2-b
    state: SUSPENDED
    tpu:
      nodeSpec: [{{parent: "{ZONE}", nodeId: gone, node: {{acceleratorType: v4-8, runtimeVersion: tpu-ubuntu2204-base}}}}]
nodes:
  - {{name: trainer, zone: us-central2-b, labels: {{team: vision, rank: 7}}, age: 2h}}
  - {{name: "{ZONE}/nodes/spot", acceleratorType: v4-16, state: PREEMPTED, schedulingConfig: {{spot: true}}}}
"""


def test_seed_adds_entries_of_every_kind(sandbox_state: SandboxState, api: Any) -> None:
    apply_seed(sandbox_state, read_seed(EVERYTHING, "team.yaml"))

    trainer, spot = (api("nodes.get", name=f"{ZONE}/nodes/{name}") for name in ("trainer", "spot"))
    dead = api("queuedResources.get", name=f"{ZONE}/queuedResources/dead")
    with sandbox_state.read() as session:
        faults = [(str(fault.kind), fault.node, fault.count) for _, fault in list_faults(session)]
        settings, keys = dict[str, Any](session.settings()), session.project("sandbox")["items"]
        buckets = [found.name for found in session.resources.list_records("storage.bucket")]
    assert (trainer["state"], trainer["health"], trainer["labels"]) == (
        "READY",
        "HEALTHY",
        {"team": "vision", "rank": "7"},
    )
    assert trainer["createTime"][:16] == "2025-12-31T22:00"
    assert (spot["state"], spot["acceleratorType"], spot["schedulingConfig"]) == ("PREEMPTED", "v4-16", {"spot": True})
    assert (dead["state"]["state"], dead["tpu"]["nodeSpec"][0]["nodeId"]) == ("SUSPENDED", "gone")
    assert faults == [("preempt", "later", 2)]
    assert settings["keep_failed_nodes"] is True
    assert keys == [{"key": "ssh-keys", "value": "ada:ssh-ed25519 AAAA ada"}]
    assert buckets == ["checkpoints"]
    assert [(level["zone"], level["tier"], level["nodes"]) for level in settings["stock"]] == [
        ("us-east5-b", "spot", 2),
        ("europe-west4-b", "*", 0),
    ]
    assert [entry["name"] for entry in settings["reservations"]] == [f"{ZONE}/reservations/ours"]


@pytest.mark.parametrize(
    ("text", "complaint", "hint"),
    [
        ("nodez: []", "s.yaml line 1: unknown key `nodez`", "did you mean `nodes`?"),
        ("nodes:\n- name: a\n  descriptio: v", "s.yaml line 3: unknown key `descriptio`", "did you mean `description`?"),
        (
            "nodes:\n- name: a\n  schedulingConfig:\n    spott: true",
            "s.yaml line 4: unknown key `spott`",
            "did you mean `spot`?",
        ),
        ("nodes:\n- name: a\n  schedulingConfig: {spot: maybe}", "s.yaml line 3: `spot` must be true or false", None),
        ("nodes:\n- zone: us-central2-b", "s.yaml line 2: `name` is missing", None),
        ("nodes:\n- name: a\n  age: soon", "s.yaml line 3: `age`: `soon` is not a duration; " + WRITTEN, None),
        ("nodes:\n- name: a\n  id: 7", "s.yaml line 3: `id` cannot be given: " + OF_ITSELF, None),
        ("nodes: trainer", "s.yaml line 1: `nodes` must be a list", None),
        ("steps: []", "s.yaml line 1: this is a scenario", "plan it with `tpuctl sandbox scenario s.yaml`"),
        ("nodes: []\nnodes: []", "s.yaml line 2: duplicate key `nodes`", None),
        ("settings:\n  health_lagg: []", "s.yaml line 2: unknown key `health_lagg`", "did you mean `health_lag`?"),
        ("nodes: [", "s.yaml line 2 column 1: not valid YAML: did not find expected node content", None),
        ("quotas: [{zone: us-central2-b}]", "s.yaml line 1: `limit` is missing", None),
    ],
)  # fmt: skip
def test_invalid_seed_is_an_error_with_its_line(text: str, complaint: str, hint: str | None) -> None:
    with pytest.raises(SeedError) as caught:
        read_seed(text, "s.yaml")

    assert (caught.value.message, caught.value.hint) == (complaint, hint)


def test_unknown_state_is_an_error_with_the_known_states() -> None:
    with pytest.raises(SeedError) as caught:
        read_seed("nodes:\n- name: a\n  state: RUNNING", "s.yaml")

    assert caught.value.message == "s.yaml line 3: `state` cannot be `RUNNING`"
    assert "CREATING, READY" in str(caught.value.hint)


def test_seed_with_a_rejected_entry_adds_none(sandbox_state: SandboxState, api: Any) -> None:
    text = (
        "faults:\n- kind: preempt\nnodes:\n- name: good\n- name: bad\n  zone: us-central2-b\n  acceleratorType: v6e-8"
    )

    with pytest.raises(SeedError) as caught:
        apply_seed(sandbox_state, read_seed(text, "s.yaml"))

    assert caught.value.message.startswith("s.yaml line 5: Cloud TPU received a bad request. The requested accelerator")
    assert (api.state("good"), read_status(sandbox_state).faults) == (404, ())


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("us", False),
        ("abc", True),
        ("a" * 63, True),
        ("a" * 64, False),
        (f"{'a' * 60}.{'b' * 60}", True),
        (".".join(["a" * 63] * 4), False),
        ("a..b", False),
        ("with_one-sign", True),
        ("Data", False),
        ("-data", False),
        ("data-", False),
        ("goog-data", False),
        ("192.168.5.4", False),
        ("192.168.5", True),
    ],
)
def test_bucket_name_is_checked(sandbox_state: SandboxState, name: str, is_one: bool) -> None:
    entries = read_seed(f"buckets:\n- name: {name}", "s.yaml")
    if is_one:
        apply_seed(sandbox_state, entries)
        return
    with pytest.raises(SeedError) as caught:
        apply_seed(sandbox_state, entries)
    assert caught.value.message == f"s.yaml line 2: Invalid bucket name: '{name}'"


def test_seed_replaces_resources_of_the_same_name(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state, "trainer", state="STOPPED", age=timedelta(days=2))

    apply_seed(sandbox_state, read_seed("nodes: [{name: trainer, zone: us-central2-b, state: READY}]", "s.yaml"))

    assert api.state("trainer") == "READY"


def test_misplaced_project_example_has_every_problem_once(sandbox_state: SandboxState) -> None:
    """All its resources exist after it is added once, and after it is added twice."""
    entries = read_seed(MISPLACED.read_text("utf-8"), MISPLACED.name)
    for _ in range(2):
        apply_seed(sandbox_state, entries)

    wire = Wire(sandbox_state)
    buckets = [wire("GET", f"/storage/v1/b/{entry.name}/storageLayout") for entry in entries if entry.kind == "buckets"]
    kinds = {found["locationType"] for found in buckets if isinstance(found, dict)}
    refused = [found[0] for found in buckets if isinstance(found, tuple)]
    rules = [rule["name"] for rule in wire("GET", f"{COMPUTE}/global/firewalls")["items"]]
    reservations = wire("GET", f"/v2alpha1/{ZONE}/reservations")["reservations"]
    effective = wire("GET", "/v2/projects/sandbox/policies/compute.vmExternalIpAccess:getEffectivePolicy")
    account = f"{administration.project_number('sandbox')}-compute@developer.gserviceaccount.com"
    shared = wire("GET", "/storage/v1/b/read-mostly/iam")["bindings"][1]
    assert kinds == {"region", "dual-region", "multi-region", "zone"}
    assert sorted(refused) == [400, 403]  # requester pays; another owner's
    assert "default-allow-ssh" not in rules
    assert reservations[0]["standard"]["usage"]["total"] == "4"
    assert effective["spec"]["rules"] == [{"denyAll": True}]
    assert shared["members"] == [f"serviceAccount:{account}"]
    assert "datasetReader" in wire("GET", f"/v1/{shared['role']}")["name"]
    assert wire("GET", "/v1/projects/sandbox-unpaid/billingInfo")["billingEnabled"] is False
    assert wire("GET", "/compute/v1/projects/partner-data/global/networks")[0] == 403
    wanted = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "schedulingConfig": {"spot": True}}
    secure = {"shieldedInstanceConfig": {"enableSecureBoot": True}}
    assert wire("POST", f"/v2/{ZONE}/nodes?nodeId=trainer", {**wanted, **secure})[:2] == (429, "RESOURCE_EXHAUSTED")
