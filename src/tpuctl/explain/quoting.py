"""Decide whether a text only quotes a message, as documentation, a search, a test or a source file does. Pure.

In doubt a message is real: to miss a failure is worse than to show a quotation. `QuoteDetector` decides for each occurrence in
a log, from the lines around it and the start of the text; `is_quoted` and `is_search_term` decide from a line and its context.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.explain.log_lines import parse_header

if TYPE_CHECKING:
    from tpuctl.explain.log_lines import LogLines, ParsedLine, PatternMatch

_OPENING, _CLOSING = "\"'`\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb", "\"'`\u201d\u2019\u00bb"
# Before the message, on its line: a text about the message.
_DESCRIBED = re.compile(
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
    r"detects|catch|suppress|classify|recognise|recognize|rename|revert|merge|bump|clarify|mention|resolve|"
    r"resolved|todo|note)\b",  # words with which changes are described
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
# How lines begin that only quote.
_QUOTING_LINES = (
    # Found by a search, with the file or the number of the line.
    re.compile(
        r"^(?:[\w.@+-]{0,80}/){0,20}[\w.@+-]{1,100}\.(?:py|pyi|md|rst|txt|sh|ya?ml|json|go|log|out|err|ipynb|html|toml|js|ts|tex)"
        r"[:-]\d{1,7}[:-](?! ?(?:\w{1,40}Warning|\[\w{1,20}\])|\s*\w{1,40}Warning:)"
        r"|^(?:[\w.@+-]{0,80}/){0,20}[\w.@+-]{1,100}\.(?:cc|h|cpp|hpp|inc|c):\d{1,7}:(?! )"
        r"|^\d{1,7}[:-](?=[^\s\d])(?![\d:.-])|^\d{1,7}[:-]\s{1,40}(?:raise|return|assert|if|print|self|log|logging|logger)\b"
    ),
    # A comment, a quotation, a field of a document.
    re.compile(r"^\s*(?://+|/\*|\*(?=\s)|<!--|;{1,3}\s|%\s|\"\"\"|''')"),
    re.compile(r"^\s{0,3}>(?:>(?!>))?(?:\s|$)"),
    re.compile(
        r"^\s*(?:- )?[\"']?(?:match|matches|example|examples|pattern|patterns|regex|description|meaning|title|notes?|summary|"
        r"expected|anchors|remedy|question|answer|symptom)[\"']?:\s"
    ),
    # Printed by a test: an exception in a test is real, an expected one is not.
    re.compile(
        r"^E {2,}(?! |(?!AssertionError)(?:\w{1,60}\.){0,8}\w{1,60}(?:Error|Exception)\b)|^>\s{4,}\S|"
        r"^(?:FAILED|PASSED|ERROR|XFAIL) \S{1,300}::"
    ),
    re.compile(r"^(?=\S{1,200}?::\w).*\b(?:PASSED|FAILED)\b"),
)
_HASH_COMMENT = re.compile(r"^\s*#{1,4}(?![\d#]|0x)[ \t]*")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+•] |\d{1,3}[.)] |\[[ x]\] )")
# gcloud lists below it what was wrong.
_LIST_OF_ERROR = re.compile(r"^(?:ERROR|WARNING): .{0,300}:\s*$")
_TABLE_ROW = re.compile(r"^\s*\|.*\|\s*$")
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
_LITERAL_LINE = re.compile(r"^\s*[rfbuRFBU]{0,2}([\"']).{0,4000}\1\s*[,)\]}:;\\]{0,4}\s*$")
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
_REAL_LOG_LINE = re.compile(r"^(?:ERROR|WARNING|FATAL)\b|^Traceback \(|^\S{0,60}[$#] \S|^error: ")
_WORD = re.compile(r"[A-Za-z]{2,}")
_FUNCTION_WORDS = re.compile(
    r"\b(?:the|is|are|a|an|you|your|it|this|that|can|should|we|not|when|if|by|with)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class LineContext:
    """The lines around a message."""

    before: Sequence[str] = ()  # the nearest last; two dozen are enough
    after: str = ""  # the next line
    began_as_page: bool = False  # the text began like documentation or source code

    @property
    def is_page(self) -> bool:
        """Whether the message stands in documentation or source code."""
        return self.began_as_page and not any(map(_REAL_LOG_LINE.match, self.before))


def is_quoted(line: str, start: int, end: int, around: LineContext, *, has_header: bool = False) -> bool:
    """Tell whether the message at `line[start:end]` is a quotation.

    `line` has no colours. `has_header`: a time or a worker stood before it and was removed; a program that logs these rarely
    quotes, except in prose about a message.
    """
    before, after = line[:start], line[end:]
    if _is_described(before, after) or is_search_term(before, line[start:end], after):
        return True
    if has_header:
        return False
    return (
        any(pattern.match(line) for pattern in _QUOTING_LINES)
        or _is_comment(line, before, around)
        or _is_marked(line, before, after, around)
        or _is_source(line, before, around)
        or _is_in_diff(line, around.before)
        or _is_introduced(around)
        or _is_listed_search_term(line, around.before)
        or _is_explained_below(line, around.after)
        or _is_help(line, around.before)
        or (line[:4].isspace() and any(map(_COMMIT.match, around.before)))
    )


def looks_like_document(start: str) -> bool:
    """Tell whether a text begins like documentation or a source file; `start` is its first few KiB."""
    head = start.lstrip("\ufeff \r\n")[:4096]
    lowered = head[:200].lower()
    if lowered.startswith(
        ("<!doctype html", "<html", "<?xml", "#!/usr/bin/env python", "---\ntitle", '"""', "// copyright")
    ):
        return True
    lines = [line for line in head.splitlines() if line.strip() and not parse_header(line.encode(), counted=False).end][
        :40
    ]
    headings = sum(bool(re.match(r"#{1,6} \S|[=~-]{4,}$|={2,} \S", line)) for line in lines)
    code = sum(
        bool(re.match(r"(?:import|from) [\w.]+|def \w+\(|class \w+|package \w+|#include|@\w+", line)) for line in lines
    )
    prose = sum(is_prose(line) for line in lines)
    if any(map(_REAL_LOG_LINE.match, lines)) and not headings:
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
    if _DESCRIBED.search(lead) and not is_of_program:
        return True
    if _CHANGE_NOTE.match(before) or _EXPECTED.search(after[:200]):
        return True
    words = before[:-1].rstrip()
    is_opened = before[-1:] != "" and before[-1:] in _OPENING and words[-1:].isalpha()
    return is_opened and bool(_EXPLAINED.match(after)) and "Error" not in before


