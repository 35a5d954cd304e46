"""Escape text from outside for terminals, tables, JSON and YAML, and mask secrets whose place is known.

States, descriptions, labels, messages, paths and log lines are untrusted. A control character in them moves the cursor, a
line end adds a forged line, a bidirectional mark reorders the text. `Terminal` passes everything that it writes through these
functions; the output of remote commands, which is written raw on purpose, does not go through `Terminal`.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Exactly the codes that `tables.styled` writes: they can neither hide text nor move the cursor.
_OWN_STYLE = re.compile(r"(\x1b\[(?:0|1|2|3[1-6])m)")
_UNUSUAL = re.compile(r"[^ -~]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def visible(text: str) -> str:
    """Return the text on one line, with unprintable characters escaped: `\\x1b`, `\\n`, `\\u202e`."""

    def escape(found: re.Match[str]) -> str:
        char, code = found[0], ord(found[0])
        if char.isprintable():
            return char
        if char in _SHORT:
            return _SHORT[char]
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return text if text.isprintable() else _UNUSUAL.sub(escape, text)


def painted(line: str) -> str:
    """Return a line with everything escaped but tpuctl's own color codes."""
    if line.isprintable():
        return line
    return "".join(part if index % 2 else visible(part) for index, part in enumerate(_OWN_STYLE.split(line)))


def json_text(value: Any, *, indent: int | None = None) -> str:  # JSON
    """Return a value as JSON without unprintable characters. It decodes to the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    # Unprintable characters occur in strings only, where JSON allows an escape for each.
    return "\n".join(map(_json_escaped, text.split("\n")))


def yaml_text(value: Any) -> str:  # JSON
    """Return a value as YAML without unprintable characters. A lone surrogate, which YAML does not allow, becomes U+FFFD."""
    import yaml  # noqa: PLC0415  # 12 ms

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # chosen at run time
        """Quotes texts with unprintable characters, so that those can be escaped afterwards."""

    def represent(dumper: Any, text: str) -> Any:  # PyYAML's own
        if text.isprintable():
            return dumper.represent_scalar("tag:yaml.org,2002:str", text)
        style = None if text.replace("\n", "").isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", _SURROGATE.sub("\ufffd", text), style=style)

    Dumper.add_representer(str, represent)
    text = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return "\n".join(map(_json_escaped, text.split("\n")))


def _json_escaped(line: str) -> str:
    """Return a line of JSON, or of YAML whose unprintable strings are quoted, with escapes that both formats have."""

    def escape(found: re.Match[str]) -> str:
        return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]

    return line if line.isprintable() else _UNUSUAL.sub(escape, line)
