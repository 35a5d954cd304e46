"""Lines of a log: bytes become blocks and lines, lines get a header, neighbouring lines are joined and searched. Pure.

Four steps, each used by `scanner`: `LineSplitter` cuts bytes (a very long line too, so that memory stays bounded),
`JsonRecordReader` replaces JSON records by their messages, `parse_header` finds the worker and the time before a message, and
`SearchWindow` joins the lines of one worker, so that a message that a terminal wrapped is whole. The results are `LogPlace`,
`Sighting` and `ScanResult`.
"""

from __future__ import annotations

import codecs
import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from tpuctl.explain.device_memory import MemoryUsage
    from tpuctl.explain.log_endings import LogEnding
    from tpuctl.explain.messages import Message

# Bytes. A block is searched at once; a line may be longer. A JSON record up to the second size is kept whole.
BLOCK_SIZE = 128 * 1024
_MAX_RECORD_SIZE = 512 * 1024
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, None),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAX_BYTE_ORDER_MARK = 4
# Bytes at the start that tell what a file is.
_START_SIZE = 1024
# The first bytes of files that are not text: gzip, zstd, xz, bzip2, zip, ELF, an SQLite database, a PNG.
_BINARY_SIGNATURES = (
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ",
    b"BZh",
    b"PK\x03\x04",
    b"\x7fELF",
    b"SQLite format 3\0",
    b"\x89PNG",
)
_CONTROL_BYTES = bytes({*range(1, 8), *range(14, 27), *range(28, 32)})
# Shares of the bytes in a text.
_MAX_CONTROL_SHARE = 0.04
_MAX_NUL_SHARE = 0.3
_TERMINAL_ESCAPES = re.compile(
    rb"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]?|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|\x1b[ -/]{0,4}[0-~]?"
)


StateT = TypeVar("StateT")


def snapshot(state: StateT) -> StateT:
    """Return an independent copy of a state, of the states in it and of the containers in these; frozen values are shared."""
    known: Any = state
    if isinstance(known, dict):
        known = {key: snapshot(value) for key, value in known.items()}
    elif is_dataclass(known) and not known.__dataclass_params__.frozen:  # type: ignore[union-attr]  # not in its stubs
        known = replace(known, **{each.name: snapshot(getattr(known, each.name)) for each in fields(known)})  # type: ignore[type-var]
    elif isinstance(known, list | set | bytearray | codecs.IncrementalDecoder):
        known = copy.copy(known)
    return known  # type: ignore[no-any-return]  # of the same type


class LineOrigin(NamedTuple):
    """Facts about a line that its text does not show. The time and the level are read when they are needed."""

    worker: str | None = None
    record: Mapping[str, Any] = MappingProxyType({})
    record_header: LineHeader | None = None
    is_glued: bool = False  # continues the line before it, which was cut

    @property
    def time(self) -> datetime | None:
        """The time of the record."""
        return _record_time(self.record, self.record_header or NO_HEADER)

    @property
    def level(self) -> LogLevel | None:
        """The level of the record."""
        return _record_level(self.record)


CONTINUATION = LineOrigin(is_glued=True)


@dataclass(slots=True)
class LogLines:
    """Lines of a log, in order: their texts, their numbers, and further facts about each."""

    texts: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    origins: list[LineOrigin | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, text: bytes, number: int, origin: LineOrigin | None = None) -> None:
        """Append a line."""
        self.texts.append(text)
        self.numbers.append(number)
        self.origins.append(origin)

    def extend(self, other: LogLines) -> None:
        """Append lines."""
        self.texts += other.texts
        self.numbers += other.numbers
        self.origins += other.origins

    def __add__(self, other: LogLines) -> LogLines:
        return LogLines(self.texts + other.texts, self.numbers + other.numbers, self.origins + other.origins)

    def without_carriage_returns(self) -> LogLines:
        """Cut the lines at carriage returns: text that a terminal would overwrite becomes a line with the same number."""
        found = LogLines()
        for text, number, origin in zip(self.texts, self.numbers, self.origins, strict=True):
            if b"\r" not in text:
                found.add(text, number, origin)
                continue
            states = [state for state in text.split(b"\r") if state] or [b""]
            for index, state in enumerate(states):
                found.add(state, number, None if index else origin)
        return found

    def since(self, start: int) -> LogLines:
        """Return the lines from that index."""
        return LogLines(self.texts[start:], self.numbers[start:], self.origins[start:])

    def at(self, indices: Sequence[int]) -> LogLines:
        """Return the lines with those indices."""
        lines = LogLines()
        for index in indices:
            lines.add(self.texts[index], self.numbers[index], self.origins[index])
        return lines


