"""Parse the answers of workers against a schema: types, ranges and sizes. Pure.

Workers are not trusted. These functions parse all data from a worker before other code sees it, and raise
`UnexpectedAnswerError` for data that does not fit. `where` names the value in that error: `jobs[3].age`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, NoReturn, TypeVar

from tpuctl.decoding import MAX_BYTES, By, ShapeError, decode
from tpuctl.errors import RemoteCommandError
from tpuctl.escaping import preview

# A login shell may print a message of the day before the answer; reading stops after this many bytes.
MAX_LOGIN_BANNER = 1 << 20
_MAX_PATH = 4096  # bytes: PATH_MAX of Linux
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


def parse_decimal(value: bytes, where: str, *, low: int = 0, high: int = MAX_BYTES) -> int:
    """Parse ASCII digits as an integer between `low` and `high`. Raises `UnexpectedAnswerError`."""
    if not _DECIMAL.fullmatch(value):
        raise UnexpectedAnswerError(f"{where}: expected an integer, got {preview(value)}")
    if not low <= int(value) <= high:
        raise UnexpectedAnswerError(f"{where}: expected {low} to {high}, got {int(value)}")
    return int(value)


def _path(value: Any) -> str:  # JSON
    try:
        size = len(value.encode("utf-8", "surrogateescape")) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _MAX_PATH or "\0" in value:
        raise ShapeError(f"expected a path, got {preview(value)}")
    text: str = value
    return text


# Surrogates stand for bytes that are not UTF-8.
WorkerPath = Annotated[str, By(_path)]


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
