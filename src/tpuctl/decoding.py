"""Decode JSON from outside into values of declared types, which frozen dataclasses declare once, as their annotations.

`decode` raises `ShapeError`, which has the path of the value that does not fit. A JSON key is the name of the field in
camelCase, or as it is in a class that is `SNAKE_CASE`, or the path of `json_field`. Unknown keys are ignored: the sender may be
newer than this version. Types: `bool`, `int`, `float`, `str`, `timedelta` (seconds), `datetime` (seconds since 1970), an enum
of texts, a dataclass, `tuple[X, ...]`, a tuple of a fixed length, `Mapping[str, X]`, `Any`, a class with a `from_json`, and `X
| None`, where null is None. A field with a default may be absent. `Annotated` adds a bound of this module: without one, a text
is a `Line`, and a number is not negative.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from tpuctl.escaping import one_line, preview

T = TypeVar("T")
Decoder = Callable[[Any], Any]

# API answers have at most 12 levels [discovery documents of TPU, Compute Engine and Cloud Storage].
MAX_JSON_DEPTH: Final = 64
_LONGEST_JSON: Final = 64 << 20
_MOST_DIGITS: Final = 20
_LONGEST_KEY: Final = 60
_KEY: Final = re.compile(r"[A-Za-z_]\w{0,59}", re.ASCII)
# Kernels store sizes and offsets of files as signed 64-bit numbers.
MAX_BYTES: Final = 2**63 - 1
# A thousand years, which `timedelta` and `datetime` can hold.
_MAX_SECONDS: Final = 1000 * 365 * 86400
_LATEST: Final = 221_845_392_000  # the year 9000
_MOST: Final = 10_000


class ShapeError(ValueError):
    """A value does not have its type. The text is `PATH: expected …`; `got` is the value, which may be a secret."""

    def __init__(self, problem: str, path: str = "", *, got: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path, self.got = problem, path, got

    def below(self, place: str | int) -> ShapeError:
        """Return the error with the path extended by the key or index of the value in its parent."""
        if isinstance(place, int):
            step = f"[{place}]"
        elif _KEY.fullmatch(place):
            step = place
        else:
            step = f"[{json.dumps(place[:_LONGEST_KEY])}]"
        joined = f"{step}{self.path}" if not self.path or self.path.startswith("[") else f"{step}.{self.path}"
        return ShapeError(self.problem, joined, got=self.got)

    @property
    def shown(self) -> str:
        """The problem, with the value: only for values that are no secrets."""
        return f"{self.problem}, got {self.got}" if self.got else self.problem


def parse_json(content: bytes | str) -> Any:
    """Parse JSON in UTF-8. Raises `ShapeError` for anything else, and for numbers that exceed every field type."""
    if len(content) > _LONGEST_JSON:
        raise ShapeError(f"more than {_LONGEST_JSON >> 20} MiB")
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = _JSON.decode(text)
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


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ShapeError("a number is too large")
    return value


def _parse_integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ShapeError("a number is too large")
    return int(text)


def _parse_constant(text: str) -> Any:
    raise ShapeError(f"{text} is not JSON")


_JSON: Final = json.JSONDecoder(parse_float=_parse_float, parse_int=_parse_integer, parse_constant=_parse_constant)


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest number, of seconds for a duration or an instant."""

    low: float = 0
    high: float = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Line:
    """A text as one line, cut to `longest` characters; control characters are escaped."""

    longest: int = 1000


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most `longest` characters, as it is, which matches the `pattern`; `words` describe one in errors."""

    longest: int = sys.maxsize
    pattern: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Most:
    """The largest number of values of a tuple or a mapping."""

    count: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """The allowed texts."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class By:
    """A value that `parse` returns, or for which it raises `ShapeError`."""

    parse: Callable[[Any], Any]


Pid = Annotated[int, Range(1, 2**22)]


def json_field(path: str, *, default: Any = dataclasses.MISSING) -> Any:  # of any type
    """Declare a field of a dataclass with its JSON key, or the path of its key: `serviceAccount.email`."""
    return dataclasses.field(default=default, metadata={"key": path})


def decode(kind: type[T], value: Any, **extra: Any) -> T:  # JSON; fields of a dataclass
    """Return JSON as a value of a type. The fields in `extra` are not read. Raises `ShapeError`."""
    of_kind: Any = kind
    decoded: T = of_kind(**read_fields(of_kind, value, extra), **extra) if extra else decoder_of(of_kind)(value)
    return decoded


def read_fields(kind: Any, value: Any, without: Iterable[str] = ()) -> dict[str, Any]:  # a type; JSON
    """Return the fields of a dataclass that a JSON object has, without some. Raises `ShapeError`, also for a missing one."""
    return _read_fields(*_tree_of(kind, frozenset(without)), value)