@dataclass(slots=True)
class LineSplitter:
    """Cuts bytes into blocks, always at the same places, however the pieces are cut that it gets."""

    size: int = 0
    lines: int = 0
    controls: int = 0
    nuls: int = 0
    start: bytes = b""
    _waiting: bytearray = field(default_factory=bytearray)
    _decoder: codecs.IncrementalDecoder | None = None
    _is_begun: bool = False
    _is_inside: bool = False

    @property
    def is_binary(self) -> bool:
        """Whether the log is not text."""
        most = max(self.size, 1)
        return (
            self.start.startswith(_BINARY_SIGNATURES)
            or self.controls > most * _MAX_CONTROL_SHARE
            or self.nuls > most * _MAX_NUL_SHARE
        )

    def feed(self, data: bytes, *, is_last: bool = False) -> Iterator[LogLines]:
        """Yield the lines of each complete block; with `is_last` all remaining lines."""
        self.size += len(data)
        self.start += data[: max(0, _START_SIZE - len(self.start))]
        text = self._decode(data, is_last=is_last)  # may take back what waits
        self._waiting += text
        offset = 0
        while end := _block_end(self._waiting, offset, is_last=is_last):
            yield self._split(bytes(self._waiting[offset:end]))
            offset = end
        del self._waiting[:offset]

    def _decode(self, data: bytes, *, is_last: bool) -> bytes:
        """Return the bytes as UTF-8 if the log begins with the byte order mark of another encoding."""
        if not self._is_begun:
            data, self._waiting = bytes(self._waiting) + data, bytearray()
            if len(data) < _MAX_BYTE_ORDER_MARK and not is_last:
                return data
            self._is_begun = True
            for mark, name in _BYTE_ORDER_MARKS:
                if data.startswith(mark):
                    data = data[len(mark) :]
                    self._decoder = codecs.getincrementaldecoder(name)("replace") if name else None
                    break
        return data if self._decoder is None else self._decoder.decode(data, is_last).encode("utf-8", "replace")

    def _split(self, block: bytes) -> LogLines:
        first, is_whole = self.lines + (not self._is_inside), block.endswith(b"\n")
        if b"\x1b" in block:
            block = _TERMINAL_ESCAPES.sub(b"", block)
        self.controls += len(block) - len(block.translate(None, _CONTROL_BYTES))
        if nuls := block.count(b"\0"):
            self.nuls += nuls
            block = block.replace(b"\0", b"")
        texts = block.split(b"\n")
        if is_whole:
            texts.pop()
        numbers = list(range(first, first + len(texts)))
        self.lines = first + len(texts) - 1
        lines = LogLines(texts, numbers, [None] * len(texts))
        if self._is_inside and lines.origins:
            lines.origins[0] = CONTINUATION
        self._is_inside = not is_whole
        return lines.without_carriage_returns() if b"\r" in block else lines


def _block_end(data: bytearray, offset: int, *, is_last: bool) -> int:
    """Return where the next block ends, 0 if that is unknown yet."""
    left = len(data) - offset
    if left < BLOCK_SIZE:
        return len(data) if is_last and left else 0
    if found := data.rfind(b"\n", offset, offset + BLOCK_SIZE) + 1:
        return found
    if data[offset : offset + 1] == b"{" or b'{"' in data[offset : offset + 200]:
        if found := data.find(b"\n", offset, offset + _MAX_RECORD_SIZE) + 1:
            return found
        if left < _MAX_RECORD_SIZE:
            return len(data) if is_last else 0
    end = offset + BLOCK_SIZE
    while end > offset + BLOCK_SIZE - 4 and data[end - 1] & 0xC0 == 0x80:  # not inside a character
        end -= 1
    return end - 1 if data[end - 1] >= 0xC0 else end


