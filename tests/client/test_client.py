"""`from tpuctl import Client`: nodes from a program, with the rules of the commands and without their terminal."""

from __future__ import annotations

import asyncio
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import ClientMaker
from tests.conftest import Sandbox
from tests.lifecycle import USER, ZONE, EventfulClock, own, put
from tpuctl import (
    BrokenNodeError,
    CheckFailedError,
    Client,
    Condition,
    ConflictError,
    EventKind,
    IncompleteListError,
    InvalidInputError,
    NoCapacityError,
    Node,
    NodeEvent,
    NodeSpec,
    NodeState,
    NotConfirmedError,
    NotFoundError,
    QuotaError,
    SettingError,
    Tier,
    TimedOutError,
    TpuctlError,
)
from tpuctl.clock import ManualClock
from tpuctl.names import NodeName
from tpuctl.sandbox.http_server import open_server

V4 = NodeSpec(accelerator_type="v4-8", tier=Tier.SPOT)
MINUTE = timedelta(minutes=1)


def test_life_of_a_node_is_idempotent(client: Client, sandbox: Sandbox) -> None:
    before = client.list()
    first = client.up("trainer", V4)
    again = client.up("trainer", V4)
    there = client.list()
    gone = client.down("trainer"), client.down("trainer")

    assert (before, first, again, there) == ([], first, first, [first])
    assert (first.name, first.state, first.tier) == (NodeName("sandbox", ZONE, "trainer"), NodeState.READY, Tier.SPOT)
    assert gone == (True, False)
    assert sandbox.changes() == ["create", "delete"]


