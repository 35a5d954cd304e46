"""Renderers of nodes and tables: columns for a terminal, tabs for a pipe, JSON for a program."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tpuctl.models.node import Node
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName
from tpuctl.nodes.rendering import dead_request_line, node_details, node_note
from tpuctl.output.terminal import Cell, column_lines, tab_lines

NAME = NodeName("p", "us-central2-b", "trainer")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def node(node_id: str = "trainer", **fields: Any) -> Node:
    return Node.from_api(
        {
            "name": f"projects/p/locations/us-central2-b/nodes/{node_id}",
            "state": "READY",
            "health": "HEALTHY",
            "acceleratorType": "v4-16",
            "createTime": "2026-01-01T09:00:00Z",
        }
        | fields
    )


def test_columns_are_fixed_while_they_fit() -> None:
    rows = [(Cell("a"), Cell(""), Cell("x")), (Cell("bb"), Cell(""), Cell(""))]

    assert column_lines(("ONE", "TWO", "THREE"), rows, width=80, colored=False) == [
        "ONE  TWO  THREE",
        "a         x",
        "bb",
    ]
    assert column_lines(("ONE", "TWO", "THREE"), rows, width=14, colored=False) == ["ONE  THREE", "a    x", "bb"]
    assert column_lines(("ONE", "TWO"), [], width=80, colored=False) == ["ONE  TWO"]
    assert list(tab_lines(rows)) == ["a\t\tx", "bb\t\t"]


def test_color_does_not_change_the_width() -> None:
    rows = [(Cell("ab", style="red"), Cell("x", style="dim")), (Cell("c"), Cell("y"))]

    assert list(column_lines(("N", "S"), rows, width=None, colored=True)) == [
        "\x1b[1mN\x1b[0m   \x1b[1mS\x1b[0m",
        "\x1b[31mab\x1b[0m  \x1b[2mx\x1b[0m",
        "c   y",
    ]


def test_wide_characters_have_width_two_and_accents_zero() -> None:
    rows = [(Cell("訓練"), Cell("x")), (Cell("e\u0301t"), Cell("東京都千代田区千代田一番地"))]

    assert column_lines(("NAME", "NOTE"), rows, width=22, colored=False) == [
        "NAME  NOTE",
        "訓練  x",
        "e\u0301t    東京都千代田区…",
    ]


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=4))
def test_control_characters_in_a_cell_are_escaped(texts: list[tuple[str, str, str]]) -> None:
    rows = [tuple(map(Cell, row)) for row in texts]
    piped = "\n".join(tab_lines(rows))
    lines = [*column_lines(("A", "B", "C"), rows, width=40, colored=False)]

    assert [line.count("\t") for line in piped.split("\n")] == [2] * len(rows)
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in (*lines, *piped.replace("\t", "\n").split("\n")))


def test_note_of_a_node_for_each_condition() -> None:
    troubled = node(
        healthDescription="slow",
        symptoms=[{"symptomType": "LOW_MEMORY"}, {"symptomType": "OUT_OF_MEMORY", "workerId": "1"}],
        upcomingMaintenance={"windowStartTime": "2026-01-01T14:05:00Z"},
        queuedResource="projects/p/locations/z/queuedResources/q1",
    )

    assert node_note(troubled, NOW) == (
        "slow; OUT_OF_MEMORY on worker 1 (+1 more); maintenance in 2h05m; of queued resource q1"
    )
    assert node_note(node(upcomingMaintenance={"windowStartTime": "2026-01-01T11:00:00Z"}), NOW) == "maintenance now"
    assert node_note(node(state="NEW"), NOW) == "this version of tpuctl does not know this state"
    assert node_note(node(state="TERMINATED"), NOW) == "terminated: `down` frees its quota"


def test_details_of_a_node() -> None:
    endpoints = [{"ipAddress": "10.0.0.1", "accessConfig": {"externalIp": "1.2.3.4"}}, {"ipAddress": "10.0.0.2"}]
    full = node(
        networkEndpoints=endpoints,
        labels={"b": "2", "a": "1"},
        acceleratorConfig={"topology": "2x2x2"},
        runtimeVersion="img",
    )

    assert [(label, text) for label, text, _ in node_details(full, NOW)] == [
        ("name", "trainer"),
        ("zone", "us-central2-b"),
        ("project", "p"),
        ("state", "READY"),
        ("health", "HEALTHY"),
        ("type", "v4-16 (2x2x2), 2 workers"),
        ("version", "img"),
        ("tier", "on-demand"),
        ("created", "2026-01-01T09:00:00Z (3h ago)"),
        ("worker 0", "1.2.3.4 / 10.0.0.1"),
        ("worker 1", "10.0.0.2"),
        ("labels", "a=1, b=2"),
    ]


def test_ended_requests_with_quota_are_reported() -> None:
    def request(index: int, state: str) -> QueuedResource:
        return QueuedResource.from_api(
            {"name": f"projects/p/locations/z/queuedResources/q{index}", "state": {"state": state}}
        )  # fmt: skip

    assert dead_request_line([request(0, "ACTIVE")]) is None
    assert dead_request_line([request(0, "ACTIVE"), request(1, "FAILED")]) == (
        "1 queued resource ended and still holds quota: z/q1"
    )
    assert dead_request_line([request(index, "SUSPENDED") for index in range(5)]) == (
        "5 queued resources ended and still hold quota: z/q0, z/q1, z/q2 and 2 more"
    )
    spec = {"nodeSpec": [{"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"}}]}
    several = {"name": "projects/p/locations/z/queuedResources/q", "state": {"state": "FAILED"}, "tpu": spec}
    assert dead_request_line([QueuedResource.from_api(several)]) == (
        "1 queued resource ended and still holds quota: z/q; to delete: `tpuctl down z/s-0 --all-nodes`"
    )
