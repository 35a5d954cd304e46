"""Add the files that describe a bundle: the verdict on its logs, a page for people, the manifest."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl import __version__
from tpuctl.durations import format_timestamp
from tpuctl.explain.conclusion import conclude
from tpuctl.explain.scanner import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.explain.conclusion import Explanation
    from tpuctl.names import NodeName
    from tpuctl.support.bundle_contents import BundleContents, BundleEntry, MissingItem

NOTHING_KNOWN = "the logs have no known failure"
NO_LOGS = "the bundle has no logs"
# Verdicts whose evidence is located in its file; for the others see `files` in explanation.json.
_MAX_LOCATED = 20


def add_summary(
    contents: BundleContents,
    info: BundleInfo,
    *,
    to_json: Callable[[Explanation], dict[str, Any]],
    page: Callable[[Explanation], Iterable[str]],
) -> LogsExplanation:
    """Add the files that describe a bundle, and return the verdict on its logs. `to_json` and `page` render the verdict."""
    logs = explain_logs(contents.entries, {"node": info.name.node_id})
    parts = [{"path": part.path, "firstLine": part.first_line, "lines": part.lines} for part in logs.parts]
    contents.add_own("explanation.json", _json({**to_json(logs.explanation), "files": parts}))
    # The page counts the lines of all files as one text.
    places: list[str] = []
    for one in (*logs.explanation.conclusions, *logs.explanation.harmless)[:_MAX_LOCATED]:
        line = one.sighting.first.line
        if place := logs.place(line):
            places.append(f"  line {line}: {place[0]}, line {place[1]}")
    located = ["", "files of these lines:", *dict.fromkeys(places)] if places else []
    lines = [*page(logs.explanation), *located] or [summarize(logs)]
    contents.add_own("explanation.txt", _text("\n".join(lines)))
    entries = contents.entries
    contents.add_own("README.txt", _text(render_readme(info, entries, contents.missing, verdict=summarize(logs))))
    contents.add_own("manifest.json", _json(build_manifest(info, contents.entries, contents.missing)))
    return logs


def summarize(logs: LogsExplanation) -> str:
    """Return the first verdict in one line, with the place of its evidence."""
    if not logs.explanation.conclusions:
        return NOTHING_KNOWN if logs.parts else NO_LOGS
    first = logs.explanation.conclusions[0]
    place = logs.place(first.sighting.first.line)
    where = f" ({place[0]}, line {place[1]})" if place else ""
    return f"{first.id}: {first.meaning}{where}"


def _json(value: Any) -> bytes:
    return _text(json.dumps(value, indent=2, ensure_ascii=False))


def _text(text: str) -> bytes:
    return (text.rstrip("\n") + "\n").encode("utf-8", "replace")


# Version of the JSON. A version may gain fields; no field is removed or changes its meaning.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """The node of a bundle, and when it was written."""

    name: NodeName
    created: datetime
    is_sandbox: bool = False
    redact_accounts: bool = False


def count_redactions(entries: Sequence[BundleEntry]) -> dict[str, int]:
    """Return how many secrets of each kind were removed."""
    total: Counter[str] = Counter()
    for entry in entries:
        total.update(entry.redactions)
    return dict(sorted(total.items()))


def build_manifest(info: BundleInfo, entries: Sequence[BundleEntry], missing: Sequence[MissingItem]) -> dict[str, Any]:
    """Return the manifest: every file except the manifest, the number of removed secrets, and what is missing and why."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "created": format_timestamp(info.created),
        "tpuctl": __version__,
        "project": info.name.project,
        "zone": info.name.zone,
        "node": info.name.node_id,
        "accountsHidden": info.redact_accounts,
        "bytes": sum(entry.size for entry in entries),
        "redactions": count_redactions(entries),
        "files": [
            {
                "path": entry.path,
                "size": entry.size,
                "originalSize": entry.original_size,
                "truncated": entry.is_truncated,
                "redactions": dict(entry.redactions),
                "sha256": entry.sha256,
                "source": entry.source or None,
                "modified": format_timestamp(entry.modified) if entry.modified else None,
            }
            for entry in entries
        ],
        "missing": [{"path": item.path, "why": item.why} for item in missing],
        **({"sandbox": True} if info.is_sandbox else {}),
    }


