"""What is said of a bundle in the bundle: the manifest for programs, and a page for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl import __version__
from tpuctl.clock import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.actions.bundling.contents import Entry, Lack
    from tpuctl.names import NodeName

# Of the JSON. Fields may be added within a version; none is removed or changes its meaning.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class About:
    """Of what a bundle is, and when it was made."""

    name: NodeName
    created: datetime
    is_sandbox: bool = False
    hides_accounts: bool = False


def redactions(entries: Sequence[Entry]) -> dict[str, int]:
    """Return how many secrets of each kind were taken out."""
    total: Counter[str] = Counter()
    for entry in entries:
        total.update(entry.redactions)
    return dict(sorted(total.items()))


def manifest(about: About, entries: Sequence[Entry], lacks: Sequence[Lack]) -> dict[str, Any]:
    """Return the manifest: every file but the manifest itself, what was taken out, and what is missing and why."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "created": format_timestamp(about.created),
        "tpuctl": __version__,
        "project": about.name.project,
        "zone": about.name.zone,
        "node": about.name.node_id,
        "accountsHidden": about.hides_accounts,
        "bytes": sum(entry.size for entry in entries),
        "redactions": redactions(entries),
        "files": [_to_json(entry) for entry in entries],
        "missing": [{"path": lack.path, "why": lack.why} for lack in lacks],
        **({"sandbox": True} if about.is_sandbox else {}),
    }


def _to_json(entry: Entry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "size": entry.size,
        "originalSize": entry.original_size,
        "truncated": entry.is_truncated,
        "redactions": dict(entry.redactions),
        "sha256": entry.sha256,
        "source": entry.source or None,
        "modified": format_timestamp(entry.modified) if entry.modified else None,
    }


def readme(about: About, entries: Sequence[Entry], lacks: Sequence[Lack], *, verdict: str) -> str:
    """Return the page for people: what this is, where to begin, what was taken out, what is missing."""
    name, taken = about.name, redactions(entries)
    hidden = ", ".join(f"{kind} ({count})" for kind, count in taken.items()) or "nothing was found that looks like one"
    missing = [f"  {lack.path}: {lack.why}" for lack in lacks] or ["  nothing"]
    addresses = (
        "are replaced by words" if about.hides_accounts else "are left as they are (`--redact-accounts` hides them)"
    )
    where = ", in its sandbox" if about.is_sandbox else ""
    lines = [
        f"Evidence of the Cloud TPU node {name.node_id} in {name.zone}, project {name.project}.",
        f"Gathered {format_timestamp(about.created)} by tpuctl {__version__}{where}.",
        "",
        f"Verdict: {verdict}",
        "",
        "Begin with explanation.txt. Then:",
        *(
            f"  {path:<24} {what}"
            for path, what in _GUIDE
            if path == "manifest.json" or any(one.path.startswith(path.rstrip("*")) for one in entries)
        ),
        "",
        f"Secrets taken out: {hidden}. E-mail and IP addresses {addresses}.",
        "What has no known form, or no name that tells it, cannot be found: look through it before you hand it on.",
        "",
        "Missing:",
        *missing,
    ]
    return "\n".join(lines) + "\n"


_GUIDE = (
    ("explanation.txt", "what tpuctl makes of the logs, and what helps"),
    ("manifest.json", "every file, its size, what was cut or taken out"),
    ("node.json", "the node as the API shows it"),
    ("operations.json", "what was asked of it lately, and how that ended"),
    ("queued-resource.json", "the request that it belongs to"),
    ("guest-attributes.json", "what its workers publish"),
    ("journal.json", "what tpuctl did to it and saw of it"),
    ("doctor.json", "what `tpuctl doctor` finds"),
    ("settings.json", "tpuctl's settings, and where each comes from"),
    ("versions.json", "versions on the machine that gathered this"),
    ("workers/*", "of each worker: logs, jobs, processes, disk, kernel"),
)