def _is_comment(line: str, before: str, around: LineContext) -> bool:
    """Tell whether the line is a comment, and not the line of a log in which some program begins its lines with `#`."""
    comment = _HASH_COMMENT.match(line)
    if comment is None:
        return False
    is_whole = not before[comment.end() :].strip() or _RAISED.match(before[comment.end() :])
    earlier = [one for one in around.before[-6:] if one.strip()]
    near = [*earlier, around.after]
    is_source = any(
        _HASH_COMMENT.match(one) or _CODE.match(one) or _PROMPT.match(one) or _ASSIGNED.match(one) for one in near
    )
    return not (is_whole and earlier and not is_source and not around.is_page and not any(map(is_prose, near)))


def _is_marked(line: str, before: str, after: str, around: LineContext) -> bool:
    """Tell whether the markup of a document surrounds it: tables, lists, comments, tags, quotation marks."""
    if (_TABLE_ROW.match(line) and line.count("|") >= 3) or _FIELD_OF_TABLE.match(before):
        return True
    if _TAG.search(before) or _TAG.search(after):
        return True
    outside, is_listed = len(_WORD.findall(before)) + len(_WORD.findall(after)), bool(_LIST_ITEM.match(line))
    is_code = len(_TICKS.findall(before)) % 2 == 1 and "`" in after
    is_opened = before[-1:] in set(_OPENING)
    if is_code and (outside >= 2 or around.is_page or is_listed or line.strip()[0] == "`"):
        return True
    is_opened_item = around.is_page or outside >= 6 or before.rstrip()[-1:] in set(_OPENING)
    is_list_of_error = bool(around.before) and _LIST_OF_ERROR.match(around.before[-1]) is not None
    if is_listed and is_opened_item and not is_list_of_error and not line.startswith("- '@type'"):
        return True
    is_prose_near = is_prose(line) or any(map(is_prose, around.before[-3:]))
    return around.is_page and ((is_opened and is_prose(line)) or (is_prose_near and not _RAISED.match(line.lstrip())))


