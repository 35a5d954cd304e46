"""The tables of the guides agree with the code and with the output of the program."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tpuctl.clock import ManualClock
from tpuctl.config.settings import SETTINGS
from tpuctl.durations import parse_duration
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.names import NodeName
from tpuctl.nodes.commands.catalogue import TYPE_COLUMNS
from tpuctl.nodes.commands.cost import node_columns
from tpuctl.nodes.conditions import Condition, Policy, Repair, Thresholds
from tpuctl.nodes.hooks import hook_variables
from tpuctl.nodes.queue_rendering import QUEUE_COLUMNS
from tpuctl.nodes.rendering import NODE_COLUMNS
from tpuctl.output.column_widths import Column
from tpuctl.workers.worker_jobs import JOB_COLUMNS

DOCS = Path(__file__).resolve().parents[2] / "docs"
_CODE = re.compile(r"`([^`]+)`")


def table(page: str, name: str) -> list[list[str]]:
    """Return the cells of the table with this name, without its header."""
    text = (DOCS / page).read_text("utf-8")
    found = re.search(rf"<!-- table: {name} -->\n((?:\|.*\n)+)", text)
    assert found, f"{page} has no table {name}"
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in found[1].splitlines()]
    return rows[2:]


def words(cell: str) -> list[str]:
    return _CODE.findall(cell)


def fields(page: str, name: str) -> dict[str, set[str]]:
    """Return for each word of the first column the fields of the last."""
    return {word: set(words(row[-1])) for row in table(page, name) for word in words(row[0])}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        pytest.param("list-columns", NODE_COLUMNS, id="list"),
        pytest.param("queue-columns", QUEUE_COLUMNS, id="queue-list"),
        pytest.param("types-columns", TYPE_COLUMNS, id="types"),
        pytest.param("cost-columns", node_columns(has_projects=False), id="cost"),
        pytest.param("jobs-columns", JOB_COLUMNS, id="jobs"),
    ],
)
def test_columns_tables_have_each_column_in_order(name: str, columns: tuple[Column, ...]) -> None:
    documented = [(word, row[1].startswith("wide: ")) for row in table("nodes.md", name) for word in words(row[0])]

    assert documented == [(column.name, column.is_wide) for column in columns]


def test_goals_table_has_a_row_for_each_goal() -> None:
    assert [words(row[0]) for row in table("usable.md", "goals")] == [[str(goal)] for goal in Condition]


def test_thresholds_table_equals_settings_and_policy() -> None:
    rows = {words(row[0])[0]: (row[1], row[2]) for row in table("usable.md", "thresholds")}
    lead = "time before repair of "

    assert rows == {
        key: (spec.default, spec.description.removeprefix(lead))
        for key, spec in SETTINGS.items()
        if spec.description.startswith(lead)
    }
    assert {key: parse_duration(value) for key, (value, _) in rows.items()} == {
        key: getattr(Thresholds(), key.removesuffix("_after")) for key in rows
    }


def test_ladder_table_has_all_repairs_and_budgets() -> None:
    rows = {words(row[0])[0]: row[2].replace("`", "").split() for row in table("usable.md", "ladder")}
    budgets = {Repair.REBOOT: "max_reboots", Repair.RESTART: "max_restarts", Repair.RECREATE: "max_recreates"}

    assert rows == {str(rung): [key, SETTINGS[key].default] for rung, key in budgets.items()}
    assert {key: str(getattr(Policy(), key)) for key in budgets.values()} == dict(rows.values())
    assert Policy().refill == timedelta(hours=2)


def test_variables_table_has_all_hook_variables() -> None:
    event = NodeEvent(EventKind.PREEMPTED, ManualClock().now(), NodeName("p", "z", "n"), "")
    named = [name for row in table("how-to/keep-a-node-alive.md", "variables") for name in words(row[0])]

    assert sorted(named) == sorted(hook_variables(event))


def test_journal_has_the_documented_fields(tpuctl: Console, sandbox: Sandbox) -> None:
    """A run with every event: the fields of the journal are those in the table."""
    put(sandbox, schedulingConfig={"spot": True})
    put(sandbox, "sick", health="UNHEALTHY_TENSORFLOW")
    put(sandbox, "over", labels={"tpuctl-expires": "1700000000"})
    sandbox.fault("http-error", method="*.nodes.get", count=9)
    sandbox.fault("maintenance", node="demo", after=timedelta(minutes=5))
    sandbox.fault("preempt", node="demo", after=timedelta(minutes=20))
    up = ("up", "--zone", "us-central2-b", "--events", "-", "-q")

    written = [
        *tpuctl("watch", "over", "--until", "40m", "--events", "-", "-q")[0].splitlines(),
        *tpuctl("watch", "demo", "--until", "40m", "--events", "-", "-q")[0].splitlines(),
        *tpuctl(*up, "sick", "--repair", "none")[0].splitlines(),
        *tpuctl(*up, "sick", "--yes", "--on-recover", "exit 1")[0].splitlines(),
        *tpuctl(*up, "extra", "--type", "v4-8", "--setup", "true")[0].splitlines(),
    ]

    # Their fields are compared with the schema by the console. Only hooks get those of jobs.
    kinds = {json.loads(line)["event"] for line in written if line.startswith("{")}
    assert {str(kind) for kind in EventKind} - {"note", "job-stalled", "job-ended"} <= kinds

    in_journal = fields("nodes.md", "lines")
    lines = [
        json.loads(line)
        for path in (Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal").rglob("*.jsonl")
        for line in path.read_text("utf-8").splitlines()
    ]
    unknown = {
        line["event"]: line.keys() - {"at", "by", "event"} - in_journal.get(line["event"], set()) for line in lines
    }
    assert unknown == {event: set() for event in unknown}
    assert {"create", "setup", "usable", "preempted", "recovered", "gave-up"} <= unknown.keys()
