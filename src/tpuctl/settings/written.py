"""Parse the value of a setting from a command line, and render it as one line of YAML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tpuctl.settings.table import ValueKind
from tpuctl.settings.values import as_items, as_pairs, as_records

if TYPE_CHECKING:
    from tpuctl.settings.table import SettingSpec
    from tpuctl.settings.values import Value

_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./@+=-]*(?::[A-Za-z0-9_./@+=-]+)*")
# JSON's escapes are valid in YAML, but YAML folds these at the end of a line, or does not print them.
_ESCAPES = {0x7F: "\\x7f", 0x85: "\\N", 0x2028: "\\L", 0x2029: "\\P"}


def structured(spec: SettingSpec, value: str) -> Value:
    """Parse a value written as on the command line. Raises `ValueError` with the reason."""
    match spec.kind:
        case ValueKind.LIST:
            return as_items(spec, value)
        case ValueKind.PAIRS:
            return as_pairs(spec, value)
        case ValueKind.RECORDS:
            return as_records(spec, value)
        case _:
            return value


def render(value: Value) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() != "null"
        return value if plain else json.dumps(value, ensure_ascii=False).translate(_ESCAPES)
    if isinstance(value, tuple):
        return "[" + ", ".join(render(item) for item in value) + "]"
    return "{" + ", ".join(f"{render(name)}: {render(text)}" for name, text in value.items()) + "}"
