"""No regular expression uses a construct that some supported CPython releases compile wrongly."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tpuctl

SOURCE = Path(tpuctl.__file__).parent
# CPython 3.11.0 to 3.11.4 compile both wrongly: gh-100061, gh-106052.
REFUSED = {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"}
# What both look like; few files have it.
SUSPECT = re.compile(r"[*+?}]\+|\(\?>")
# What a format puts into a pattern is taken for a number: it stands for itself, and counts as a bound.
PLACEHOLDER = re.compile(r"%[sd]")

_parse: Any = importlib.import_module("re._parser").parse


def constructs(pattern: str) -> set[str]:
    """Return the names of the operations of a pattern; none if it is not a pattern."""
    try:
        return set(_operations(_parse(PLACEHOLDER.sub("1", pattern))))
    except (re.error, OverflowError):
        return {"ATOMIC_GROUP"} if "(?>" in pattern else set()


def _operations(parsed: Any) -> Iterator[str]:
    if type(parsed).__name__ in {"SubPattern", "list", "tuple"}:
        for part in parsed:
            yield from _operations(part)
    elif type(parsed).__name__ == "_NamedIntConstant":
        yield parsed.name


def _literals(source: str) -> Iterator[str]:
    """Yield the texts of a program, formatted ones with a number in place of each value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def _compiled(value: Any, depth: int = 4) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | list | tuple | set | frozenset) and depth:
        for part in value.values() if isinstance(value, dict) else value:
            yield from _compiled(part, depth - 1)


@pytest.mark.parametrize(
    "pattern", [r"a*+", r"(?:a|b)++", r"[%s]{%d,}+", r"x(?:y(?>z))", r"(a{1,3}+)?", r"(?=(?!a?+))"]
)
def test_refused_construct_is_recognized(pattern: str) -> None:
    assert constructs(pattern) & REFUSED
    assert SUSPECT.search(pattern)


@pytest.mark.parametrize("pattern", [r"\*+", r"[*+]+", r"\(?>=", r"\++", r"(?=(a+))\1", r"[+*]{2,}", "\\"])
def test_ordinary_construct_is_accepted(pattern: str) -> None:
    assert not constructs(pattern) & REFUSED


@pytest.mark.parametrize("kind", ["py", "yaml"])
def test_no_string_is_a_pattern_that_some_python_compiles_wrongly(kind: str) -> None:
    """Also strings that become patterns at run time. In YAML each line with such a construct counts."""
    files = sorted(SOURCE.rglob(f"*.{kind}"))
    found = [
        (path.name, text)
        for path in files
        if SUSPECT.search(source := path.read_text("utf-8"))
        for text in (_literals(source) if kind == "py" else source.splitlines())
        if constructs(text) & REFUSED
    ]

    assert (len(files) > 3, found) == (True, [])


def test_no_compiled_pattern_is_one_that_some_python_compiles_wrongly() -> None:
    """Also patterns composed of several strings."""
    names = [one.name for one in pkgutil.walk_packages(tpuctl.__path__, "tpuctl.") if not one.name.endswith("__main__")]
    patterns = {
        pattern
        for name in names
        for value in vars(importlib.import_module(name)).values()
        for pattern in _compiled(value)
    }
    texts = [one.pattern if isinstance(one.pattern, str) else one.pattern.decode("latin-1") for one in patterns]

    assert len(texts) > 100
    assert [text for text in texts if SUSPECT.search(text) and constructs(text) & REFUSED] == []
