"""The door of the terminal: what a text from outside must not do to a screen, a table, JSON or YAML is made visible here.

States, descriptions, labels, messages, paths and log lines are others' words. A control character among them moves the cursor,
a line end adds a line that looks like ours, a bidirectional mark reorders what is read. `Terminal` passes everything that it
writes through these functions; what is written raw on purpose (the output of remote commands) does not go through `Terminal`.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# What `tables.styled` writes, and nothing else: others' words cannot hide text or move the cursor with these.
_OWN_STYLE = re.compile(r"(\x1b\[(?:0|1|2|3[1-6])m)")
_UNUSUAL = re.compile(r"[^ -~]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def visible(text: str) -> str:
    """Return the text on one line, with all that has no shape of its own as an escape: `\\x1b`, `\\n`, `\\u202e`."""
    return text if text.isprintable() else _UNUSUAL.sub(_escaped, text)


def painted(line: str) -> str:
    """Return a line that holds our own colours; everything else in it is made visible."""
    if line.isprintable():
        return line
    return "".join(part if index % 2 else visible(part) for index, part in enumerate(_OWN_STYLE.split(line)))


def json_text(value: Any, *, indent: int | None = None) -> str:  # JSON
    """Return a value as JSON in which nothing is invisible. It decodes to the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    # Such characters stand in strings only, where JSON allows any of them as an escape.
    return "\n".join(map(_json_escaped, text.split("\n")))


def yaml_text(value: Any) -> str:  # JSON
    """Return a value as YAML in which nothing is invisible. A lone surrogate, which YAML cannot hold, becomes U+FFFD."""
    import yaml  # noqa: PLC0415  # 12 ms

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # chosen at run time
        """Quotes what holds more than printable text, so that it may be escaped afterwards."""

    def represent(dumper: Any, text: str) -> Any:  # PyYAML's own
        if text.isprintable():
            return dumper.represent_scalar("tag:yaml.org,2002:str", text)
        style = None if text.replace("\n", "").isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", _SURROGATE.sub("\ufffd", text), style=style)

    Dumper.add_representer(str, represent)
    text = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return "\n".join(map(_json_escaped, text.split("\n")))


def _json_escaped(line: str) -> str:
    """Return a line of JSON, or of YAML whose odd strings are quoted, with escapes that both know."""
    return line if line.isprintable() else _UNUSUAL.sub(_json_escape, line)


def _json_escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
