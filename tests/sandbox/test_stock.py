"""Stock: how many nodes fit in a zone, who gets it, what gives it back, and how it changes with time."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.stock import show_stock

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-east5-b"
V6E: dict[str, Any] = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
SPOT: dict[str, Any] = {**V6E, "schedulingConfig": {"spot": True}}
MINUTE = timedelta(minutes=1)


def set_stock(sandbox_state: SandboxState, nodes: int, **what: Any) -> None:
    """Set the stock of spot v6e-8 in us-east5-b."""
    scope = {"zone": "us-east5-b", "accelerator_type": "v6e-8", "tier": "spot", **what}
    administration.set_stock(sandbox_state, nodes=nodes, **scope)


def create(api: Api, clock: ManualClock, name: str, body: dict[str, Any] = SPOT) -> str:
    """Create a node, wait until it is READY or has failed, and return its state, or the code of the operation's error."""
    operation = api("nodes.create", body, parent=ZONE, nodeId=name)
    clock.sleep(6 * MINUTE)
    error = api("operations.get", name=operation["name"]).get("error", {})
    return str(error.get("code") or state_of(api, name))


def state_of(api: Api, name: str, kind: str = "nodes") -> str:
    """Return the state of a node or a queued resource, or the code of the error."""
    found = api(f"{kind}.get", name=f"{ZONE}/{kind}/{name}")
    state = found["state"] if isinstance(found, dict) else found[0]
    return str(state["state"] if isinstance(state, dict) else state)


def request(api: Api, name: str, version: str = "v2", *, count: int = 1, **fields: Any) -> Any:
    """Request nodes of a name, spot unless another tier is given."""
    tier: dict[str, Any] = (
        {} if fields.keys() & {"spot", "bestEffort", "guaranteed", "provisioningModel"} else {"spot": {}}
    )
    spec: dict[str, Any] = {"parent": ZONE, "node": V6E, "nodeId": name}
    if count > 1:
        spec = {"parent": ZONE, "node": V6E, "multisliceParams": {"nodeCount": count, "nodeIdPrefix": name}}
    body = {"tpu": {"nodeSpec": [spec]}, **tier, **fields}
    return api("queuedResources.create", body, version=version, parent=ZONE, queuedResourceId=name)


def queued(api: Api, *names: str) -> list[str]:
    """Return the states of queued resources."""
    return [state_of(api, name, "queuedResources") for name in names]


def free(sandbox_state: SandboxState) -> list[int | None]:
    """Return the free nodes of each level."""
    with sandbox_state.read() as session:
        return [entry.free for entry in show_stock(session)]


