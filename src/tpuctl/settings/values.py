"""Reading the text of a setting as what it means. Raises `ValueError` in words; the caller adds place and key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from tpuctl.clock import parse_duration
from tpuctl.names import nearest
from tpuctl.settings.table import SettingSpec, ValueKind

# Scalars stay the text that was written: `version: 1.10` is not a number, `off` may be a label's value.
Value = str | tuple[str, ...] | Mapping[str, str]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def check_value(spec: SettingSpec, value: Value) -> None:
    """Return if the value can be read as the setting's kind; raise `ValueError` saying why not."""
    match spec.kind:
        case ValueKind.BOOLEAN:
            as_boolean(value)
        case ValueKind.NUMBER:
            as_number(value)
        case ValueKind.DURATION:
            as_duration(value)
        case ValueKind.LIST:
            as_items(spec, value)
        case ValueKind.PAIRS:
            as_pairs(spec, value)
        case ValueKind.TEXT:
            as_text(spec, value)
        case ValueKind.PATH:
            as_text(spec, value)


def check_shape(spec: SettingSpec, value: Value) -> None:
    """Return if a file's value has the form of the setting: one value, a list or a mapping; else `ValueError`."""
    if isinstance(value, Mapping) and spec.kind is not ValueKind.PAIRS:
        raise ValueError("this is a mapping; " + _wanted(spec))
    if isinstance(value, tuple) and spec.kind is not ValueKind.LIST:
        raise ValueError("this is a list; " + _wanted(spec))
    if isinstance(value, str) and spec.kind is ValueKind.PAIRS:
        raise ValueError(_wanted(spec))


def as_text(spec: SettingSpec, value: Value) -> str:
    """Return one text, one of the choices where the setting has some."""
    text = _scalar(value)
    if not text and not spec.may_be_empty:
        raise ValueError("it is empty")
    if spec.choices and text not in spec.choices:
        guess = nearest(text, spec.choices)
        meant = f"; did you mean `{guess}`?" if guess else ""
        raise ValueError(f"it must be one of {', '.join(spec.choices)}{meant}")
    return text


def as_boolean(value: Value) -> bool:
    """Return whether the text means yes. An empty text means no."""
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


def as_duration(value: Value) -> timedelta:
    """Return a duration; a bare number is seconds."""
    try:
        return parse_duration(_scalar(value))
    except (ValueError, OverflowError):
        raise ValueError("it must be a duration like 90s, 30m, 2h or 1h30m") from None


def as_items(spec: SettingSpec, value: Value) -> tuple[str, ...]:
    """Return the items of a list, or of a text that the setting's separator splits."""
    if isinstance(value, Mapping):
        raise ValueError(_wanted(spec))  # noqa: TRY004  # one exception class for every unreadable value
    items = value if isinstance(value, tuple) else tuple(value.split(spec.separator))
    return tuple(item.strip() for item in items if item.strip())


def as_pairs(spec: SettingSpec, value: Value) -> dict[str, str]:
    """Return a mapping, also from texts like `a=1,b=2`."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = {}
    # Items of a list are whole pairs: only there may a value hold the separator.
    for item in value if isinstance(value, tuple) else as_items(spec, value):
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ValueError("it must be KEY=VALUE pairs")
        pairs[key.strip()] = text
    return pairs


def as_path(spec: SettingSpec, value: Value, *, folder: Path | None, home: Path | None) -> Path:
    """Return a path; relative ones of a file are relative to that file's folder, `~` is the home folder."""
    text = as_text(spec, value)
    if home and (text == "~" or text.startswith("~/")):
        return home / text[2:]
    return folder / text if folder else Path(text)


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
        case _:
            return "it must be one value"
