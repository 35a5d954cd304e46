"""Validation of JSON from outside: API answers and files are checked once, against a declared shape.

A shape lists the fields that tpuctl reads, with their types. Unknown fields, and unknown values of an enum, are accepted: the
service may be newer than this version. Any other mismatch raises `ShapeError`, which has the path of the value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

# API answers have at most 12 levels [discovery documents of TPU, Compute Engine and Cloud Storage].
MAX_JSON_DEPTH: Final = 64
_LONGEST_ANSWER: Final = 64 << 20
_MOST_DIGITS: Final = 20
_LONGEST_KEY: Final = 60
_DECIMAL: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_FIELD: Final = re.compile(r"[A-Za-z_]\w{0,59}", re.ASCII)


T = TypeVar("T")


class ShapeError(ValueError):
    """A value does not match its shape. The text is `PATH: expected …`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path = problem, path

    def below(self, place: str | int) -> ShapeError:
        """Return the error with the path extended by the key or index of the value in its parent."""
        if isinstance(place, int):
            step = f"[{place}]"
        elif _FIELD.fullmatch(place):
            step = place
        else:
            step = f"[{json.dumps(place[:_LONGEST_KEY])}]"
        joined = f"{step}{self.path}" if not self.path or self.path.startswith("[") else f"{step}.{self.path}"
        return ShapeError(self.problem, joined)


class Checker(Protocol):
    """A check for a value."""

    def check(self, value: Any) -> None:
        """Raise `ShapeError` for a value that does not match."""


# `str` and `bool` are used directly: nearly all values have one of these types, and comparing types is the fastest check.
ValueShape = type[str] | type[bool] | Checker
Fields = Mapping[str, ValueShape]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value for which `accepts` is true; `words` describes it in errors. `json_type` is the type in a discovery document.

    Values of the type `always` match without a check.
    """

    words: str
    accepts: Callable[[Any], bool]
    json_type: str = "string"
    always: type | None = None

    def check(self, value: Any) -> None:
        """Raise `ShapeError` for a value that does not match."""
        if not self.accepts(value):
            raise ShapeError(f"expected {self.words}")


class ListOf:
    """A list whose items all match one shape."""

    def __init__(self, kind: ValueShape) -> None:
        self.kind = kind
        self._type, self._check = _type_and_check(kind)

    def check(self, value: Any) -> None:
        """Raise `ShapeError` for a value that does not match."""
        if not isinstance(value, list):
            raise ShapeError("expected a list")
        expected, check, index = self._type, self._check, 0
        try:
            for index, item in enumerate(value):  # noqa: B007  # the index is used if an item does not match
                if type(item) is not expected:
                    check(item)
        except ShapeError as error:
            raise error.below(index) from error


class MapOf:
    """An object with arbitrary keys, such as labels, whose values all match one shape."""

    def __init__(self, kind: ValueShape) -> None:
        self.kind = kind
        self._type, self._check = _type_and_check(kind)

    def check(self, value: Any) -> None:
        """Raise `ShapeError` for a value that does not match."""
        if not isinstance(value, dict):
            raise ShapeError("expected an object")
        expected, check, key = self._type, self._check, ""
        try:
            for key, item in value.items():  # noqa: B007  # the key is used if a value does not match
                if type(item) is not expected:
                    check(item)
        except ShapeError as error:
            raise error.below(key) from error


class Shape:
    """An object with declared fields. `schema` is the document and the schema of an API, like `tpu.v2 Node`.

    It is empty for an object declared inside another one, and for tpuctl's own. If `nullable`, null means absent; the API omits
    absent fields.
    """

    def __init__(self, schema: str, fields: Fields, *, required: tuple[str, ...] = (), nullable: bool = False) -> None:
        self.schema, self.fields, self.required, self.nullable = schema, fields, required, nullable
        # A list of nodes has a hundred thousand fields: work that is the same for all of them is done once.
        self._find = {name: _type_and_check(kind) for name, kind in fields.items()}.get

    def check(self, value: Any) -> None:
        """Raise `ShapeError` for a value that does not match."""
        if not isinstance(value, dict):
            raise ShapeError("expected an object")
        find, key = self._find, ""
        try:
            for key, item in value.items():  # the key is used if a value does not match
                expected, check = find(key, _UNKNOWN)
                if type(item) is not expected and not (item is None and self.nullable):
                    check(item)
        except ShapeError as error:
            raise error.below(key) from error
        for key in self.required:
            if value.get(key) is None:
                raise ShapeError("missing", key)

    def read(self, value: Any) -> Mapping[str, Any]:
        """Check the object and return it."""
        self.check(value)
        found: Mapping[str, Any] = value
        return found


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: an object with items under `key`. The items are checked when they are read."""

    schema: str
    key: str

    @property
    def shape(self) -> Shape:
        """Return the shape of the page."""
        # Compute Engine uses the plural [API compute v1].
        around: Fields = {"nextPageToken": str, "unreachable": ListOf(str), "unreachables": ListOf(str)}
        return Shape(self.schema, {self.key: ListOf(ITEM), **around})

    def check(self, value: Any) -> None:
        """Raise `ShapeError` if it is not a page. `{}` is an empty page; an object with only unknown fields is not a page."""
        shape = self.shape
        shape.check(value)
        # Pages with the key `items` are of the older kind, which have a `kind` even if empty [API storage v1].
        if value and not value.keys() & {*shape.fields, *(("kind",) if self.key == "items" else ())}:
            raise ShapeError("missing", self.key)

    def items(self, data: Mapping[str, Any], read: Callable[[Any], T]) -> list[T]:
        """Return `read(item)` for each item of a checked page; errors have the path of the item."""
        return read_items(data, self.key, read)