# A header has parts such as a worker, a time, a level; further parts belong to the message.
_MAX_HEADER_PARTS = 6
# Characters. A worker's name is printed, so it is cut.
_MAX_WORKER_NAME = 80
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d)(?![\w.]))?"
# Each part has a named group, which says how to use it. The fastest to reject come first: every line is matched.
_WORKER = (
    r"\[(?:worker|host|process|node|task|rank|default|proc)[ :#_-]?(?P<marked>\d{1,5})\]:? {0,8}",
    r"\[\d{1,5},(?P<mpi>\d{1,5})\]<std(?:out|err|diag)>: ?",
    r"\[pod/(?P<pod>[\w.-]{1,80})(?:/[\w.-]{1,80})?\] ?",
    r"\[(?P<named>[a-z][a-z0-9-]{0,60}-\d{1,5})\] {1,60}",
    r"\((?:[A-Za-z_][\w.()]{0,80} )?pid=\d{1,10}(?:, ip=(?P<ray>[\w.:-]{1,60}))?\) ?",
    r"(?:worker|Worker)[ _-]?(?P<word>\d{1,5})(?:: | ?\| ?)",
    r"w(?P<short>\d{1,5})\| ?",
    r"(?P<compose>[a-z][a-z0-9_-]{0,60}[_-]\d{1,5}) {1,40}\| ",
    r"(?P<instance>t1v-[a-z0-9-]{1,60}-w-\d{1,5})(?::? )",
)
# Only if most lines begin like this: otherwise they are lists, exit codes, shell jobs.
_NUMBER = r"\[(?P<bracketed>\d{1,5})\]:? {1,6}|(?P<numbered>\d{1,5}): "
_TIME = (
    rf"(?:{_LEVEL}:)?[\[(]?(?P<iso>{_ISO})[\])]?:?(?:jax\.[\w.]{{1,80}}:\d{{1,6}}:)?(?: - |[ ,:|]{{1,3}}|\t|$|(?<=\])(?=\[))",
    rf"\[\d{{4}}-\d\d-\d\d(?:, |T)\d\d:\d\d:\d\d[^\]]{{0,20}}\] \{{[\w./-]{{1,80}}:\d{{1,6}}\}} {_LEVEL} - (?:\[base\] )?",
    r"[IWEFD]0000 00:00:(?P<epoch>\d{10}\.\d{1,9}) {1,8}-?\d{1,20} [\w./+-]{1,200}:\d{1,6}\] ",
    r"[IWEFD]\d{4} \d\d:\d\d:\d\d\.\d{1,9} {1,8}\d{1,20} [\w./+-]{1,200}:\d{1,6}\] ",
    rf"{_MONTH} [ \d]\d \d\d:\d\d:\d\d (?P<syslog>[\w.-]{{1,80}}) [\w./@-]{{1,80}}(?:\[\d{{1,10}}\])?: ",
    rf"\[{_DAY} (?P<dmesg>{_MONTH} [ \d]\d \d\d:\d\d:\d\d \d{{4}})\] ",
    r"\[ {0,8}\d{1,10}\.\d{6}\] ",
    r"\[\d\d[/:]\d\d[/:]\d\d(?: \d\d:\d\d:\d\d)?\] {1,8}",
)
_OTHER = (
    r"(?:stdout|stderr) [FP] ",
    r"\d{1,3}(?:\.\d{1,3}){3} \[(?P<addressed>\d{1,5})\] ",
    rf"{_LEVEL}:[A-Za-z_][\w.]{{0,60}}:(?! )",
    r"[IWEFD] (?:[\w./+-]{1,200}:\d{1,6}\] )?(?=\S)",
    rf"- [\w./-]{{1,80}} - {_LEVEL} - ",
    rf"(?:[\w.-]{{1,80}} - )?\[?{_LEVEL}\]? {{1,8}}(?:- )?(?:\[[\w.-]{{1,80}}\] )?(?=\S)",
    r"[\w./@-]{1,80}\[\d{1,10}\]: ",
    r"\[\w[\w./-]{0,80}\]\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\] {0,3}(?:- )?",
)
_LOGGER = rf"{_LEVEL}:[A-Za-z_][\w.]{{0,60}}:(?! )"
_HEADER_START = re.compile("|".join((*_WORKER, *_TIME, _LOGGER)).encode())
_NUMBERED_HEADER_START = re.compile("|".join((_NUMBER, *_WORKER, *_TIME, _LOGGER)).encode())
_HEADER_NEXT = re.compile("|".join((*_WORKER, *_TIME, *_OTHER)).encode())
_NUMBERED_HEADER_NEXT = re.compile("|".join((_NUMBER, *_WORKER, *_TIME, *_OTHER)).encode())
# Behind a time, a larger number is a process id.
_NUMBERED_LINE = re.compile(
    rf"{_NUMBER}|{re.sub(r'[(][?]P<[a-z]+>', '(?:', _TIME[0])}(?:\[\d{{1,3}}\]:? |(?P<behind>\d{{1,3}}): )".encode()
)
_IN_NAME = re.compile(r"(?:^|-)w-(\d{1,5})(?=$|\.)|(?:worker|host|rank)[-_]?(\d{1,5})$")
_END_OF_NAME = re.compile(r"-(\d{1,5})$")
_ISO_PARTS = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d))?$"
)
# All headers of a text, to remove them.
ANY_HEADER = re.compile(
    re.sub(
        r"\(\?P<\w+>",
        "(?:",
        rf"\n(?:{'|'.join((*_WORKER, *_TIME, _LOGGER))})(?:{'|'.join((*_WORKER, *_TIME, *_OTHER))}){{0,{_MAX_HEADER_PARTS}}}",
    ).encode()
)
_TIME_GROUPS = ("iso", "epoch", "dmesg")
_LOGGED_GROUPS = (*_TIME_GROUPS, "syslog")
_NUMBER_GROUPS = ("marked", "word", "short", "addressed", "bracketed", "numbered", "mpi")


