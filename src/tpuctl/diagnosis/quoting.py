"""Decides whether a text only quotes a message, as documentation, a search, a test or a source file does. Pure.

In doubt a message is real: to miss a failure is worse than to show a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.diagnosis.lines import read_header
from tpuctl.diagnosis.mentions import is_listed_below, is_mentioned, tells_failure

_OPENING, _CLOSING = "\"'`\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb", "\"'`\u201d\u2019\u00bb"
# Before the message, on its line: a text about the message.
_CUE = re.compile(
    r"\b(?:(?:if|when|whenever|where|once|until|that|often|sometimes|might|may|will|can|could) (?:you|we|users?|it|they|I)? ?"
    r"(?:may |might |will |can |also |still |then |often |sometimes |ever )?(?:see|sees|get|gets|hit|meet|encounter|receive)"
    r"|such as|for (?:example|instance)|(?:an? |the )?(?:errors?|messages?|lines?|warnings?|output) (?:like|such)"
    r"|(?:look|looks|looking|search|searching|searched|watch|grep|grepping|wait|waits|check) for"
    r"|change ?log|release notes|troubleshooting|known issues?|(?:the|this|an?|same) (?:error|message|warning) [\"'`\u201c(]"
    r"|what (?:does|is|means)|how (?:to|do)|regression|quoted?|quotes|known as|entitled)\b"
    r"|\b(?:if|when|where|until|that) (?:\w{1,20} ){1,3}(?:says?|shows?|prints?|reports?|contains?|displays?)\b"
    # Only in the same sentence: JAX's own fatal message has "i.e. `python -u`, … output." before the reason.
    r"|\b(?:example:|e\.g\.|i\.e\.)(?!.{0,500}?\w[.!?] {1,2}\S)|\b(?:see|cf\.) [\"'`\u201c]",
    re.IGNORECASE,
)
_CHANGE_NOTE = re.compile(
    r"^\s*(?:[-*•] |\d{1,3}[.)] |[0-9a-f]{7,40} |\(#\d+\) )?(?:\w{1,20}(?:\([\w./-]{1,40}\))?!?: )?(?:fix|fixed|fixes|handle|"
    r"handled|retry(?! ?\d|:)|add|added|adds|avoid|improve|improved|document|documented|explain|explains|ignore|treat|detect|"
    r"detects|catch|suppress|classify|recognise|recognize|rename|revert|merge|bump|clarify|mention|resolve|resolved|todo|note)\b",
    re.IGNORECASE,
)
# Right after the message: an explanation.
_EXPLAINED = re.compile(
    rf"^[^\w\s]{{0,4}}[{_CLOSING}][.,:;)]?\s+(?:\(\w[^)]{{0,60}}\)\s+)?(?:means|indicates|is|are|was|were|when|if|usually|often|"
    r"appears?|happens?|occurs?|errors?|messages?|warnings?|lines?)\b",
    re.IGNORECASE,
)
# On the same line: a test expected the message.
_EXPECTED = re.compile(r"\bas (?:it should|expected)\b|\(expected\)", re.IGNORECASE)
_INTRODUCED = re.compile(
    r"\b(?:you|your|may|might|can|could|such|example|e\.g\.|if|when|displays?|similar|looks?|typical|common|usually|"
    r"this|these)\b.{0,300}:\s*$",
    re.IGNORECASE,
)
# A line of the program that a notebook shows above the exception.
_SHOWN_CODE = re.compile(r"^(?:-{1,4}> ?)?\s{0,8}\d{1,6} {1,60}\S")
_FOUND_BY_SEARCH = re.compile(
    r"^(?:[\w.@+-]{0,80}/){0,20}[\w.@+-]{1,100}\.(?:py|pyi|md|rst|txt|sh|ya?ml|json|go|log|out|err|ipynb|html|toml|js|ts|tex)"
    r"[:-]\d{1,7}[:-](?! ?(?:\w{1,40}Warning|\[\w{1,20}\])|\s*\w{1,40}Warning:)"
    r"|^(?:[\w.@+-]{0,80}/){0,20}[\w.@+-]{1,100}\.(?:cc|h|cpp|hpp|inc|c):\d{1,7}:(?! )"
    r"|^\d{1,7}[:-](?=[^\s\d])(?![\d:.-])|^\d{1,7}[:-]\s{1,40}(?:raise|return|assert|if|print|self|log|logging|logger)\b"
)
_COMMENT = re.compile(r"^\s*(?:#{1,4}(?![\d#]|0x)[ \t]*|//+|/\*|\*(?=\s)|<!--|;{1,3}\s|%\s|\"\"\"|''')")
_BULLET = re.compile(r"^\s*(?:[-*+•] |\d{1,3}[.)] |\[[ x]\] )")
_BLOCK_QUOTE = re.compile(r"^\s{0,3}>(?:>(?!>))?(?:\s|$)")
_TABLE_ROW = re.compile(r"^\s*\|.*\|")
_TAG = re.compile(
    r"</?(?:p|li|ul|ol|code|pre|td|tr|th|div|span|h[1-6]|a|br|tt|strong|em|b|i|body|title|details|summary|kbd|samp)\b"
    r"[^>]{0,200}>",
    re.IGNORECASE,
)
_CALLS = (
    "raise assert def class print println echo printf logging logger log LOG ABSL_LOG warnings return yield if elif else while "
    "for with except case when grep egrep rg ag awk sed git const var let pytest self match pattern re throw fmt std absl tf "
    "jax expect it describe console System import from await tpuctl export call unittest mock in not and or QCHECK CHECK"
)
_CODE = re.compile(
    rf"^\s*(?:[+>] ?\s*)?(?:async )?(?:{'|'.join(_CALLS.split())}|#define|EXPECT_\w{{1,30}}|ASSERT_\w{{1,30}})\b(?!-\w)"
)
_PROMPT = re.compile(
    r"^\s*(?:\([\w.-]{1,40}\) ?)?(?:[\w.-]{1,40}@[\w.-]{1,60}[: ][^$#%]{0,100})?[$%#] |^(?:>>>|\.\.\.|In \[\d{1,5}\]:) "
)
_ASSIGNED = re.compile(
    r"^\s*[A-Za-z_][\w.\[\]\"']{0,80}\s*(?::\s*[\w\[\], |.]{1,60})?\s*[+:]?=\s*(?:re\.compile)?[(\[{]{0,3}\s*"
    r"[rfbuRFBU]{0,2}[\"']"
)
_LITERAL = re.compile(r"^\s*[rfbuRFBU]{0,2}([\"']).{0,4000}\1\s*[,)\]}:;\\]{0,4}\s*$")
_FIELD = re.compile(
    r"^\s*(?:- )?[\"']?(?:match|matches|example|examples|pattern|patterns|regex|description|meaning|title|note|notes|summary|"
    r"expected|anchors|remedy|question|answer|symptom)[\"']?:\s"
)
# An exception in a test is real, an expected one is not.
_TEST = re.compile(
    r"^E {2,}(?! |(?!AssertionError)(?:\w{1,60}\.){0,8}\w{1,60}(?:Error|Exception)\b)|^>\s{4,}\S|"
    r"^(?:FAILED|PASSED|ERROR|XFAIL) \S{1,300}::"
)
_TEST_RAN = re.compile(r"^\S{1,200}?::\w"), re.compile(r"\b(?:PASSED|FAILED)\b")
_FRAME = re.compile(r"^\s*File \"[^\"]{1,500}\", line \d")
_RAISED = re.compile(r"^(?:[\w.]{1,200}(?:Error|Exception|Exit|Interrupt|Warning|Failure|Timeout)\b|\w[\w.]{0,200}: )")
_HUNK = re.compile(r"^@@ -\d|^diff --git |^\+\+\+ [\w./]|^--- [\w./]")
_TICKS = re.compile(r"`+")
_FIELD_OF_TABLE = re.compile(r"^(?:[^\",{}\s]{0,40},){1,10}\"[^\"]{0,2000}$")
_HEADING = re.compile(
    r"^\W{0,8}(?:(?:\w{1,20} ){1,3}errors?|(?:\w{1,20} ){0,3}(?:messages?|symptoms?|problems?|fehlermeldung(?:en)?)|"
    r".{0,8}错误.{0,8}|.{0,8}问题.{0,4})\W{0,8}$",
    re.IGNORECASE,
)
# A log may continue after a page of documentation, or after a source file.
_REAL = re.compile(r"^(?:ERROR|WARNING|FATAL)\b|^Traceback \(|^\S{0,60}[$#] \S|^error: ")
_WORD = re.compile(r"[A-Za-z]{2,}")
_FUNCTION_WORDS = re.compile(
    r"\b(?:the|is|are|a|an|you|your|it|this|that|can|should|we|not|when|if|by|with)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The lines around a message."""

    before: Sequence[str] = ()  # the nearest last; two dozen are enough
    after: str = ""  # the next line
    began_as_page: bool = False  # the text began like documentation or source code

    @property
    def is_page(self) -> bool:
        """Whether the message stands in documentation or source code."""
        return self.began_as_page and not any(map(_REAL.match, self.before))


