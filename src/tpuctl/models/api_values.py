"""The types of values in the API's answers, for the annotations of models.

Unknown values of an enum are accepted: the service may be newer than this version.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, Self

from tpuctl.decoding import By, Most, ShapeError, Text, decoder_of
from tpuctl.durations import parse_timestamp
from tpuctl.names import NodeName, last_segment

Json = Mapping[str, Any]

_DECIMAL: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DURATION: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?s", re.ASCII)
# The ids of nodes [API v2, NodeSpec.nodeId], and the colon of a project of a domain.
_SEGMENT: Final = r"[A-Za-z0-9_~+%][A-Za-z0-9._:~+%-]{0,249}"

ApiText = Annotated[str, Text()]
# A predefined role has 10,000 permissions.
ApiTexts = Annotated[tuple[ApiText, ...], Most(1 << 20)]
Segment = Annotated[str, Text(pattern=_SEGMENT, words="a name")]
# An empty text means absent.
NodeId = Annotated[str, Text(pattern=f"(?:{_SEGMENT})?", words="the name of a node")]
# A part of a name enters URLs, paths of files and argvs.
ResourceName = Annotated[
    str,
    Text(
        pattern=rf"projects/{_SEGMENT}/locations/{_SEGMENT}/[A-Za-z]{{1,64}}/{_SEGMENT}[0-9-]{{0,9}}",
        words="a full resource name",
    ),
]


def api_integer(words: str = "a whole number", low: float = -math.inf, high: float = math.inf) -> Callable[[Any], int]:
    """Return the decoder of integers: the API writes numbers of 64 bits as text [documentation of proto3 JSON]."""
    return partial(_integer, words=words, low=low, high=high)


def _integer(value: Any, words: str, low: float, high: float) -> int:
    is_integer = _DECIMAL.fullmatch(value) if type(value) is str else type(value) is int  # the parser bounds the digits
    if not is_integer or not low <= int(value) <= high:
        raise ShapeError(f"expected {words}")
    return int(value)


def _number(value: Any) -> float:
    try:
        if type(value) in {int, float, str} and math.isfinite(float(value)):
            return float(value)
    except ValueError:
        pass
    raise ShapeError("expected a number")


def _time(value: Any) -> datetime | None:
    """Return a time; None for an empty text, which means absent."""
    try:
        # Years at the ends of the calendar overflow as soon as an hour is added or a time zone applied.
        if value == "" or 2 <= datetime.fromisoformat(value).year <= 9998:
            return parse_timestamp(value)
    except (TypeError, ValueError):
        pass
    raise ShapeError("expected a time like 2026-01-31T08:00:00Z")


def _duration(value: Any) -> timedelta:
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ShapeError("expected a number of seconds like 3600s")
    return timedelta(seconds=float(value[:-1]))


_read_text = decoder_of(ApiText)
_read_integer = api_integer()
_read_name = decoder_of(ResourceName)
_read_address = decoder_of(Annotated[str, Text(pattern=r"(?:[0-9A-Fa-f.:]{2,45})?", words="an IP address")])


def _node_name(value: Any) -> NodeName:
    _, project, _, zone, _, node_id = _read_name(value).split("/")
    return NodeName(project, zone, node_id)


def _pairs(value: Any) -> Mapping[str, str]:
    """Return the labels, or other texts by their keys, as they are."""
    for key, text in an_object(value).items():
        try:
            _read_text(text)
        except ShapeError as error:
            raise error.below(key) from error
    pairs: Mapping[str, str] = value
    return pairs


def an_object(value: Any) -> Json:
    """Return a JSON object of any keys, as it is. Raises `ShapeError`."""
    if not isinstance(value, dict):
        raise ShapeError("expected an object")
    decoder_of(Any)(value)
    checked: Json = value
    return checked


ApiInteger = Annotated[int, By(_read_integer)]
ApiCount = Annotated[int, By(api_integer("a whole number, not negative", 0))]
# More seconds would overflow the calendar.
ApiSeconds = Annotated[
    timedelta,
    By(lambda value: timedelta(seconds=_integer(value, "a number of seconds", 0, 10**10 - 1))),
]
# A number that is an id.
ApiNumber = Annotated[str, By(lambda value: str(_read_integer(value) or ""))]
ApiFloat = Annotated[float, By(_number)]
ApiTime = Annotated[datetime | None, By(_time)]
# A text that counts as absent if it is no time.
ShownTime = Annotated[datetime | None, By(lambda value: parse_timestamp(_read_text(value)))]
ApiDuration = Annotated[timedelta, By(_duration)]
Address = Annotated[str | None, By(lambda value: _read_address(value) or None)]
# An empty text means absent.
OptionalText = Annotated[str | None, By(lambda value: _read_text(value) or None)]
ApiPairs = Annotated[Mapping[str, str], By(_pairs)]
ApiObject = Annotated[Json, By(an_object)]
ResourceOfNode = Annotated[NodeName, By(_node_name)]
# The last part of a link or a path, and those of several.
LastSegment = Annotated[str, By(lambda value: last_segment(_read_text(value)))]
LastSegments = Annotated[tuple[LastSegment, ...], Most(1 << 20)]


class ApiEnum(StrEnum):
    """An enum of the API.

    A value unknown to this version is kept: `NodeState("NEW_STATE")` is equal to its text, and not `is_known`.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self:
        text = str(value)
        member = str.__new__(cls, text)
        member._name_ = text
        member._value_ = text
        return member

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return a text as a value; an empty one is the first, unspecified value. Raises `ShapeError`."""
        return cls(_read_text(value) or next(iter(cls)))

    @property
    def is_known(self) -> bool:
        """Return whether this version of tpuctl knows the value."""
        return self.value in type(self)._value2member_map_
