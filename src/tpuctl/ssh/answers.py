"""Parse the answers of workers against a schema: types, ranges and sizes. Pure.

Workers are not trusted. These functions parse all data from a worker before other code sees it, and raise
`UnexpectedAnswerError` for data that does not fit. `where` names the value in that error: `jobs[3].age`.
"""

from __future__ import annotations

import json
import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tpuctl.decoding import MAX_BYTES, ShapeError, decode
from tpuctl.errors import RemoteCommandError
from tpuctl.escaping import one_line, preview

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# A login shell may print a message of the day before the answer; reading stops after this many bytes.
MAX_LOGIN_BANNER = 1 << 20
_MAX_PATH = 4096  # bytes: PATH_MAX of Linux
# For durations and timestamps, in seconds: a thousand years, which `timedelta` and `datetime` can hold.
_MAX_SECONDS = 1000 * 365 * 86400
_MAX_ANSWER = 4 << 20
_MAX_DEPTH = 32
_T = TypeVar("_T")
_DECIMAL = re.compile(rb"[0-9]{1,19}")
_MAX_DIGITS = 25
_BRACKET = re.compile(r"[\[\]{}]")


class UnexpectedAnswerError(RemoteCommandError):
    """The answer of a worker violates the protocol or its schema. `what` describes the problem in one line."""

    kind = "unexpected_answer"

    def __init__(self, what: str, *, worker: str | None = None, hint: str | None = None) -> None:
        self.what = what
        super().__init__(
            f"unexpected answer from {'a worker' if worker is None else f'worker {worker}'}: {what}", hint=hint
        )

    def of(self, worker: str, *, hint: str | None = None) -> UnexpectedAnswerError:
        """Return the same error with the label of the worker."""
        return UnexpectedAnswerError(self.what, worker=worker, hint=hint)


def parse_answer(data: bytes | str, *, longest: int = _MAX_ANSWER, deepest: int = _MAX_DEPTH) -> Any:
    """Parse a JSON text. Checks its size and depth before it builds any value.

    Raises `UnexpectedAnswerError`.
    """
    if len(data) > longest:
        raise UnexpectedAnswerError(f"{len(data)} bytes where at most {longest} are expected")
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise UnexpectedAnswerError(f"not UTF-8: {preview(data)}") from error
    # Most answers have fewer brackets than the limit, so they cannot be nested deeper.
    if text.count("[") + text.count("{") > deepest:
        depth = 0
        # Brackets inside strings do not nest.
        outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
        for bracket in _BRACKET.finditer(outside):
            depth += 1 if bracket[0] in "[{" else -1
            if depth > deepest:
                raise UnexpectedAnswerError(f"JSON nested more than {deepest} deep")
    try:
        return json.loads(text, parse_int=_json_integer, parse_float=_json_float, parse_constant=_reject_constant)
    except ValueError as error:
        raise UnexpectedAnswerError(f"not JSON: {preview(text)}") from error


def decode_answer(kind: type[_T], value: Any, where: str = "the answer", **extra: Any) -> _T:
    """Return the answer of a worker as a value of a type; see `tpuctl.decoding`. Raises `UnexpectedAnswerError`."""
    try:
        return decode(kind, value, **extra)
    except ShapeError as error:
        place = f"{where}{'' if error.path[:1] in {'', '['} else '.'}{error.path}"
        raise UnexpectedAnswerError(f"{place}: {error.shown}") from error


class JsonFields:
    """A JSON object whose fields are parsed one at a time."""

    def __init__(self, value: Any, where: str) -> None:
        self._value, self._where = parse_object(value, where), where

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def get(self, name: str, parse: Callable[..., _T], **bounds: Any) -> _T:
        """Parse a required field with `parse`, a function like those of this module."""
        return parse(require_field(self._value, name, self._where), f"{self._where}.{name}", **bounds)

    def optional(self, name: str, parse: Callable[..., _T], **bounds: Any) -> _T | None:
        """Parse a required field that may be null. None if it is null."""
        return None if require_field(self._value, name, self._where) is None else self.get(name, parse, **bounds)

    def each(self, name: str, parse: Callable[..., _T], *, most: int, **bounds: Any) -> tuple[_T, ...]:
        """Parse a required array of at most `most` values."""
        values = self.get(name, parse_array, most=most)
        return tuple(parse(one, f"{self._where}.{name}[{at}]", **bounds) for at, one in enumerate(values))