def is_quoted(line: str, start: int, end: int, around: Surroundings, *, has_header: bool = False) -> bool:
    """Tell whether the message at `line[start:end]` is a quotation.

    `line` has no colours. `has_header`: a time or a worker stood before it and was removed; a program that logs these rarely
    quotes, except in prose about a message.
    """
    before, after = line[:start], line[end:]
    if _is_described(before, after) or is_mentioned(before, line[start:end], after):
        return True
    if has_header:
        return False
    return (
        _is_marked(line, before, after, around)
        or _is_source(line, before, around)
        or _is_found_or_tested(line, around)
        or _is_introduced(around)
        or is_listed_below(line, around.before)
        or _is_explained_below(line, around.after)
    )


def looks_like_page(start: str) -> bool:
    """Tell whether a text begins like documentation or a source file; `start` is its first few KiB."""
    head = start.lstrip("\ufeff \r\n")[:4096]
    lowered = head[:200].lower()
    if lowered.startswith(
        ("<!doctype html", "<html", "<?xml", "#!/usr/bin/env python", "---\ntitle", '"""', "// copyright")
    ):
        return True
    lines = [line for line in head.splitlines() if line.strip() and not read_header(line.encode(), counted=False).end][
        :40
    ]
    headings = sum(bool(re.match(r"#{1,6} \S|[=~-]{4,}$|={2,} \S", line)) for line in lines)
    code = sum(
        bool(re.match(r"(?:import|from) [\w.]+|def \w+\(|class \w+|package \w+|#include|@\w+", line)) for line in lines
    )
    prose = sum(is_prose(line) for line in lines)
    if any(map(_REAL.match, lines)) and not headings:
        return code >= 3
    return (headings >= 1 and prose >= 2) or code >= 3 or (len(lines) >= 4 and prose >= 0.6 * len(lines))


