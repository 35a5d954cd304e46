"""Decode JSON from outside into values of declared types, which frozen dataclasses declare once, as their annotations.

`decode` raises `ShapeError`, which has the path of the value that does not fit. A JSON key is the name of the field in
camelCase. Types: `bool`, `int`, `float`, `str`, `timedelta` (seconds), `datetime` (seconds since 1970), an enum of texts, a
dataclass, `tuple[X, ...]`, a tuple of a fixed length, `Mapping[str, X]`, and `X | None`, where null is None. A field with a
default may be absent. `Annotated` adds a bound of this module: without one, a text is a `Line`, and a number is not negative.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from tpuctl.escaping import one_line, preview
from tpuctl.shapes import ShapeError

T = TypeVar("T")
Decoder = Callable[[Any], Any]

# Kernels store sizes and offsets of files as signed 64-bit numbers.
MAX_BYTES: Final = 2**63 - 1
# A thousand years, which `timedelta` and `datetime` can hold.
_MAX_SECONDS: Final = 1000 * 365 * 86400
_LATEST: Final = 221_845_392_000  # the year 9000
_MOST: Final = 10_000


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

    longest: int
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


def decode(kind: type[T], value: Any, **extra: Any) -> T:  # JSON; fields of a dataclass
    """Return JSON as a value of a type. The fields in `extra` are not read. Raises `ShapeError`."""
    of_kind: Any = kind
    decoded: T = _decode_fields(of_kind, value, extra) if extra else decoder_of(of_kind)(value)
    return decoded


def encode(value: Any) -> dict[str, Any]:  # a dataclass; JSON
    """Return a dataclass whose values are JSON as the object that `decode` reads."""
    kind: Any = type(value)
    return {key: getattr(value, name) for name, (key, _, _) in _fields_of(kind).items()}


def decode_mapping(kind: type[T], values: Any, *, most: int = _MOST) -> dict[str, T]:
    """Return a JSON object with any keys, at most `most`, and values of one type. Raises `ShapeError`."""
    of_kind: Any = kind
    decoded: dict[str, T] = _mapping_decoder(decoder_of(of_kind), most)(values)
    return decoded


@functools.cache
def decoder_of(kind: Any) -> Decoder:  # a type, or an annotation
    """Return the function that decodes values of a type."""
    bounds: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        bounds = tuple(rest)
    if by := _bound(bounds, By, None):
        parse: Decoder = by.parse
        return parse
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        inner = decoder_of(_annotated(next(one for one in arguments if one is not types.NoneType), bounds))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_decoder(arguments, bounds)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(decoder_of(arguments[1]), _bound(bounds, Most, Most(_MOST)).count)
    if kind is Any:
        return lambda value: value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda value: kind(_choice(value, tuple(kind)))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decode_fields, kind, extra={})
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
            return functools.partial(_text, rule=text)
        longest = _bound(bounds, Line, Line()).longest
        return lambda value: one_line(_string(value), longest=longest)
    raise TypeError(f"no decoder for {kind!r}")


def _bound(bounds: tuple[Any, ...], kind: type[Any], default: Any) -> Any:  # of that kind
    return next((one for one in bounds if isinstance(one, kind)), default)


def _annotated(kind: Any, bounds: tuple[Any, ...]) -> Any:  # an annotation
    for bound in bounds:
        kind = Annotated[kind, bound]
    return kind


@functools.cache
def _fields_of(kind: Any) -> Mapping[str, tuple[str, bool, Any]]:
    """Return the JSON key of each field of a dataclass, whether it must be there, and its annotation."""
    found = {}
    for field in dataclasses.fields(kind):
        first, *rest = field.name.split("_")
        key = field.metadata.get("key") or first + "".join(map(str.capitalize, rest))
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        found[field.name] = key, is_required, field.type
    return found


@functools.cache
def _decoder_of_field(kind: Any, name: str) -> Decoder:
    # Only of this field: others may have annotations that are for type checkers only.
    annotation = _fields_of(kind)[name][2]
    space = vars(sys.modules[kind.__module__])
    hints = get_type_hints(types.SimpleNamespace(__annotations__={name: annotation}), space, include_extras=True)
    return decoder_of(hints[name])


def _decode_fields(kind: Any, value: Any, extra: Mapping[str, Any]) -> Any:  # JSON; of that kind
    if not isinstance(value, dict):
        raise _unexpected("an object", value)
    values: dict[str, Any] = {}
    for name, (key, is_required, _) in _fields_of(kind).items():
        if name in extra:
            continue
        if key in value:
            try:
                values[name] = _decoder_of_field(kind, name)(value[key])
            except ShapeError as error:
                raise error.below(key) from error
        elif is_required:
            raise ShapeError(f"`{key}` is missing")
    return kind(**values, **extra)


def _tuple_decoder(arguments: tuple[Any, ...], bounds: tuple[Any, ...]) -> Decoder:
    if arguments[1:] == (...,):
        each, most = decoder_of(arguments[0]), _bound(bounds, Most, Most(_MOST)).count
        return lambda value: _items(value, lambda _: each, most=most)
    parts = [decoder_of(_annotated(argument, bounds)) for argument in arguments]

    def decode_parts(value: Any) -> tuple[Any, ...]:
        if isinstance(value, list) and len(value) != len(parts):
            raise ShapeError(f"{len(value)} values where {len(parts)} are expected")
        return _items(value, parts.__getitem__, most=len(parts))

    return decode_parts


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


def _text(value: Any, rule: Text) -> str:
    text = _string(value)
    if len(text) > rule.longest:
        raise ShapeError(f"{len(text)} characters where at most {rule.longest} are expected")
    if rule.pattern and not re.fullmatch(rule.pattern, text, re.ASCII):
        raise _unexpected(rule.words or "another text", value)
    return text


def _choice(value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _unexpected(" or ".join(allowed), value)
    return value


def _unexpected(expected: str, value: object) -> ShapeError:
    return ShapeError(f"expected {expected}, got {preview(value)}")
