"""The lines of a log that look most like an error, and how much a line does. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from tpuctl.explain.log_lines import MAX_EVIDENCE_LENGTH, LogLevel, Suspect
from tpuctl.explain.log_streams import letters_by_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.explain.log_lines import LogPlace
    from tpuctl.explain.log_streams import LogStream

_MAX_SUSPECTS = 8
# Lines examined for each word in a block. Kinds of lines remembered, and letters that make a kind.
_MAX_PER_WORD = 30
_MAX_KINDS, _KIND_LENGTH = 600, 200
_MAX_SCORED_LENGTH = 1000
# Letters alone, as the lines that are compared with them.
_ERROR_WORDS = (
    *(b"error", b"exception", b"fatal", b"failed", b"failure", b"aborted", b"panic", b"denied", b"killed", b"sigkill"),
    *(
        b"unableto",
        b"couldnot",
        b"couldnt",
        b"cannot",
        b"notfound",
        b"nosuch",
        b"doesnotexist",
        b"invalid",
        b"forbidden",
    ),
    *(
        b"quota",
        b"exhausted",
        b"preempt",
        b"unavailable",
        b"timedout",
        b"inuse",
        b"busy",
        b"outofmemory",
        b"terminated",
    ),
)
# What a line with an error is like, its score, and the words of which such a line has one, in lower case; none for any line.
_SCORES: tuple[tuple[re.Pattern[str], int, tuple[str, ...]], ...] = (
    # Exceptions of google.api_core, and others by the names of their packages.
    (
        re.compile(
            r"^(?:[a-z_]\w{0,80}\.){1,12}[A-Z]\w{1,80}: (?!_)|^(?:Forbidden|NotFound|InvalidArgument|PermissionDenied|"
            r"ResourceExhausted|FailedPrecondition|ServiceUnavailable|DeadlineExceeded|Conflict|BadRequest|TooManyRequests|"
            r"Unauthenticated|InternalServerError|GatewayTimeout|Unauthorized): \d{3} "
        ),
        9,
        (),
    ),
    # (pytest marks its line with an E)
    (
        re.compile(r"^(?:E {1,8})?(?:\w{1,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit)\b(?::|$)"),
        9,
        ("error", "exception", "interrupt", "exit"),
    ),
    (
        re.compile(
            r"Check fail(?:ed|ure)|Segmentation fault|core dumped|\bpanic:|\bFATAL\b|Fatal Python error|terminate called"
        ),
        8,
        ("check fail", "segmentation fault", "core dumped", "panic:", "fatal", "terminate called"),
    ),
    (re.compile(r"\b[A-Z]\w{0,80}(?:Error|Exception): "), 7, ("error: ", "exception: ")),
    (
        re.compile(
            r"\b(?:RESOURCE_EXHAUSTED|PERMISSION_DENIED|UNAUTHENTICATED|INVALID_ARGUMENT|FAILED_PRECONDITION|NOT_FOUND|UNAVAILABLE|"
            r"DEADLINE_EXCEEDED|UNIMPLEMENTED|ALREADY_EXISTS|DATA_LOSS)\b|\bHTTP(?:/[\d.]{1,3})? [45]\d\d\b|"
            r"\bHttpError [45]\d\d\b|\b[45]\d\d (?:Client|Server) Error\b|\bstatus(?: code)?[ =:]{1,2}[45]\d\d\b"
        ),
        7,
        ("_", "unauthenticated", "unavailable", "unimplemented", "http", "client error", "server error", "status"),
    ),
    (
        re.compile(
            r"^(?:CRITICAL|E\d{4})\b|\bERROR\b|^##\[error\]|^::error|^(?i:fatal|error): |^[^\w\s] {1,4}Error: |"
            r"^[\w./-]{1,80}: error: (?!\d)|\bError code \d|\bSIGKILL\b|\bKilled$"
        ),
        6,
        ("critical", "e0", "e1", "error", "fatal: ", "sigkill", "killed"),
    ),
    (
        re.compile(
            r"(?i)\b(?:permission denied|connection refused|no such file|command not found|killed|aborted)\b|"
            r"\b(?:spot|preemptible)\b.{0,60}\b(?:terminated|reclaimed|revoked)\b|"
            r"\bTERMINATE_ON_HOST_MAINTENANCE\b|"
            r"^Warning {1,40}(?:Failed|Evicted|BackOff|FailedScheduling|FailedMount|FailedCreate)\b"
        ),
        5,
        (
            *("denied", "refused", "no such file", "command not found", "killed", "aborted", "spot", "preemptible"),
            "terminate_on",
            "warning ",
        ),
    ),
    (re.compile(r"(?i)\bexit(?:ed)?(?: with)?(?: code| status)?:? ?(?:[1-9]\d{0,3})\b"), 5, ("exit",)),
    (
        re.compile(
            r"(?i)\b(?:failed|failure|cannot|unable to|could not|couldn't|timed out|preempted|quota|exhausted|not found|"
            r"no such|does not exist|forbidden|invalid (?:value|argument|request|field)|not divisible)\b"
        ),
        4,
        (
            *(
                "fail",
                "cannot",
                "unable to",
                "could",
                "timed out",
                "preempted",
                "quota",
                "exhausted",
                "not found",
                "no such",
            ),
            *("does not exist", "forbidden", "invalid ", "not divisible"),
        ),
    ),
    (
        re.compile(r"(?i)\b(?:error|invalid|exception|unavailable|in use|busy)\b"),
        2,
        ("error", "invalid", "exception", "unavailable", "in use", "busy"),
    ),
)
_BEST_SCORE = _SCORES[0][1]
# A line that was logged as an error, and has a word of one, has this score.
_LOGGED_ERROR_SCORE = 6
# Wordings that look alarming but are harmless.
_HARMLESS_WORDING = re.compile(
    r"(?i)\b(?:0|no|zero|without|any) (?:errors?|failures?|failed)\b|error[_ ]rate|mean[ _]\w{1,20}[ _]error|\bmse\b|\brmse\b|"
    r"\berrors?[=: ]{1,3}(?:0\b|none\b|\d[\d.]{0,20}(?:e-?\d{1,3})?(?:\s|,|$))|\bfailed[=: ]{1,3}0\b|^\s{0,40}File \"|"
    r"^\s{0,40}(?:raise|except) "
)


_FRAME = re.compile(r"File \"(?P<file>[^\"]{1,300})\", line (?P<line>\d{1,7})\b")
_OF_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<")
_MAX_FRAME_LINES = 80


@dataclass(slots=True)
class SuspectLines:
    """Keeps the lines that look most like an error, of each kind of line the first. Bounded in number and in cost."""

    _kept: list[tuple[int, Suspect]] = field(default_factory=list)
    _kinds: set[int] = field(default_factory=set)
    _added: int = 0

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """The lines with the highest scores, the highest first; of equals the first in the log."""
        return tuple(suspect for _, suspect in self._kept)

    def may_be_in(self, text: bytes) -> bool:
        """Return whether a text may hold a line to keep. Only the letters of the text are given."""
        if len(self._kinds) >= _MAX_KINDS or (
            len(self._kept) == _MAX_SUSPECTS and self._kept[-1][1].score >= _BEST_SCORE
        ):
            return False
        return any(word in text for word in _ERROR_WORDS)

    def add_from(self, streams: Sequence[LogStream]) -> None:
        """Keep the lines of a block that look more like an error than those kept so far."""
        texts = [line for stream in streams for line in letters_by_line(b"\n".join(stream.texts))]
        origins = [(index, stream, at) for stream in streams for at, index in enumerate(stream.indices)]
        for _, stream, at in sorted((origins[row] for row in self._new_kinds(b"\n".join(texts))), key=itemgetter(0)):
            place = _place_with_reason(stream, at)
            points = error_score(place.text)
            if points and place.level is LogLevel.ERROR:
                points = max(points, _LOGGED_ERROR_SCORE)
            raised_in, is_survived = _raised_in(stream, at) if points == _BEST_SCORE else (None, False)
            if points and not is_survived:
                self._added += 1
                suspect = Suspect(place, points, raised_in)
                kept = [*self._kept, (self._added, suspect)]
                self._kept = sorted(kept, key=lambda one: (-one[1].score, one[0]))[:_MAX_SUSPECTS]

    def _new_kinds(self, lines: bytes) -> set[int]:
        """Return the indices of the lines to score; of each line the letters are given."""
        found: set[int] = set()
        for word in _ERROR_WORDS:
            at = lines.find(word)
            for _ in range(_MAX_PER_WORD):
                if at < 0:
                    break
                start, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
                kind = hash(lines[start : end if end >= 0 else None][:_KIND_LENGTH])
                if kind not in self._kinds:
                    self._kinds.add(kind)
                    found.add(lines.count(b"\n", 0, at))
                at = lines.find(word, end) if end >= 0 else -1
        return found


def _place_with_reason(stream: LogStream, at: int) -> LogPlace:
    """Return the place of a line; of one that ends with a colon the text has the next line of the worker, too."""
    place = stream.place(at)
    if not place.text.endswith(":") or at + 1 >= len(stream.indices):
        return place
    return replace(place, text=f"{place.text} {stream.place(at + 1).text}"[:MAX_EVIDENCE_LENGTH])


# Python prints a traceback behind it, and goes on.
_SURVIVED = ("Exception ignored in", "--- Logging error ---")


def _raised_in(stream: LogStream, at: int) -> tuple[str | None, bool]:
    """Return where an exception was raised: the last frame that is not a library's. And whether Python says that it goes on."""
    place: str | None = None
    is_own = False
    for before in reversed(range(max(0, at - _MAX_FRAME_LINES), at)):
        text = stream.line(before).text
        if text.startswith("Traceback (most recent call last)"):
            return place, before > 0 and stream.line(before - 1).text.startswith(_SURVIVED)
        if (frame := _FRAME.match(text[:_MAX_SCORED_LENGTH])) and not is_own:
            is_own = not _OF_LIBRARY.search(frame["file"])
            place = f"{frame['file']}:{frame['line']}" if is_own or place is None else place
    return place, False


def error_score(line: str) -> int:
    """Return how much a line looks like an error: 0 not at all, 9 like the last line of a traceback."""
    line = line[:_MAX_SCORED_LENGTH]
    lower = line.lower()
    for pattern, points, words in _SCORES:
        if (not words or any(word in lower for word in words)) and pattern.search(line):
            return 0 if _HARMLESS_WORDING.search(line) else points
    return 0