class LineHeader(NamedTuple):
    """The text before a message."""

    end: int = 0  # in bytes
    worker: str | None = None
    form: str | None = None  # the format of the time: `iso`, `epoch`, `dmesg`
    when: bytes = b""  # the time as the log writes it
    is_logged: bool = False  # has more than the name of a worker, which a collector of outputs may have put there

    @property
    def time(self) -> datetime | None:
        """The time, with a zone if the log names one. None without a time, or with one that has no year."""
        return parse_time(self.when.decode("ascii", "replace"), self.form) if self.form else None


NO_HEADER = LineHeader()


def parse_header(line: bytes, *, counted: bool) -> LineHeader:
    """Return the header of a line. `counted`: in this log `[3] ` or `3: ` before a line is a worker.

    Formats: Python's logging, absl and glog, TensorFlow, syslog, dmesg, container logs, and the prefixes of tools that collect
    the output of many machines.
    """
    found = (_NUMBERED_HEADER_START if counted else _HEADER_START).match(line)
    if found is None:
        return NO_HEADER
    worker, form, when, end, is_logged = None, None, b"", 0, False
    after = _NUMBERED_HEADER_NEXT if counted else _HEADER_NEXT
    for _ in range(_MAX_HEADER_PARTS):
        end = found.end()
        kind = found.lastgroup
        is_logged = is_logged or kind in _LOGGED_GROUPS or (kind is None and not line.startswith(b"(", found.start()))
        if kind:
            text = found[kind]
            if kind in _TIME_GROUPS:
                form, when = kind, text
            else:
                worker = worker or worker_name(text.decode("ascii", "replace"), kind)
                after = _HEADER_NEXT
        found = after.match(line, end)
        if found is None or found.end() == end:
            break
    return LineHeader(end, worker, form, when, is_logged)


