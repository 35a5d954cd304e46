"""Tables that the user shapes: which columns, in which order."""

from __future__ import annotations

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.names import natural_key
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.tables import choose_columns
from tpuctl.output.terminal import Cell

COLUMNS = (
    Column("name", Kind.NAME),
    Column("age", Kind.TIME),
    Column("price", Kind.NUMBER, is_wide=True),
    Column("note"),
)


@pytest.mark.parametrize(
    ("named", "is_wide", "expected"),
    [
        pytest.param(None, False, "name age note", id="usual"),
        pytest.param(None, True, "name age price note", id="wide"),
        pytest.param("note,name", False, "note name", id="named-in-their-order"),
        pytest.param(" Price , name,price", True, "price name", id="spaces-capitals-twice"),
        pytest.param("all", False, "name age price note", id="all"),
    ],
)
def test_columns_are_chosen(named: str | None, is_wide: bool, expected: str) -> None:
    layout = choose_columns(COLUMNS, named, sort=None, is_wide=is_wide)

    assert [layout.columns[index].name for index in layout.shown] == expected.split()


@pytest.mark.parametrize(
    ("named", "sort", "message", "hint"),
    [
        pytest.param("nam", None, "`--columns`: there is no column `nam`", "did you mean `name`? ", id="column"),
        pytest.param(",", None, "`--columns ,` names no column", "", id="no-column"),
        pytest.param(None, "-size", "`--sort`: there is no column `size`", "", id="sort"),
        pytest.param(None, ",", "`--sort ,` names no column", "", id="no-sort"),
    ],
)
def test_unknown_columns_are_refused(named: str | None, sort: str | None, message: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        choose_columns(COLUMNS, named, sort=sort, is_wide=False)

    assert (caught.value.message, caught.value.hint) == (message, f"{hint}columns: name, age, price, note")


ROWS = [
    (Cell("sweep-10"), Cell("2d", "2026-01-01", rank=172800), Cell("about $9.72", rank=9.72), Cell("b")),
    (Cell("sweep-9"), Cell("5h", "2026-01-03", rank=18000), Cell("?"), Cell("")),
    (Cell("b"), Cell(""), Cell("$21.60", rank=21.6), Cell("a")),
    (Cell("sweep-2"), Cell("3d", "2025-12-31", rank=259200), Cell("$1,021.60", rank=1021.6), Cell("b")),
]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        pytest.param(None, "sweep-10 sweep-9 b sweep-2", id="as-it-was"),
        pytest.param("name", "b sweep-2 sweep-9 sweep-10", id="numbers-by-value"),
        pytest.param("-name", "sweep-10 sweep-9 sweep-2 b", id="reversed"),
        pytest.param("age", "sweep-9 sweep-10 sweep-2 b", id="age-unknown-last"),
        pytest.param("-age", "sweep-2 sweep-10 sweep-9 b", id="oldest-first-unknown-last"),
        pytest.param("-price", "sweep-2 b sweep-10 sweep-9", id="dollars-by-amount"),
        pytest.param("note,-name", "b sweep-10 sweep-2 sweep-9", id="two-keys"),
    ],
)
def test_rows_are_sorted(sort: str | None, expected: str) -> None:
    names = [row[0].text for row in ROWS]
    layout = choose_columns(COLUMNS, None, sort=sort, is_wide=False)

    items, rows = layout.sort(names, ROWS)

    assert (items, [row[0].text for row in rows]) == (expected.split(), expected.split())


def test_natural_order_bounds_the_numbers() -> None:
    assert sorted(["n-" + "9" * 9999, "n-10", "n-9", "N-1", ""], key=natural_key)[:4] == ["", "N-1", "n-9", "n-10"]
