"""Convert the text of a setting to its type. Raises `ValueError` with the reason; the caller adds source and key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.clock import format_duration, parse_duration
from tpuctl.names import nearest
from tpuctl.settings.table import SettingSpec, ValueKind

if TYPE_CHECKING:
    from tpuctl.preflight.grants import Grant

# Scalars stay text as written: `version: 1.10` is not a number, `off` may be the value of a label.
Record = Mapping[str, str]
Value = str | tuple[str, ...] | Record | tuple[Record, ...]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgtp]?)(i?)b?")
_PREFIXES = " kmgtp"
# Control characters, two separators that some programs take for line ends, and surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A script may have tabs, line ends and color codes, but not these.
_NEVER = re.compile("[\x00\ud800-\udfff]")


def check_value(spec: SettingSpec, value: Value) -> None:
    """Check that a value is valid for the type of the setting. Raises `ValueError` with the reason."""
    match spec.kind:
        case ValueKind.BOOLEAN:
            as_boolean(value)
        case ValueKind.NUMBER:
            as_number(value)
        case ValueKind.DURATION:
            as_duration(spec, value)
        case ValueKind.LIST:
            as_items(spec, value)
        case ValueKind.PAIRS:
            as_pairs(spec, value)
        case ValueKind.TEXT:
            as_text(spec, value)
        case ValueKind.PATH:
            as_text(spec, value)
        case ValueKind.SIZE:
            as_size(value)
        case ValueKind.RECORDS:
            as_grants(spec, value)


def check_shape(spec: SettingSpec, value: Value) -> None:
    """Check that a value in a file has the form of the setting: one value, a list or a mapping. Raises `ValueError`."""
    if isinstance(value, Mapping) and spec.kind is not ValueKind.PAIRS:
        raise ValueError("this is a mapping; " + _wanted(spec))
    if isinstance(value, tuple) and spec.kind not in {ValueKind.LIST, ValueKind.RECORDS}:
        raise ValueError("this is a list; " + _wanted(spec))
    if isinstance(value, str) and spec.kind in {ValueKind.PAIRS, ValueKind.RECORDS}:
        raise ValueError(_wanted(spec))


def as_text(spec: SettingSpec, value: Value) -> str:
    """Return a text; one of the choices if the setting has choices."""
    text = _scalar(value)
    if not text and not spec.may_be_empty:
        raise ValueError("it is empty")
    # It may become a header, a part of a URL, an argument or a path, where these are not allowed.
    if (_NEVER if spec.has_lines else _UNPRINTABLE).search(text):
        raise ValueError("it has control characters")
    if spec.choices and text not in spec.choices:
        guess = nearest(text, spec.choices)
        meant = f"; did you mean `{guess}`?" if guess else ""
        raise ValueError(f"it must be one of {', '.join(spec.choices)}{meant}")
    return text


def as_boolean(value: Value) -> bool:
    """Return a boolean. An empty text is false."""
    text = _scalar(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("it must be true or false")


def as_number(value: Value) -> int:
    """Return a whole number that is not negative."""
    text = _scalar(value).strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("it must be a whole number, 0 or more")
    return int(text)


def as_duration(spec: SettingSpec, value: Value) -> timedelta:
    """Return a duration, within the limits of the setting; a bare number is seconds."""
    try:
        duration = parse_duration(_scalar(value))
    except (ValueError, OverflowError):
        raise ValueError("it must be a duration like 90s, 30m, 2h or 1h30m") from None
    if spec.shortest is not None and duration < spec.shortest:
        raise ValueError(f"it must be at least {spec.shortest.total_seconds():g}s")
    if spec.longest is not None and duration > spec.longest:
        raise ValueError(f"it must be at most {format_duration(spec.longest)}")
    return duration


def as_items(spec: SettingSpec, value: Value) -> tuple[str, ...]:
    """Return the items of a list, or of a text split by the separator of the setting."""
    if isinstance(value, Mapping):
        raise ValueError(_wanted(spec))  # noqa: TRY004  # one exception class for every unreadable value
    items = _texts(spec, value) if isinstance(value, tuple) else tuple(value.split(spec.separator))
    return tuple(item.strip() for item in items if item.strip())


def as_pairs(spec: SettingSpec, value: Value) -> dict[str, str]:
    """Return a mapping, also from texts like `a=1,b=2`."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = {}
    # Items of a list are whole pairs: only there may a value contain the separator.
    for item in _texts(spec, value) if isinstance(value, tuple) else as_items(spec, value):
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ValueError("it must be KEY=VALUE pairs")
        pairs[key.strip()] = text
    return pairs


