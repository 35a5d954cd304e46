"""`tpuctl bundle --checklist`: the steps of the checklist, from the journal of a node that is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tpuctl.support.checklist import steps_of

UP = ("up", "proof", "--type", "v4-8", "--spot", "--zone", "us-central2-b", "--for", "healthy")


def _outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {step["step"]: step["outcome"] for step in document["steps"]}


def test_checklist_of_a_deleted_node_has_its_steps_and_nothing_private(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl(*UP)[2] == 0
    assert tpuctl("reset", "proof", "--yes", "--for", "healthy")[2] == 0
    assert tpuctl("down", "proof", "--yes")[2] == 0

    out, _, code = tpuctl("bundle", "proof", "--checklist", "-o", "json")

    document = json.loads(out)
    assert code == 0
    assert document["node"] == {"type": "v4-8", "tier": "spot", "zone": "us-central2-b"}
    assert _outcomes(document) == {
        "up": "done",
        "time limit": "not recorded",
        "test": "not recorded",
        "run": "not recorded",
        "reset": "done",
        "down": "done",
    }
    assert [step["seconds"] > 0 for step in document["steps"] if step["outcome"] == "done"] == [True, True, True]
    assert "proof" not in out
    assert document["versions"]["tpuctl"]
    assert list(tpuctl.folder.iterdir()) == []


def test_findings_of_this_machine_are_named_by_their_ids(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)

    out, _, code = tpuctl("bundle", "proof", "--checklist", "-o", "json", TPUCTL_ZONEE="us-central2-b")

    found = json.loads(out)["findings"]
    assert (code, {"id": "TPU947", "level": "warning"} in found) == (0, True)
    assert "ZONEE" not in out


def test_checklist_for_people_says_that_it_is_the_sandbox(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)

    out, _, code = tpuctl("bundle", "proof", "--checklist")

    lines = out.splitlines()
    assert code == 0
    assert (lines[1], lines[2]) == ("sandbox", "node: v4-8, spot, us-central2-b")
    assert [line for line in lines if line.startswith("up: done at ")]
    assert "down: not recorded" in lines


def test_checklist_of_an_unknown_node_is_an_error(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "other")

    out, err, code = tpuctl("bundle", "other", "--checklist")

    assert (out, code) == ("", 3)
    assert "no node `other`" in err


@pytest.mark.parametrize(
    ("events", "step", "outcome"),
    [
        pytest.param([{"event": "create"}, {"event": "gave-up"}], "up", "failed", id="given-up"),
        pytest.param(
            [{"event": "create"}, {"event": "delete"}, {"event": "usable"}], "up", "requested", id="deleted-first"
        ),
        pytest.param([{"event": "guard", "ok": True}], "time limit", "done", id="guard"),
        pytest.param([{"event": "guard", "ok": False}], "time limit", "failed", id="no-guard"),
        pytest.param(
            [{"event": "job", "job": "a"}, {"event": "job-over", "job": "a", "code": 0}], "run", "done", id="job"
        ),
        pytest.param(
            [{"event": "job", "job": "a"}, {"event": "job-over", "job": "a", "code": 3}], "run", "failed", id="bug"
        ),
        pytest.param(
            [{"event": "job", "job": "a"}, {"event": "job-over", "job": "b", "code": 0}], "run", "requested", id="other"
        ),
        pytest.param([{"event": "reboot", "repair": True}, {"event": "usable"}], "reset", "not recorded", id="repair"),
        pytest.param(
            [{"event": "delete"}, {"event": "state", "state": "DELETING"}], "down", "requested", id="deleting"
        ),
        pytest.param([{"event": "delete"}, {"event": "state"}], "down", "done", id="gone"),
        pytest.param([{"event": "delete"}, {"event": "create"}], "down", "not recorded", id="earlier-life"),
    ],
)
def test_outcome_of_a_step(events: list[dict[str, Any]], step: str, outcome: str) -> None:
    assert {each.step: each.outcome for each in steps_of(events)}[step] == outcome