def parse_worker(line: bytes, *, counted: bool) -> tuple[bytes, int]:
    """Return the worker in a header as the log writes it, and where that part of the header ends.

    Faster than parsing all of the header: returns an empty name if its first three parts have no worker.
    """
    found = (_NUMBERED_HEADER_START if counted else _HEADER_START).match(line)
    after = _NUMBERED_HEADER_NEXT if counted else _HEADER_NEXT
    for _ in range(3):
        if found is None:
            break
        kind = found.lastgroup
        if kind is not None and kind not in _TIME_GROUPS:
            return found[kind], found.end()
        found = after.match(line, found.end())
    return b"", 0


def has_worker_numbers(lines: list[bytes]) -> bool:
    """Return whether most of these lines begin with a number that stands for a worker, or with a time and such a number."""
    filled = [line for line in lines if line.strip()]
    numbered = [found for found in map(_NUMBERED_LINE.match, filled) if found]
    bare = [found for found in numbered if found["numbered"] or found["behind"]]
    least = 0.8 if bare else 0.5
    return bool(numbered) and len(numbered) >= least * len(filled) and (not bare or len(bare) > 1)


def worker_name(name: str, kind: str = "") -> str | None:
    """Return the number in a worker's name, else the name; None if it is not a worker's."""
    if kind in _NUMBER_GROUPS:
        return str(int(name))
    if found := _IN_NAME.search(name):
        return str(int(found[1] or found[2]))
    if kind == "syslog":
        return name if name.startswith(("t1v-", "worker", "host")) else None
    if kind == "pod" and (found := _END_OF_NAME.search(name)):
        return str(int(found[1]))
    return name[:_MAX_WORKER_NAME] or None


def parse_time(text: str, form: str | None = "iso") -> datetime | None:
    """Parse a time of a log, with its zone if it names one; None if it is not a time."""
    try:
        if form == "epoch":
            return datetime.fromtimestamp(float(text), UTC)
        if form == "dmesg":
            return datetime.strptime(" ".join(text.split()), "%b %d %H:%M:%S %Y")  # noqa: DTZ007  # dmesg names no zone
        found = _ISO_PARTS.match(text)
        if found is None:
            return None
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        micro = int((found[7] or "").ljust(6, "0")[:6])
        zone: timezone | None = None
        if found[8] in {"Z", "UTC"}:
            zone = UTC
        elif found[8] is not None:
            offset = timedelta(hours=int(found[8][1:3]), minutes=int(found[8][-2:]))
            zone = timezone(-offset if found[8][0] == "-" else offset)
        return datetime(year, month, day, hour, minute, second, micro, zone)
    except (ValueError, OverflowError):
        return None


_MAX_RECORD_HEADER = 200
_RECORD_ENDS = (b"}", b"}]")
# Text that is larger is not a record over several lines.
_MAX_RECORD_LINES = 5000
_MAX_RECORD_BYTES = 1 << 20
_MESSAGE_KEYS = ("textPayload", "message", "msg", "log", "MESSAGE", "text", "event", "short_message", "body")
_EXTRA_KEYS = frozenset(
    {"exc_info", "exc_text", "stack_trace", "stacktrace", "exception", "traceback", "error", "stack"}
)
_TIME_KEYS = ("timestamp", "time", "@timestamp", "ts", "asctime", "eventTime", "receiveTimestamp", "datetime")
_LEVEL_KEYS = ("level", "levelname", "lvl", "log.level")
_ANY_MESSAGE_KEY = frozenset(_MESSAGE_KEYS)
_PAYLOAD_KEYS = frozenset({"jsonPayload", "json", "fields", "record", "protoPayload"})
_WORKER_KEYS = ("worker_id", "worker", "rank", "process_index", "host_id")
_WORKER_NAME_KEYS = (
    "compute.googleapis.com/resource_name",
    "k8s-pod/name",
    "pod_name",
    "instance_name",
    "instance",
    "hostname",
    "host",
    "node_name",
)


