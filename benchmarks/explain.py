"""Reading logs for `tpuctl explain`: MB a second on one core, where the time goes, and memory. Nothing is asserted."""

from __future__ import annotations

import cProfile
import json
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.explain_logs import LOGS, log
from benchmarks.waiting import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.explain.scanner import LogReader

NAMES = ("explain-speed", "explain-profile", "explain-memory", "explain")
_SIZE, _RUNS = 6_000_000, 3
_PIECE = 1 << 18
_AIM, _AIM_REPEATS, _AIM_MEMORY = 15.0, 3.0, 100.0
_LARGE = 1_000_000_000
_REPEATS = "only `Retrying (12/120)`"
_PARTS = {
    "cutting into lines, decoding, headers": ("log_lines.py", "log_streams.py"),
    "searching for messages": ("scanner.py", "suspect_lines.py", "messages.py"),
    "telling quotations": ("quotations.py",),
    "drawing the conclusion": ("conclusion.py", "device_memory.py"),
}
_SPEED_TEXT = f"""The reader of `tpuctl explain` on generated logs of {_SIZE / 1e6:g} MB each. CPU time, the best of {_RUNS}
runs; 1 MB is a million bytes. Target: {_AIM:g} MB/s on ordinary logs, {_AIM_REPEATS:g} on a log of repeats only. *Literals
alone* is only the search for every literal of every message in the same text, in the same run. Compare the ratios: absolute
figures depend on the machine and its other work. Above 1 the reader is faster: it searches only for literals whose words
occur, and not again in lines that differ from earlier ones only in numbers. Logs that mix these kinds can be slower, and
the whole command also starts Python and opens the file."""
_PROFILE_TEXT = """Shares of the reader's time, measured with Python's profiler, which overstates small functions."""
_MEMORY_TEXT = f"""Peak memory of a separate process that reads {_LARGE / 1e9:g} GB, including Python and all messages.
Target: {_AIM_MEMORY:g} MiB."""


def tables(_: Path, names: tuple[str, ...]) -> Iterator[Table]:
    """Yield the tables with these names; all if no name is given."""
    for name, make in {NAMES[0]: _speed, NAMES[1]: _profile, NAMES[2]: _memory}.items():
        if not names or name in names or "explain" in names:
            yield make()


def _speed() -> Table:
    rows = []
    for name in LOGS:
        data = log(name, _SIZE)
        ours, alone = _rate(data, _read), _rate(data, _literals_alone)
        aim = _AIM_REPEATS if name == _REPEATS else _AIM
        rows.append((name, f"{ours:.1f} MB/s", f"{aim:g} MB/s", f"{alone:.1f} MB/s", f"{ours / alone:.2f}"))
    return Table("Speed of reading logs", _SPEED_TEXT, ("log", "read", "target", "literals alone", "ratio"), rows)


def _rate(data: bytes, read: Callable[[bytes], object]) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        started = time.process_time()
        read(data)
        best = min(best, time.process_time() - started)
    return len(data) / best / 1e6


def _reader() -> LogReader:
    from tpuctl.explain.scanner import LogReader  # noqa: PLC0415  # after the other benchmarks

    return LogReader()


def _read(data: bytes) -> None:
    reader = _reader()
    for start in range(0, len(data), _PIECE):
        reader.feed(data[start : start + _PIECE])
    reader.so_far()


def _literals_alone(data: bytes) -> int:
    from tpuctl.explain.messages import known_messages  # noqa: PLC0415  # as above
    from tpuctl.explain.scanner import without_whitespace  # noqa: PLC0415  # as above

    literals = {without_whitespace(anchor.encode()) for message in known_messages() for anchor in message.anchors}
    count = 0
    for start in range(0, len(data), 1 << 16):
        block = without_whitespace(data[start : start + (1 << 16)])
        count += sum(literal in block for literal in literals)
    return count


def _profile() -> Table:
    shares = {
        name: _shares(log(name, _SIZE)) for name in ("JAX", "JAX, 8 workers at once", "no two lines alike", _REPEATS)
    }
    rows = [(part, *(f"{share[part]:.0%}" for share in shares.values())) for part in (*_PARTS, "the rest")]
    return Table("Time in the parts of reading logs", _PROFILE_TEXT, ("part", *shares), rows)


def _shares(data: bytes) -> dict[str, float]:
    _reader()
    profile = cProfile.Profile()
    profile.runcall(_read, data)
    stats = pstats.Stats(profile)
    spent = dict.fromkeys((*_PARTS, "the rest"), 0.0)
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():  # type: ignore[attr-defined]  # not in its stubs
        if Path(file).parent.parts[-2:] == ("tpuctl", "explain"):
            spent[_part(file)] += own
            continue
        # A function in C counts for its caller.
        for (caller, _, _), (_, _, inside, _) in callers.items():
            spent[_part(caller)] += inside
    total = sum(spent.values())
    return {part: seconds / total for part, seconds in spent.items()}


def _part(file: str) -> str:
    return next((part for part, files in _PARTS.items() if Path(file).name in files), "the rest")


def _memory() -> Table:
    rows = []
    for name in ("JAX", "JAX, 8 workers at once", "no line end at all"):
        argv = (sys.executable, "-m", "benchmarks.explain_memory", name, str(_LARGE))
        output = subprocess.run(argv, capture_output=True, check=True, cwd=Path(__file__).parents[1]).stdout
        found = json.loads(output)
        rows.append((name, f"{found['memory']:.0f} MiB", f"{found['before']:.0f} MiB", f"{found['seconds']:.0f} s"))
    return Table("Memory for reading logs", _MEMORY_TEXT, ("log", "at most", "before the log", "CPU time"), rows)