def is_prose(line: str) -> bool:
    """Tell whether a line reads like a sentence of an explanation."""
    return len(_WORD.findall(line)) >= 7 and len(_FUNCTION_WORDS.findall(line)) >= 3 and len(line) < 2000


def _is_described(before: str, after: str) -> bool:
    """Tell whether the line is a text about the message."""
    lead = before[-300:]
    # These words a program writes that fails.
    is_of_program = re.search(r"(?:Error|Exception|ERROR|FATAL|failed): |\bPlease (?:check|look)\b", lead)
    if _CUE.search(lead) and not is_of_program:
        return True
    if _CHANGE_NOTE.match(before) or _EXPECTED.search(after[:200]):
        return True
    words = before[:-1].rstrip()
    is_opened = before[-1:] != "" and before[-1:] in _OPENING and words[-1:].isalpha()
    return is_opened and bool(_EXPLAINED.match(after)) and "Error" not in before


def _is_marked(line: str, before: str, after: str, around: Surroundings) -> bool:
    """Tell whether the markup of a document surrounds it: tables, lists, comments, tags, quotation marks."""
    if _COMMENT.match(line) or _BLOCK_QUOTE.match(line) or _FIELD.match(line):
        return True
    if (_TABLE_ROW.match(line) and line.count("|") >= 3) or _FIELD_OF_TABLE.match(before):
        return True
    if _TAG.search(before) or _TAG.search(after):
        return True
    outside = len(_WORD.findall(before)) + len(_WORD.findall(after))
    is_code = len(_TICKS.findall(before)) % 2 == 1 and "`" in after
    if is_code and (outside >= 2 or around.is_page or _BULLET.match(line) or line.strip()[0] == "`"):
        return True
    is_listed = bool(_BULLET.match(line)) and not line.startswith("- '@type'")
    if is_listed and (around.is_page or outside >= 6 or before.rstrip()[-1:] in set(_OPENING)):
        return True
    if around.is_page and before[-1:] in set(_OPENING) and is_prose(line):
        return True
    return (
        around.is_page
        and not _RAISED.match(line.lstrip())
        and (is_prose(line) or any(map(is_prose, around.before[-3:])))
    )


def _is_source(line: str, before: str, around: Surroundings) -> bool:
    """Tell whether the line is source code: a call or an assignment with the message in a literal, a line of a traceback."""
    is_open = before.count('"') % 2 == 1 or before.count("'") % 2 == 1 or before.count("`") % 2 == 1
    if is_open and (_CODE.match(line) or _PROMPT.match(line)):
        return True
    assigned = _ASSIGNED.match(line)
    if (
        assigned
        and not tells_failure(assigned[0].split("=")[0].split(":")[0].strip())
        and re.search(r"[\"')\]},;]\s*$", line)
    ):
        return True
    if _LITERAL.match(line) and (line[:1] in " \t" or line.rstrip()[-1:] not in "\"'") and '": "' not in line:
        return True
    previous = around.before[-1] if around.before else ""
    return bool(_FRAME.match(previous)) and not _RAISED.match(line)


def _is_found_or_tested(line: str, around: Surroundings) -> bool:
    """Tell whether a search, a diff or a test printed the line."""
    if _FOUND_BY_SEARCH.match(line) or _TEST.match(line) or all(part.search(line) for part in _TEST_RAN):
        return True
    if line[:1] in {"+", "-", " "}:
        for earlier in reversed(around.before):
            if _HUNK.match(earlier):
                return True
            if earlier[:1] not in {"+", "-", " ", "\\", ""}:
                break
    return False


def _is_explained_below(line: str, after: str) -> bool:
    """Tell whether a sentence with more indentation follows, as in a manual."""
    indent, below = (len(text) - len(text.lstrip()) for text in (line, after))
    return (
        4 <= indent < below and len(_WORD.findall(after)) >= 6 and bool(re.search(r"^\s*[A-Z].{0,500}[.:]\s*$", after))
    )


def _is_introduced(around: Surroundings) -> bool:
    """Tell whether the line before announces an example."""
    previous = next((line for line in reversed(around.before[-4:]) if line.strip()), "")
    if _HEADING.match(previous):
        return True
    if _SHOWN_CODE.match(previous):
        return False
    return bool(_INTRODUCED.search(previous)) and not _RAISED.match(previous) and len(_WORD.findall(previous)) >= 4