def test_events_arrive_in_order_and_in_the_log(
    client: Client, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[NodeEvent] = []

    with caplog.at_level(logging.INFO, "tpuctl"):
        client.up("trainer", V4, on_event=events.append)

    shown = [(event.kind, event.data.get("state")) for event in events if event.kind is not EventKind.WAIT]
    assert shown == [
        (EventKind.ACTION, None),
        (EventKind.STATE, "CREATING"),
        (EventKind.STATE, "READY"),
        (EventKind.REACHED, None),
    ]
    assert [event.at for event in events] == sorted(event.at for event in events)
    logged = [f"trainer: {event.text}" for event in events if event.kind is not EventKind.WAIT]
    assert [line for line in caplog.messages if line.startswith("trainer: ")] == logged


@pytest.mark.parametrize(
    ("fault", "settings", "kind"),
    [
        pytest.param({"kind": "operation-error", "code": 8}, {}, NoCapacityError, id="no-capacity"),
        pytest.param({"kind": "quota"}, {}, QuotaError, id="quota"),
        pytest.param({"kind": "hang", "state": "CREATING"}, {"timeout": "5m"}, TimedOutError, id="timed-out"),
        pytest.param(None, {"max_price": "0.01"}, CheckFailedError, id="check-failed"),
    ],
)
def test_failure_of_up_is_the_error_of_the_command(
    make_client: ClientMaker,
    sandbox: Sandbox,
    fault: dict[str, Any] | None,
    settings: dict[str, str],
    kind: type[TpuctlError],
) -> None:
    if fault is not None:
        sandbox.fault(**fault)

    with pytest.raises(kind) as raised:
        make_client(settings=settings).up("trainer", V4)

    assert (raised.value.exit_code != 0, raised.value.kind, raised.value.hint is not None) == (True, kind.kind, True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"accelerator_type": "v4-9"}, "`v4-9`", id="type"),
        pytest.param({"accelerator_type": ""}, "no accelerator type given", id="no-type"),
        pytest.param({"tier": "cheap"}, "`cheap` is not a capacity type", id="tier"),
        pytest.param({"labels": {"Team": "a"}}, "`Team=a` is not a valid label", id="label"),
        pytest.param({"labels": {"tpuctl-race": "x"}}, "the label `tpuctl-race` cannot be changed", id="own-label"),
        pytest.param({"tags": ("A",)}, "`A` is not a valid network tag", id="tag"),
        pytest.param({"boot_disk_size": 0}, "`--boot-disk-size 0GB`", id="no-disk"),
        pytest.param({"boot_disk_size": 65537}, "`--boot-disk-size 65537GB`", id="large-disk"),
        pytest.param({"reservation": "a b", "tier": Tier.RESERVED}, "`a b` is not the name", id="reservation"),
        pytest.param({"run_for": MINUTE}, "`--run-for` needs the tier flex-start", id="run-for"),
        pytest.param({"ttl": MINUTE}, "`ttl` of a `NodeSpec`", id="ttl"),
        pytest.param({"tags": "web"}, "`tags='web'` of a `NodeSpec` is not a sequence of texts", id="text-as-tags"),
        pytest.param({"labels": {"a": 1}}, "is not a mapping of texts to texts", id="number-as-label"),
        pytest.param({"metadata": {"a": None}}, "is not a mapping of texts to texts", id="none-as-metadata"),
        pytest.param({"data_disks": ["disk"]}, "is not a sequence of `DataDisk`", id="text-as-disk"),
        pytest.param({"boot_disk_size": "100"}, "is not a whole number", id="text-as-size"),
        pytest.param({"queue": "yes"}, "is not True or False", id="text-as-truth"),
        pytest.param({"run_for": 60, "tier": Tier.FLEX_START}, "is not a `timedelta`", id="number-as-duration"),
        pytest.param({"accelerator_type": 4}, "is not a text", id="number-as-type"),
        pytest.param({"cidr_block": "x"}, "`--cidr-block x` is not a range", id="addresses"),
        pytest.param({"service_account": "x y"}, "`--service-account x y` is not a service account", id="account"),
        pytest.param({"named": frozenset({"tier"})}, "`named` of a `NodeSpec`", id="internal-field"),
    ],
)
def test_invalid_spec_is_refused_before_a_request(
    client: Client, sandbox: Sandbox, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        client.up("trainer", NodeSpec(**({"accelerator_type": "v4-8"} | spec)))

    assert (message in raised.value.message, bool(raised.value.hint)) == (True, True), raised.value
    assert sandbox.changes() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"wait_for": "gone"}, "`gone` is not a condition", id="condition-of-wait"),
        pytest.param({"wait_for": "usable"}, "`usable` is not a condition", id="condition"),
        pytest.param({"timeout": timedelta()}, "`timeout=datetime.timedelta(0)` is not a time", id="timeout"),
        pytest.param({"timeout": 600}, "`timeout=600` is not a time", id="number-of-seconds"),
        pytest.param({"timeout": "5m"}, "`timeout='5m'` is not a time", id="text-as-timeout"),
        pytest.param({"timeout": timedelta.max}, "is not a time", id="endless-timeout"),
        pytest.param({"ttl": MINUTE}, "too short", id="ttl"),
        pytest.param({"ttl": 30}, "`ttl=30` is not a time", id="ttl-as-number"),
        pytest.param({"tiers": ("cheap",)}, "`cheap` is not a capacity type", id="tier"),
        pytest.param({"tiers": "spot"}, "`tiers='spot'` is not a sequence", id="tier-without-a-sequence"),
        pytest.param(
            {"tiers": (Tier.ON_DEMAND,)}, "the tier spot of the `NodeSpec` is not one of", id="tiers-against-spec"
        ),
        pytest.param({"zone": "us"}, "`us`", id="zone"),
        pytest.param({"zone": 5}, "`5` does not name zones", id="zone-as-number"),
        pytest.param({"zone": (ZONE, None)}, "does not name zones", id="zone-as-none"),
    ],
)
def test_invalid_argument_is_refused_before_a_request(
    client: Client, sandbox: Sandbox, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=r".") as raised:
        client.up("trainer", V4, **arguments)

    assert message in raised.value.message
    assert sandbox.changes() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda client: client.up(None, V4), "`None` does not name a node", id="up"),
        pytest.param(lambda client: client.down(5), "`5` does not name a node", id="down"),
        pytest.param(lambda client: client.list(zones=5), "`5` does not name zones", id="list"),
        pytest.param(lambda client: client.run("trainer", b"ls"), "the command b'ls' is neither", id="bytes"),
        pytest.param(
            lambda client: client.run("trainer", ["echo", 1]), "is neither a text nor", id="number-in-command"
        ),
    ],
)
def test_argument_of_another_type_is_refused(
    client: Client, sandbox: Sandbox, call: Callable[[Client], object], message: str
) -> None:
    put(sandbox, "trainer")

    with pytest.raises(InvalidInputError) as raised:
        call(client)

    assert (message in raised.value.message, sandbox.changes()) == (True, [])