def _is_source(line: str, before: str, around: LineContext) -> bool:
    """Tell whether the line is source code: a call or an assignment with the message in a literal, a line of a traceback."""
    is_open = before.count('"') % 2 == 1 or before.count("'") % 2 == 1 or before.count("`") % 2 == 1
    if is_open and (_CODE.match(line) or _PROMPT.match(line)):
        return True
    assigned = _ASSIGNED.match(line)
    if (
        assigned
        and not _OUTCOME_KEY.search(assigned[0].split("=")[0].split(":")[0].strip())
        and re.search(r"[\"')\]},;]\s*$", line)
    ):
        return True
    if _LITERAL_LINE.match(line) and (line[:1] in " \t" or line.rstrip()[-1:] not in "\"'") and '": "' not in line:
        return True
    previous = around.before[-1] if around.before else ""
    return bool(_FRAME.match(previous)) and not _RAISED.match(line)


def _is_in_diff(line: str, before: Sequence[str]) -> bool:
    """Tell whether the line stands in a hunk of a diff."""
    if line[:1] not in {"+", "-", " "}:
        return False
    for earlier in reversed(before):
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


# `git log` shows messages of commits with their indentation.
_COMMIT = re.compile(r"^commit [0-9a-f]{7,64}\b")
# The help text of a command: its usage, and the options below it with their indentation.
_USAGE = re.compile(
    r"^(?:[Uu]sage|USAGE): |^(?:[\w ]{0,30}[Oo]ptions|[\w ]{0,30}[Aa]rguments|[Ff]lags|OPTIONS|FLAGS|DESCRIPTION):?\s*$"
)
_OPTION_LINE = re.compile(
    r"^\s{1,12}(?:-\w,? ){0,1}--?[A-Za-z][\w-]{0,60}(?:[ =](?:[A-Z_]{1,30}|\{[^{}]{1,100}\}|<[^<>]{1,60}>))?(?:\s{2,}\S|$)"
)


def _is_help(line: str, before: Sequence[str]) -> bool:
    """Tell whether the line stands in the help text of a command."""
    if not line[:1].isspace():
        return False
    return bool(_OPTION_LINE.match(line)) or (any(map(_USAGE.match, before)) and any(map(_OPTION_LINE.match, before)))


def _is_introduced(around: LineContext) -> bool:
    """Tell whether the line before announces an example."""
    previous = next((line for line in reversed(around.before[-4:]) if line.strip()), "")
    if _HEADING.match(previous):
        return True
    if _SHOWN_CODE.match(previous):
        return False
    return bool(_INTRODUCED.search(previous)) and not _RAISED.match(previous) and len(_WORD.findall(previous)) >= 4