def render_readme(
    info: BundleInfo, entries: Sequence[BundleEntry], missing: Sequence[MissingItem], *, verdict: str
) -> str:
    """Return the page for people: what this is, where to start, what was removed, what is missing."""
    name, removed = info.name, count_redactions(entries)
    secrets = ", ".join(f"{kind} ({count})" for kind, count in removed.items()) or "none found"
    missing_lines = [f"  {item.path}: {item.why}" for item in missing] or ["  none"]
    addresses = (
        "are replaced by aliases" if info.redact_accounts else "are not removed (`--redact-accounts` hides them)"
    )
    where = ", in the sandbox" if info.is_sandbox else ""
    lines = [
        f"Evidence of the Cloud TPU node {name.node_id} in {name.zone}, project {name.project}.",
        f"Collected {format_timestamp(info.created)} by tpuctl {__version__}{where}.",
        "",
        f"Verdict: {verdict}",
        "",
        "Start with explanation.txt. Then:",
        *(
            f"  {path:<24} {what}"
            for path, what in _GUIDE
            if path == "manifest.json" or any(one.path.startswith(path.rstrip("*")) for one in entries)
        ),
        "",
        f"Secrets removed: {secrets}. E-mail and IP addresses {addresses}.",
        "tpuctl cannot find a secret without a known form or name: review the files before you share them.",
        "",
        "Missing:",
        *missing_lines,
    ]
    return "\n".join(lines) + "\n"


_GUIDE = (
    ("explanation.txt", "the verdict on the logs, and the remedy"),
    ("manifest.json", "every file, its size, what was truncated or removed"),
    ("node.json", "the node as the API shows it"),
    ("operations.json", "recent operations on the node, and their results"),
    ("queued-resource.json", "the queued resource of the node"),
    ("guest-attributes.json", "the guest attributes of the workers"),
    ("journal.json", "what tpuctl did to the node and observed"),
    ("doctor.json", "what `tpuctl doctor` finds"),
    ("settings.json", "tpuctl's settings, and where each comes from"),
    ("versions.json", "versions on the machine that collected this"),
    ("workers/*", "for each worker: logs, jobs, processes, disk, kernel"),
)


_LOG = re.compile(
    r"workers/(?P<worker>\d+)/(?:jobs/[^/]+/(?:out|err)|tpu_logs/.+|tpu_log_dir/.+|dmesg\.txt|startup-script\.log)"
)
_BLOCK = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogPart:
    """A log file, and its range of lines in the whole."""

    path: str
    first_line: int
    lines: int


@dataclass(frozen=True, slots=True)
class LogsExplanation:
    """The verdict on the logs, and the range of lines of each."""

    explanation: Explanation
    parts: tuple[LogPart, ...]

    def place(self, line: int) -> tuple[str, int] | None:
        """Return the file, and the line in it, of a line of the whole."""
        for part in self.parts:
            if part.first_line <= line < part.first_line + part.lines:
                return part.path, line - part.first_line + 1
        return None


def explain_logs(entries: Sequence[BundleEntry], known: Mapping[str, str]) -> LogsExplanation:
    """Read the logs among the files as one log, each line marked with its worker.

    `known` are facts for the remedies, such as the node's name.
    """
    reader, parts, line = LogReader(), [], 1
    for entry in entries:
        match = _LOG.fullmatch(entry.path)
        if match is None or not entry.size:
            continue
        lines = 0
        for piece in _mark_lines(entry, b"[%s] " % match["worker"].encode()):
            lines += piece.count(b"\n")
            reader.feed(piece)
        parts.append(LogPart(entry.path, line, lines))
        line += lines
    return LogsExplanation(conclude(reader.so_far(), known=known), tuple(parts))


def _mark_lines(entry: BundleEntry, mark: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file with a mark before each line, and a line end after the last one."""
    is_begin = True
    with entry.file.open("rb") as file:
        while block := file.read(_BLOCK):
            ends = block.endswith(b"\n")
            body = block[:-1] if ends else block
            yield (mark if is_begin else b"") + body.replace(b"\n", b"\n" + mark) + (b"\n" if ends else b"")
            is_begin = ends
    if not is_begin:
        yield b"\n"
