"""JSON records in a log, as Cloud Logging and container logs write them: the message, the worker and the time of each."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tpuctl.diagnosis.lines import NO_HEADER, Header, read_header, read_time, worker_of
from tpuctl.diagnosis.pieces import Lines, Origin

_LONGEST_HEADER = 200
_ENDS = (b"}", b"}]")
# Text that is larger is not a record over several lines.
_MOST_LINES = 5000
_MOST_BYTES = 1 << 20
_MESSAGES = ("textPayload", "message", "msg", "log", "MESSAGE", "text", "event", "short_message", "body")
_MORE = frozenset({"exc_info", "exc_text", "stack_trace", "stacktrace", "exception", "traceback", "error", "stack"})
_TIMES = ("timestamp", "time", "@timestamp", "ts", "asctime", "eventTime", "receiveTimestamp", "datetime")
_ANY_MESSAGE = frozenset(_MESSAGES)
_PAYLOADS = frozenset({"jsonPayload", "json", "fields", "record", "protoPayload"})
_PAYLOADS_IN_ORDER = sorted(_PAYLOADS)
_WORKERS = ("worker_id", "worker", "rank", "process_index", "host_id")
_NAMES = (
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
class Records:
    """Replaces each record among lines by the lines of its message; other lines stay unchanged."""

    _open: Lines = field(default_factory=Lines)
    _size: int = 0
    _indent: bytes = b""

    def copy(self) -> Records:
        """Return an independent copy."""
        return Records(self._open.since(0), self._size, self._indent)

    def end(self) -> Lines:
        """Return the lines that still wait for the end of their record."""
        lines, self._open = self._open, Lines()
        return _by_line(lines)

    def read(self, lines: Lines) -> Lines:
        """Return the lines of the messages. An incomplete record over several lines is kept for the next call."""
        block = b"\n".join(lines.texts)
        if self._open.texts or (b"{" in block and (b"{\n" in block or block.endswith(b"{"))):
            lines = self._expand_multiline(lines)
        return _by_line(lines) if b"{" in block and (b'{"' in block or b'{ "' in block) else lines

    def _expand_multiline(self, lines: Lines) -> Lines:
        """Replace the records that span several lines."""
        found = Lines()
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
            if is_end or len(self._open) > _MOST_LINES or self._size > _MOST_BYTES:
                record, self._open = self._open, Lines()
                found.extend(_message_of_lines(record))
        return found


def _message_of_lines(lines: Lines) -> Lines:
    """Return the message of a record over several lines; the lines themselves if they are not a record."""
    records = _parsed(b"\n".join(lines.texts).strip().removeprefix(b"[").rstrip(b"],{ \t"))
    message = _message(records[0]) if records else None
    if message is None:
        return lines
    number = lines.numbers[0]
    for line, at in zip(lines.texts, lines.numbers, strict=True):
        if line.strip().partition(b":")[0].strip(b'"').decode("ascii", "replace") in _MESSAGES:
            number = at
            break
    return _lines_of(message, number, Origin(_worker(records[0]), functools.partial(_time, records[0])))


def _by_line(lines: Lines) -> Lines:
    """Replace the lines that are one record, perhaps behind a header, or several records in brackets."""
    found = Lines()
    at_once: list[Mapping[str, Any]] = []
    if lines.origins.count(None) == len(lines) and all(text.startswith(b"{") for text in lines.texts):
        # All lines seem to be records: it is faster to parse them together.
        at_once = _parsed(b"[" + b",\n".join(lines.texts) + b"]")
        if len(at_once) != len(lines):
            at_once = []
    for index, (text, number, origin) in enumerate(zip(lines.texts, lines.numbers, lines.origins, strict=True)):
        header, records = (NO_HEADER, at_once[index : index + 1]) if at_once else _records_in(text, origin)
        is_record = False
        for record in records:
            message = _message(record)
            if message is None:
                continue
            is_record = True
            known = Origin(_worker(record) or header.worker, functools.partial(_time_of, record, header))
            if "\n" in message or "\r" in message:
                found.extend(_lines_of(message, number, known))
            else:
                found.add(message.encode("utf-8", "replace"), number, known)
        if not is_record:
            found.add(text, number, origin)
    return found


def _records_in(text: bytes, origin: Origin | None) -> tuple[Header, list[Mapping[str, Any]]]:
    """Return the header of a line, and the records after it."""
    if origin is not None or not text.rstrip().endswith(_ENDS):
        return NO_HEADER, []
    start = text.find(b"{")
    if not 0 <= start <= _LONGEST_HEADER:
        return NO_HEADER, []
    start -= text[start - 1 : start] == b"["
    header = read_header(text, counted=True) if start else NO_HEADER
    return header, _parsed(text[start:]) if start == header.end or not text[:start].strip() else []


def _lines_of(message: str, number: int, origin: Origin) -> Lines:
    lines = Lines()
    for text in message.encode("utf-8", "replace").replace(b"\r", b"\n").split(b"\n"):
        if text:
            lines.add(text, number, origin)
    return lines


def _parsed(text: bytes) -> list[Mapping[str, Any]]:
    """Parse a record, or several in brackets. Empty for any other text."""
    import json  # noqa: PLC0415  # most logs are not JSON

    try:
        found = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    return [record for record in (found if isinstance(found, list) else [found]) if isinstance(record, dict)]


def _message(record: Mapping[str, Any]) -> str | None:
    """Return the message of a record, with its exception and stack trace; None if it has no message."""
    message: str | None = None
    more: list[str] = []
    holders = [record]
    if not _PAYLOADS.isdisjoint(record):
        holders += [value for key in _PAYLOADS_IN_ORDER if isinstance(value := record.get(key), dict)]
        if "protoPayload" in record:
            holders.append(_inside(record, "protoPayload", "status"))
    for holder in holders:
        if message is None and not _ANY_MESSAGE.isdisjoint(holder):
            texts = (holder.get(key) for key in _MESSAGES)
            message = next((text for text in texts if isinstance(text, str) and text), None)
        if not _MORE.isdisjoint(holder):
            more.extend(value for key in _MORE & holder.keys() if isinstance(value := holder[key], str) and value)
    if not more:
        return message
    more = sorted(text for text in more if message is None or text not in message)
    return "\n".join([*([message] if message else []), *more])


def _time_of(record: Mapping[str, Any], header: Header) -> datetime | None:
    return _time(record) or header.time


def _time(record: Mapping[str, Any]) -> datetime | None:
    for key in _TIMES:
        value = record.get(key)
        if isinstance(value, str) and (found := read_time(value.strip())):
            return found
        if isinstance(value, int | float) and not isinstance(value, bool) and 1e8 < value < 1e17:
            seconds = value / 1000 if value > 1e11 else value
            return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
    return None


def _worker(record: Mapping[str, Any]) -> str | None:
    holders = [_inside(record, "resource", "labels")] if "resource" in record else []
    holders.extend(_inside(record, key) for key in ("labels", "jsonPayload", "kubernetes") if key in record)
    holders.append(record)
    for keys in (_WORKERS, _NAMES):
        for holder in holders:
            for key in keys:
                if (value := holder.get(key)) is None or isinstance(value, bool):
                    continue
                if isinstance(value, int):
                    return str(value)
                if isinstance(value, str) and value:
                    return (
                        str(int(value)) if value.isascii() and value.isdigit() and len(value) < 6 else worker_of(value)
                    )
    return None


def _inside(record: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = record.get(key)
        if not isinstance(value, dict):
            return {}
        record = value
    return record