# Characters. Words further away do not decide.
_NEARBY = 600
_STRING_LITERAL = r"(?:[rbfuRBFU]{0,2}(?:\"[^\"]{0,200}\"|'[^']{0,200}'))"
# An earlier member of the same list or mapping, or an earlier argument of the same kind.
_MEMBER = re.compile(
    rf"(?:[\"']?([\w.-]{{1,60}})[\"']?\s{{0,3}}[:=]\s{{0,3}})?(?:re\.compile\(|[\[(])?"
    rf"{_STRING_LITERAL}(?:, {_STRING_LITERAL}){{0,8}}[\])]?\s{{0,3}}(?:,|\band\b|\bor\b|\|)\s{{0,3}}$"
)
_OPENER = re.compile(r"(?:[\w.]{1,40}\(|[\[({])\s{0,3}$")
# `will retry: "…"` is prose; a name in prose would be followed by an equals sign, or has an underscore.
_SETTING = re.compile(
    r"(?:^|[\s,;{(\[.\"'-])([A-Za-z][\w-]{0,60})[\"']?\s{0,3}=\s{0,3}$"
    r"|(?:(?:^|[,;{(\[.\"'-])\s{0,3}([A-Za-z][\w-]{0,60})|\s([A-Za-z]\w{0,40}_[\w-]{0,40}))[\"']?\s{0,3}:\s{0,3}$"
)
_FLAG = re.compile(r"(?:^|\s)--([\w-]{1,60})(?:=|\s)\s{0,3}$")
_OPTION = re.compile(r"[\"']--([\w-]{1,60})[\"'],\s{0,3}$")
# The last word of a name under which programs report a failure.
_OUTCOME_KEY = re.compile(
    r"(?:^|[_-])(?:error|err|exc|exception|message|msg|reason|cause|failure|failed|details?|description|status|string|stderr|"
    r"stdout|output|log|line|text|textpayload|body|response|what|traceback|args)$",
    re.IGNORECASE,
)
_SEARCH_KEY = re.compile(
    r"patterns?|regex|retr(?:y|ies|iable|yable)|restart|match|ignor|allow|block|filter|watch|expect|known|fatal|transient|"
    r"recoverable|keyword|trigger|signature|rules?$|alert|grep|exclude|include|search|substring|needle|phrase|(?:^|[_-])on$|"
    r"^on[_-]|skip|stop[_-]?(?:strings?|words?|sequences?)|abort[_-]on",
    re.IGNORECASE,
)
_HAPPENED = re.compile(
    r"\b(?:found|matched|detected|saw|got|hit|caught|received|raised|threw|encountered|because|due to|said|returned|exited|"
    r"died|killed|failed|reason|cause)\b|\b\w{0,60}(?:Error|Exception)\b|\b(?:error|exception)[: (]{1,3}$",
    re.IGNORECASE,
)
_SEARCH_WORDS = re.compile(
    r"\b(?:match(?:es|ing)?|patterns?|regex(?:es|ps?)?|contain(?:s|ing)?|includ(?:es?|ing)|keywords?|rules?|known|"
    r"ignor(?:es?|ing)|(?:handlers?|hooks?|polic(?:y|ies)) (?:for|on)|filters?|filtering|substrings?|"
    r"(?:search|watch|look|grep|wait|scan)(?:es|s|ing)? for|"
    r"(?:retr(?:y|ies|ying)|restart(?:s|ing)?|alert(?:s|ing)?|abort(?:s|ing)?|trigger(?:s|ing)?) "
    r"(?:\w{1,12} ){0,2}?(?:on|when|if)|"
    r"(?:if|when|whenever) (?:\w{1,12} ){0,3}(?:has|have|shows?|says?|prints?))\b[^.;]{0,40}$",
    re.IGNORECASE,
)
_SEARCH_SETTING = re.compile(
    r"(?:^|[\s.\"'])(?:\w{1,30}[._-])?"
    r"(?:(?:retry|restart|abort|alert|trigger|stop|skip|ignore)[-_ ]on|patterns?|regex(?:es|p)?)"
    r"[\"']?\s{0,3}[:=]\s{0,3}\[?(?:(?:[^\[\]:=]|::){0,200},\s{0,3})?$"
    r"|\b(?:monitor|watch|look|search|scan|grep)ing for: (?:(?:[^\[\]:=]|::){0,200},\s{0,3})?$",
    re.IGNORECASE,
)
_SEARCH_HEADING = re.compile(r"[\"']?([A-Za-z][\w.-]{0,60})[\"']?\s{0,3}[:=]\s{0,3}[\[({]?\s{0,3}$")
_LIST_MEMBER = re.compile(r"^\s*- |^\s{1,40}[\"']?[\w.-]{1,60}[\"']?: [\"']")
_SAMPLE = re.compile(
    r"^\W{0,3}(?:[\w ]{0,30}\b)?(?:samples?|generated(?: text| output)?|generation|completion|prompt|decoded(?: text)?|"
    r"model output)"
    r"(?: ?[#\[(]?\d{1,7}[\])]?)?\s{0,3}[:=>]|^\W{0,3}(?:Q|A|Question|Answer|Human|Assistant)\d{0,3}: |\bQ: .{0,300}\bA: "
    r"|[\"']?\b(?:prompt|completion|question|answer|generated(?:_text)?|instruction)[\"']?\s?[:=]\s?([\"'])(?:(?!\1).){0,500}$",
    re.IGNORECASE,
)
_FAILING = re.compile(r"fail|error|could not|cannot|can't|unable|exception", re.IGNORECASE)
# A field of a record: `|` separates fields as well as the alternatives of a pattern.
_RECORD_FIELD = re.compile(
    r"\s*(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|[\d:.,TZ+/ -]{1,40}|w\d{1,5})?\s*", re.IGNORECASE
)