def test_name_and_zones_are_taken_as_the_library_returns_them(client: Client, sandbox: Sandbox) -> None:
    node = client.up("trainer", V4, zone=[ZONE])

    assert (client.wait(node.name), client.list(zones=[ZONE]), client.down(node.name)) == (node, [node], True)


@pytest.mark.parametrize(
    ("call", "given"),
    [
        pytest.param(lambda client: client.down("trainer", timeout=60), "60", id="down"),
        pytest.param(lambda client: client.wait("trainer", timeout="1m"), "'1m'", id="wait"),
        pytest.param(lambda client: client.list(timeout=5), "5", id="list"),
        pytest.param(lambda client: client.list(timeout="forever"), "'forever'", id="list-forever"),
        pytest.param(lambda client: client.run("trainer", "true", timeout=60), "60", id="run"),
        pytest.param(lambda client: client.run("trainer", "true", timeout="forever"), "'forever'", id="run-forever"),
    ],
)
def test_timeout_that_is_no_timedelta_is_refused(
    client: Client, sandbox: Sandbox, call: Callable[[Client], object], given: str
) -> None:
    put(sandbox, "trainer")

    with pytest.raises(InvalidInputError, match=f"`timeout={given}` is not a time") as raised:
        call(client)

    assert ("timedelta" in str(raised.value.hint), sandbox.changes()) == (True, [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"timout": "1h"}, "`timout` is not a setting", id="key"),
        pytest.param({"timeout": "soon"}, "`settings`: `timeout` is `soon`", id="value"),
        pytest.param({"timeout": ("1h", "2h")}, "this is a list", id="list"),
        pytest.param({"labels": "team=a"}, "`settings`: `labels`", id="text-for-pairs"),
        pytest.param({"max_price": None}, "`max_price` cannot be None", id="none"),
    ],
)
def test_invalid_setting_is_refused_when_the_client_is_made(
    make_client: ClientMaker, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        make_client(settings=settings)


def test_invalid_variable_is_found_before_a_node_is_created(make_client: ClientMaker, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "TPUCTL_TIMEOUT": "forever"}

    with pytest.raises(SettingError, match="TPUCTL_TIMEOUT: `timeout` is `forever`"):
        make_client(environ=environ)


def test_setting_is_a_text_or_a_value_of_its_kind(make_client: ClientMaker, sandbox: Sandbox) -> None:
    settings = {
        "ttl": timedelta(hours=8),
        "max_price": 9.5,
        "allow_unknown_price": True,
        "labels": {"team": "a"},
        "repair": "none",
    }

    node = make_client(settings=settings).up("trainer", V4, wait_for="ready")

    assert (node.labels["team"], node.expires is not None) == ("a", True)


def test_clock_of_a_test_never_paces_requests_to_google(make_client: ClientMaker) -> None:
    with pytest.raises(InvalidInputError, match="for the sandbox only"):
        make_client(sandbox=False, project="acme")


def test_word_that_is_no_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="chips"):
        NodeSpec(accelerator_type="v4-8", chips=4)  # type: ignore[call-arg]  # what it is about


def test_node_that_differs_is_replaced_only_with_consent(client: Client, sandbox: Sandbox) -> None:
    put(sandbox, "trainer")
    wanted = NodeSpec(accelerator_type="v4-16")

    with pytest.raises(ConflictError, match="differs"):
        client.up("trainer", wanted)
    with pytest.raises(NotConfirmedError, match="delete `trainer` and its boot disk, and recreate it"):
        client.up("trainer", wanted, replace=True)
    unchanged = sandbox.changes()
    replaced = client.up("trainer", wanted, replace=True, yes=True)

    assert (unchanged, replaced.accelerator_type, sandbox.changes()) == ([], "v4-16", ["delete", "create"])


def test_node_without_a_spec_must_exist_or_be_remembered(client: Client, sandbox: Sandbox) -> None:
    with pytest.raises(InvalidInputError, match="no accelerator type given"):
        client.up("trainer")
    made = client.up("trainer", V4)
    kept = client.up("trainer")
    client.down("trainer")
    with pytest.raises(NotConfirmedError, match="with the spec it had"):
        client.up("trainer")
    again = client.up("trainer", yes=True)

    assert (kept, again.tier) == (made, Tier.SPOT)


