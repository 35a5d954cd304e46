"""Find the known messages in a log, block by block, each occurrence once, in bounded memory. Pure.

`LogReader` takes bytes; `LogScanner` searches blocks of lines, each worker's lines for themselves: lines like earlier ones
that hold no literal of a message are skipped, and around a literal the lines are joined and searched with the patterns of the
messages that have it.

Literals are compared by their letters alone: white space, colours and numbers, and so wrapped lines and times before each
line, do not separate the parts of a message.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.explain.device_memory import parse_memory_usage
from tpuctl.explain.log_endings import ENDING_LINES, JudgedLine, is_newest_first, judge_ending
from tpuctl.explain.log_lines import (
    ANY_HEADER,
    JsonRecordReader,
    LineSplitter,
    LogLines,
    ScanResult,
    Sighting,
    snapshot,
)
from tpuctl.explain.log_streams import (
    LOWER,
    NO_LETTERS,
    letters_by_line,
    search_lines,
    split_by_worker,
)
from tpuctl.explain.messages import Detail, MatchedBy, known_messages
from tpuctl.explain.quotations import begins_document, is_document
from tpuctl.explain.suspect_lines import SuspectLines, error_score

if TYPE_CHECKING:
    from tpuctl.explain.log_endings import LogEnding
    from tpuctl.explain.log_lines import LogPlace
    from tpuctl.explain.log_streams import FoundMessage, LogStream
    from tpuctl.explain.messages import Message

# A literal with fewer letters is ambiguous without its digits and signs.
_MIN_LETTERS = 8
_WHITESPACE = b" \t\r\n\f\v"
_WORD_TABLE = bytes(code if bytes([code]).isalpha() or code == ord("\n") else ord(" ") for code in LOWER)
# Separates lines that do not follow one another.
_BREAK = b"\x1e"


class LiteralHit(NamedTuple):
    """A literal in some lines."""

    first: int
    last: int  # inclusive
    messages: frozenset[int]  # that have the literal, by their order


class Literal(NamedTuple):
    """A literal that is compared by its letters alone."""

    words: Sequence[bytes]  # of the literal, the longest first; each is a part of some word of a text that has it
    letters: bytes
    messages: frozenset[int]


@dataclass(frozen=True, slots=True)
class LiteralIndex:
    """The literals of messages: lines that hold none of them hold no message."""

    loose: Sequence[Literal]
    exact: Mapping[bytes, frozenset[int]]  # those that need their digits or signs, without white space

    def find(self, text: bytes, starts: Collection[int] = ()) -> Iterator[LiteralHit]:
        """Yield the literals of which the letters are in a text; no literal goes beyond the lines that are `starts`."""
        # Logs repeat few words: it is faster to look for those of a literal first. A word that a line end cuts becomes whole.
        words = b" ".join({*b"".join(map(bytes.strip, text.translate(_WORD_TABLE).split(b"\n"))).split()})
        lines = letters_by_line(text)
        for start in starts:
            lines[start] = _BREAK + lines[start]
        letters = b"".join(lines)
        present = {
            literal.letters: literal.messages
            for literal in self.loose
            if all(map(words.__contains__, literal.words)) and literal.letters in letters
        }
        return _places_of(present, lines)

    def find_exactly(self, lines: Sequence[bytes]) -> Iterator[LiteralHit]:
        """Yield the literals that need their digits or signs."""
        text = without_whitespace(b"".join(lines))
        present = {literal: messages for literal, messages in self.exact.items() if literal in text}
        return _places_of(present, [*map(without_whitespace, lines)] if present else [])


def _places_of(literals: Mapping[bytes, frozenset[int]], lines: Sequence[bytes]) -> Iterator[LiteralHit]:
    text, starts = b"".join(lines), [*accumulate(map(len, lines), initial=0)] if literals else []
    for literal, messages in literals.items():
        at = text.find(literal)
        while at >= 0:
            yield LiteralHit(bisect_right(starts, at) - 1, bisect_right(starts, at + len(literal) - 1) - 1, messages)
            at = text.find(literal, at + 1)


def without_whitespace(text: bytes) -> bytes:
    """Return a text in lower case and without white space."""
    return text.translate(LOWER, _WHITESPACE)


def without_headers(lines: Sequence[bytes]) -> bytes:
    """Return lines as one text, without their headers."""
    return ANY_HEADER.sub(b"\n", b"\n".join([b"", *lines]))[1:]


def index_literals(messages: Sequence[Message]) -> LiteralIndex:
    """Return the literals of messages. A message without literals is left out."""
    exact: dict[bytes, frozenset[int]] = {}
    loose: dict[bytes, Literal] = {}
    pairs = ((order, anchor.encode().lower()) for order, message in enumerate(messages) for anchor in message.anchors)
    for order, anchor in sorted(pairs, key=lambda pair: len(pair[1].translate(None, NO_LETTERS))):
        letters = anchor.translate(None, NO_LETTERS)
        if len(letters) < _MIN_LETTERS:
            literal = without_whitespace(anchor)
            exact[literal] = exact.get(literal, frozenset()) | {order}
            continue
        # A literal that contains a shorter one is not searched for: the shorter one stands for it.
        shorter = next((known for known in loose if known in letters), letters)
        in_words = anchor.translate(_WORD_TABLE)
        known = loose.get(shorter, Literal(sorted(in_words.split(), key=len, reverse=True), letters, frozenset()))
        words = [word for word in known.words if word in in_words]
        loose[shorter] = Literal(words, shorter, known.messages | {order})
    return LiteralIndex([*loose.values()], exact)


_MAX_WORKERS = 8192
# The list of tasks stands right behind its message; source: jax-ml/jax, errors of the coordination service.
_TASK = re.compile(r"/job:[\w.-]{1,80}/(?:replica:\d{1,6}/)?task:(\d{1,6})")
_BLAMED = re.compile(r"timed out task names:", re.IGNORECASE)
_TASK_LIST_LENGTH = 4096


@dataclass(slots=True)
class MessageCounter:
    """The occurrences of one message."""

    message: Message
    first: LogPlace
    last: LogPlace
    facts: dict[str, str]
    following: str  # the text behind the first
    count: int = 0
    workers: dict[str, LogPlace] = field(default_factory=dict)

    @classmethod
    def begin(cls, message: Message, stream: LogStream, found: FoundMessage) -> MessageCounter:
        """Return a counter for a message whose first occurrence this is."""
        place = stream.place(found.at, found.column)
        following = stream.text_from(found.at, found.column) if message.detail else ""
        facts = {name: text for name, text in found.match.groupdict().items() if text}
        return cls(message, place, place, facts, following)

    def add(self, stream: LogStream, occurrences: Sequence[FoundMessage]) -> None:
        """Count occurrences in a stream, in the order of the log."""
        self.count += len(occurrences)
        self.last = stream.place(occurrences[-1].at, occurrences[-1].column)
        for name in self.message.latest:
            if text := next((text for found in reversed(occurrences) if (text := found.match[name])), ""):
                self.facts[name] = text
        for found in occurrences:
            worker = found.line.worker or stream.worker
            if worker and worker not in self.workers and len(self.workers) < _MAX_WORKERS:
                self.workers[worker] = stream.place(found.at, found.column)

    def sighting(self, *, is_quoted: bool) -> Sighting:
        """Return the occurrences so far."""
        facts = dict(self.facts)
        if self.message.detail is Detail.TASKS:
            # A message about a barrier names the task that arrived first, too, before those that did not arrive.
            blamed = _BLAMED.split(self.following[:_TASK_LIST_LENGTH], maxsplit=1)[-1]
            if tasks := ", ".join(dict.fromkeys(_TASK.findall(blamed))):
                facts["tasks"] = tasks
        return Sighting(
            self.message,
            self.first,
            self.last,
            self.count,
            is_quoted,
            MappingProxyType(facts),
            MappingProxyType(dict(self.workers)),
            memory=parse_memory_usage(self.following) if self.message.detail is Detail.MEMORY else None,
        )


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


# Shapes of lines remembered, as numbers: about 5 MiB.
_MAX_SHAPES = 60_000
# Lines around a literal that are searched.
_LINES_BEFORE, _LINES_AFTER = 24, 48
# Bytes of a stream that wait for the next block, without and with a literal in it; of all streams together.
_MAX_WAITING, _MAX_WAITING_HIT, _MAX_ALL_WAITING = 2 * 1024, 16 * 1024, 128 * 1024


@dataclass(slots=True)
class LogScanner:
    """Searches a log for messages. Of two that overlap the first wins.

    The last lines of each worker wait for the next block, in which a message may continue.
    """

    messages: Sequence[Message]
    literals: LiteralIndex
    suspects: SuspectLines = field(default_factory=SuspectLines)
    # By the order of the message, and whether it is only quoted.
    counters: dict[tuple[int, bool], MessageCounter] = field(default_factory=dict)
    _waiting: LogLines = field(default_factory=LogLines)
    _last_lines: LogLines = field(default_factory=LogLines)
    # The shapes of lines that hold no literal, each with the line before it, as a literal may begin there: logs repeat
    # themselves, with other numbers.
    _empty: set[int] = field(default_factory=set)
    _processes: OwnProcesses = field(default_factory=OwnProcesses)

    def scan(self, lines: LogLines, *, is_last: bool = False) -> None:
        """Take the next lines; with `is_last` nothing comes after them."""
        self._last_lines = (self._last_lines + lines.since(-ENDING_LINES)).since(-ENDING_LINES)
        block = self._waiting + lines
        if not len(block):
            return
        streams = split_by_worker(block)
        searched: list[bytes] = []
        waiting: list[int] = []
        for stream in streams:
            hits, near = self._hits_in(stream)
            searched += (stream.texts[at] for at in near)
            size = min(_MAX_WAITING_HIT if hits else _MAX_WAITING, _MAX_ALL_WAITING // len(streams))
            end = len(stream.texts) if is_last else _first_waiting(stream.texts, size)
            waiting += stream.indices[self._search(stream, hits, end) :]
        if self.suspects.may_be_in(b"\n".join(searched).translate(LOWER, NO_LETTERS)):
            self.suspects.add_from(streams)
        self._processes.add_from(block.texts, searched)
        self._waiting = block.at(sorted(waiting))

    def endings(self) -> tuple[LogEnding, ...]:
        """Return how the logs of the workers end that wrote one of the last lines; none if the newest line comes first."""
        places = {
            stream.worker: [*map(stream.place, range(len(stream.texts)))]
            for stream in split_by_worker(self._last_lines)
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

    def _hits_in(self, stream: LogStream) -> tuple[list[LiteralHit], list[int]]:
        """Return the literals in a stream, and the lines that were searched for them: of new shapes, and next to these."""
        shapes = [*map(hash, pairwise([b"", *letters_by_line(b"\n".join(stream.texts))]))]
        new = [at for at, shape in enumerate(shapes) if shape not in self._empty]
        near = sorted({other for at in new for other in range(max(0, at - 3), min(at + 3, len(shapes)))})
        parted = [index for index, (before, at) in enumerate(pairwise(near), 1) if at > before + 1]
        found = self.literals.find(without_headers([stream.texts[at] for at in near]), parted) if near else ()
        hits = [LiteralHit(near[hit.first], near[hit.last], hit.messages) for hit in found]
        if len(self._empty) > _MAX_SHAPES:
            self._empty.clear()
        holding = {at for hit in hits for at in range(hit.first, hit.last + 1)}
        self._empty.update(shapes[at] for at in new if at not in holding)
        return [*hits, *self.literals.find_exactly(stream.texts)], near

    def _search(self, stream: LogStream, hits: Sequence[LiteralHit], end: int) -> int:
        """Count the messages that start before a line. Return where the lines begin that wait."""
        for first, last, messages in _ranges(hits, len(stream.texts)):
            patterns = [(order, _compiled(self.messages[order].match)) for order in sorted(messages)]
            counted: dict[tuple[int, bool], list[FoundMessage]] = {}
            for found in search_lines(stream, first, last, patterns):
                if found.at < end:
                    # The lines that it ends in are finished, too.
                    end = max(end, found.last + 1)
                    counted.setdefault((found.order, found.is_quoted), []).append(found)
            for key, occurrences in counted.items():
                counter = self.counters.get(key)
                if counter is None:
                    counter = self.counters[key] = MessageCounter.begin(self.messages[key[0]], stream, occurrences[0])
                counter.add(stream, occurrences)
        return end


def _ranges(hits: Sequence[LiteralHit], count: int) -> list[tuple[int, int, frozenset[int]]]:
    """Return the ranges of lines to search, and for which messages: around each literal, joined if they overlap."""
    ranges: list[tuple[int, int, frozenset[int]]] = []
    for hit in sorted(hits):
        first, last, messages = max(0, hit.first - _LINES_BEFORE), min(count, hit.last + _LINES_AFTER), hit.messages
        if ranges and first <= ranges[-1][1]:
            before = ranges.pop()
            first, last, messages = before[0], max(before[1], last), before[2] | messages
        ranges.append((first, last, messages))
    return ranges


def _first_waiting(texts: Sequence[bytes], size: int) -> int:
    """Return where the lines begin that fit into `size` bytes: at least the last line, and at most half of all lines."""
    for at in reversed(range(len(texts))):
        size -= len(texts[at]) + 1
        if size < 0:
            return min(at + 1, len(texts) - 1)
    return len(texts) // 2


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # `re` itself remembers fewer patterns than there are messages


_RANKS = list(MatchedBy)


class LogReader:
    """Takes a log in pieces of any size. Pure: neither opens files nor reads a clock.

    Never fails on any bytes. Takes time linear in their number, and memory that does not depend on it. `known` are the
    messages to search for, specific before generic: of two that share a part of the text the first wins. `name` is that of
    the file: documents only quote messages.
    """

    def __init__(self, known: Sequence[Message] | None = None, *, name: str = "") -> None:
        self._is_document = is_document(name)
        self._splitter, self._records = LineSplitter(), JsonRecordReader()
        self._scanner = LogScanner(*(_known_searchable() if known is None else _searchable(known)))

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
        # A real occurrence counts more than quotations.
        found = dict(sorted(scanner.counters, reverse=True))
        sightings = [
            scanner.counters[key].sighting(is_quoted=key[1] or self._is_document or begins_document(splitter.start))
            for key in sorted(found.items())
        ]
        sightings.sort(key=lambda sighting: sighting.first.line)
        return ScanResult(
            tuple(sightings),
            scanner.suspects.suspects,
            splitter.lines,
            splitter.size,
            is_binary=splitter.is_binary,
            endings=scanner.endings(),
            own_pids=scanner.own_pids(),
        )


@functools.cache
def _known_searchable() -> tuple[list[Message], LiteralIndex]:
    return _searchable(known_messages())


def _searchable(known: Sequence[Message]) -> tuple[list[Message], LiteralIndex]:
    """Return the messages that logs are searched for, the most reliable first, and their literals."""
    wanted = sorted((message for message in known if message.anchors), key=lambda message: _RANKS.index(message.by))
    return wanted, index_literals(wanted)
