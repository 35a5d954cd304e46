"""Find the known messages in a log, block by block, each occurrence once, in bounded memory. Pure.

`LogReader` takes bytes; `LogScanner` searches blocks of lines.

Most blocks hold none of the literals (anchors) of known messages, and need no more work. A block that holds one is searched
with patterns, and so is the beginning of the next block, in which a message at the end of a block may continue.

Anchors are compared by their letters alone: white space, colours and numbers, and so wrapped lines and times before each
line, do not separate the parts of a message. Only anchors whose words occur are searched for.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.explain.device_memory import parse_memory_usage
from tpuctl.explain.log_endings import ENDING_LINES, JudgedLine, is_newest_first, judge_ending
from tpuctl.explain.log_lines import (
    ANY_HEADER,
    MAX_EVIDENCE_LENGTH,
    JsonRecordReader,
    LineSplitter,
    LogLevel,
    LogLines,
    ParsedLine,
    PatternMatch,
    ScanResult,
    SearchWindow,
    Sighting,
    Suspect,
    has_worker_numbers,
    parse_header,
    parse_line,
    parse_worker,
    snapshot,
)
from tpuctl.explain.messages import Detail, MatchedBy, known_messages
from tpuctl.explain.quoting import QuoteDetector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.explain.log_endings import LogEnding
    from tpuctl.explain.log_lines import LogPlace
    from tpuctl.explain.messages import Message

_LETTERS = bytes(range(ord("a"), ord("z") + 1))
_LOWER = bytes(range(256)).lower()
_NO_LETTERS = bytes(sorted(set(range(256)) - set(_LETTERS) - set(_LETTERS.upper())))
_NO_LETTERS_OR_ENDS = _NO_LETTERS.replace(b"\n", b"")
# Separates parts of a text that do not belong together.
TEXT_BREAK = b"\n\x1e\n"
_NO_LETTERS_OR_BREAKS = _NO_LETTERS.replace(b"\x1e", b"")
_WORD_TABLE = bytes(code if code in (*_LETTERS, ord("\n")) else ord(" ") for code in _LOWER)
_WHITESPACE = b" \t\r\n\f\v"
# An anchor with fewer letters is ambiguous without its digits and signs.
_MIN_LETTERS = 8


def letters_only(text: bytes) -> bytes:
    """Return only the letters of a text, in lower case."""
    return text.translate(_LOWER, _NO_LETTERS)


def letters_by_line(text: bytes) -> list[bytes]:
    """Return the letters of each line in lower case."""
    return text.translate(_LOWER, _NO_LETTERS_OR_ENDS).split(b"\n")


def without_whitespace(text: bytes) -> bytes:
    """Return a text in lower case and without white space."""
    return text.translate(_LOWER, _WHITESPACE)


def without_headers(lines: Sequence[bytes]) -> bytes:
    """Return lines as one text, without their headers."""
    return ANY_HEADER.sub(b"\n", b"\n".join([b"", *lines]))[1:]


class NeededWords(NamedTuple):
    """Words that a text must have to contain a literal."""

    inner: frozenset[bytes]  # whole words
    edges: tuple[
        bytes, ...
    ]  # the end of the first and the beginning of the last word, the rarer first; of one word any part


@dataclass(frozen=True, slots=True)
class AnchorIndex:
    """The literals to search for, and the messages of each, by their index in the order of all messages."""

    loose: Mapping[bytes, NeededWords]  # by the letters of the literals
    exact: Sequence[bytes]  # literals that need their digits or signs: searched for in text without white space
    owners: Mapping[bytes, frozenset[int]]
    edges: frozenset[bytes]  # all those of `loose`
    by_edge: Mapping[bytes, Sequence[bytes]]  # the literals of `loose` by their rarest edge, by b"" those without one

    def found_exactly(self, text: bytes) -> list[bytes]:
        """Return the literals in a text without white space."""
        return [anchor for anchor in self.exact if anchor in text]


# Letters of the words of a log that are remembered: with their containers about 5 MiB.
_MAX_WORD_LETTERS = 500_000


@dataclass(slots=True)
class AnchorSearch:
    """Searches the blocks of a log for literals: only for those whose words the log has. Logs repeat their words."""

    anchors: AnchorIndex
    _words: set[bytes] = field(default_factory=set)
    _letters: int = 0  # of these words
    _edges: set[bytes] = field(default_factory=set)  # those found in these words
    _possible: list[bytes] = field(default_factory=list)  # the literals that consist of such words

    def found(self, text: bytes) -> tuple[list[bytes], bytes]:
        """Return the literals in a text, in which `TEXT_BREAK` separates unrelated parts; and the letters of the text."""
        flat = text.translate(_LOWER, _NO_LETTERS_OR_BREAKS)
        in_words = text.translate(_WORD_TABLE)
        # A word that a line end cuts in two counts as a whole word too.
        lines = [line.strip(b" ") for line in in_words.split(b"\n")]
        words = {before.rpartition(b" ")[2] + after.partition(b" ")[0] for before, after in pairwise(lines)}
        words.update(in_words.split())
        if self._letters > _MAX_WORD_LETTERS:
            self._words, self._letters, self._edges = set(), 0, set()
        if new := words - self._words:
            self._learn(new)
        loose = self.anchors.loose
        return [letters for letters in self._possible if loose[letters].inner <= words and letters in flat], flat

    def _learn(self, new: set[bytes]) -> None:
        self._words |= new
        self._letters += sum(map(len, new))
        # An edge may be a part of a longer word.
        all_new = b" ".join([b"", *new, b""])
        self._edges.update(edge for edge in self.anchors.edges - self._edges if edge in all_new)
        loose = self.anchors.loose
        self._possible = [
            letters
            for edge, literals in self.anchors.by_edge.items()
            if edge in self._edges or not edge
            for letters in literals
            if self._edges.issuperset(loose[letters].edges) and loose[letters].inner <= self._words
        ]


def index_anchors(messages: Sequence[Message]) -> AnchorIndex:
    """Return the anchors of messages. A message without anchors is left out."""
    owners: dict[bytes, set[int]] = {}
    needed: dict[bytes, NeededWords] = {}
    for index, message in enumerate(messages):
        for anchor in map(str.encode, message.anchors):
            letters = letters_only(anchor)
            if len(letters) < _MIN_LETTERS:
                owners.setdefault(without_whitespace(anchor), set()).add(index)
                continue
            owners.setdefault(letters, set()).add(index)
            words = anchor.translate(_WORD_TABLE).split()
            # The first and the last word may be a part of a longer one.
            edges = (words[0] + b" ", b" " + words[-1]) if len(words) > 1 else words
            inner, shared = needed.get(letters, (frozenset(words), edges))
            # A long word is rarer than a short one.
            rare_first = sorted({*edges}.intersection(shared), key=lambda edge: (-len(edge), edge))
            needed[letters] = NeededWords(inner.intersection(words[1:-1]), tuple(rare_first))
    # An anchor that contains a shorter one is not searched for: the shorter one stands for it.
    loose: dict[bytes, NeededWords] = {}
    for letters in sorted(needed, key=lambda letters: (len(letters), letters)):
        inside = next((shorter for shorter in loose if shorter in letters), None)
        if inside is None:
            loose[letters] = needed[letters]
        else:
            owners[inside] |= owners[letters]
    exact = sorted(owners.keys() - needed.keys())
    all_edges = frozenset(edge for words_of_one in loose.values() for edge in words_of_one.edges)
    by_edge: dict[bytes, list[bytes]] = {}
    for letters, words_of_one in loose.items():
        by_edge.setdefault(next(iter(words_of_one.edges), b""), []).append(letters)
    found_for = {anchor: frozenset(indices) for anchor, indices in owners.items()}
    return AnchorIndex(loose, exact, found_for, all_edges, by_edge)


# Lines of a block that are examined for workers, or numbers, before each line.
_SAMPLE_LINES = 32
# Bytes. No header is longer.
_MAX_HEADER = 600
# Per block. The lines of further workers are read as one stream.
_MAX_WORKER_STREAMS = 512
_MAX_KNOWN_HEADERS = 1000


@dataclass(frozen=True, slots=True)
class LogStream:
    """The lines of one worker in a block of lines."""

    block: LogLines
    worker: str | None
    is_numbered: bool  # a number before a line is a worker
    indices: Sequence[int]  # of the lines in the block
    texts: Sequence[bytes]  # some without a part of their headers

    def row(self, index: int) -> ParsedLine:
        """Return one line of the block, parsed."""
        return parse_line(self.block, index, counted=self.is_numbered)


def split_by_worker(lines: LogLines) -> list[LogStream]:
    """Return the lines by worker: messages of several workers may interleave."""
    sample = [line[:_MAX_HEADER] for line in lines.texts[:: max(1, len(lines) // _SAMPLE_LINES)]]
    counted = has_worker_numbers(sample)
    gathered: dict[str | None, tuple[Sequence[int], Sequence[bytes]]] = {None: (range(len(lines)), lines.texts)}
    if any(parse_header(line, counted=counted).worker for line in sample) or any(
        origin.worker for origin in lines.origins if origin is not None
    ):
        gathered = {**_group_by_worker(lines, counted=counted)}
    return [LogStream(lines, name, counted, *place) for name, place in gathered.items()]


def _group_by_worker(lines: LogLines, *, counted: bool) -> dict[str | None, tuple[list[int], list[bytes]]]:
    gathered: dict[str | None, tuple[list[int], list[bytes]]] = {}
    known: dict[bytes, tuple[list[int], list[bytes]]] = {}
    worker: str | None = None
    for index, (text, origin) in enumerate(zip(lines.texts, lines.origins, strict=True)):
        if origin is None:
            name, end = parse_worker(text, counted=counted)
            # A log repeats a few names: their full headers are parsed once.
            if name and (place := known.get(name)):
                place[0].append(index)
                place[1].append(text[end:])
                continue
            worker = parse_header(text, counted=counted).worker
        elif not origin.is_glued:
            worker = origin.worker
        if worker not in gathered and len(gathered) >= _MAX_WORKER_STREAMS:
            worker = None
        place = gathered.setdefault(worker, ([], []))
        if origin is None and worker and name and len(known) < _MAX_KNOWN_HEADERS:
            known[name] = place
        place[0].append(index)
        place[1].append(text)
    return gathered


# Pairs of lines remembered, as numbers: about 5 MiB.
_MAX_PAIRS = 60_000
# If most pairs are new, it is faster to search all lines, and not to compare the next blocks at all.
_NEW_SHARE = 0.5
_SKIPPED_BLOCKS = 3


class UnseenPart(NamedTuple):
    """Lines to search, and the pairs of lines to remember if they hold no literal."""

    lines: Sequence[bytes]
    pairs: Sequence[int]


@dataclass(slots=True)
class LineDeduplicator:
    """Remembers which pairs of lines hold no literal: logs repeat themselves, only with other numbers.

    Compares the letters of a line and of the line before it, so that a message across two lines is searched when these two meet
    for the first time.
    """

    _empty: set[int] = field(default_factory=set)
    _skipped: int = 0

    def unseen(self, stream: LogStream) -> Iterator[UnseenPart]:
        """Yield the new parts of a stream.

        A part has two more lines on each side of a new pair: a literal may span them.
        """
        texts, pairs = stream.texts, []
        runs: list[tuple[int, int]] = []
        if self._skipped:
            self._skipped -= 1
            runs = [(0, len(texts))]
        else:
            pairs = list(map(hash, pairwise([b"", *letters_by_line(b"\n".join(texts))])))
            new = [index for index, pair in enumerate(pairs) if pair not in self._empty]
            if len(new) > _NEW_SHARE * len(pairs):
                self._skipped = _SKIPPED_BLOCKS if len(self._empty) > _MAX_PAIRS // 6 else 0
                new, runs = [], [(0, len(texts))]
            for index in new:
                if runs and index <= runs[-1][1] + 4:
                    runs[-1] = (runs[-1][0], index)
                else:
                    runs.append((index, index))
        for first, last in runs:
            yield UnseenPart(texts[max(0, first - 3) : last + 3], pairs[first : last + 1])

    def remember(self, part: UnseenPart, hits: Sequence[bytes]) -> None:
        """Remember the pairs of a part if it has none of the literals that were found."""
        letters = letters_only(without_headers(part.lines)) if part.pairs and hits else b""
        if part.pairs and not any(literal in letters for literal in hits):
            if len(self._empty) > _MAX_PAIRS:
                self._empty.clear()
            self._empty.update(part.pairs)


# How much is searched around a literal: bytes and lines before and after it.
_BYTES_BEFORE, _LINES_BEFORE = 2048, 24
_BYTES_AFTER, _LINES_AFTER = 6144, 48
_MAX_FOLLOWING = 16 * 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """Some lines of a stream that hold an anchor."""

    stream: LogStream
    first: int
    last: int  # exclusive
    owners: frozenset[int]  # the messages to search for, by their index

    def rows(self) -> list[ParsedLine]:
        """Return its lines, parsed."""
        block, known = self.stream.block, dict[bytes, ParsedLine]()
        rows: list[ParsedLine] = []
        for index in self.stream.indices[self.first : self.last]:
            text, is_plain = block.texts[index], block.origins[index] is None
            # Repeated lines are often identical.
            row = known.get(text) if is_plain else None
            rows.append(row._replace(position=index, number=block.numbers[index]) if row else self.stream.row(index))
            if is_plain:
                known[text] = rows[-1]
        return rows

    def rows_behind(self) -> list[ParsedLine]:
        """Return the lines of the stream that follow, as many as may explain a message."""
        rows: list[ParsedLine] = []
        size = 0
        for index in self.stream.indices[self.last :]:
            rows.append(self.stream.row(index))
            size += len(rows[-1].text)
            if size > _MAX_FOLLOWING:
                break
        return rows


# The line of the stream in which a literal begins, and the messages that have it.
_Hit = tuple[int, frozenset[int]]


def find_candidates(stream: LogStream, anchors: AnchorIndex, wanted: frozenset[bytes]) -> list[Candidate]:
    """Return the passages of a stream that hold any of the wanted literals."""
    exact = wanted.intersection(anchors.exact)
    hits = [*_find_anchors(letters_by_line(without_headers(stream.texts)), anchors, wanted - exact)]
    if exact:
        texts = [without_whitespace(stream.block.texts[index]) for index in stream.indices]
        hits += _find_anchors(texts, anchors, exact)
    hits.sort(key=itemgetter(0))
    return [Candidate(stream, *span) for span in (_spans(hits, stream) if hits else ())]


def _find_anchors(by_line: Sequence[bytes], anchors: AnchorIndex, wanted: frozenset[bytes]) -> Iterator[_Hit]:
    flat = b"".join(by_line)
    starts: list[int] = []
    for anchor in wanted:
        at = flat.find(anchor)
        if at >= 0 and not starts:
            starts = [0, *accumulate(map(len, by_line))]
        line, owners = 0, anchors.owners[anchor]
        while at >= 0:
            line = bisect_right(starts, at, line)
            yield line - 1, owners
            at = flat.find(anchor, at + 1)


def _spans(hits: Sequence[_Hit], stream: LogStream) -> list[tuple[int, int, frozenset[int]]]:
    """Return the ranges of lines to search, and for which messages: one around each hit, merged if they overlap."""
    spans: list[tuple[int, int, frozenset[int]]] = []
    most = len(stream.indices)
    # Where each line ends, in bytes.
    ends = list(accumulate(len(stream.block.texts[index]) + 1 for index in stream.indices))
    first, last, done = 0, 0, -1
    owners: frozenset[int] = frozenset()
    for line, new_owners in hits:
        at = min(line, most - 1)
        if at != done:
            if at >= last:
                before = ends[at - 1] if at else 0
                start = max(0, at - _LINES_BEFORE, min(at, bisect_right(ends, before - _BYTES_BEFORE)))
                if start >= last:
                    if owners:
                        spans.append((first, last, owners))
                    first, owners = start, frozenset()
            last = min(most, at + _LINES_AFTER, bisect_right(ends, ends[at] + _BYTES_AFTER, at) + 1)
            done = at
        if not new_owners <= owners:
            owners |= new_owners
    if owners:
        spans.append((first, last, owners))
    return spans


_MAX_WORKERS = 8192
# The list of tasks stands right behind its message; source: jax-ml/jax, errors of the coordination service.
_TASK = re.compile(r"/job:[\w.-]{1,80}/(?:replica:\d{1,6}/)?task:(\d{1,6})")
_BLAMED = re.compile(r"timed out task names:", re.IGNORECASE)
_TASK_LIST_LENGTH = 4096


@dataclass(slots=True)
class MessageCounter:
    """The occurrences of one message. Where and what: of the real ones, of the quotes only as long as there is no other."""

    message: Message
    count: int = 0
    quoted: int = 0
    first: LogPlace | None = None
    last: Callable[[], LogPlace] | None = None
    facts: dict[str, str] = field(default_factory=dict)
    workers: dict[str, LogPlace] = field(default_factory=dict)
    following: str = ""

    def add(
        self,
        found: re.Match[str],
        *,
        is_quoted: bool,
        worker: str | None,
        place: Callable[[], LogPlace],
        following: Callable[[], str],
    ) -> None:
        """Count an occurrence. `place` and `following` are expensive, and called only if needed."""
        is_first_real = self.quoted == self.count and not is_quoted
        self.count += 1
        self.quoted += is_quoted
        if is_quoted and self.quoted < self.count:
            return
        self.last = place
        if self.first is None or is_first_real:
            self.first, self.workers = place(), {}
            self.facts = {name: text for name, text in found.groupdict().items() if text}
            self.following = following() if self.message.detail else ""
        for name in self.message.latest:
            if text := found[name]:
                self.facts[name] = text
        if worker is not None and worker not in self.workers and len(self.workers) < _MAX_WORKERS:
            self.workers[worker] = place()

    def settle(self) -> None:
        """Release the text that holds the last place."""
        if self.last is not None:
            last = self.last()
            self.last = lambda: last

    def sighting(self) -> Sighting:
        """Return the occurrences so far, of which there is at least one."""
        assert self.first is not None and self.last is not None  # noqa: S101, PT018  # a counter begins with an occurrence
        facts = dict(self.facts)
        if self.message.detail is Detail.TASKS:
            # A message about a barrier names the task that arrived first, too, before those that did not arrive.
            blamed = _BLAMED.split(self.following[:_TASK_LIST_LENGTH], maxsplit=1)[-1]
            if tasks := ", ".join(dict.fromkeys(_TASK.findall(blamed))):
                facts["tasks"] = tasks
        return Sighting(
            self.message,
            self.first,
            self.last(),
            self.count,
            self.quoted,
            MappingProxyType(facts),
            MappingProxyType(dict(self.workers)),
            memory=parse_memory_usage(self.following) if self.message.detail is Detail.MEMORY else None,
        )


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
# Of a line that was logged as an error, and has a word of one.
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
        """Tell whether a text may hold a line to keep. Only the letters of the text are given."""
        if len(self._kinds) >= _MAX_KINDS or (
            len(self._kept) == _MAX_SUSPECTS and self._kept[-1][1].score >= _BEST_SCORE
        ):
            return False
        return any(word in text for word in _ERROR_WORDS)

    def add_from(self, streams: Sequence[LogStream]) -> None:
        """Keep the lines of a block that look more like an error than those kept so far."""
        texts = [line for stream in streams for line in letters_by_line(b"\n".join(stream.texts))]
        origins = [(index, stream) for stream in streams for index in stream.indices]
        for index, stream in sorted((origins[at] for at in self._new_kinds(b"\n".join(texts))), key=itemgetter(0)):
            place = _place_with_reason(stream, index)
            points = error_score(place.text)
            if points and place.level is LogLevel.ERROR:
                points = max(points, _LOGGED_ERROR_SCORE)
            raised_in, is_survived = _raised_in(stream, index) if points == _BEST_SCORE else (None, False)
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


def _place_with_reason(stream: LogStream, index: int) -> LogPlace:
    """Return the place of a line; of one that ends with a colon the text has the next line of the worker, too."""
    place = stream.row(index).place(0, worker=stream.worker)
    at = bisect_right(stream.indices, index)
    if not place.text.endswith(":") or at >= len(stream.indices):
        return place
    reason = stream.row(stream.indices[at]).place(0, worker=stream.worker).text
    return replace(place, text=f"{place.text} {reason}"[:MAX_EVIDENCE_LENGTH])


# Python prints a traceback behind it, and goes on.
_SURVIVED = ("Exception ignored in", "--- Logging error ---")


def _raised_in(stream: LogStream, index: int) -> tuple[str | None, bool]:
    """Return where an exception was raised: the last frame that is not a library's. And whether Python says that it goes on."""
    at = bisect_right(stream.indices, index) - 1
    place: str | None = None
    is_own = False
    for before in reversed(range(max(0, at - _MAX_FRAME_LINES), at)):
        text = stream.row(stream.indices[before]).text
        if text.startswith("Traceback (most recent call last)"):
            return place, before > 0 and stream.row(stream.indices[before - 1]).text.startswith(_SURVIVED)
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


