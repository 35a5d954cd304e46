"""What a log without a known message is about, judged by the words of the line that looks most like an error. Pure.

A guess has low confidence: it names a kind of failure, the line, what the line names, and words to search for. It never has an
action. The kinds are data, `data/messages/unrecognised.yaml`, specific before general.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from tpuctl.command_text import as_quotation
from tpuctl.explain.log_lines import Sighting
from tpuctl.explain.messages import Action, MatchedBy, Message, MessageOrigin, MessageRole, known_messages
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.explain.log_lines import Suspect

# The fact that holds the words to search for.
SEARCH_TERM = "search"
# A line that merely has a word such as `failed` needs the words of a kind; one with at least this score is an error as such.
_SURE_SCORE, _LEAST_SCORE = 6, 4
# An exception that ends a program has this score.
_FINAL_SCORE = 9
# Lines after an exception that end a program, or that other workers still write.
_LAST_WORDS = 200
_MAX_WHAT_LENGTH = 120
_MAX_TERM_LENGTH = 120
_MAX_SEARCHED = 1000
# What a line is about, the most telling form first.
_WHAT = (
    re.compile(r"\b(?P<what>gs://[^\s'\"`,;)]{1,200})"),
    re.compile(r"\bpermission[s']{0,2}:? ['\"`]?(?P<what>[a-z]\w{1,40}(?:\.[A-Za-z]\w{0,60}){2,4})"),
    re.compile(r"(?P<what>\bprojects/[\w.:-]{1,80}(?:/[\w.:-]{1,80}){0,8})"),
    re.compile(r"['\"`\u2018\u201c](?P<what>[^'\"`\u2018\u2019\u201c\u201d]{1,200})['\"`\u2019\u201d]"),
    re.compile(r"(?:^|\s)(?P<what>(?:~|\.{0,2})?/[\w.+@-]{1,80}(?:/[\w.+@-]{1,80}){0,12})"),
)
# What no other log has: addresses, names, paths, times, numbers, and what stands in quotation marks.
_OF_THIS_LOG = re.compile(
    r"\bhttps?://\S{1,300}|\bgs://\S{1,300}|\b[\w.+-]{1,64}@[\w.-]{1,80}|(?:~|\.{0,2})?/[\w.+@-]{1,80}(?:/[\w.+@-]{0,80}){1,20}|"
    r"\bprojects/\S{1,200}|'[^']{0,200}'|\"[^\"]{0,200}\"|`[^`]{0,200}`|\b0x[0-9a-fA-F]{1,16}\b|\b[0-9a-f]{8,64}\b|"
    r"\b[\w-]{0,60}\d[\w.:-]{0,60}\b"
)
_EXCEPTION, _CONNECTION, _NOT_FOUND = "unrecognised-exception", "unrecognised-connection", "unrecognised-not-found"
_ENDS = frozenset({_EXCEPTION, _NOT_FOUND})
# A code such as 403 tells less than words about a quota in the next line.
_GENERAL = _ENDS | {"unrecognised-permission", "unrecognised-request"}
_SPECIFIC = frozenset(f"unrecognised-{kind}" for kind in ("preemption", "capacity", "quota", "device-busy", "memory"))
_NEARBY_LINES = 8
# Errors that Python raises for a mistake in a program, whatever words follow.
_PROGRAMMING_ERROR = re.compile(
    r"(?:E {1,8})?(?:Type|Attribute|Name|UnboundLocal|Key|Index|Import|Assertion|Syntax|Indentation|ZeroDivision|Recursion)"
    r"Error\b(?::|$)"
)
_TRY_AGAIN = re.compile(
    r"(?i)\b(?:(?:to )?keep retrying|please (?:retry|try again)|retry (?:later|with)|try(?:ing)? again)\b.{0,200}$"
)
_TRIED_AGAIN = re.compile(r"(?i)\bretry|\battempt \d|\btry(?:ing)? again|\breconnect")
# Lines that are no failure of this program.
_UNTELLING = re.compile(
    # Lines of a lower level.
    r"^[IW]\d{4} |^\[?(?:INFO|DEBUG|NOTICE|WARN(?:ING)?)\b|\b(?:WARNING|INFO|DEBUG)[: ]"
    r"|\b\w{0,40}Warning: |^(?:rm|mkdir|cp|mv|kill|pkill|killall): "
    # Source code and tables.
    r"|^(?:#(?!#\[error)|\||/[/*]|\* )|^[\w.]{1,60} ?= ?[\[{(]|^[\"'][\w ]{1,60}[\"']: ?[\[{]|^[\"'][^\"']{0,200}[\"'],?$"
    r"|^[^ ]{1,80}(?:,[^ ,]{0,80}){4}"
    r"|^(?:if|elif|else|while|for|try|except|with|def|class|return|raise|assert)\b.{0,300}:(?:$| )"
    r"|^[\w.]{1,60}\(.{0,300}\)$|^(?:\$|>>>) "
    # A request that a server answered, a step that is tried again, a negation, advice.
    r"|\b(?:GET|POST|PUT|HEAD|DELETE) /"
    r"|(?i:\bretry(?!_|able\b)|\battempt \d|\btry(?:ing)? again|(?<!while )\bwaiting\b|\breconnect)"
    r"|(?i:\b(?:never|not|no|without|if|when|unless) (?:\w{1,20} ){0,2}(?:preempted|in use|an error|indicate|fail))"
    # A probe before the server is up, a template.
    r"|\b(?:Startup|Readiness|Liveness) probe (?:failed|errored)|\{\{ ?[$.]|"
    r"(?i:ignore|harmless|\bskipp(?:ing|ed)\b|\bfall(?:ing|s)? back\b)"
)
_NO_WORDS = re.compile(r"[^\w.'_-]+")
# What stands before it only carries the reason, or guesses at it.
_WRAPPER = re.compile(r"^.{0,800}?\b(?:Original error:|most likely due to (?!.{0,400}Original error:).{0,400}$)\s{0,4}")


@functools.cache
def unrecognised_kinds() -> tuple[Message, ...]:
    """Return the kinds of failures that the words of a line can tell, specific before general."""
    return tuple(
        Message(
            id=entry["id"],
            where=MessageOrigin.TRAINING_LOG,
            match=re.sub(r"\|\s+\|", "|", entry["match"]),
            meaning=entry["meaning"],
            remedy=tuple(entry["remedy"]),
            action=Action.NONE,
            retriable=False,
            source="the words of the line alone",
            by=MatchedBy.WORD,
            topics=tuple(entry["topics"]),
        )
        for entry in load_data("messages/unrecognised.yaml")
    )


def kind_by_id(id_: str) -> Message | None:
    """Return the kind of guess with that id, None if there is none."""
    return next((kind for kind in unrecognised_kinds() if kind.id == id_), None)


def is_final(suspect: Suspect) -> bool:
    """Return whether a line looks like the exception that ends a program."""
    return suspect.score >= _FINAL_SCORE


def guess(suspects: Sequence[Suspect], lines: int) -> Sighting | None:
    """Return what the most telling line is about, None if no line is telling. `lines`: number of lines of the log.

    A line that only says that the program ended gives way to one that says why; what was not found, to a connection that was
    tried again and again.
    """
    found: Sighting | None = None
    for suspect in suspects:
        text = _WRAPPER.sub("", suspect.place.text[:_MAX_SEARCHED])
        # The last word of a program may advise to try again.
        words = _TRY_AGAIN.sub("", text) if is_final(suspect) else text
        if suspect.score < _LEAST_SCORE or _is_untelling(words):
            continue
        # What looks like the end of a program is one, whatever it says.
        kind = _kind_of(text) or (unrecognised_kinds()[-1] if text and is_final(suspect) else None)
        if kind is None:
            continue
        is_end = kind.id == _EXCEPTION
        # An exception that the program survived is no reason to speak.
        if is_end and (suspect.score < _SURE_SCORE or lines - suspect.place.line > _LAST_WORDS):
            continue
        sighting = Sighting(kind, suspect.place, suspect.place, facts=_facts(suspect, text))
        if not is_end or _PROGRAMMING_ERROR.match(text):
            found = sighting
            break
        found = found or sighting
    if found is None or found.message.id not in _GENERAL or _PROGRAMMING_ERROR.match(found.first.text):
        return found
    for suspect in suspects:
        text = suspect.place.text[:_MAX_SEARCHED]
        kind = _kind_of(text)
        if kind is None:
            continue
        is_near = (
            suspect.place.source == found.first.source and abs(suspect.place.line - found.first.line) <= _NEARBY_LINES
        )
        is_specific = is_near and kind.id in _SPECIFIC and not _is_untelling(text)
        is_tried_again = kind.id == _CONNECTION and found.message.id in _ENDS and _TRIED_AGAIN.search(text) is not None
        if is_specific or is_tried_again:
            return Sighting(kind, suspect.place, suspect.place, facts=_facts(suspect, text))
    return found


# What the scheduler of Kubernetes says of preemption in each refusal.
_NO_PREEMPTION = re.compile(r"\bpreemption: (?:not eligible|\d{1,6}/\d{1,6} nodes).{0,400}$")


def _kind_of(text: str) -> Message | None:
    text = _NO_PREEMPTION.sub("", text)
    kinds = unrecognised_kinds()
    if _PROGRAMMING_ERROR.match(text):
        return kinds[-1]
    return next((kind for kind in kinds if _compiled(kind.match).search(text)), None)


def _is_untelling(text: str) -> bool:
    harmless = (_compiled(known.match).search(text) for known in _harmless_messages())
    return _UNTELLING.search(text) is not None or any(harmless)


@functools.cache
def _harmless_messages() -> tuple[Message, ...]:
    return tuple(one for one in known_messages() if one.role in {MessageRole.HARMLESS, MessageRole.RECOVERY})


def search_term(text: str) -> str:
    """Return the words of a line that other logs share: without numbers, names and addresses."""
    words = _NO_WORDS.sub(" ", _OF_THIS_LOG.sub(" ", text[:_MAX_SEARCHED])).split()
    term = " ".join(word.strip(".'-") for word in words if word.strip(".'-_"))
    return term if len(term) <= _MAX_TERM_LENGTH else term[:_MAX_TERM_LENGTH].rsplit(" ", 1)[0]


def describe(guessed: Sighting) -> str:
    """Return what a guess says, with what the line names and where the program raised it."""
    named, raised = guessed.facts.get("what"), guessed.facts.get("raised_in")
    text = guessed.message.meaning + (f": {as_quotation(named)}" if named else "")
    return text + (f", raised in {as_quotation(raised)}" if raised else "")


def _facts(suspect: Suspect, text: str) -> dict[str, str]:
    named = next((found["what"].strip().rstrip(".:") for pattern in _WHAT if (found := pattern.search(text))), "")
    facts = {"what": named[:_MAX_WHAT_LENGTH], "raised_in": suspect.origin, SEARCH_TERM: search_term(text)}
    return {name: value for name, value in facts.items() if value}


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