def _read_fields(tree: _Tree, required: list[tuple[str, str]], value: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    _read_object(tree, value, values)
    for name, path in required:
        if name not in values:
            *parents, key = path.split(".")
            error = ShapeError(f"`{key}` is missing")
            for parent in reversed(parents):
                error = error.below(parent)
            raise error
    return values


def encode(value: Any) -> dict[str, Any]:  # a dataclass; JSON
    """Return a dataclass whose values are JSON as the object that `decode` reads."""
    return {path: getattr(value, name) for name, path in json_paths(type(value)).items()}


def decode_mapping(kind: type[T], values: Any, *, most: int = _MOST) -> dict[str, T]:
    """Return a JSON object with any keys, at most `most`, and values of one type. Raises `ShapeError`."""
    of_kind: Any = kind
    decoded: dict[str, T] = _mapping_decoder(decoder_of(of_kind), most)(values)
    return decoded


@overload
def decoder_of(kind: type[T]) -> Callable[[Any], T]: ...
@overload
def decoder_of(kind: Any) -> Decoder: ...
def decoder_of(kind: Any) -> Decoder:  # a type, or an annotation
    """Return the function that decodes values of a type."""
    return _decoder_of(kind)


@functools.cache
def _decoder_of(kind: Any) -> Decoder:  # a type, or an annotation
    bounds: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        bounds = tuple(rest)
    if by := _bound(bounds, By, None):
        parse: Decoder = by.parse
        return parse
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        inner = decoder_of(
            _annotated(next(argument for argument in arguments if argument is not types.NoneType), bounds)
        )
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_decoder(arguments, bounds)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(decoder_of(arguments[1]), _bound(bounds, Most, Most(_MOST)).count)
    if kind is Any:
        return _anything
    if from_json := getattr(kind, "from_json", None):
        own: Decoder = from_json
        return own
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda value: kind(_choice(value, tuple(kind)))
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        tree, required = _tree_of(make, frozenset())
        return lambda value: make(**_read_fields(tree, required, value))
    return _scalar_decoder(kind, bounds)


def _scalar_decoder(kind: Any, bounds: tuple[Any, ...]) -> Decoder:  # a type
    limits = _bound(bounds, Range, None)
    if kind is bool:
        return _boolean
    if kind is int:
        return functools.partial(_integer, limits=limits or Range())
    if kind is float:
        return functools.partial(_number, limits=limits or Range(0, sys.float_info.max))
    if kind is timedelta:
        span = limits or Range(0, _MAX_SECONDS)
        return lambda value: timedelta(seconds=_number(value, span))
    if kind is datetime:
        era = limits or Range(0, _LATEST)
        return lambda value: datetime.fromtimestamp(_number(value, era), UTC)
    if kind is str:
        if allowed := _bound(bounds, OneOf, None):
            return functools.partial(_choice, allowed=allowed.words)
        if text := _bound(bounds, Text, None):
            return _string if text == Text() else _text_decoder(text)
        longest = _bound(bounds, Line, Line()).longest
        return lambda value: one_line(_string(value), longest=longest)
    raise TypeError(f"no decoder for {kind!r}")


def _bound(bounds: tuple[Any, ...], kind: type[Any], default: Any) -> Any:  # of that kind
    return next((bound for bound in bounds if isinstance(bound, kind)), default)


def _annotated(kind: Any, bounds: tuple[Any, ...]) -> Any:  # an annotation
    for bound in bounds:
        kind = Annotated[kind, bound]
    return kind


def json_paths(kind: type[Any]) -> Mapping[str, str]:
    """Return the JSON key of each field of a dataclass, or the path of its key."""
    is_snake_case = getattr(kind, "SNAKE_CASE", False)
    return {
        field.name: field.metadata.get("key") or (field.name if is_snake_case else _camel_case(field.name))
        for field in dataclasses.fields(kind)
    }


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


class _Field:
    """A field of a dataclass, whose decoder is made for the first value. Values of the type `plain` stay as they are."""

    __slots__ = ("_annotation", "_kind", "decode", "name", "plain")

    def __init__(self, kind: Any, name: str, annotation: Any) -> None:
        self.name = name
        self.decode: Decoder = self._decode_first
        self.plain: type[Any] | None = None
        self._kind, self._annotation = kind, annotation

    def _decode_first(self, value: Any) -> Any:
        space = vars(sys.modules[self._kind.__module__])
        named = types.SimpleNamespace(__annotations__={self.name: self._annotation})
        self.decode = decoder_of(get_type_hints(named, space, include_extras=True)[self.name])
        self.plain = str if self.decode is _string else bool if self.decode is _boolean else None
        return self.decode(value)


_Tree = dict[str, Any]  # each key of an object: a `_Field`, or another tree


@functools.cache
def _tree_of(kind: Any, without: frozenset[str]) -> tuple[_Tree, list[tuple[str, str]]]:
    """Return the fields of a dataclass by their keys in JSON, and the names and paths of those that must be there."""
    tree: _Tree = {}
    required = []
    paths = json_paths(kind)
    for field in dataclasses.fields(kind):
        if field.name in without:
            continue
        *parents, key = paths[field.name].split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[key] = _Field(kind, field.name, field.type)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append((field.name, paths[field.name]))
    return tree, required


def _read_object(tree: _Tree, value: Any, values: dict[str, Any]) -> None:
    if not isinstance(value, dict):
        raise _unexpected("an object", value)
    # A list of nodes has a hundred thousand fields.
    find, key = tree.get, ""
    try:
        for key, item in value.items():
            entry = find(key)
            if type(entry) is _Field:
                values[entry.name] = item if type(item) is entry.plain else entry.decode(item)
            elif entry is not None:
                _read_object(entry, item, values)
            elif type(item) is dict or type(item) is list:
                _anything(item)
    except ShapeError as error:
        raise error.below(key) from error


def _anything(value: Any) -> Any:
    """Return JSON of any type, of at most `MAX_JSON_DEPTH` levels."""
    level = [value] if type(value) is dict or type(value) is list else []
    for _ in range(MAX_JSON_DEPTH + 1):
        if not level:
            return value
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    raise ShapeError(f"expected at most {MAX_JSON_DEPTH} levels")


def _tuple_decoder(arguments: tuple[Any, ...], bounds: tuple[Any, ...]) -> Decoder:
    if arguments[1:] == (...,):
        each, most = decoder_of(arguments[0]), _bound(bounds, Most, Most(_MOST)).count
        return lambda value: read_items(value, each, most=most)
    parts = [decoder_of(_annotated(argument, bounds)) for argument in arguments]

    def decode_parts(value: Any) -> tuple[Any, ...]:
        if isinstance(value, list) and len(value) != len(parts):
            raise ShapeError(f"{len(value)} values where {len(parts)} are expected")
        return _items(value, parts.__getitem__, most=len(parts))

    return decode_parts


def read_items(value: Any, each: Callable[[Any], T], *, most: int = sys.maxsize) -> tuple[T, ...]:  # JSON
    """Return `each(item)` for the items of a list. Raises `ShapeError`."""
    return _items(value, lambda _: each, most=most)


def _items(value: Any, decoder_at: Callable[[int], Decoder], *, most: int) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unexpected("a list", value)
    if len(value) > most:
        raise ShapeError(f"{len(value)} values where at most {most} are expected")
    decoded: list[Any] = []
    try:
        for index, item in enumerate(value):
            decoded.append(decoder_at(index)(item))  # their number is the index of a bad item
    except ShapeError as error:
        raise error.below(len(decoded)) from error
    return tuple(decoded)


def _mapping_decoder(each: Decoder, most: int) -> Decoder:
    def decode_mapping(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        if len(value) > most:
            raise ShapeError(f"{len(value)} values where at most {most} are expected")
        decoded, key = {}, ""
        try:
            for key, item in value.items():  # the key is used if a value does not fit
                decoded[one_line(key)] = each(item)
        except ShapeError as error:
            raise error.below(key) from error
        return decoded

    return decode_mapping


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unexpected("true or false", value)
    return value


def _integer(value: Any, limits: Range) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unexpected("an integer", value)
    if not limits.low <= value <= limits.high:
        raise _unexpected(f"{limits.low} to {limits.high}", value)
    return value


def _number(value: Any, limits: Range) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _unexpected("a number", value)
    if not limits.low <= value <= limits.high:
        raise _unexpected(f"{limits.low:g} to {limits.high:g}", value)
    return float(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _unexpected("a string", value)
    return value


def _text_decoder(rule: Text) -> Decoder:
    matches = re.compile(rule.pattern or r"(?s:.*)", re.ASCII).fullmatch

    def decode_text(value: Any) -> str:
        text = _string(value)
        if len(text) > rule.longest:
            raise ShapeError(f"{len(text)} characters where at most {rule.longest} are expected")
        if not matches(text):
            raise _unexpected(rule.words or "another text", value)
        return text

    return decode_text


def _choice(value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _unexpected(" or ".join(allowed), value)
    return value


def _unexpected(expected: str, value: object) -> ShapeError:
    return ShapeError(f"expected {expected}", got=preview(value))
