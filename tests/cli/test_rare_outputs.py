"""JSON with fields that other tests do not see: each property of `tpuctl schema` must occur in some output.

The console compares each output with its schema.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, put
from tpuctl.sandbox import administration
from tpuctl.sandbox.scenarios import play_scenario, read_scenario
from tpuctl.ssh.keys import ensure_key

ANY = ("up", "demo", "--type", "v6e-8", "--for", "ready", "-q", "--events", "-", "--zone", "us-east1-d,us-east5-b")


def events(out: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, out.splitlines()) if event["event"] == kind]


def test_ranking_of_zones_names_the_bucket_without_a_location(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "near", location="US-CENTRAL2")
    administration.add_bucket(sandbox.state, "theirs", denied=("*",))

    out = tpuctl("check", "--type", "v4-8", "--bucket", "gs://near", "--bucket", "gs://theirs", "-o", "json")[0]

    found = json.loads(out)
    assert [(one["zone"], one["relation"]) for one in found["zones"]] == [(ZONE, "unknown")]
    assert [one["bucket"] for one in found["unplaced"]] == ["gs://theirs"]


@pytest.mark.parametrize("id_", ["hbm-oom", "no-capacity", "TPU101", "exit 7"])
def test_meaning_of_an_id_has_all_fields(offline: Console, id_: str) -> None:
    assert json.loads(offline("explain", id_, "-o", "json")[0])["meaning"]


def test_topics_have_the_fields_of_one_topic(offline: Console) -> None:
    topics = json.loads(offline("explain", "--topic", "-o", "json")[0])

    assert json.loads(offline("explain", "--topic", topics[0]["id"], "-o", "json")[0]) == topics[0]


def test_status_of_the_sandbox_has_the_details_of_faults_and_events(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("hang", node="demo", zone=ZONE, state="STARTING")
    sandbox.fault("operation-error", method="*.nodes.create", message="no")
    play_scenario(sandbox.state, read_scenario("steps: [{at: 1h, fault: preempt, node: demo}]", "s"))

    found = json.loads(tpuctl("sandbox", "status", "-o", "json")[0])

    assert [(fault.get("state"), fault.get("call"), fault.get("message")) for fault in found["faults"]] == [
        ("STARTING", None, None), (None, "*.nodes.create", "no")
    ]  # fmt: skip
    assert [event["at"] for event in found["events"]] == ["2026-01-01T01:00:00Z"]


def test_changes_of_the_sandbox_are_objects(tpuctl: Console, sandbox: Sandbox) -> None:
    stock = json.loads(tpuctl("sandbox", "stock", "set", "--zone", ZONE, "--nodes", "0", "-o", "json")[0])
    advanced = json.loads(tpuctl("sandbox", "advance", "10m", "-o", "json")[0])
    tpuctl("list")
    logged = json.loads(tpuctl("sandbox", "log", "-o", "json")[0])

    assert (stock["zone"], stock["nodes"], advanced) == (ZONE, 0, {"now": "2026-01-01T00:10:00Z"})
    assert (logged[-1]["method"], logged[-1]["status"]) == ("GET", 200)


def test_costs_name_the_projects_that_could_not_be_read(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("http-error", method="*.nodes.list", project="broken", status=403, count=0)

    out = tpuctl("cost", "--all-projects", "sandbox,broken", "-o", "json")[0]

    assert json.loads(out)["unreadProjects"] == ["broken"]


def test_key_in_the_ssh_agent_that_expires(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.add_node("trainer")
    key = ensure_key(tmp_path / "keys")
    public = key.path.rename(key.path.with_name("moved")).with_name(f"{key.path.name}.pub")
    agent = tmp_path / "bin" / "ssh-add"
    agent.write_text(f"#!/bin/sh\ncat '{public}'\n")
    agent.chmod(0o755)
    own = ("--ssh-key", str(public))
    tpuctl("ssh", "trainer", "--ssh-key-expire-after", "8h", *own, "--", "true")

    found = json.loads(tpuctl("ssh-key", "show", "trainer", *own, "-o", "json")[0])

    assert (found["inAgent"], found["expires"]) == (True, "2026-01-01T08:00:00Z")


def test_update_reports_its_fields(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels={"team": "vision"})

    out, _, _ = tpuctl(*UP, "--labels", "run=7", "--for", "ready", "-q", "--events", "-")

    assert [(one["verb"], one["fields"]) for one in events(out, "action")] == [("update", ["labels"])]


def test_wait_for_a_queued_resource_reports_its_state_as_request(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("demo", state="WAITING_FOR_RESOURCES", zone=ZONE)

    out, _, code = tpuctl("queue", "wait", "demo", "--timeout", "10s", "-q", "--events", "-")

    waits = events(out, "wait")
    assert ({one["request"] for one in waits}, {"state"} & waits[0].keys(), code) == (
        {"WAITING_FOR_RESOURCES"},
        set(),
        5,
    )


def test_creation_by_another_client_is_a_note(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    sandbox.fault("slow", method="*.nodes.create", duration=timedelta(seconds=30))
    clock.after(timedelta(seconds=5), lambda: put(sandbox))

    out, _, _ = tpuctl(*UP, "--for", "ready", "-q", "--events", "-")

    assert [one["exists"] for one in events(out, "note") if "exists" in one] == [True]


def test_search_reports_what_is_tried_and_why_a_zone_was_left(tpuctl: Console, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        administration.add_stockout(session, zone="us-east1-d")

    out, _, _ = tpuctl(*ANY)

    notes = events(out, "note")
    assert [one["tried"] for one in notes if "tried" in one] == ["us-east1-d", "us-east5-b"]
    assert [one["error"] for one in notes if "error" in one] == ["no_capacity"]


def test_history_has_the_hint_of_a_run_that_gave_up(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")
    tpuctl(*UP, "--repair", "none", "--timeout", "20m")

    entries = json.loads(tpuctl("history", "demo", "-o", "json")[0])

    assert [bool(entry["hint"]) for entry in entries if entry["event"] == "gave-up"] == [True]