def parse_object(value: Any, where: str) -> dict[str, Any]:
    """Check that a JSON value is an object, and return it."""
    if not isinstance(value, dict):
        _reject(where, "an object", value)
    return value


def require_field(value: dict[str, Any], name: str, where: str) -> Any:
    """Return a required field of an object."""
    if name not in value:
        raise UnexpectedAnswerError(f"{where}: `{name}` is missing")
    return value[name]


def parse_array(value: Any, where: str, *, most: int) -> list[Any]:
    """Check that a JSON value is an array of at most `most` values, and return it."""
    if not isinstance(value, list):
        _reject(where, "a list", value)
    if len(value) > most:
        raise UnexpectedAnswerError(f"{where}: {len(value)} values where at most {most} are expected")
    return value


def parse_integer(value: Any, where: str, *, low: int = 0, high: int = MAX_BYTES) -> int:
    """Check that a JSON value is an integer between `low` and `high`, and return it."""
    if not isinstance(value, int) or isinstance(value, bool):
        _reject(where, "an integer", value)
    if not low <= value <= high:
        _reject(where, f"{low} to {high}", value)
    return value


def parse_decimal(value: bytes, where: str, *, low: int = 0, high: int = MAX_BYTES) -> int:
    """Parse ASCII digits as an integer between `low` and `high`."""
    if not _DECIMAL.fullmatch(value):
        _reject(where, "an integer", value)
    return parse_integer(int(value), where, low=low, high=high)


def parse_number(value: Any, where: str, *, low: float, high: float) -> float:
    """Check that a JSON value is a finite number between `low` and `high`, and return it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _reject(where, "a number", value)
    if not low <= value <= high:
        _reject(where, f"{low:g} to {high:g}", value)
    return float(value)


def parse_seconds(value: Any, where: str, *, low: float = 0, high: float = _MAX_SECONDS) -> timedelta:
    """Parse a JSON number of seconds as a duration."""
    return timedelta(seconds=parse_number(value, where, low=low, high=high))


def parse_path(value: Any, where: str) -> str:
    """Check that a JSON value is a valid path, and return it. Surrogates stand for bytes that are not UTF-8."""
    text = parse_string(value, where, longest=_MAX_PATH)
    try:
        size = len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _MAX_PATH or "\0" in text:
        _reject(where, "a path", value)
    return text


def parse_boolean(value: Any, where: str) -> bool:
    """Check that a JSON value is a boolean, and return it."""
    if not isinstance(value, bool):
        _reject(where, "true or false", value)
    return value


def parse_string(value: Any, where: str, *, longest: int) -> str:
    """Check that a JSON value is a string of at most `longest` characters. Control characters stay: see `one_line`."""
    if not isinstance(value, str):
        _reject(where, "a string", value)
    if len(value) > longest:
        raise UnexpectedAnswerError(f"{where}: {len(value)} characters where at most {longest} are expected")
    return value


def parse_line(value: Any, where: str, *, longest: int = 1000) -> str:
    """Return a JSON string as one line, cut to `longest` characters; control characters are escaped."""
    return one_line(parse_string(value, where, longest=_MAX_ANSWER), longest=longest)


def parse_choice(value: Any, where: str, allowed: Collection[str]) -> str:
    """Check that a JSON value is one of the allowed strings, and return it."""
    if not isinstance(value, str) or value not in allowed:
        _reject(where, " or ".join(allowed), value)
    return value


def _reject(where: str, expected: str, value: object) -> NoReturn:
    raise UnexpectedAnswerError(f"{where}: expected {expected}, got {preview(value)}")


def _json_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise UnexpectedAnswerError(f"a number of {len(text)} digits")
    return int(text)


def _json_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnexpectedAnswerError(f"a number that is not finite: {preview(text)}")
    return value


def _reject_constant(text: str) -> NoReturn:
    raise UnexpectedAnswerError(f"a number that is not finite: {preview(text)}")