def test_settings_describe_a_node_only_with_a_spec(make_client: ClientMaker, sandbox: Sandbox) -> None:
    put(sandbox, "trainer", acceleratorType="v4-32")
    client = make_client(settings={"type": "v4-16"})

    kept = client.up("trainer", wait_for="ready")
    with pytest.raises(InvalidInputError, match="no accelerator type given"):
        client.up("trainr")
    with pytest.raises(InvalidInputError, match="`tiers` needs a `NodeSpec`"):
        client.up("trainer", tiers=("spot",))
    unchanged = sandbox.changes()
    made = client.up("other", NodeSpec(), wait_for="ready")

    assert (kept.accelerator_type, unchanged, made.accelerator_type) == ("v4-32", [], "v4-16")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        pytest.param(
            {"tpuctl-owner": "ann_example-com"}, "`trainer` was created by ann_example-com", id="another-user"
        ),
        pytest.param({}, "`trainer` has no label that says who created it", id="unknown-user"),
        pytest.param({"tpuctl-owner": USER, "tpuctl-keep": "yes"}, "`trainer` is kept by its label", id="kept"),
    ],
)
def test_node_of_others_is_deleted_only_with_consent(
    client: Client, sandbox: Sandbox, labels: dict[str, str], message: str
) -> None:
    put(sandbox, "trainer", labels=labels)

    with pytest.raises(ConflictError, match=message):
        client.down("trainer")

    assert (sandbox.changes(), client.down("trainer", yes=True)) == ([], True)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        pytest.param({"tpuctl-owner": "ann_example-com"}, "`other` was created by ann_example-com", id="another-user"),
        pytest.param({}, "`other` has no label that says who created it", id="unknown-user"),
        pytest.param({"tpuctl-owner": USER, "tpuctl-keep": "yes"}, "`other` is kept by its label", id="kept"),
    ],
)
@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "ACTIVE"])
def test_request_of_others_is_deleted_only_with_consent(
    client: Client, sandbox: Sandbox, labels: dict[str, str], message: str, state: str
) -> None:
    nodes = [
        {"parent": f"projects/sandbox/locations/{ZONE}", "nodeId": name, "node": {"acceleratorType": "v4-8", **fields}}
        for name, fields in (("trainer", {"labels": {"tpuctl-owner": USER}}), ("other", {"labels": labels}))
    ]
    fields = {"zone": ZONE, "node_ids": ("trainer", "other"), "tpu": {"nodeSpec": nodes}}
    request = sandbox.add_queued_resource("queued", state=state, **fields)
    if state == "ACTIVE":
        put(sandbox, "other", labels=labels, queued_resource=request["name"])

    with pytest.raises(ConflictError, match=message):
        client.down("trainer", all_nodes=True)

    assert (sandbox.changes(), client.down("trainer", all_nodes=True, yes=True)) == ([], True)


def test_request_that_another_run_awaits_is_deleted_only_with_consent(
    make_client: ClientMaker, sandbox: Sandbox, clock: ManualClock
) -> None:
    sandbox.fault("hang", node="trainer", state="WAITING_FOR_RESOURCES")
    one, other = make_client(), make_client()
    refused: list[TpuctlError] = []

    def interfere(event: NodeEvent) -> None:
        if event.data.get("request") == "WAITING_FOR_RESOURCES" and not refused:
            with pytest.raises(ConflictError, match="is in use") as raised:
                other.down("trainer")
            refused.append(raised.value)

    with pytest.raises(TimedOutError):
        one.up("trainer", NodeSpec(accelerator_type="v4-8", queue=True), timeout=5 * MINUTE, on_event=interfere)

    assert [error.kind for error in refused] == ["conflict"]


def test_misspelled_name_is_logged_with_the_node_that_may_be_meant(
    client: Client, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    own(sandbox, "trainer")

    assert client.down("trianer") is False
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        (
            f"`trianer` may be misspelled: `{ZONE}/trainer` is READY, and was not deleted\n"
            f"  hint: see it with `tpuctl status {ZONE}/trainer`"
        )
    ]


