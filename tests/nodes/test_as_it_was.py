"""A node is recreated as it was, and compared with what made it; what was sent is said, and what is lasting ends a run."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, told
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.stock import put_reservation, put_stockout

WEST, EAST = "us-west4-a", "us-east5-b"


@pytest.fixture
def spot_node(tpuctl: Console, sandbox: Sandbox) -> Console:
    """Return the program in a folder whose file names the type alone; it has made a spot node, which was preempted."""
    (tpuctl.folder / "tpuctl.yaml").write_text("type: v5litepod-16\n")
    made = tpuctl("up", "sb", "--spot", "--labels", "team=vision", "--zone", WEST)
    assert made[2] == 0, made
    sandbox.fault("preempt", node="sb", after=timedelta())
    sandbox.advance(minutes=1)
    return tpuctl


def tier_and_team(tpuctl: Console, name: str = "sb") -> list[str]:
    out = tpuctl("status", name)[0]
    return [word for word in ("spot", "on-demand", "team=vision") if word in out]


def limit_price(tpuctl: Console) -> None:
    folder = Path(tpuctl.environ["HOME"]) / ".config" / "tpuctl"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("max_price: 8\n")


@pytest.mark.parametrize(
    "words", [pytest.param(("up", "sb"), id="up"), pytest.param(("watch", "sb", "--until", "1h"), id="watch")]
)
def test_recreation_keeps_the_tier_and_labels_that_the_file_does_not_name(
    spot_node: Console, words: tuple[str, ...]
) -> None:
    limit_price(spot_node)

    assert spot_node(*words)[2] == 0
    assert tier_and_team(spot_node) == ["spot", "team=vision"]


def test_flag_that_changes_the_tier_is_said_with_the_prices(spot_node: Console) -> None:
    _, err, code = spot_node("up", "sb", "--on-demand")

    assert told(err, "sb")[0] == "tier was `spot`, now `on-demand`; $19.20/h instead of about $7.68/h"
    assert (code, tier_and_team(spot_node)) == (0, ["on-demand", "team=vision"])


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("up", "sb", "--on-demand"), id="up"),
        pytest.param(("watch", "sb", "--on-demand", "--until", "1h"), id="watch"),
    ],
)
def test_price_limit_holds_for_recreations(spot_node: Console, sandbox: Sandbox, words: tuple[str, ...]) -> None:
    limit_price(spot_node)

    _, err, code = spot_node(*words)

    assert "a v5litepod-16 (on-demand) costs $19.20/h, more than the limit of $8/h" in err
    assert (code, sandbox.changes()) == (9, ["create"])


def test_price_limit_holds_for_a_reset(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "sb", "--type", "v5litepod-16", "--zone", WEST)[2] == 0
    limit_price(tpuctl)

    _, err, code = tpuctl("reset", "sb", "--mode", "recreate", "--yes")

    assert "a v5litepod-16 (on-demand) costs $19.20/h, more than the limit of $8/h" in err
    assert (code, sandbox.changes()) == (9, ["create"])


def test_new_node_of_a_deleted_one_does_not_change_the_tier_without_a_flag(
    spot_node: Console, sandbox: Sandbox
) -> None:
    assert spot_node("down", "sb", "--yes")[2] == 0

    _, err, code = spot_node("up", "sb", "--zone", WEST)

    assert told(err)[:2] == [
        "error: `sb` would not be created as it was: tier was `spot`, now `on-demand`; $19.20/h instead of about $7.68/h",
        (
            "  hint: `tpuctl up sb --type v5litepod-16 --tier spot --zone us-west4-a` creates it as it was; "
            "`--type v5litepod-16 --tier on-demand` accepts the change"
        ),
    ]
    assert (code, sandbox.changes()) == (8, ["create", "delete"])
    assert spot_node("up", "sb", "--zone", WEST, "--tier", "spot")[2] == 0


def test_file_that_was_edited_is_said_and_does_not_conflict(spot_node: Console) -> None:
    assert spot_node("up", "sb")[2] == 0
    (spot_node.folder / "tpuctl.yaml").write_text("type: v5litepod-8\ntier: on-demand\n")

    out, err, code = spot_node("up", "sb")

    assert (out, code) == ("sb\tREADY\n", 0)
    assert told(err, "sb")[0] == (
        "it is as it was created; not changed without a flag: accelerator_type `v5litepod-8`, tier `on-demand`"
    )


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--zone", "us-central2-b", "--type", "v4-16", "--preemptible", "--queue"), id="queue"),
        pytest.param(("--zone", "us-central2-b", "--type", "v4-16", "--tier", "preemptible", "--queue"), id="tier"),
        pytest.param(("--zone", EAST, "--type", "v6e-8", "--tier", "preemptible,on-demand", "--queue"), id="tiers"),
        pytest.param(("--zone", "us-east5-a,us-east5-b", "--type", "v6e-8", "--preemptible", "--race"), id="race"),
    ],
)
def test_queued_preemptible_node_is_spot(tpuctl: Console, words: tuple[str, ...]) -> None:
    first, second = tpuctl("up", "j", *words), tpuctl("up", "j", *words)

    assert (first[2], second[2]) == (0, 0), (first, second)
    assert first[1].count("a queued preemptible node is spot") == 1
    assert "spot" in tpuctl("status", "j")[0]


@pytest.mark.parametrize("queue", [pytest.param((), id="node"), pytest.param(("--queue",), id="queue")])
def test_calendar_reservation_is_compared_as_it_was_made(
    tpuctl: Console, sandbox: Sandbox, queue: tuple[str, ...]
) -> None:
    with sandbox.state.write() as session:
        name = f"projects/sandbox/locations/{EAST}/reservations/res1"
        put_reservation(session, name=name, state="ACTIVE", standard={"size": 8})
    words = ("up", "q", "--type", "v6e-8", "--zone", EAST, "--calendar", "--reservation", "res1", *queue)

    assert [tpuctl(*words)[2] for _ in range(2)] == [0, 0]


# Fields that v2alpha1 alone has, and that the API may not show.
@pytest.mark.parametrize(
    ("option", "sent"),
    [
        (("--boot-disk-size", "300GB"), {"bootDiskConfig": {"diskSizeGb": "300"}}),
        (("--autocheckpoint-enabled",), {"autocheckpointEnabled": True}),
    ],
    ids=["boot-disk", "autocheckpoint"],
)
class TestFieldOfV2alpha1:
    def test_is_compared_and_replaced(
        self, tpuctl: Console, sandbox: Sandbox, option: tuple[str, ...], sent: dict[str, Any]
    ) -> None:
        words = ("up", "n", "--type", "v6e-1", "--zone", EAST, "--spot")
        assert tpuctl(*words)[2] == 0

        _, err, code = tpuctl(*words, *option)

        field = option[0].removeprefix("--").replace("-", "_")
        wanted = "300" if option[1:] else "true"
        assert (code, f"  {field}: wanted `{wanted}`, found none" in told(err, "n")) == (8, True)
        assert tpuctl(*words, *option, "--replace", "--yes")[2] == 0
        assert sandbox.changes() == ["create", "delete", "create"]
        assert tpuctl(*words, *option)[2] == 0
        shown = json.loads(tpuctl("create", "other", *words[2:], *option, "--dry-run", "-o", "json")[0])[0]["request"]
        assert "/v2alpha1/" in shown["url"]
        assert sent.items() <= shown["body"].items()

    def test_of_a_node_of_others_is_said_not_to_be_compared(
        self, tpuctl: Console, sandbox: Sandbox, option: tuple[str, ...], sent: dict[str, Any]
    ) -> None:
        del sent
        sandbox.add_node("n", zone=EAST, acceleratorType="v6e-1", age=timedelta(hours=1))

        _, err, code = tpuctl("up", "n", "--type", "v6e-1", "--zone", EAST, *option)

        field = option[0].removeprefix("--").replace("-", "_")
        assert f"not compared, because neither the API nor the journal shows it: {field}" in told(err, "n")
        assert code == 0


def test_full_lease_store_after_the_create_does_not_end_the_run(tpuctl: Console, sandbox: Sandbox) -> None:
    """The folder of the leases becomes a file as soon as the create is sent."""
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"])
    sandbox.fault("hang", node="demo", state="CREATING", duration=timedelta(minutes=30))

    def fill() -> None:
        for leases in folder.glob("**/leases"):
            leases.rename(leases.with_name("gone"))
            leases.write_text("not a folder")

    clock = tpuctl.clock
    assert isinstance(clock, EventfulClock)
    clock.after(timedelta(minutes=5), fill)

    out, err, code = tpuctl("up", "demo", "--type", "v6e-1", "--zone", EAST, "--timeout", "3h")

    assert (out, code) == ("demo\tREADY\n", 0), err


def test_request_that_another_client_deletes_is_not_requested_again(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=EAST)

    def delete() -> None:
        url = f"https://tpu.googleapis.com/v2/projects/sandbox/locations/{EAST}/queuedResources/r?force=true"
        assert SandboxHttp(sandbox.state).request(url, method="DELETE")[0].status == 200

    clock.after(timedelta(minutes=20), delete)

    out, err, code = tpuctl("up", "r", "--type", "v6e-8", "--zone", EAST, "--spot", "--queue", "--timeout", "6h")

    assert (out, code) == ("", 3)
    assert f"error: the queued resource `r` in {EAST} was deleted by another client; not requested again" in told(
        err, "r"
    )


def test_watch_gives_up_where_the_quota_is_zero(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "ty", "--type", "v6e-8", "--zone", EAST, "--spot")[2] == 0
    sandbox.fault("preempt", node="ty", after=timedelta())
    sandbox.advance(minutes=1)
    sandbox.fault("quota", method="*.nodes.create", count=0, limit=0)
    marker = tpuctl.folder / "given-up"

    _, err, code = tpuctl("watch", "ty", "--on-give-up", f"/bin/sh -c 'echo > {marker}'")

    assert (code, marker.exists()) == (7, True), err
    assert sandbox.changes().count("create") == 2