@dataclass(slots=True)
class JsonRecordReader:
    """Replaces each JSON record among lines by the lines of its message; other lines stay unchanged.

    Records are those of Cloud Logging and of container logs; each gives a message, a worker and a time.
    """

    _open: LogLines = field(default_factory=LogLines)
    _size: int = 0
    _indent: bytes = b""

    def end(self) -> LogLines:
        """Return the lines that still wait for the end of their record."""
        lines, self._open = self._open, LogLines()
        return _expand_records(lines)

    def read(self, lines: LogLines) -> LogLines:
        """Return the lines of the messages. An incomplete record over several lines is kept for the next call."""
        block = b"\n".join(lines.texts)
        if self._open.texts or (b"{" in block and (b"{\n" in block or block.endswith(b"{"))):
            lines = self._expand_multiline(lines)
        return _expand_records(lines) if b"{" in block and (b'{"' in block or b'{ "' in block) else lines

    def _expand_multiline(self, lines: LogLines) -> LogLines:
        """Replace the records that span several lines."""
        found = LogLines()
        for text, number, origin in zip(lines.texts, lines.numbers, lines.origins, strict=True):
            bare = text.strip()
            if not self._open.texts:
                if bare not in {b"{", b"[{"}:
                    found.add(text, number, origin)
                    continue
                self._indent, self._size = text[: len(text) - len(text.lstrip())], 0
            self._open.add(text, number, origin)
            self._size += len(text)
            is_end = bare in {b"}", b"},", b"}]", b"}, {"} and text.startswith(self._indent + b"}")
            if is_end or len(self._open) > _MAX_RECORD_LINES or self._size > _MAX_RECORD_BYTES:
                whole, self._open = self._open, LogLines()
                records = _parse_records(b"\n".join(whole.texts).strip().removeprefix(b"[").rstrip(b"],{ \t"))
                keys = (line.strip().partition(b":")[0].strip(b'"').decode("ascii", "replace") for line in whole.texts)
                first = next((at for at, key in enumerate(keys) if key in _MESSAGE_KEYS), 0)
                if not records or not _add_message(found, records[0], whole.numbers[first], NO_HEADER):
                    found.extend(whole)  # no record, or one without a message
        return found


def _add_message(found: LogLines, record: Mapping[str, Any], number: int, header: LineHeader) -> bool:
    """Add the lines of the message of a record; return false if it has no message."""
    message = _record_message(record)
    if message is None:
        return False
    origin = LineOrigin(_record_worker(record) or header.worker, record, header)
    for text in message.encode("utf-8", "replace").replace(b"\r", b"\n").split(b"\n"):
        if text:
            found.add(text, number, origin)
    return True


def _expand_records(lines: LogLines) -> LogLines:
    """Replace the lines that are one record, perhaps behind a header, or several records in brackets."""
    found = LogLines()
    at_once: list[Mapping[str, Any]] = []
    if lines.origins.count(None) == len(lines) and all(text.startswith(b"{") for text in lines.texts):
        # All lines seem to be records: it is faster to parse them together.
        at_once = _parse_records(b"[" + b",\n".join(lines.texts) + b"]")
        if len(at_once) != len(lines):
            at_once = []
    for index, (text, number, origin) in enumerate(zip(lines.texts, lines.numbers, lines.origins, strict=True)):
        header, records = (NO_HEADER, at_once[index : index + 1]) if at_once else _records_in(text, origin)
        if not [record for record in records if _add_message(found, record, number, header)]:
            found.add(text, number, origin)
    return found


def _records_in(text: bytes, origin: LineOrigin | None) -> tuple[LineHeader, list[Mapping[str, Any]]]:
    """Return the header of a line, and the records after it."""
    if origin is not None or not text.rstrip().endswith(_RECORD_ENDS):
        return NO_HEADER, []
    start = text.find(b"{")
    if not 0 <= start <= _MAX_RECORD_HEADER:
        return NO_HEADER, []
    start -= text[start - 1 : start] == b"["
    header = parse_header(text, counted=True) if start else NO_HEADER
    return header, _parse_records(text[start:]) if start == header.end or not text[:start].strip() else []


