"""What workers answer, parsed against a schema: types, ranges and sizes. Pure.

A worker is not trusted: whatever it sends is parsed by these functions before anything else sees it. What does not fit is one
error, `UnexpectedAnswerError`. `where` names the value in that error: `jobs[3].age`.
"""

from __future__ import annotations

import json
import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tpuctl.errors import RemoteCommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# Sizes and offsets of files are signed 64-bit numbers for every kernel.
MOST_BYTES = 2**63 - 1
# A login may print a message of the day before the answer; no more of it is read.
LONGEST_BANNER = 1 << 20
_LONGEST_PATH = 4096  # bytes: PATH_MAX of Linux
# Durations and points in time that workers measure: a thousand years, which every type of ours can hold.
_LONGEST_TIME = 1000 * 365 * 86400
_LONGEST_ANSWER = 4 << 20
_DEEPEST = 32
_LONGEST_SHOWN = 80
_T = TypeVar("_T")
_DECIMAL = re.compile(rb"[0-9]{1,19}")
_LONGEST_NUMBER = 25
_BRACKET = re.compile(r"[\[\]{}]")


class UnexpectedAnswerError(RemoteCommandError):
    """A worker's answer breaks the protocol or does not fit its schema. `what` says what was unexpected, in one line."""

    kind = "unexpected_answer"

    def __init__(self, what: str, *, worker: str | None = None, hint: str | None = None) -> None:
        self.what = what
        super().__init__(
            f"unexpected answer from {'a worker' if worker is None else f'worker {worker}'}: {what}", hint=hint
        )

    def of(self, worker: str, *, hint: str | None = None) -> UnexpectedAnswerError:
        """Return the same error with the worker's label in it."""
        return UnexpectedAnswerError(self.what, worker=worker, hint=hint)


def parse_json(data: bytes | str, *, longest: int = _LONGEST_ANSWER, deepest: int = _DEEPEST) -> Any:
    """Return what a JSON text holds; size and depth are checked before any of it is built.

    Raises `UnexpectedAnswerError`.
    """
    if len(data) > longest:
        raise UnexpectedAnswerError(f"{len(data)} bytes where at most {longest} are expected")
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise UnexpectedAnswerError(f"not UTF-8: {shown(data)}") from error
    # Most answers are short: with so few brackets they cannot nest deeper.
    if text.count("[") + text.count("{") > deepest:
        _check_depth(text, deepest)
    try:
        return json.loads(text, parse_int=_json_integer, parse_float=_json_float, parse_constant=_json_constant)
    except ValueError as error:
        raise UnexpectedAnswerError(f"not JSON: {shown(text)}") from error


def _check_depth(text: str, deepest: int) -> None:
    depth = 0
    # Strings may hold brackets, too: only what stands outside of them nests.
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    for bracket in _BRACKET.finditer(outside):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > deepest:
            raise UnexpectedAnswerError(f"JSON nested more than {deepest} deep")


class Fields:
    """A JSON object whose values are parsed one by one."""

    def __init__(self, value: Any, where: str) -> None:
        self._value, self._where = record(value, where), where

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def get(self, name: str, parse: Callable[..., _T], **bounds: Any) -> _T:
        """Return a value that the object must have, parsed by a function of this module, or one like them."""
        return parse(member_of(self._value, name, self._where), f"{self._where}.{name}", **bounds)

    def optional(self, name: str, parse: Callable[..., _T], **bounds: Any) -> _T | None:
        """Return a value that may be null, or None."""
        return None if member_of(self._value, name, self._where) is None else self.get(name, parse, **bounds)

    def each(self, name: str, parse: Callable[..., _T], *, most: int, **bounds: Any) -> tuple[_T, ...]:
        """Return the parsed values of an array of at most so many."""
        values = self.get(name, array, most=most)
        return tuple(parse(one, f"{self._where}.{name}[{at}]", **bounds) for at, one in enumerate(values))