def is_search_term(before: str, message: str, after: str) -> bool:
    """Tell whether a message is a search term or a sample of a model, from the text before and after it on its line.

    Failing programs put messages into quotation marks too: the words before the marks decide.
    """
    before, after = before[-_NEARBY:], after[:_NEARBY]
    if _SAMPLE.search(before) and not _FAILING.search(before.split(":")[0]):
        return True
    if _SEARCH_SETTING.search(before) or _is_alternative(before, message, after):
        return True
    opened = _opened_at(before, after)
    if opened is None:
        return False
    names, words = _literal_holder(before[:opened])
    for name in names:
        if _OUTCOME_KEY.search(name):
            return False
        if _SEARCH_KEY.search(name):
            return True
    return not _HAPPENED.search(words) and bool(_SEARCH_WORDS.search(words))


def _is_listed_search_term(line: str, before: Sequence[str]) -> bool:
    """Tell whether a line is a member of a list whose name says that its members are search terms."""
    if not _LIST_MEMBER.match(line):
        return False
    heading = next((earlier for earlier in reversed(before) if not _LIST_MEMBER.match(earlier)), "")
    named = _SEARCH_HEADING.search(heading)
    return named is not None and bool(_SEARCH_KEY.search(named[1])) and not _OUTCOME_KEY.search(named[1])


def _opened_at(before: str, after: str) -> int | None:
    """Return where the literal around a message begins, None if there is none."""
    for index in range(len(before) - 1, max(-1, len(before) - 200), -1):
        mark = before[index]
        if mark not in "\"'`":
            continue
        is_opening = (
            index == 0
            or before[index - 1] in " \t[({=,:|`\"'"
            or bool(re.search(r"(?<!\w)[rbfuRBFU]{1,2}$", before[:index]))
        )
        return index if is_opening and mark in after else None
    return None


def _literal_holder(lead: str) -> tuple[list[str], str]:
    """Return the names of the settings that hold a literal, the nearest first, and the words before the outermost list."""
    names: list[str] = []
    for _ in range(40):
        lead = re.sub(r"(?<!\w)[rbfuRBFU]{1,2}$", "", lead)
        if (named := _FLAG.search(lead)) or (named := _SETTING.search(lead)):
            name = next(filter(None, named.groups()))
            names.append(name)
            lead = lead[: named.start() + named[0].index(name)].rstrip("\"'")
            continue
        if part := _MEMBER.search(lead):
            option = _OPTION.search(part[0])
            if not names and (name := option[1] if option else part[1]):
                names.append(name)
        else:
            part = _OPENER.search(lead)
        if part is None:
            break
        lead = lead[: part.start()]
    return names, lead[-80:]


def _is_alternative(before: str, message: str, after: str) -> bool:
    """Tell whether the message is an alternative of a pattern, `A|B|C`, in quotation marks or after words of a search."""
    start = max(before.rfind(mark) for mark in "\"'`([{=:") + 1
    ends = [place for mark in "\"'`)]}" if (place := after.find(mark)) >= 0]
    whole = (before[start:] + message + after[: min(ends, default=len(after))]).strip()
    parts = re.split(r"\\?\|", whole)
    if len(parts) < 2 or any(_RECORD_FIELD.fullmatch(part) or part != part.strip() for part in parts):
        return False
    opener, lead = before[start - 1 : start], before[: max(start - 1, 0)]
    if opener in {*"\"'`([{="}:
        return True
    word = re.search(r"[\w-]{1,60}$", lead)
    is_search = bool(_SEARCH_WORDS.search(lead) or (word and _SEARCH_KEY.search(word[0])))
    return is_search and not _HAPPENED.search(lead)


