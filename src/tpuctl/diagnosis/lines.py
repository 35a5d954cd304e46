"""The header of a log line, which says who wrote it and when, and the message after it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

# A header has parts such as a worker, a time, a level; further parts belong to the message.
_MOST_PARTS = 6
# Characters. A worker's name is printed, so it is cut.
_LONGEST_NAME = 80
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
    r"[IWEFD]0000 00:00:(?P<epoch>\d{10}\.\d{1,9}) {1,8}-?\d{1,10} [\w./+-]{1,200}:\d{1,6}\] ",
    r"[IWEFD]\d{4} \d\d:\d\d:\d\d\.\d{1,9} {1,8}\d{1,10} [\w./+-]{1,200}:\d{1,6}\] ",
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
_START = re.compile("|".join((*_WORKER, *_TIME, _LOGGER)).encode())
_COUNTED_START = re.compile("|".join((_NUMBER, *_WORKER, *_TIME, _LOGGER)).encode())
_NEXT = re.compile("|".join((*_WORKER, *_TIME, *_OTHER)).encode())
_COUNTED_NEXT = re.compile("|".join((_NUMBER, *_WORKER, *_TIME, *_OTHER)).encode())
# Behind a time, a larger number is a process id.
_BY_NUMBER = re.compile(
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
        rf"\n(?:{'|'.join((*_WORKER, *_TIME, _LOGGER))})(?:{'|'.join((*_WORKER, *_TIME, *_OTHER))}){{0,{_MOST_PARTS}}}",
    ).encode()
)
_TIMES = ("iso", "epoch", "dmesg")
_NUMBERS = ("marked", "word", "short", "addressed", "bracketed", "numbered", "mpi")


class Header(NamedTuple):
    """The text before a message."""

    end: int = 0  # in bytes
    worker: str | None = None
    form: str | None = None  # the format of the time: `iso`, `epoch`, `dmesg`
    when: bytes = b""  # the time as the log writes it

    @property
    def time(self) -> datetime | None:
        """The time, with a zone if the log names one. None without a time, or with one that has no year."""
        return read_time(self.when.decode("ascii", "replace"), self.form) if self.form else None


NO_HEADER = Header()


def read_header(line: bytes, *, counted: bool) -> Header:
    """Return the header of a line. `counted`: in this log `[3] ` or `3: ` before a line is a worker.

    Formats: Python's logging, absl and glog, TensorFlow, syslog, dmesg, container logs, and the prefixes of tools that collect
    the output of many machines.
    """
    found = (_COUNTED_START if counted else _START).match(line)
    if found is None:
        return NO_HEADER
    worker, form, when, end = None, None, b"", 0
    after = _COUNTED_NEXT if counted else _NEXT
    for _ in range(_MOST_PARTS):
        end = found.end()
        if kind := found.lastgroup:
            text = found[kind]
            if kind in _TIMES:
                form, when = kind, text
            else:
                worker = worker or worker_of(text.decode("ascii", "replace"), kind)
                after = _NEXT
        found = after.match(line, end)
        if found is None or found.end() == end:
            break
    return Header(end, worker, form, when)


def read_worker(line: bytes, *, counted: bool) -> tuple[bytes, int]:
    """Return the worker in a header as the log writes it, and where that part of the header ends.

    Faster than parsing all of the header: returns an empty name if its first three parts have no worker.
    """
    found = (_COUNTED_START if counted else _START).match(line)
    after = _COUNTED_NEXT if counted else _NEXT
    for _ in range(3):
        if found is None:
            break
        kind = found.lastgroup
        if kind is not None and kind not in _TIMES:
            return found[kind], found.end()
        found = after.match(line, found.end())
    return b"", 0


def is_counted(lines: list[bytes]) -> bool:
    """Tell whether most of these lines begin with a number that stands for a worker, or with a time and such a number."""
    filled = [line for line in lines if line.strip()]
    numbered = [found for found in map(_BY_NUMBER.match, filled) if found]
    bare = [found for found in numbered if found["numbered"] or found["behind"]]
    least = 0.8 if bare else 0.5
    return bool(numbered) and len(numbered) >= least * len(filled) and (not bare or len(bare) > 1)


def worker_of(name: str, kind: str = "") -> str | None:
    """Return the number in a worker's name, else the name; None if it is not a worker's."""
    if kind in _NUMBERS:
        return str(int(name))
    if found := _IN_NAME.search(name):
        return str(int(found[1] or found[2]))
    if kind == "syslog":
        return name if name.startswith(("t1v-", "worker", "host")) else None
    if kind == "pod" and (found := _END_OF_NAME.search(name)):
        return str(int(found[1]))
    return name[:_LONGEST_NAME] or None


def read_time(text: str, form: str | None = "iso") -> datetime | None:
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
