"""The past of a node by its journal: one row for each question about one creation, and for what was not sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tpuctl.models.node import Node
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.past import Past, past_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAME = NodeName("p", "us-central2-b", "demo")
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="img", setup="old")
QUEUED = NodeSpec(accelerator_type="v4-8", runtime_version="img", setup="old", queue=True)


def entry(event: str, minute: int = 0, by: str = "here 1", **data: Any) -> dict[str, Any]:
    return {"at": (NOON + timedelta(minutes=minute)).isoformat(), "by": by, "event": event, **data}


def node(node_id: str = "1", minute: int = 1, **labels: str) -> Node:
    created = (NOON + timedelta(minutes=minute)).isoformat()
    return Node(NAME, {"id": node_id, "createTime": created, "labels": {REQUEST_LABEL: "r", **labels}})


CREATE = entry("create", spec=SPEC.to_json(), reason="there is none")
SEEN = entry("state", 1, state="CREATING", id="1")
DONE = entry("setup", 3, id="1", ok=True)


@pytest.mark.parametrize(
    ("entries", "found", "setup", "is_known"),
    [
        pytest.param([CREATE, SEEN], node(), "old", True, id="created"),
        pytest.param([CREATE], node("2"), "old", True, id="not-seen-yet"),
        pytest.param([CREATE, SEEN], node("2", 9), None, False, id="later-node-of-another-client"),
        pytest.param(
            [entry("create", spec=QUEUED.to_json()), SEEN], node("2", 9), "old", True, id="next-node-of-its-request"
        ),
        pytest.param([CREATE, SEEN], node(minute=-6), None, False, id="earlier-node"),
        pytest.param([CREATE, SEEN, DONE], node(), None, True, id="set-up"),
        pytest.param([CREATE, SEEN, {**DONE, "ok": False}], node(), "old", True, id="set-up-failed"),
        pytest.param(
            [CREATE, SEEN, {**DONE, "script": "new"}, entry("create", 5, spec=SPEC.to_json())],
            node("2", 6),
            "old",
            True,
            id="corrected-script-of-an-earlier-node",
        ),
        pytest.param([CREATE, SEEN, entry("create", 5)], node("2", 6), None, False, id="creation-without-a-spec"),
    ],
)
def test_node_is_known_by_its_id(entries: list[dict[str, Any]], found: Node, setup: str | None, is_known: bool) -> None:
    past = past_of(entries)

    assert (past.setup_to_do(found), past.made_as(found) is not None) == (setup, is_known)


def test_corrected_setup_is_that_of_the_next_creation() -> None:
    past = past_of([CREATE, SEEN, {**DONE, "script": "new"}])

    assert (past.spec and past.spec.setup, past.spec_as_it_is(node()).setup) == ("new", "new")


DELETE = entry("delete", 5, reason="asked for", id="1", spec=SPEC.to_json())


@pytest.mark.parametrize(
    ("entries", "same_as"),
    [
        pytest.param([CREATE, SEEN, DELETE, entry("note", 6, unsent="delete")], [CREATE, SEEN], id="deletion"),
        pytest.param(
            [CREATE, SEEN, entry("create", 5), entry("note", 6, unsent="create")], [CREATE, SEEN], id="creation"
        ),
        pytest.param(
            [CREATE, SEEN, DELETE, entry("note", 6, by="there 2", unsent="delete")],
            [CREATE, SEEN, DELETE],
            id="of-another-process",
        ),
        pytest.param([CREATE, entry("note", 6, unsent="delete")], [CREATE], id="nothing"),
    ],
)
def test_change_that_was_not_sent_does_not_count(entries: list[dict[str, Any]], same_as: list[dict[str, Any]]) -> None:
    assert facts(past_of(entries)) == facts(past_of(same_as))


def facts(past: Past) -> tuple[Any, ...]:
    return past.spec_at, past.created, past.is_ended, past.may_have_node, past.former_spec


def test_withdrawn_entry_stays_readable(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(NAME, "create", NOON, spec=SPEC.to_json())
    journal.append(NAME, "delete", NOON, spec=SPEC.to_json(), reason="asked for")
    journal.withdraw(NAME, "delete", NOON)

    assert [one["event"] for one in journal.entries(NAME)] == ["create", "delete", "note"]
    assert (journal.past(NAME).is_ended, journal.past(NAME).former_spec) == (False, SPEC)