# Bytes of a log that wait for the next block: of one worker, and of all together.
_MAX_PENDING, _MAX_ALL_PENDING = 16 * 1024, 128 * 1024
# Bytes before that, which decide whether a message is a quotation.
_CONTEXT_BYTES = 2 * 1024


# How a program names its own processes: `launcher pid=7`, `(Worker pid=7)`, `Started server process [7]`, `started by 7`.
_PIDS = tuple(
    (word, re.compile(word + rest + rb"(\d{2,10})\b"))
    for word, rest in ((b"pid", rb"[ =:\[(]{1,3}"), (b"rocess", rb"(?: group)? \[?"), (b"tarted by", rb" "))
)
# A line with these words is about a process of another run.
_FOREIGN = re.compile(rb"(?i)in use by|h[eo]ld|stale|earlier|old |other |left|kill")
_MAX_PIDS, _PID_LINE_LENGTH = 1024, 1000


@dataclass(slots=True)
class OwnProcesses:
    """The processes that a log names as those of its own run."""

    pids: set[bytes] = field(default_factory=set)
    # The words with which the log names processes: the others are not searched for.
    _words: set[bytes] = field(default_factory=set)

    def add_from(self, texts: Sequence[bytes], new_kinds: Sequence[bytes]) -> None:
        """Add the processes that lines name. `new_kinds`: the lines that differ from earlier ones in more than numbers."""
        named = b"\n".join(new_kinds)
        self._words.update(word for word, pattern in _PIDS if word not in self._words and pattern.search(named))
        block = b"\n".join(texts) if self._words else b""
        for word, pattern in _PIDS:
            if word not in self._words or self.pids.issuperset(pattern.findall(block)):
                continue
            for text in texts:
                if word not in text or len(self.pids) >= _MAX_PIDS:
                    continue
                new = set(pattern.findall(text, 0, _PID_LINE_LENGTH)) - self.pids
                if new and not _FOREIGN.search(text, 0, _PID_LINE_LENGTH):
                    self.pids |= new