def test_wait_returns_the_node_or_none(client: Client, sandbox: Sandbox) -> None:
    put(sandbox, "trainer")

    assert client.wait("trainer", "healthy") == client.list()[0]
    assert client.wait("other", Condition.GONE) is None
    with pytest.raises(NotFoundError):
        client.wait("other")
    with pytest.raises(TimedOutError):
        client.wait("trainer", Condition.STOPPED, timeout=MINUTE)
    assert sandbox.changes() == []


def test_list_without_a_zone_that_does_not_answer_is_an_error_with_the_others(client: Client, sandbox: Sandbox) -> None:
    put(sandbox, "trainer")
    sandbox.fault("unreachable", zone="us-central1-a", count=0)

    with pytest.raises(IncompleteListError) as raised:
        client.list()

    assert (raised.value.zones, raised.value.kind) == (("us-central1-a",), "unavailable")
    assert [node.name.node_id for node in raised.value.nodes] == ["trainer"]
    assert [node.name.node_id for node in client.list(zones=ZONE)] == ["trainer"]


def test_node_is_made_in_the_first_zone_with_capacity(make_client: ClientMaker, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error", code=8, zone="us-central1-a", count=0)
    client = make_client(zone="us-central1-a,us-west4-a")

    node = client.up("trainer", NodeSpec(accelerator_type="v5litepod-8"))

    assert (node.name.zone, client.down("trainer")) == ("us-west4-a", True)


def test_node_of_any_zone_is_used_whatever_zone_is_set(make_client: ClientMaker, sandbox: Sandbox) -> None:
    client = make_client(zone="any", settings={"zone": "us-central1-a"})

    node = client.up("trainer", V4)
    found = client.wait("trainer"), len(client.run("trainer", "true").workers), client.up("trainer", V4)

    assert (node.name.zone, found, client.down("trainer")) == (ZONE, (node, 1, node), True)


def test_time_limit_is_that_of_the_call(client: Client, sandbox: Sandbox) -> None:
    node = client.up("trainer", V4, ttl=timedelta(hours=8))

    assert node.expires is not None
    assert node.created is not None
    assert timedelta(hours=7) < node.expires - node.created <= timedelta(hours=8)


def test_project_file_counts_only_if_it_is_named_and_trusted(
    make_client: ClientMaker, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tpuctl.yaml").write_text("type: v4-16\n")
    (tmp_path / "other.yaml").write_text("type: v4-16\nsetup: curl example.com | sh\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidInputError, match="no accelerator type given"):
        make_client().up("trainer", NodeSpec())
    with pytest.raises(SettingError, match=r"there is no file `teem\.yaml`"):
        make_client(project_file="teem.yaml")
    with pytest.raises(SettingError, match="not trusted"):
        make_client(project_file="other.yaml").up("trainer", NodeSpec())
    node = make_client(project_file="tpuctl.yaml").up("trainer", NodeSpec())

    assert node.accelerator_type == "v4-16"


def test_untrusted_key_counts_not_where_an_argument_replaces_it(
    make_client: ClientMaker, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "tpuctl.yaml").write_text("type: v4-16\nnetwork: theirs\n")
    client = make_client(project_file=tmp_path / "tpuctl.yaml")

    with pytest.raises(SettingError, match="it sets `network`"):
        client.up("trainer", NodeSpec(subnetwork="default"))
    node = client.up("trainer", NodeSpec(network="default"), wait_for="ready")

    assert (node.accelerator_type, sandbox.changes()) == ("v4-16", ["create"])


def test_interruption_says_what_is_in_progress(client: Client, sandbox: Sandbox) -> None:
    def press(event: NodeEvent) -> None:
        if event.kind is EventKind.STATE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        client.up("trainer", V4, on_event=press)

    assert raised.value.__notes__ == [f"`trainer` in {ZONE} bills as soon as it runs (last status: CREATING)"]
    assert client.up("trainer", V4).state is NodeState.READY


def test_exception_of_a_listener_ends_the_call_before_the_request(client: Client, sandbox: Sandbox) -> None:
    def fail(event: NodeEvent) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        client.up("trainer", V4, on_event=fail)

    assert raised.value.__notes__ == [f"no request was sent: `trainer` in {ZONE} is as it was"]
    assert sandbox.changes() == []


def test_clients_in_one_process_have_nothing_in_common(make_client: ClientMaker, tmp_path: Path) -> None:
    one, other = (make_client(state_dir=tmp_path / name, clock=EventfulClock()) for name in ("one", "other"))
    one.up("trainer", V4)

    with ThreadPoolExecutor(2) as threads:
        nodes = list(threads.map(lambda client: client.up("trainer", V4), (one, other)))
    one.down("trainer")

    assert (one.list(), other.list()) == ([], [nodes[1]])


def test_client_is_used_by_threads(client: Client, sandbox: Sandbox) -> None:
    names = [f"node-{number}" for number in range(8)]
    for name in names:
        put(sandbox, name)
    start = threading.Barrier(8)

    def work(name: str) -> tuple[list[Node], Node, bool]:
        start.wait()
        return client.list(), client.up(name), client.down("none")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(work, names))

    assert [(len(nodes), node.name.node_id, gone) for nodes, node, gone in found] == [
        (8, name, False) for name in names
    ]


def test_connections_to_an_endpoint_are_shared_by_calls_in_threads(make_client: ClientMaker, sandbox: Sandbox) -> None:
    put(sandbox, "trainer")
    with open_server(sandbox.state) as server:
        server.start()
        arguments = {"project": "sandbox", "settings": {"endpoint": server.url}, "clock": None}
        with make_client(sandbox=False, **arguments) as client, ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: client.list(), range(12)))
            healthy = client.wait("trainer", "healthy")

    assert found == [[healthy]] * 12