def test_create_takes_stock_and_fails_without(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    set_stock(sandbox_state, 1)

    answers = [create(api, clock, name) for name in ("first", "second")]

    assert (answers, free(sandbox_state)) == (["READY", "8"], [0])
    on_demand = create(api, clock, "other-tier", V6E)
    other_type = create(api, clock, "other-type", {**SPOT, "acceleratorType": "v6e-4"})
    assert (on_demand, other_type) == ("READY", "READY")


@pytest.mark.parametrize("way", ["delete", "stop", "preemption"])
def test_stock_is_given_back(sandbox_state: SandboxState, api: Api, clock: ManualClock, way: str) -> None:
    body, tier = (V6E, "on-demand") if way == "stop" else (SPOT, "spot")
    set_stock(sandbox_state, 1, tier=tier)
    create(api, clock, "first", body)
    if way == "preemption":
        with sandbox_state.write() as session:
            add_fault(session, Fault(FaultKind.PREEMPT, node="first"))
    else:
        api(f"nodes.{way}", name=f"{ZONE}/nodes/first")
    clock.sleep(2 * MINUTE)

    assert free(sandbox_state) == [1]
    assert create(api, clock, "second", body) == "READY"


def test_start_of_a_stopped_node_needs_stock(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    set_stock(sandbox_state, 1, tier="on-demand")
    create(api, clock, "first", V6E)
    api("nodes.stop", name=f"{ZONE}/nodes/first")
    clock.sleep(2 * MINUTE)
    create(api, clock, "second", V6E)

    operation = api("nodes.start", name=f"{ZONE}/nodes/first")
    clock.sleep(2 * MINUTE)

    assert (api("operations.get", name=operation["name"])["error"]["code"], free(sandbox_state)) == (8, [0])


def test_failed_creation_gives_its_stock_back(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    set_stock(sandbox_state, 1)
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.OPERATION_ERROR, code=13))

    assert [create(api, clock, name) for name in ("first", "second")] == ["13", "READY"]


def test_stock_changes_at_its_times(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    """Also for requests: their turn comes with the stock, without a call in between."""
    set_stock(sandbox_state, 0)
    set_stock(sandbox_state, 2, after=20 * MINUTE)
    set_stock(sandbox_state, 1, after=40 * MINUTE)
    request(api, "waiting")
    seen = []
    for minutes in (19, 2, 12):
        clock.sleep(minutes * MINUTE)
        seen += queued(api, "waiting")

    assert seen == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert free(sandbox_state) == [1, None]
    clock.sleep(10 * MINUTE)  # a smaller stock takes no node away
    assert (queued(api, "waiting"), free(sandbox_state)) == (["ACTIVE"], [0])


def test_waiting_requests_get_stock_in_the_order_of_their_creation(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    set_stock(sandbox_state, 1)
    create(api, clock, "holder")
    for name in ("zulu", "alpha", "mike"):  # not the order of their names
        request(api, name)
        clock.sleep(MINUTE)
    clock.sleep(30 * MINUTE)
    before = queued(api, "zulu", "alpha", "mike")
    api("nodes.delete", name=f"{ZONE}/nodes/holder")
    clock.sleep(8 * MINUTE)
    first = queued(api, "zulu", "alpha", "mike")
    late = create(api, clock, "late")
    api("queuedResources.delete", name=f"{ZONE}/queuedResources/zulu", force=True)
    clock.sleep(8 * MINUTE)

    waits = "WAITING_FOR_RESOURCES"
    assert (before, first, late) == ([waits] * 3, ["ACTIVE", waits, waits], "8")
    assert queued(api, "zulu", "alpha", "mike") == ["404", "ACTIVE", waits]


def test_request_of_several_nodes_waits_for_all_of_them(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    set_stock(sandbox_state, 1)
    request(api, "two", count=2)
    request(api, "one")
    clock.sleep(15 * MINUTE)
    before = queued(api, "two", "one")
    set_stock(sandbox_state, 3)
    clock.sleep(8 * MINUTE)

    assert (before, queued(api, "two", "one")) == (["WAITING_FOR_RESOURCES", "ACTIVE"], ["ACTIVE", "ACTIVE"])
    assert free(sandbox_state) == [0]


def test_expiring_request_leaves_its_stock_to_the_next(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    set_stock(sandbox_state, 0)
    set_stock(sandbox_state, 1, after=20 * MINUTE)
    request(api, "hasty", queueingPolicy={"validUntilDuration": "600s"})
    request(api, "patient")
    clock.sleep(30 * MINUTE)

    assert queued(api, "hasty", "patient") == ["FAILED", "ACTIVE"]


def test_hanging_request_takes_no_stock(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    set_stock(sandbox_state, 1)
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.HANG, node="stuck", state="WAITING_FOR_RESOURCES"))
        add_fault(session, Fault(FaultKind.HANG, node="slow", state="ACCEPTED", duration=timedelta(hours=1)))
    for name in ("stuck", "slow", "free"):
        request(api, name)
    clock.sleep(15 * MINUTE)
    api("queuedResources.delete", name=f"{ZONE}/queuedResources/free", force=True)
    clock.sleep(15 * MINUTE)
    before = queued(api, "stuck", "slow")
    clock.sleep(timedelta(hours=1))

    assert before == ["WAITING_FOR_RESOURCES", "ACCEPTED"]
    assert queued(api, "stuck", "slow") == ["WAITING_FOR_RESOURCES", "ACTIVE"]


TIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "on-demand": ("v2", {"guaranteed": {}}),
    "spot": ("v2", {"spot": {}}),
    "spot by model": ("v2alpha1", {"provisioningModel": "SPOT"}),
    "spot, as gcloud alpha": ("v2alpha1", {"spot": {}, "provisioningModel": "STANDARD"}),
    "reserved": ("v2alpha1", {"guaranteed": {"reserved": True}}),
    "reserved by name": ("v2", {"guaranteed": {}, "reservationName": f"{ZONE}/reservations/-"}),
    "best-effort": ("v2alpha1", {"bestEffort": {}, "provisioningModel": "STANDARD"}),
    "flex-start": (
        "v2alpha1",
        {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "86400s"}},
    ),
}


@pytest.mark.parametrize("tier", TIERS)
def test_each_tier_has_a_stock_of_its_own(sandbox_state: SandboxState, api: Api, clock: ManualClock, tier: str) -> None:
    for name in ("on-demand", "spot", "reserved", "best-effort", "flex-start"):
        word = tier.partition(" ")[0].rstrip(",")
        set_stock(sandbox_state, 1 if name == word else 0, tier=name)
    version, fields = TIERS[tier]
    for name in ("one", "two"):
        assert "name" in request(api, name, version=version, **fields)
        clock.sleep(10 * MINUTE)

    assert queued(api, "one", "two") == ["ACTIVE", "WAITING_FOR_RESOURCES"]
    node = api("nodes.get", name=f"{ZONE}/nodes/one", version="v2alpha1")
    assert node["schedulingConfig"]["provisioningModel"] == ("SPOT" if "spot" in tier else "STANDARD")


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ({"nodes": -1}, "the stock cannot be -1 nodes"),
        ({"nodes": 1, "zone": "us-east5-z"}, "`us-east5-z` is not a zone with TPUs"),
        ({"nodes": 1, "accelerator_type": "v6-8"}, "no zone offers `v6-8`"),
        ({"nodes": 1, "tier": "cheap"}, "`cheap` is not a tier"),
        ({"nodes": 1, "duration": timedelta()}, "a stock or a stock-out cannot end before it starts"),
    ],
    ids=["negative", "zone", "type", "tier", "duration"],
)
def test_invalid_stock_is_rejected(sandbox_state: SandboxState, what: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        administration.set_stock(sandbox_state, **what)

    assert caught.value.message == complaint


def test_stock_and_stockout_hold_together(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    """A stock-out for a time is not replaced by a stock; when it ends, the stock holds."""
    set_stock(sandbox_state, 0, duration=10 * MINUTE)
    set_stock(sandbox_state, 1)

    early = create(api, clock, "early")
    clock.sleep(5 * MINUTE)
    assert (early, create(api, clock, "later"), create(api, clock, "last")) == ("8", "READY", "8")
    assert administration.clear_stock(sandbox_state, zone="us-east5-b") == 1
    assert create(api, clock, "cleared") == "READY"


def test_narrower_stock_replaces_a_wider_one_there(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    """In whatever order they are set."""
    set_stock(sandbox_state, 1)
    set_stock(sandbox_state, 0, zone="*", accelerator_type="*", tier="*")
    set_stock(sandbox_state, 2, accelerator_type="v6e-*", tier="*")

    answers = [create(api, clock, name) for name in ("first", "second")]
    others = [create(api, clock, f"other-{size}", {**V6E, "acceleratorType": f"v6e-{size}"}) for size in (1, 4, 8)]

    assert (answers, others, free(sandbox_state)) == (["READY", "8"], ["READY", "READY", "8"], [0, 0, 0])
    elsewhere = api("nodes.create", SPOT, parent=ZONE.replace("-b", "-a"), nodeId="elsewhere")
    clock.sleep(2 * MINUTE)
    assert api("operations.get", name=elsewhere["name"])["error"]["code"] == 8


def test_planned_end_of_a_request_gives_its_stock_to_the_next(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    """Without a call in between: the plan of the second knows the end of the first, which waits itself."""
    set_stock(sandbox_state, 1, tier="flex-start")
    for name in ("first", "second"):
        run: dict[str, Any] = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"}}
        request(api, name, "v2alpha1", **run)
    seen = []
    for _ in range(3):
        clock.sleep(timedelta(minutes=45))
        seen.append(queued(api, "first", "second"))

    waits = "WAITING_FOR_RESOURCES"
    assert seen == [["ACTIVE", waits], ["SUSPENDED", "ACTIVE"], ["SUSPENDED", "SUSPENDED"]]


def test_deleted_node_that_failed_for_want_of_stock_gives_nothing_back(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    set_stock(sandbox_state, 1)
    create(api, clock, "holder")
    api("nodes.create", SPOT, parent=ZONE, nodeId="failing")
    api("nodes.delete", name=f"{ZONE}/nodes/failing")

    with sandbox_state.read() as session:
        assert [(entry.used, entry.free) for entry in show_stock(session)] == [(1, 0)]


@pytest.mark.parametrize("seed", range(4))
def test_stock_holds_through_random_lives(sandbox_state: SandboxState, api: Api, clock: ManualClock, seed: int) -> None:
    """Never more nodes than stock, and no free stock while a request waits that could have it."""
    draw = Random(seed)  # noqa: S311  # a test
    set_stock(sandbox_state, draw.randint(0, 2))
    kinds = (FaultKind.PREEMPT, FaultKind.FALL_BACK, FaultKind.HANG, FaultKind.SUSPEND, FaultKind.LATE_NODE)
    for step in range(40):
        some = draw.randint(0, step)
        match draw.choice(("create", "queue", "queue", "delete", "cancel", "fault", "grow")):
            case "create":
                api("nodes.create", SPOT, parent=ZONE, nodeId=f"n{step}")
            case "queue":
                until = f"{draw.choice((60, 600, 4000, 90_000))}s"
                request(api, f"n{step}", queueingPolicy={"validUntilDuration": until})
            case "delete":
                api("nodes.delete", name=f"{ZONE}/nodes/n{some}")
            case "cancel":
                api("queuedResources.delete", name=f"{ZONE}/queuedResources/n{some}", force=True)
            case "fault":
                with sandbox_state.write() as session:
                    duration, state = timedelta(seconds=draw.randint(1, 600)), draw.choice(("CREATING", "ACCEPTED"))
                    wanted = Fault(draw.choice(kinds), node=f"*{draw.randint(0, 9)}", duration=duration, state=state)
                    add_fault(session, wanted)
            case _:
                with sandbox_state.read() as session:
                    nodes = sum(entry.level.nodes for entry in show_stock(session))
                set_stock(sandbox_state, nodes + 1)
        clock.sleep(timedelta(seconds=draw.randint(1, 300)))
        with sandbox_state.read() as session:
            (entry,) = show_stock(session)
            waiting = [
                record
                for record in session.queued_resources()
                if record.state(session.now) == "WAITING_FOR_RESOURCES"
                and record.not_before
                and record.not_before <= session.now
            ]
        assert entry.used is not None
        assert entry.used <= entry.level.nodes, step
        assert not (entry.free and waiting), step