def record(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        _reject(where, "an object", value)
    return value


def member_of(value: dict[str, Any], name: str, where: str) -> Any:
    """Return a value that an object must have."""
    if name not in value:
        raise UnexpectedAnswerError(f"{where}: `{name}` is missing")
    return value[name]


def array(value: Any, where: str, *, most: int) -> list[Any]:
    """Return a JSON array of at most so many values."""
    if not isinstance(value, list):
        _reject(where, "a list", value)
    if len(value) > most:
        raise UnexpectedAnswerError(f"{where}: {len(value)} values where at most {most} are expected")
    return value


def integer(value: Any, where: str, *, low: int = 0, high: int = MOST_BYTES) -> int:
    """Return an integer of JSON within a range."""
    if not isinstance(value, int) or isinstance(value, bool):
        _reject(where, "an integer", value)
    if not low <= value <= high:
        _reject(where, f"{low} to {high}", value)
    return value


def decimal(value: bytes, where: str, *, low: int = 0, high: int = MOST_BYTES) -> int:
    """Return the integer that ASCII digits are."""
    if not _DECIMAL.fullmatch(value):
        _reject(where, "an integer", value)
    return integer(int(value), where, low=low, high=high)


def number(value: Any, where: str, *, low: float, high: float) -> float:
    """Return a finite number of JSON within a range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _reject(where, "a number", value)
    if not low <= value <= high:
        _reject(where, f"{low:g} to {high:g}", value)
    return float(value)


def seconds(value: Any, where: str, *, low: float = 0, high: float = _LONGEST_TIME) -> timedelta:
    """Return a duration that JSON gives in seconds."""
    return timedelta(seconds=number(value, where, low=low, high=high))


def file_name(value: Any, where: str) -> str:
    """Return a path of JSON, in which surrogates stand for bytes that are no UTF-8; one that a system call takes."""
    text = string(value, where, longest=_LONGEST_PATH)
    try:
        size = len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST_PATH or "\0" in text:
        _reject(where, "a path", value)
    return text


def boolean(value: Any, where: str) -> bool:
    """Return a boolean of JSON."""
    if not isinstance(value, bool):
        _reject(where, "true or false", value)
    return value


def string(value: Any, where: str, *, longest: int) -> str:
    """Return a string of JSON of at most so many characters. It may hold control characters: `one_line` shows them."""
    if not isinstance(value, str):
        _reject(where, "a string", value)
    if len(value) > longest:
        raise UnexpectedAnswerError(f"{where}: {len(value)} characters where at most {longest} are expected")
    return value


def line(value: Any, where: str, *, longest: int = 1000) -> str:
    """Return a string of JSON as one line without anything that a terminal would obey, cut to so many characters."""
    return one_line(string(value, where, longest=_LONGEST_ANSWER), longest=longest)


def choice(value: Any, where: str, allowed: Collection[str]) -> str:
    """Return one of several strings."""
    if not isinstance(value, str) or value not in allowed:
        _reject(where, " or ".join(allowed), value)
    return value


def one_line(text: str, *, longest: int = 1000) -> str:
    """Return a text of a worker as one line without anything that a terminal would obey, and not too long."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: longest + 1])
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def shown(value: object) -> str:
    """Return what an error shows of a value: its beginning where it is text or a number, else only its type."""
    match value:
        case bytes():
            text = value[: 2 * _LONGEST_SHOWN].decode(errors="backslashreplace")
        case str():
            text = value[: 2 * _LONGEST_SHOWN]
        case None | bool() | float():
            return str(value)
        case int():
            # str() refuses an integer of more than 4,300 digits.
            return str(value) if value.bit_length() < 4 * _LONGEST_SHOWN else f"a number of {value.bit_length()} bits"
        case list():
            return "a list"
        case _:
            return "an object"
    return f"`{one_line(text, longest=_LONGEST_SHOWN)}`"


def _reject(where: str, expected: str, value: object) -> NoReturn:
    raise UnexpectedAnswerError(f"{where}: expected {expected}, got {shown(value)}")


def _json_integer(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise UnexpectedAnswerError(f"a number of {len(text)} digits")
    return int(text)


def _json_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnexpectedAnswerError(f"a number that is not finite: {shown(text)}")
    return value


def _json_constant(text: str) -> NoReturn:
    raise UnexpectedAnswerError(f"a number that is not finite: {shown(text)}")
