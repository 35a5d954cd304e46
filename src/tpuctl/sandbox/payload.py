"""Decode a request's body as JSON, with the errors of Google's JSON transcoding.

Source of the messages: published error bodies, and protobuf's JSON stream parser.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tpuctl.sandbox.calls import ApiError

_CONTEXT = 20


def decode(body: bytes) -> Any:
    """Return the JSON value of a body, `None` for an empty one. Raises `ApiError` 400 INVALID_ARGUMENT for invalid JSON."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal("Encountered non UTF-8 code points.", "", error.start) from error
    if not text.strip():
        return None
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _refusal(_reason(error), text, error.pos) from error
    except RecursionError as error:
        raise ApiError(400, "INVALID_ARGUMENT", "Message too deep. Max recursion depth reached.") from error
    except ValueError as error:  # an integer of thousands of digits
        raise _refusal("Unable to parse number.", "", 0) from error
    if "\\u" in text:
        # Half of a surrogate pair (`\ud800`) is a string to Python, but cannot be stored or sent.
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _refusal("Invalid unicode code point.", "", 0) from error
    return value


def _reason(error: json.JSONDecodeError) -> str:
    at_end = not error.doc[error.pos :].strip()
    if error.msg.startswith("Unterminated string"):
        return "Closing quote expected in string."
    if error.msg == "Extra data":
        return "Parsing terminated before end of input."
    # Find the innermost open bracket: remove strings, then cancel pairs from the inside.
    outline = re.sub(r'"(?:\\.|[^"\\])*"', "", error.doc[: error.pos])
    outline = re.sub(r"[^\[\]{}]", "", outline)
    while outline != (shorter := outline.replace("{}", "").replace("[]", "")):
        outline = shorter
    bracket = "Expected , or ] after array value." if outline.endswith("[") else "Expected , or } after key:value pair."
    for start, reason in (
        ("Expecting value", "Expected a value." if at_end else ""),
        ("Expecting property name", "Expected an object key or }."),
        ("Illegal trailing comma before end of object", "Expected an object key or }."),
        ("Expecting ':'", "Expected : between key:value pair."),
        ("Expecting ','", bracket),
    ):
        if error.msg.startswith(start) and reason:
            return f"Unexpected end of string. {reason}" if at_end else reason
    return "Invalid escape sequence." if "escape" in error.msg else "Unexpected token."


def _refusal(reason: str, text: str, position: int) -> ApiError:
    message = f"Invalid JSON payload received. {reason}"
    if text:
        start = max(0, position - _CONTEXT)
        message += f"\n{text[start : position + _CONTEXT]}\n{' ' * (position - start)}^"
    return ApiError(400, "INVALID_ARGUMENT", message)


def _refuse_constant(name: str) -> NoReturn:
    raise _refusal("Unexpected token.", name, 0)