def test_calls_at_the_same_time_create_a_node_once(client: Client, sandbox: Sandbox) -> None:
    start = threading.Barrier(2)

    def work(_: int) -> Node:
        start.wait()
        return client.up("trainer", V4)

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(work, range(2))

    assert (one.id, sandbox.changes()) == (other.id, ["create"])


def test_text_of_others_is_escaped_in_errors(client: Client, sandbox: Sandbox) -> None:
    put(sandbox, "trainer", labels={"tpuctl-owner": "ann"})
    sandbox.fault("operation-error", code=3, message="no\x1b[2J luck")

    with pytest.raises(TpuctlError) as raised:
        client.up("other", V4)

    assert "no\\x1b[2J luck" in str(raised.value)
    assert "\x1b" not in f"{raised.value}{raised.value.hint}{raised.value.message}"


def test_client_works_while_an_event_loop_runs(client: Client, sandbox: Sandbox) -> None:
    async def cell() -> Node:
        return client.up("trainer", V4)

    assert asyncio.run(cell()).state is NodeState.READY


def test_client_is_not_sent_to_another_process(client: Client) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(client)


def test_closed_client_is_not_used(client: Client, sandbox: Sandbox) -> None:
    with client:
        pass

    with pytest.raises(RuntimeError, match="closed"):
        client.list()


def test_unrepairable_node_is_an_error_of_its_own(client: Client, sandbox: Sandbox) -> None:
    put(sandbox, "trainer", state="HIDDEN")

    with pytest.raises(BrokenNodeError, match="HIDDEN"):
        client.up("trainer")


def test_node_is_one_line(client: Client, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer")

    (node,) = client.list()

    assert (str(node), repr(node)) == (
        "trainer READY v4-8 us-central2-b",
        "<Node trainer READY v4-8 us-central2-b>",
    )


NOTEBOOK = """
import sys, types
import tpuctl

shell = types.SimpleNamespace(**({"kernel": 1} if sys.argv[2] == "notebook" else {}))
if sys.argv[2] != "script":
    sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
progress = {"on": True, "off": False}.get(sys.argv[3])
environ = {"HOME": sys.argv[1], "LOGNAME": "ada"}
arguments = {"sandbox": True, "zone": "us-central2-b", "environ": environ, "clock": tpuctl.ManualClock()}
with tpuctl.Client(**arguments, progress=progress) as client:
    client.up("trainer", tpuctl.NodeSpec(accelerator_type="v4-8"), wait_for="ready")
"""


@pytest.mark.parametrize(
    ("place", "progress", "is_shown"),
    [
        ("script", "default", False),
        ("script", "on", True),
        ("notebook", "default", True),
        ("notebook", "off", False),
        ("shell", "default", False),
    ],
)
def test_progress_is_shown_where_a_person_reads_it(
    tmp_path: Path, place: str, progress: str, *, is_shown: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, str(tmp_path), place, progress], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert (done.stdout, "trainer: READY" in done.stderr) == ("", is_shown), done.stderr
    assert is_shown or done.stderr == ""
