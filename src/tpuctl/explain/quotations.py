"""Which texts only quote messages: documents, by the name of their file or their first line, and some kinds of lines. Pure.

In doubt a message is real: to miss a failure is worse than to show a quotation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOCUMENTS = (
    *(".md", ".rst", ".html", ".htm", ".tex", ".diff", ".patch"),
    *(".py", ".sh", ".c", ".cc", ".h", ".js", ".ts", ".go"),
)
# The first line of a document, of source code, of a commit, of a mail, of a manual.
_DOCUMENT_START = re.compile(
    rb"\s{0,80}(?:<!doctype html|<html|<h\d>|<\?xml|# \S.*\n\n|// copyright|---\ntitle|diff --git |"
    rb"commit [0-9a-f]{7,64}\n|from: .{1,200}\nsubject: |(?:name|synopsis|description|diagnostics)\n {4}|"
    rb"usage: [^\n]{1,500}\n\s{0,80}options:\n)",
    re.IGNORECASE,
)
_QUOTING_LINE = re.compile(
    # A command that a shell shows, a comment, source code.
    r"\+ [a-z]|\s{0,40}(?://|<!--|raise [\w.]{1,80}\(|log(?:ger|ging)?\.\w{1,10}\(|\$ (?:grep|rg) )|"
    # Found by a search.
    r"[\w./-]{1,200}\.(?:py|md|rst|txt|sh|ya?ml|json|go|log|out|html|js|ts):\d{1,7}:(?! \S)|"
    r"\d{1,7}:\s{0,40}(?:>|raise|return|assert|if) |"
    # Tests print these: an exception in a test is real, what it compares is not.
    r"E {2,}(?:assert|AssertionError)\b|(?:FAILED|PASSED) \S{1,300}::|\S{1,200}?::\w.{0,500}\b(?:PASSED|FAILED)\b|"
    # A field of a catalogue, a row of a table.
    r"\s{0,20}(?:- )?[\"']?(?:match|example|pattern|regex|description|meaning|expected)s?[\"']?:\s|\|.{1,2000}\|$|"
    r"\d{1,7},\""
)
# Right before the message.
_ANNOUNCED = re.compile(
    r"\b(?:match(?:es|ing)?|contain(?:s|ing)?|such as|like|e\.g\.|for example|"
    r"(?:if|when) (?:\w{1,20} ){1,3}(?:see|get|say|show)s?)(?:[: ]{1,2}|:? [\"'`](?:\w{1,12} )?)$"
    # A setting of what a program looks for.
    r"|(?:\b|_)(?:patterns?|regex|keywords?|re(?:try|start)[_-]on)[\"']?\s?[=:]\s?"
    r"(?:[^:=]{0,200},\s{0,3})?[\"'(\[]{0,4}(?:\w{1,12} )?$",
    re.IGNORECASE,
)
_EXPECTED = re.compile(r"\bas (?:it should|expected)\b|\(expected\)", re.IGNORECASE)
_FENCE, _REPLY = "```", ">"
_HEADING = re.compile(r"(?:error messages?|symptoms?|fehlermeldung(?:en)?)\s{0,80}:?$", re.IGNORECASE)


def is_document(name: str) -> bool:
    """Return whether a file with this name is documentation or source code."""
    return name.lower().endswith(_DOCUMENTS)


def begins_document(start: bytes) -> bool:
    """Return whether a text that begins so is documentation or source code."""
    return _DOCUMENT_START.match(start) is not None


def is_quoted(line: str, text: str, start: int, end: int) -> bool:
    """Return whether a line quotes the message at `text[start:end]`; `text` is the line with single spaces."""
    before, after = text[:start], text[end:]
    return bool(
        _QUOTING_LINE.match(line)
        or _ANNOUNCED.search(before[-200:])
        or _EXPECTED.search(after[:200])
        or (before[-1:] == "`" and "`" in after)
    )


def framed_lines(lines: Sequence[str]) -> frozenset[int]:
    """Return the lines that those around them quote: below a heading, between two fences, in a reply."""
    fences = [at for at, line in enumerate(lines) if line.startswith(_FENCE)]
    framed = {at for first, last in zip(fences[::2], fences[1::2], strict=False) for at in range(first, last)}
    framed.update(at + 1 for at, line in enumerate(lines) if _HEADING.match(line))
    reply = {at for at, line in enumerate(lines) if line.startswith(_REPLY)}
    # If each line of a log is quoted, the lines are real.
    return frozenset(framed if len(reply) == sum(map(bool, lines)) else framed | reply)
