"""Decides whether a line names a message as a search term: in a setting, a pattern, a list, or the sample of a model. Pure.

Failing programs put messages into quotation marks too: the words before the marks decide, and in doubt the message is real.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Characters. Words further away do not decide.
_NEAR = 600
_LITERAL = r"(?:[rbfuRBFU]{0,2}(?:\"[^\"]{0,200}\"|'[^']{0,200}'))"
# An earlier member of the same list or mapping, or an earlier argument of the same kind.
_MEMBER = re.compile(
    rf"(?:[\"']?([\w.-]{{1,60}})[\"']?\s{{0,3}}[:=]\s{{0,3}})?(?:re\.compile\(|[\[(])?"
    rf"{_LITERAL}(?:, {_LITERAL}){{0,8}}[\])]?\s{{0,3}}(?:,|\band\b|\bor\b|\|)\s{{0,3}}$"
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
_TOLD_KEY = re.compile(
    r"(?:^|[_-])(?:error|err|exc|exception|message|msg|reason|cause|failure|failed|details?|description|status|string|stderr|"
    r"stdout|output|log|line|text|textpayload|body|response|what|traceback|args)$",
    re.IGNORECASE,
)
_SOUGHT_KEY = re.compile(
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
_SOUGHT = re.compile(
    r"\b(?:match(?:es|ing)?|patterns?|regex(?:es|ps?)?|contain(?:s|ing)?|includ(?:es?|ing)|keywords?|rules?|known|"
    r"ignor(?:es?|ing)|(?:handlers?|hooks?|polic(?:y|ies)) (?:for|on)|filters?|filtering|substrings?|"
    r"(?:search|watch|look|grep|wait|scan)(?:es|s|ing)? for|"
    r"(?:retr(?:y|ies|ying)|restart(?:s|ing)?|alert(?:s|ing)?|abort(?:s|ing)?|trigger(?:s|ing)?) "
    r"(?:\w{1,12} ){0,2}?(?:on|when|if)|"
    r"(?:if|when|whenever) (?:\w{1,12} ){0,3}(?:has|have|shows?|says?|prints?))\b[^.;]{0,40}$",
    re.IGNORECASE,
)
_SOUGHT_PLAIN = re.compile(
    r"(?:^|[\s.\"'])(?:\w{1,30}[._-])?"
    r"(?:(?:retry|restart|abort|alert|trigger|stop|skip|ignore)[-_ ]on|patterns?|regex(?:es|p)?)"
    r"[\"']?\s{0,3}[:=]\s{0,3}\[?(?:(?:[^\[\]:=]|::){0,200},\s{0,3})?$"
    r"|\b(?:monitor|watch|look|search|scan|grep)ing for: (?:(?:[^\[\]:=]|::){0,200},\s{0,3})?$",
    re.IGNORECASE,
)
_SOUGHT_BELOW = re.compile(r"[\"']?([A-Za-z][\w.-]{0,60})[\"']?\s{0,3}[:=]\s{0,3}[\[({]?\s{0,3}$")
_BULLET = re.compile(r"^\s*- |^\s{1,40}[\"']?[\w.-]{1,60}[\"']?: [\"']")
_SAMPLE = re.compile(
    r"^\W{0,3}(?:[\w ]{0,30}\b)?(?:samples?|generated(?: text| output)?|generation|completion|prompt|decoded(?: text)?|"
    r"model output)"
    r"(?: ?[#\[(]?\d{1,7}[\])]?)?\s{0,3}[:=>]|^\W{0,3}(?:Q|A|Question|Answer|Human|Assistant)\d{0,3}: |\bQ: .{0,300}\bA: "
    r"|[\"']?\b(?:prompt|completion|question|answer|generated(?:_text)?|instruction)[\"']?\s?[:=]\s?([\"'])(?:(?!\1).){0,500}$",
    re.IGNORECASE,
)
_FAILING = re.compile(r"fail|error|could not|cannot|can't|unable|exception", re.IGNORECASE)
# A field of a record: `|` separates fields as well as the alternatives of a pattern.
_FIELD = re.compile(
    r"\s*(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|[\d:.,TZ+/ -]{1,40}|w\d{1,5})?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Holder:
    """What stands before a literal."""

    names: tuple[str, ...]  # of the settings that hold it, the nearest first
    words: str  # before the outermost list


def is_mentioned(before: str, message: str, after: str) -> bool:
    """Tell whether a message is a search term or a sample, from the text before and after it on its line."""
    before, after = before[-_NEAR:], after[:_NEAR]
    if _SAMPLE.search(before) and not _FAILING.search(before.split(":")[0]):
        return True
    if _SOUGHT_PLAIN.search(before) or _is_alternative(before, message, after):
        return True
    opened = _opened_at(before, after)
    if opened is None:
        return False
    holder = _holder(before[:opened])
    for name in holder.names:
        if tells_failure(name):
            return False
        if _SOUGHT_KEY.search(name):
            return True
    return not _HAPPENED.search(holder.words) and bool(_SOUGHT.search(holder.words))


def is_listed_below(line: str, before: Sequence[str]) -> bool:
    """Tell whether a line is a member of a list whose name says that its members are search terms."""
    if not _BULLET.match(line):
        return False
    heading = next((earlier for earlier in reversed(before) if not _BULLET.match(earlier)), "")
    named = _SOUGHT_BELOW.search(heading)
    return named is not None and bool(_SOUGHT_KEY.search(named[1])) and not tells_failure(named[1])


def tells_failure(name: str) -> bool:
    """Tell whether a value with that name reports a failure, such as `details` or `grpc_message`."""
    return bool(_TOLD_KEY.search(name))


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


def _holder(lead: str) -> _Holder:
    """Parse the text before a literal: names of settings, and words, without the other members of the same lists."""
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
    return _Holder(tuple(names), lead[-80:])


def _is_alternative(before: str, message: str, after: str) -> bool:
    """Tell whether the message is an alternative of a pattern, `A|B|C`, in quotation marks or after words of a search."""
    start = max(before.rfind(mark) for mark in "\"'`([{=:") + 1
    ends = [place for mark in "\"'`)]}" if (place := after.find(mark)) >= 0]
    whole = (before[start:] + message + after[: min(ends, default=len(after))]).strip()
    parts = re.split(r"\\?\|", whole)
    if len(parts) < 2 or any(_FIELD.fullmatch(part) or part != part.strip() for part in parts):
        return False
    opener, lead = before[start - 1 : start], before[: max(start - 1, 0)]
    if opener in {*"\"'`([{="}:
        return True
    word = re.search(r"[\w-]{1,60}$", lead)
    is_search = bool(_SOUGHT.search(lead) or (word and _SOUGHT_KEY.search(word[0])))
    return is_search and not _HAPPENED.search(lead)