_REPLY_MARK = re.compile(rb"^(?:> ?){1,4}(?!>)")
_FENCES = (b"```", b"~~~")
_FENCE_MARKS = (b"`", b"~")
# Lines before a message that count, and characters of each line.
_CONTEXT_LINES = 24
_LINE_PREFIX = 500
# Lines at the start of the log that decide whether it is a document.
_FIRST_LINES = 60
# The same line with other numbers, behind the same line, gets the same decision.
_DIGITS = b"0123456789"
_MAX_REMEMBERED = 5000


@dataclass(slots=True)
class QuoteDetector:
    """Keeps the fences of code blocks and earlier decisions. Lines are counted from the start of the log."""

    _began_as_page: bool | None = None
    _is_reply: bool = False  # all of the text is quoted, as in a reply: what it quotes is the log
    _fences: list[int] = field(default_factory=list)
    _is_open: bool = False
    _remembered: dict[int, bool] = field(default_factory=dict)

    def read(self, lines: LogLines, first: int) -> None:
        """Take the next lines, of which the first has the number `first`: their fences, and the start of the text."""
        if self._began_as_page is None and len(lines):
            start = b"\n".join(line[:_LINE_PREFIX] for line in lines.texts[:_FIRST_LINES])
            self._began_as_page = looks_like_document(start.decode("utf-8", "replace"))
            filled = [line for line in lines.texts[:_FIRST_LINES] if line.strip()]
            self._is_reply = len(filled) > 1 and all(map(_REPLY_MARK.match, filled))
        text = b"\n".join(lines.texts)
        # To find one byte is much faster than to find three.
        if any(mark in text and fence in text for mark, fence in zip(_FENCE_MARKS, _FENCES, strict=True)):
            texts = enumerate(lines.texts, first)
            self._fences.extend(index for index, line in texts if line.lstrip(b" \t>").startswith(_FENCES))

    def forget(self, first: int) -> None:
        """Forget the fences before a line."""
        gone = bisect_right(self._fences, first - 1)
        self._is_open ^= gone % 2 == 1
        del self._fences[:gone]

    def is_quoted(self, found: PatternMatch, rows: Sequence[ParsedLine], first: int) -> bool:
        """Tell whether a message in some rows is a quotation; `first` is the number of the line that rows are counted from."""
        at, column = found.start
        row = rows[at]
        if self._fences:
            before = bisect_right(self._fences, first + row.position)
            # A fence that is never closed does not count.
            if (before % 2 == 1) != self._is_open and before < len(self._fences):
                return True
        near = (
            row.data
            if len(row.data) <= _LINE_PREFIX
            else row.text[max(0, column - _LINE_PREFIX) : column + _LINE_PREFIX].encode()
        )
        previous = rows[at - 1].data[:_LINE_PREFIX] if at else b""
        # The text of the pattern: the hash of a compiled pattern is computed each time.
        key = hash((near.translate(None, _DIGITS), previous.translate(None, _DIGITS), found.match.re.pattern))
        if key not in self._remembered:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            line, start = row.near(column)
            end = min(len(line), start + found.end[1] + 1 - column) if found.end[0] == at else len(line)
            around = LineContext(
                before=[one.body[:_LINE_PREFIX] for one in rows[max(0, at - _CONTEXT_LINES) : at]],
                after=rows[at + 1].body[:_LINE_PREFIX] if at + 1 < len(rows) else "",
                began_as_page=bool(self._began_as_page),
            )
            marks = _REPLY_MARK.match(line.encode()) if self._is_reply else None
            cut = marks.end() if marks and marks.end() <= start else 0
            self._remembered[key] = is_quoted(line[cut:], start - cut, end - cut, around, has_header=row.has_header)
        return self._remembered[key]
