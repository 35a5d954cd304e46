"""The manifest of a bundle for programs, and its page for people."""

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

# Version of the JSON. A version may gain fields; no field is removed or changes its meaning.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class About:
    """The node of a bundle, and when it was written."""

    name: NodeName
    created: datetime
    is_sandbox: bool = False
    hides_accounts: bool = False


def redactions(entries: Sequence[Entry]) -> dict[str, int]:
    """Return how many secrets of each kind were removed."""
    total: Counter[str] = Counter()
    for entry in entries:
        total.update(entry.redactions)
    return dict(sorted(total.items()))


def manifest(about: About, entries: Sequence[Entry], lacks: Sequence[Lack]) -> dict[str, Any]:
    """Return the manifest: every file except the manifest, the number of removed secrets, and what is missing and why."""
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
        "missing": [{"path": lack.path, "why": lack.why} for lack in lacks],
        **({"sandbox": True} if about.is_sandbox else {}),
    }


def readme(about: About, entries: Sequence[Entry], lacks: Sequence[Lack], *, verdict: str) -> str:
    """Return the page for people: what this is, where to start, what was removed, what is missing."""
    name, removed = about.name, redactions(entries)
    secrets = ", ".join(f"{kind} ({count})" for kind, count in removed.items()) or "none found"
    missing = [f"  {lack.path}: {lack.why}" for lack in lacks] or ["  none"]
    addresses = (
        "are replaced by aliases" if about.hides_accounts else "are not removed (`--redact-accounts` hides them)"
    )
    where = ", in the sandbox" if about.is_sandbox else ""
    lines = [
        f"Evidence of the Cloud TPU node {name.node_id} in {name.zone}, project {name.project}.",
        f"Collected {format_timestamp(about.created)} by tpuctl {__version__}{where}.",
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
        *missing,
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
