"""How a table fits a terminal: rows never wrap, what people look for stays readable, numbers are whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.nodes.rendering import NODE_COLUMNS
from tpuctl.output.column_widths import Column, Kind, fit_columns, shorten, text_width
from tpuctl.output.terminal import Cell, column_lines, lay_out_columns

COLUMNS = tuple(column for column in NODE_COLUMNS if not column.is_wide or column.on_terminal)
ROWS = [
    tuple(map(Cell, row))
    for row in (
        ("a-training-run-with-a-long-name-17", "us-central1-a", "v5litepod-16", "READY", "HEALTHY", "16", "10h07m",
         "on-demand", "$19.20", ""),
        ("dead", "us-east5-b", "v6e-8", "PREEMPTED", "", "8", "3d", "spot", "$0.00",
         "preempted: `up` recreates it, `down` frees its quota"),
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        pytest.param(
            106,
            (
                "NAME                                TYPE          STATE      TIER          $/H  NOTE",
                "a-training-run-with-a-long-name-17  v5litepod-16  READY      on-demand  $19.20",
                "dead                                v6e-8         PREEMPTED  spot        $0.00  preempted: `up` recreates…",
            ),
            id="106-words-are-whole",
        ),
        pytest.param(
            80,
            (
                "NAME                                TYPE          STATE      TIER          $/H",
                "a-training-run-with-a-long-name-17  v5litepod-16  READY      on-demand  $19.20",
                "dead                                v6e-8         PREEMPTED  spot        $0.00",
            ),
            id="80-name-is-whole",
        ),
        pytest.param(
            60,
            (
                "NAME                      TYPE          STATE      TIER",
                "a-training-run-…-name-17  v5litepod-16  READY      on-demand",
                "dead                      v6e-8         PREEMPTED  spot",
            ),
            id="60-long-name-is-shortened-for-the-others",
        ),
        pytest.param(
            40,
            (
                "NAME                           STATE",
                "a-training-run-with…g-name-17  READY",
                "dead                           PREEMPTED",
            ),
            id="40-name-and-state",
        ),
        pytest.param(
            12,
            (
                "NAME",
                "a-train…e-17",
                "dead",
            ),
            id="12-name-alone",
        ),
        pytest.param(
            3,
            (
                "NA…",
                "a…7",
                "d…d",
            ),
            id="3",
        ),
        pytest.param(
            1,
            (
                "…",
                "…",
                "…",
            ),
            id="1",
        ),
    ],
)
def test_table_fits_the_terminal(width: int, lines: tuple[str, ...]) -> None:
    assert tuple(column_lines(COLUMNS, ROWS, width=width, colored=False)) == lines


def test_columns_that_are_left_out_are_reported_unless_they_are_empty() -> None:
    rows = [(*row[:-1], Cell("")) for row in ROWS]

    left_out = lay_out_columns(COLUMNS, rows, width=40, colored=False)[1]

    assert [column.name for column in left_out] == ["zone", "type", "health", "chips", "age", "tier", "price"]


@pytest.mark.parametrize(
    ("text", "width", "kept_end", "expected"),
    [
        pytest.param("sweep-17", 8, 2, "sweep-17", id="fits"),
        pytest.param("long-name-17", 11, 3, "long-na…-17", id="middle"),
        pytest.param("a sentence", 5, 0, "a se…", id="end"),
        pytest.param("訓練訓練訓練", 7, 2, "訓練…練", id="wide-characters"),
        pytest.param("訓練訓練訓練", 6, 3, "訓…練", id="wide-character-does-not-fit"),
        pytest.param("e\u0301e\u0301e\u0301e\u0301", 3, 0, "e\u0301e\u0301…", id="accents-have-no-width"),
        pytest.param("abc", 2, 3, "…c", id="end-is-longer-than-the-room"),
        pytest.param("abc", 1, 0, "…", id="one-column"),
    ],
)
def test_text_is_shortened_to_a_width(text: str, width: int, kept_end: int, expected: str) -> None:
    assert (shorten(text, width, kept_end=kept_end), text_width(expected) <= width) == (expected, True)


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(1, 60), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 200),
)
def test_columns_fit_any_width_and_numbers_are_whole(described: list[tuple[Kind, int, bool]], room: int) -> None:
    columns = [Column(f"c{index}", kind) for index, (kind, _, _) in enumerate(described)]
    widths = [width for _, width, _ in described]

    shown = fit_columns(columns, widths, [used for _, _, used in described], room)

    assert shown[0][0] == 0
    assert sum(width for _, width in shown) + 2 * (len(shown) - 1) <= room
    assert all(width == widths[index] for index, width in shown[1:] if columns[index].kind in {Kind.NUMBER, Kind.TIME})
    assert all(1 <= width <= widths[index] for index, width in shown)


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30), st.text(max_size=60)), min_size=1, max_size=4))
def test_no_row_is_wider_than_the_terminal(texts: list[tuple[str, str, str]]) -> None:
    columns = (Column("name", Kind.NAME), Column("zone"), Column("note", Kind.TEXT))
    rows = [tuple(map(Cell, row)) for row in texts]

    assert all(text_width(line) <= 40 for line in column_lines(columns, rows, width=40, colored=False))