def as_size(value: Value) -> int:
    """Return a number of bytes: `1.2TB` is decimal, `500GiB` binary; a bare number is bytes."""
    match = _SIZE.fullmatch(_scalar(value).strip().lower())
    if not match or (match[3] and not match[2]):
        raise ValueError("it must be a size like 1.2TB or 500GiB")
    number, prefix, binary = match.groups()
    return int(Decimal(number) * (1024 if binary else 1000) ** _PREFIXES.index(prefix or " "))


def as_records(spec: SettingSpec, value: Value) -> tuple[dict[str, str], ...]:
    """Return records, also from a text like `zone=a,type=b;zone=c,type=d`. Their keys are checked, not their values."""
    if isinstance(value, Mapping):
        raise ValueError(_wanted(spec))  # noqa: TRY004  # one exception class for every unreadable value
    items: tuple[str | Record, ...] = value if isinstance(value, tuple) else tuple(value.split(spec.separator))
    return tuple(as_record(spec, item) for item in items if not isinstance(item, str) or item.strip())


def as_record(spec: SettingSpec, item: str | Record) -> dict[str, str]:
    """Return one record, from a mapping or a text like `zone=a,type=b`."""
    record: dict[str, str] = dict(item) if isinstance(item, Mapping) else {}
    for part in item.split(",") if isinstance(item, str) else ():
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"`{part.strip()}` is not KEY=VALUE")
        if key.strip() in record:
            raise ValueError(f"`{key.strip()}` is given twice")
        record[key.strip()] = text.strip()
    for key in record:
        check_field(spec, key)
    lacking = [f"`{key}`" for key in spec.fields if key not in {*record, *spec.optional_fields}]
    if lacking:
        raise ValueError(f"it lacks {', '.join(lacking)}; an entry has {', '.join(spec.fields)}")
    return record


def check_field(spec: SettingSpec, key: str) -> None:
    """Check that a record may have this key. Raises `ValueError` with the most similar known one."""
    if key not in spec.fields:
        guess = nearest(key, spec.fields)
        raise ValueError(
            f"unknown key `{key}`; " + (f"did you mean `{guess}`?" if guess else f"known are {', '.join(spec.fields)}")
        )


def as_grants(spec: SettingSpec, value: Value) -> tuple[Grant, ...]:
    """Return grants."""
    from tpuctl.preflight.grants import Grant  # noqa: PLC0415  # few have any

    return tuple(Grant.parse(record) for record in as_records(spec, value))


def as_path(spec: SettingSpec, value: Value, *, folder: Path | None, home: Path | None) -> Path:
    """Return a path; one in a file is relative to the folder of that file, `~` is the home folder."""
    text = as_text(spec, value)
    if home and (text == "~" or text.startswith("~/")):
        return home / text[2:]
    return folder / text if folder else Path(text)


def _texts(spec: SettingSpec, items: tuple[str, ...] | tuple[Record, ...]) -> tuple[str, ...]:
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) < len(items):
        raise ValueError(_wanted(spec))
    return texts


def _scalar(value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be one value")  # noqa: TRY004  # one exception class for every unreadable value
    return value


def _wanted(spec: SettingSpec) -> str:
    match spec.kind:
        case ValueKind.PAIRS:
            return "it must be a mapping of keys to values"
        case ValueKind.LIST:
            return "it must be a list"
        case ValueKind.RECORDS:
            return f"it must be a list of entries with {', '.join(spec.fields)}"
        case _:
            return "it must be one value"
