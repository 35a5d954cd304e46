"""Lines that are records in JSON, as Cloud Logging and container logs write them: the message in each, who said it and when."""

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
# A record over many lines that is larger is no record.
_MOST_LINES, _MOST_BYTES = 5000, 1 << 20
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
    """Takes lines and returns them with each record replaced by the lines of its message; what is no record stays as it is."""

    _open: Lines = field(default_factory=Lines)
    _size: int = 0
    _indent: bytes = b""

    def copy(self) -> Records:
        """Return one that goes on independently."""
        return Records(self._open.since(0), self._size, self._indent)

    def end(self) -> Lines:
        """Return the lines that still wait for the end of their record."""
        lines, self._open = self._open, Lines()
        return _by_line(lines)

    def read(self, lines: Lines) -> Lines:
        """Return the lines of the messages. A record over many lines that is not complete is kept for the next call."""
        block = b"\n".join(lines.texts)
        if self._open.texts or (b"{" in block and (b"{\n" in block or block.endswith(b"{"))):
            lines = self._spread(lines)
        return _by_line(lines) if b"{" in block and (b'{"' in block or b'{ "' in block) else lines

    def _spread(self, lines: Lines) -> Lines:
        """Return the lines with those records replaced that span several of them."""
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
                found.extend(self._closed())
        return found

    def _closed(self) -> Lines:
        lines, self._open = self._open, Lines()
        text = b"\n".join(lines.texts).strip().removeprefix(b"[").rstrip(b"],{ \t")
        records = _parsed(text)
        said = _message(records[0]) if records else None
        if said is None:
            return lines
        number = next(
            (at for line, at in zip(lines.texts, lines.numbers, strict=True) if _holds(line)), lines.numbers[0]
        )
        return _lines_of(said, number, Origin(_worker(records[0]), functools.partial(_time, records[0])))


def _by_line(lines: Lines) -> Lines:
    """Return the lines with those replaced that are a record each, maybe behind a header, or several in brackets."""
    found = Lines()
    at_once = _all_parsed(lines)
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


def _all_parsed(lines: Lines) -> list[Mapping[str, Any]]:
    """Return the records where each line is one and nothing else: they are quicker parsed at once. Else nothing."""
    if lines.origins.count(None) < len(lines) or not all(text.startswith(b"{") for text in lines.texts):
        return []
    records = _parsed(b"[" + b",\n".join(lines.texts) + b"]")
    return records if len(records) == len(lines) else []


def _records_in(text: bytes, origin: Origin | None) -> tuple[Header, list[Mapping[str, Any]]]:
    """Return the records that a line holds, and the header before them."""
    if origin is not None or not text.rstrip().endswith(_ENDS):
        return NO_HEADER, []
    start = text.find(b"{")
    if not 0 <= start <= _LONGEST_HEADER:
        return NO_HEADER, []
    start -= text[start - 1 : start] == b"["
    header = read_header(text, counted=True) if start else NO_HEADER
    return header, _parsed(text[start:]) if start == header.end or not text[:start].strip() else []


def _lines_of(said: str, number: int, origin: Origin) -> Lines:
    lines = Lines()
    for text in said.encode("utf-8", "replace").replace(b"\r", b"\n").split(b"\n"):
        if text:
            lines.add(text, number, origin)
    return lines


def _parsed(text: bytes) -> list[Mapping[str, Any]]:
    """Return the record, or the records in brackets, that a text is; nothing for any other text."""
    import json  # noqa: PLC0415  # most logs are no JSON

    try:
        found = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    return [record for record in (found if isinstance(found, list) else [found]) if isinstance(record, dict)]


def _message(record: Mapping[str, Any]) -> str | None:
    """Return what a record says; nothing where it holds no message."""
    said: str | None = None
    more: list[str] = []
    for holder in _holders(record):
        if said is None and not _ANY_MESSAGE.isdisjoint(holder):
            said = _first_text(holder)
        if not _MORE.isdisjoint(holder):
            more.extend(value for key in _MORE & holder.keys() if isinstance(value := holder[key], str) and value)
    if not more:
        return said
    more = sorted(text for text in more if said is None or text not in said)
    return "\n".join([*([said] if said else []), *more])


def _first_text(holder: Mapping[str, Any]) -> str | None:
    for key in _MESSAGES:
        value = holder.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def _holders(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if _PAYLOADS.isdisjoint(record):
        return [record]
    found = [record, *[said for key in _PAYLOADS_IN_ORDER if isinstance(said := record.get(key), dict)]]
    if "protoPayload" in record:
        found.append(_inside(record, "protoPayload", "status"))
    return found


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
    speakers = _speakers(record)
    for keys in (_WORKERS, _NAMES):
        for holder in speakers:
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


def _speakers(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return where a record may name its worker."""
    found = [_inside(record, "resource", "labels")] if "resource" in record else []
    found.extend(_inside(record, key) for key in ("labels", "jsonPayload", "kubernetes") if key in record)
    return [*found, record]


def _inside(record: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = record.get(key)
        if not isinstance(value, dict):
            return {}
        record = value
    return record


def _holds(line: bytes) -> bool:
    key = line.strip().partition(b":")[0].strip(b'"').decode("ascii", "replace")
    return key in _MESSAGES
