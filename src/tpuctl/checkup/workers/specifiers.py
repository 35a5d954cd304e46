"""Versions of Python packages: the part of PEP 440 that comparing frameworks needs. None means: cannot be decided."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){0,5})(?:[-_.]?(?P<pre>a|b|rc)[-_.]?(?P<number>\d+)?)?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d+)?)?(?:[-_.]?dev[-_.]?(?P<dev>\d+)?)?(?P<local>\+[a-z0-9._-]+)?"
)
_CLAUSE = re.compile(r"(?P<operator>~=|==|!=|<=|>=|<|>) *(?P<version>[A-Za-z0-9.+!_-]+?)(?P<any>\.\*)?")
_REQUIREMENT = re.compile(r"(?P<name>[a-z0-9-]+) *\(?(?P<clauses>(?:[<>=!~][^;()@]*)?)\)? *(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra *== *['\"]([A-Za-z0-9_-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on another package: `clauses` like `<=0.4.35,>=0.4.34`; with an `extra` it holds only for that."""

    name: str
    clauses: str
    extra: str | None


def parse_requirement(text: str) -> Requirement | None:
    """Parse a `Requires-Dist` line. None for an unknown form, and if its marker is more than an extra."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    marker = (match["marker"] or "").strip()
    extra = _EXTRA.fullmatch(marker)
    if marker and extra is None:
        return None
    return Requirement(match["name"], match["clauses"].strip(), extra[1] if extra else None)


def release(version: str) -> tuple[int, ...] | None:
    """Return the release numbers of a version, like `(0, 4, 35)`. None if it is not a version."""
    match = _VERSION.fullmatch(version.strip().lower())
    return tuple(map(int, match["release"].split("."))) if match else None


def meets(version: str, clauses: str) -> bool | None:
    """Return whether a version satisfies all clauses. None if that cannot be decided."""
    verdicts = [_meets_one(version, clause.strip()) for clause in clauses.split(",") if clause.strip()]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _meets_one(version: str, clause: str) -> bool | None:
    match, have = _CLAUSE.fullmatch(clause), _key(version)
    if match is None or have is None:
        return None
    operator, wanted = match["operator"], match["version"]
    if match["any"]:
        numbers, prefix = release(version), release(wanted)
        if numbers is None or prefix is None or operator not in {"==", "!="}:
            return None
        return (_padded(numbers)[: len(prefix)] == prefix) is (operator == "==")
    want = _key(wanted)
    if want is None:
        return None
    match operator:
        case "==":
            return have == want
        case "!=":
            return have != want
        case "<=":
            return have <= want
        case ">=":
            return have >= want
        case "<":
            return have < want
        case ">":
            return have > want
        case _:
            prefix = release(wanted) or ()
            return have >= want and _padded(release(version) or ())[: len(prefix) - 1] == prefix[:-1]


def _key(version: str) -> tuple[object, ...] | None:
    """Return a sort key for a version: a development version comes before its release, a local part is ignored."""
    match = _VERSION.fullmatch(version.strip().lower())
    if match is None:
        return None
    numbers = _padded(tuple(map(int, match["release"].split("."))))
    text = match.group().partition("+")[0]
    has_dev, has_post = "dev" in text, "post" in text
    if match["pre"]:
        stage = (-1, "abrc".index(match["pre"][0]), int(match["number"] or 0))
    else:
        stage = (-2 if has_dev and not has_post else 1 if has_post else 0, 0, int(match["post"] or 0))
    return (*numbers, *stage, 0 if has_dev else 1, int(match["dev"] or 0))


def _padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, *(0,) * (6 - len(numbers)))