def _parse_records(text: bytes) -> list[Mapping[str, Any]]:
    """Parse a record, or several in brackets. Empty for any other text."""
    try:
        found = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    return [record for record in (found if isinstance(found, list) else [found]) if isinstance(record, dict)]


def _record_message(record: Mapping[str, Any]) -> str | None:
    """Return the message of a record, with its exception and stack trace; None if it has no message."""
    message: str | None = None
    more: list[str] = []
    holders = [record]
    if not _PAYLOAD_KEYS.isdisjoint(record):
        holders += [value for key in sorted(_PAYLOAD_KEYS) if isinstance(value := record.get(key), dict)]
        holders.append(_nested_mapping(record, "protoPayload", "status"))
    for holder in holders:
        if message is None and not _ANY_MESSAGE_KEY.isdisjoint(holder):
            texts = (holder.get(key) for key in _MESSAGE_KEYS)
            message = next((text for text in texts if isinstance(text, str) and text), None)
        if not _EXTRA_KEYS.isdisjoint(holder):
            more.extend(value for key in _EXTRA_KEYS & holder.keys() if isinstance(value := holder[key], str) and value)
    if not more:
        return message
    more = sorted(text for text in more if message is None or text not in message)
    return "\n".join([*([message] if message else []), *more])


def _record_time(record: Mapping[str, Any], header: LineHeader = NO_HEADER) -> datetime | None:
    """Return the time of a record, else that of the header before it."""
    for key in _TIME_KEYS:
        value = record.get(key)
        if isinstance(value, str) and (found := parse_time(value.strip())):
            return found
        if isinstance(value, int | float) and not isinstance(value, bool) and 1e8 < value < 1e17:
            seconds = value / 1000 if value > 1e11 else value
            return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
    return header.time


def _record_level(record: Mapping[str, Any]) -> LogLevel | None:
    """Return the level of a record that the program itself wrote: a severity may be the collector's."""
    named = next((value for key in _LEVEL_KEYS if isinstance(value := record.get(key), str)), "")
    return None if "severity" in record else _LEVELS.get(named.upper())


def _record_worker(record: Mapping[str, Any]) -> str | None:
    holders = [_nested_mapping(record, "resource", "labels")] if "resource" in record else []
    holders.extend(_nested_mapping(record, key) for key in ("labels", "jsonPayload", "kubernetes") if key in record)
    holders.append(record)
    for keys in (_WORKER_KEYS, _WORKER_NAME_KEYS):
        for holder in holders:
            for value in map(holder.get, keys):
                if isinstance(value, int) and not isinstance(value, bool):
                    return str(value)
                if isinstance(value, str) and value:
                    is_number = value.isascii() and value.isdigit() and len(value) < 6
                    return str(int(value)) if is_number else worker_name(value)
    return None


