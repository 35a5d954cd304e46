"""Modules import one another without a circle: imports in functions and by name count; those for types in some rooms."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
# What `app/lazy_import.py` imports when it is used. The body of a command takes types of its declaration.
_BY_NAME = re.compile(r"(tpuctl[\w.]+):\w+")


def modules(package: str) -> dict[str, Path]:
    """Return the path of each module of a package by its name."""
    folder = SOURCE.joinpath(*package.split("."))
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in folder.rglob("*.py")
    }


def imported(path: Path, *, with_types: bool) -> set[str]:
    """Return the names of what a module imports, anywhere in it: modules, and each name that is taken from one."""
    found = set()
    tree = ast.parse(path.read_text("utf-8"))
    for_types = {
        id(inner)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        for inner in ast.walk(statement)
    }
    for statement in ast.walk(tree):
        if id(statement) in for_types and not with_types:
            continue
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{path} has a relative import"
            found |= {str(statement.module), *(f"{statement.module}.{alias.name}" for alias in statement.names)}
        elif (
            not with_types
            and isinstance(statement, ast.Constant)
            and (named := _BY_NAME.fullmatch(str(statement.value)))
        ):
            found.add(named[1])
    return found


@pytest.mark.parametrize(("package", "with_types"), [("tpuctl", False), ("tpuctl.nodes", True)])
def test_package_has_no_import_circle(package: str, *, with_types: bool) -> None:
    known = modules(package)
    graph = {name: imported(path, with_types=with_types) & known.keys() - {name} for name, path in known.items()}
    # A module imports its packages, whose `__init__` may only refer to what their users import.
    graph.pop(package)

    assert len(graph) > 20
    assert sum(map(len, graph.values())) > len(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
