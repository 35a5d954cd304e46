"""The id of a row of a table, from its values: what is not a default, shortened."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from types import FunctionType
from typing import Any, Final

_LONGEST: Final = 90
# The same in nearly all rows.
_USUAL: Final = frozenset({"now", "name", "project", "zone", "node_id", "id", "acceleratorType", "networkEndpoints"})


def row_id(value: object) -> str | None:
    """Return the id of one value of a row, or None if pytest's own id is as good."""
    if value is None or isinstance(value, bool | int | float | complex | bytes | Enum):
        return None
    if isinstance(value, str) and value and len(value) < _LONGEST and value.isprintable():
        return None
    text = " ".join(_words(value).split()) or "empty"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


def _words(value: Any) -> str:
    match value:
        case Enum():
            return str(value.name)
        case str():
            return value
        case timedelta():
            return _duration(value)
        case datetime() | date():
            return value.isoformat()
        case Mapping():
            return ", ".join(f"{_words(key)}: {_words(one)}" for key, one in value.items())
        case Set():
            return "{" + ", ".join(sorted(map(_words, value))) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_words, value)) + "]"
        case FunctionType():
            # A lambda is named by the attributes that it reads.
            return ".".join(value.__code__.co_names) if value.__name__ == "<lambda>" else value.__name__
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__ if "object at 0x" in repr(value) else str(value)


def _fields(value: Any) -> str:
    """Return the fields that make this row another; of a noun of the API its JSON."""
    if isinstance(raw := getattr(value, "raw", None), Mapping):
        shown = [f"{key}: {_words(one)}" for key, one in raw.items() if key not in _USUAL]
    else:
        special = [field for field in fields(value) if _is_special(value, field)]
        telling = [field for field in special if field.name not in _USUAL] or special
        shown = [f"{field.name}={_words(getattr(value, field.name))}" for field in telling]
    return f"{type(value).__name__}({', '.join(shown)})"


def _is_special(value: Any, field: Field[Any]) -> bool:
    """Return whether a field is shown and has another value than its default."""
    if not field.repr:
        return False
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(value, field.name) != default)


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