def _nested_mapping(record: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = record.get(key)
        if not isinstance(value, dict):
            return {}
        record = value
    return record


class LogLevel(Enum):
    """How serious the program that logged a line takes it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Characters. A longer line of evidence is shown in part.
MAX_EVIDENCE_LENGTH = 400


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One place in a log."""

    line: int  # counted from 1, as an editor does
    text: str  # without colours and header
    worker: str | None = None  # the worker's number, or its name if the log gives no number
    time: datetime | None = None  # naive if the log gives no time zone
    source: str | None = None  # the file, if several are read
    level: LogLevel | None = None  # None if the line names none
    is_logged: bool = False  # a logging program wrote it


@dataclass(frozen=True, slots=True)
class Sighting:
    """One known message and where it occurs."""

    message: Message
    first: LogPlace
    last: LogPlace
    count: int = 1
    is_quoted: bool = False  # each only quotes the message: documentation, a search, a test
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # For each worker that logged the message the first place, in the order of the log.
    workers: Mapping[str, LogPlace] = field(default_factory=lambda: MappingProxyType({}))
    memory: MemoryUsage | None = None  # parsed from the lines that follow a memory message


@dataclass(frozen=True, slots=True)
class Suspect:
    """A line that looks like an error."""

    place: LogPlace
    score: int  # how much it does: 1 to 9
    origin: str | None = None  # of a Python exception: the file and line of the user's program that raised it


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The content of a log: the known messages by first occurrence, and the few lines that look most like an error."""

    sightings: tuple[Sighting, ...]
    suspects: tuple[Suspect, ...]
    lines: int
    size: int  # bytes of the log
    is_binary: bool = False  # not text
    endings: tuple[LogEnding, ...] = ()  # of each worker that wrote one of the last lines
    own_pids: frozenset[str] = frozenset()  # of processes that the log names as those of this run


# The level of a line, as programs for logging write it: in the header, or at the beginning.
_INFO, _WARNING, _ERROR = r"TRACE|DEBUG|INFO|NOTICE", r"WARN(?:ING)?", r"ERROR|CRITICAL|FATAL"
_LEVELS = {
    word: level
    for level, words in {
        LogLevel.INFO: ("TRACE", "DEBUG", "INFO", "NOTICE", "NORMAL", "INFORMATION"),
        LogLevel.WARNING: ("WARN", "WARNING"),
        LogLevel.ERROR: ("ERROR", "CRITICAL", "FATAL"),
    }.items()
    for word in words
}
_LEVEL_IN_HEADER = re.compile(
    rf"(?:^|[\s\[(|:-])(?:(?P<info>[ID]|{_INFO})|(?P<warning>W|{_WARNING})|(?P<error>[EF]|{_ERROR}))(?=\d{{4}}\b|[\s:\])|]|$)"
)
_DATE_BEHIND = r"(?=\d{4} | {1,2}\d\d-\d\d | \d{4}-\d\d-\d\d)"
_LEVEL_FIRST = re.compile(
    rf"(?:\([^()]{{1,100}}\) |\[[^\[\]]{{1,60}}\] ){{0,2}}\[?(?:(?P<info>[ID]{_DATE_BEHIND}|(?:{_INFO})\b)|"
    rf"(?P<warning>W{_DATE_BEHIND}|(?:{_WARNING})\b)|(?P<error>[EF]{_DATE_BEHIND}|(?:{_ERROR})\b))"
)
# In words: logfmt, cloud-init, the guest agent of Compute Engine, the events of Kubernetes.
_LEVEL_NAMED = re.compile(
    rf"(?:[\w.]{{1,40}}=(?:\"[^\"]{{0,60}}\"|[^\s\"]{{1,60}}) ){{0,3}}(?:level|lvl|severity)=\"?(?P<logfmt>[A-Za-z]{{4,8}})\b|"
    r"(?P<zap>info|warn|error|debug|fatal)\s{1,4}[\w./-]{1,80}\.go:\d{1,6}\s|"
    r"\S{1,200}\.py:\d{1,6}: \w{0,40}(?P<warned>Warning): |"
    rf"[\w.-]{{1,60}}\.py\[(?P<module>{_INFO}|{_WARNING}|{_ERROR})\]: |"
    rf"(?:{_ISO} )?\w{{1,40}} (?P<agent>Info|Warning|Error|Debug)(?: [\w.]{{1,40}}:\d{{1,5}})?: |"
    r"\s{0,8}(?:[\w:./()-]{1,100}\s{1,20}){0,5}(?P<event>Normal|Warning)\s{1,30}[A-Z][A-Za-z]{3,40}\s"
)

# Airflow logs all output of a program as information.
_OF_COLLECTOR = re.compile(r"\{(?:pod_manager|subprocess)\.py:")


def line_level(header: str, text: str) -> LogLevel | None:
    """Return the level of a line, from its header and the text after it."""
    header = "" if _OF_COLLECTOR.search(header) else header
    if found := _LEVEL_IN_HEADER.search(header) or _LEVEL_FIRST.match(text[:200]):
        return {"error": LogLevel.ERROR, "warning": LogLevel.WARNING}.get(found.lastgroup or "", LogLevel.INFO)
    named = _LEVEL_NAMED.match(text[:400])
    return _LEVELS.get((named[named.lastgroup or 0]).upper()) if named else None