def read_items(data: Mapping[str, Any], key: str, read: Callable[[Any], T]) -> list[T]:
    """Return `read(item)` for each item of a list; errors have the path of the item."""
    found: list[T] = []
    try:
        for item in data.get(key) or ():
            found.append(read(item))  # noqa: PERF401  # the number found is the index of the bad item
    except ShapeError as error:
        raise error.below(len(found)).below(key) from error
    return found


def parse_json(content: bytes | str) -> Any:
    """Parse JSON in UTF-8. Raises `ShapeError` for anything else, and for numbers that exceed every field type."""
    if len(content) > _LONGEST_ANSWER:
        raise ShapeError(f"more than {_LONGEST_ANSWER >> 20} MiB")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = _DECODER.decode(text)
        if "\\u" in text:
            # A lone surrogate cannot be written to a terminal or a file.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise ShapeError("not UTF-8") from error
    except RecursionError as error:
        raise ShapeError("nested too deep") from error
    except ShapeError:
        raise
    except ValueError as error:
        raise ShapeError("not JSON") from error
    return value


def _type_and_check(kind: ValueShape) -> tuple[type | None, Callable[[Any], None]]:
    """Return the type that matches without a check, and the check for values of any other type."""
    if isinstance(kind, type):
        return kind, (TEXT if kind is str else _SWITCH).check
    return getattr(kind, "always", None), kind.check


def _is_shallow(value: Any) -> bool:
    """Return whether a value of unknown shape has at most `MAX_JSON_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer if type(outer) is list else ())
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return True
    return False


def _is_integer(value: Any) -> bool:
    if type(value) is str:
        return _DECIMAL.fullmatch(value) is not None
    return type(value) is int  # the parser bounds the digits


def _is_number(value: Any) -> bool:
    try:
        return type(value) in {int, float, str} and math.isfinite(float(value))
    except ValueError:
        return False


def _is_time(value: Any) -> bool:
    try:
        # Years at the ends of the calendar overflow as soon as an hour is added or a time zone applied.
        return value == "" or 2 <= datetime.fromisoformat(value).year <= 9998
    except (TypeError, ValueError):
        return False


def text_matching(pattern: str, words: str) -> Scalar:
    """Return the shape of a text that fully matches a pattern."""
    expression = re.compile(pattern, re.ASCII)
    return Scalar(words, lambda value: type(value) is str and expression.fullmatch(value) is not None)


# The ids of nodes [API v2, NodeSpec.nodeId], and the colon of a project of a domain.
_SEGMENT: Final = r"[A-Za-z0-9_~+%][A-Za-z0-9._:~+%-]{0,249}"
# A part of a name enters URLs, paths of files and argvs.
RESOURCE: Final = text_matching(
    rf"projects/{_SEGMENT}/locations/{_SEGMENT}/[A-Za-z]{{1,64}}/{_SEGMENT}[0-9-]{{0,9}}", "a full resource name"
)
SEGMENT: Final = text_matching(_SEGMENT, "a name")
# An empty text means absent.
NODE_ID: Final = text_matching(rf"(?:{_SEGMENT})?", "the name of a node")
ADDRESS: Final = text_matching(r"(?:[0-9A-Fa-f.:]{2,45})?", "an IP address")
TEXT: Final = Scalar("text", lambda value: type(value) is str)
_SWITCH: Final = Scalar("true or false", lambda value: type(value) is bool, "boolean")
TIME: Final = Scalar("a time like 2026-01-31T08:00:00Z", _is_time)
DURATION: Final = Scalar(
    "a number of seconds like 3600s",
    lambda value: isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,9})?s", value, re.ASCII) is not None,
)
# The API writes numbers of 64 bits as text [documentation of proto3 JSON].
INTEGER: Final = Scalar("a whole number", _is_integer, "integer", always=int)
# More seconds would overflow the calendar.
SECONDS: Final = Scalar("a number of seconds", lambda value: _is_integer(value) and 0 <= int(value) < 10**10, "integer")
COUNT: Final = Scalar("a whole number, not negative", lambda value: _is_integer(value) and int(value) >= 0, "integer")
NUMBER: Final = Scalar("a number", _is_number, "number")
# The reader checks it.
ITEM: Final = Scalar("anything", lambda _: True)
ANY: Final = Scalar(
    f"at most {MAX_JSON_DEPTH} levels", lambda value: type(value) not in {dict, list} or _is_shallow(value)
)
_UNKNOWN: Final = _type_and_check(ANY)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ShapeError("a number is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ShapeError("a number is too large")
    return int(text)


def _constant(text: str) -> Any:
    raise ShapeError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_int=_integer, parse_constant=_constant)