@dataclass(slots=True)
class LogScanner:
    """Searches a log for messages. Of two that overlap the first wins. Lines are counted from the start of the log.

    A message that begins at the end of a block is searched together with the next block.
    """

    messages: Sequence[Message]
    literals: AnchorSearch
    suspects: SuspectLines = field(default_factory=SuspectLines)
    counters: dict[int, MessageCounter] = field(default_factory=dict)
    # The lines that wait, the number of the first, and how many of them are finished and only context of the others.
    _pending: LogLines = field(default_factory=LogLines)
    _first: int = 0
    _start: int = 0
    # Of each worker: up to where the waiting lines were searched: line, column.
    _searched_until: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    _quotes: QuoteDetector = field(default_factory=QuoteDetector)
    _last_lines: LogLines = field(default_factory=LogLines)
    _deduplicator: LineDeduplicator = field(default_factory=LineDeduplicator)
    _processes: OwnProcesses = field(default_factory=OwnProcesses)

    def scan(self, lines: LogLines, *, is_last: bool = False) -> None:
        """Take the next lines; with `is_last` nothing comes after them."""
        self._quotes.read(lines, self._first + len(self._pending))
        if len(lines):
            self._last_lines = (self._last_lines + lines.since(-ENDING_LINES)).since(-ENDING_LINES)
        block = self._pending + lines if len(self._pending) else lines
        streams = split_by_worker(block)
        literals = self._literals_in(streams, block)
        keep = 0
        if not is_last:
            # The last line always waits, and at most half of the lines.
            size = _MAX_PENDING if literals else _BYTES_BEFORE
            keep = _count_back(block.texts, min(_MAX_ALL_PENDING, size * len(streams)))
            keep = max(1, keep) if keep < len(block) else (len(block) + 1) // 2
        boundary = max(self._start, len(block) - keep)
        if literals:
            for stream in streams:
                for candidate in find_candidates(stream, self.literals.anchors, literals):
                    self._search(candidate, boundary)
            for counter in self.counters.values():
                counter.settle()
        self._start = min(boundary, _count_back(block.texts[:boundary], _CONTEXT_BYTES * len(streams)))
        self._pending, self._first = block.since(boundary - self._start), self._first + boundary - self._start
        self._searched_until = {worker: end for worker, end in self._searched_until.items() if end[0] >= self._first}
        self._quotes.forget(self._first)

    def endings(self) -> tuple[LogEnding, ...]:
        """Return how the logs of the workers end that wrote one of the last lines; none if the newest line comes first."""
        streams = split_by_worker(self._last_lines)
        places = {
            stream.worker: [stream.row(index).place(0, worker=stream.worker) for index in stream.indices]
            for stream in streams
        }
        if is_newest_first(sorted((place for some in places.values() for place in some), key=attrgetter("line"))):
            return ()
        return tuple(
            judge_ending(worker, [JudgedLine(place, error_score(place.text)) for place in some])
            for worker, some in places.items()
        )

    def own_pids(self) -> frozenset[str]:
        """Return the processes that the log names as those of this run."""
        return frozenset(pid.decode() for pid in self._processes.pids)

    def _literals_in(self, streams: Sequence[LogStream], block: LogLines) -> frozenset[bytes]:
        """Return the literals of messages in a block. Keep lines that look like an error."""
        parts = [part for stream in streams for part in self._deduplicator.unseen(stream)]
        found, letters = self.literals.found(TEXT_BREAK.join(without_headers(part.lines) for part in parts))
        for part in parts:
            self._deduplicator.remember(part, found)
        if self.suspects.may_be_in(letters):
            self.suspects.add_from(streams)
        self._processes.add_from(block.texts, [line for part in parts for line in part.lines])
        if self.literals.anchors.exact:
            found += self.literals.anchors.found_exactly(without_whitespace(b"\n".join(block.texts)))
        return frozenset(found)

    def _search(self, candidate: Candidate, boundary: int) -> None:
        """Search a candidate with patterns; count the messages that start before the boundary."""
        rows = candidate.rows()
        worker = candidate.stream.worker
        window = SearchWindow(rows)
        line, column = self._searched_until.get(worker, (-1, 0))
        if line >= self._first + rows[0].position:
            row = bisect_right([row.position for row in rows], line - self._first) - 1
            window.take_until(row, column if rows[row].position == line - self._first else len(rows[row].text))
        for order in sorted(candidate.owners):
            for found in window.search(_compiled(self.messages[order].match)):
                if self._start <= rows[found.start[0]].position < boundary:
                    self._count(order, found, window, candidate)
                    end = rows[found.end[0]].position
                    if end >= boundary:
                        self._searched_until[worker] = max(
                            self._searched_until.get(worker, (-1, 0)), (self._first + end, found.end[1] + 1)
                        )

    def _count(self, order: int, found: PatternMatch, window: SearchWindow, candidate: Candidate) -> None:
        counter = self.counters.get(order) or self.counters.setdefault(order, MessageCounter(self.messages[order]))
        row, column = window.rows[found.start[0]], found.start[1]
        worker = row.worker or candidate.stream.worker
        counter.add(
            found.match,
            is_quoted=self._quotes.is_quoted(found, window.rows, self._first),
            worker=worker,
            place=lambda: row.place(column, worker=worker),
            following=lambda: window.following(found, candidate.rows_behind()),
        )


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # `re` itself remembers fewer patterns than there are messages


def _count_back(texts: Sequence[bytes], most: int) -> int:
    """Return how many of the last lines fit into `most` bytes."""
    size = 0
    for count, text in enumerate(reversed(texts)):
        size += len(text) + 1
        if size > most:
            return count
    return len(texts)


_RANKS = list(MatchedBy)


class LogReader:
    """Takes a log in pieces of any size. Pure: neither opens files nor reads a clock.

    Never fails on any bytes. Takes time linear in their number, and memory that does not depend on it. `known` are the
    messages to search for, specific before generic: of two that share a part of the text the first wins.
    """

    def __init__(self, known: Sequence[Message] | None = None) -> None:
        self._splitter, self._records = LineSplitter(), JsonRecordReader()
        messages, anchors = _known_searchable() if known is None else _searchable(known)
        self._scanner = LogScanner(messages, AnchorSearch(anchors))

    def feed(self, data: bytes) -> None:
        """Take the next piece; it may end in the middle of a line or of a character."""
        for lines in self._splitter.feed(data):
            self._scanner.scan(self._records.read(lines))

    def so_far(self) -> ScanResult:
        """Return the content until now, as if the log ended here; more may be fed afterwards."""
        splitter, records, scanner = snapshot(self._splitter), snapshot(self._records), snapshot(self._scanner)
        rest = LogLines()
        for lines in splitter.feed(b"", is_last=True):
            rest.extend(records.read(lines))
        rest.extend(records.end())
        scanner.scan(rest, is_last=True)
        sightings = [counter.sighting() for counter in scanner.counters.values()]
        sightings.sort(key=lambda sighting: sighting.first.line)
        return ScanResult(
            tuple(sightings),
            scanner.suspects.suspects,
            splitter.lines,
            splitter.size,
            splitter.is_binary,
            scanner.endings(),
            scanner.own_pids(),
        )


@functools.cache
def _known_searchable() -> tuple[list[Message], AnchorIndex]:
    return _searchable(known_messages())


def _searchable(known: Sequence[Message]) -> tuple[list[Message], AnchorIndex]:
    """Return the messages that logs are searched for, the most reliable first, and their anchors."""
    wanted = sorted((message for message in known if message.anchors), key=lambda message: _RANKS.index(message.by))
    return wanted, index_anchors(wanted)
