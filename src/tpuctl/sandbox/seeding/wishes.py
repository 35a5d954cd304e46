"""Parse the faults, stock-outs and quotas of files and of the command line."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_duration
from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest
from tpuctl.sandbox import admin, provision
from tpuctl.sandbox.afflictions import Fault, FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.world import World

# The keys of a fault, with their types. `after` delays the whole fault.
FAULT_KEYS: Mapping[str, str] = {
    "kind": "text",
    "node": "text",
    "zone": "text",
    "project": "text",
    "call": "text",
    "times": "number",
    "state": "text",
    "health": "text",
    "description": "text",
    "after": "duration",
    "duration": "duration",
    "code": "number",
    "message": "text",
    "limit": "number",
    "status": "number",
    "retryAfter": "number",
    "worker": "number",
}
_FIELDS = {"call": "method", "times": "count", "retryAfter": "retry_after"}
QUOTA_KEYS: Mapping[str, str] = {
    "metric": "text",
    "generation": "text",
    "tier": "text",
    "region": "text",
    "zone": "text",
    "project": "text",
    "limit": "number",
    "usage": "number",
}
STOCKOUT_KEYS: Mapping[str, str] = {"zone": "text", "acceleratorType": "text", "tier": "text", "project": "text"}


def fault(entry: Json) -> Fault:
    """Return the fault of an entry. Raises `InvalidInputError` for an unknown kind."""
    values: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in entry.items()}
    for key in ("after", "duration"):
        if key in values and not isinstance(values[key], timedelta):
            values[key] = parse_duration(str(values[key]))
    return Fault(kind(values.pop("kind")), **values)


def kind(word: str) -> FaultKind:
    """Return the fault kind of a name. Raises `InvalidInputError` naming the nearest."""
    known = [str(entry) for entry in FaultKind]
    if word not in known:
        near = nearest(word, known)
        hint = f"did you mean `{near}`?" if near else f"use one of {', '.join(known)}"
        raise InvalidInputError(f"`{word}` is not a kind of fault" if word else "no kind of fault given", hint=hint)
    return FaultKind(word)


def add_stockout(sandbox: World, entry: Json) -> None:
    """Add the stock-out of an entry. Raises `InvalidInputError` for an unknown tier."""
    words = {"acceleratorType": "accelerator_type"}
    values = {words.get(key, key): str(value) for key, value in entry.items() if key in STOCKOUT_KEYS}
    after, duration = (entry.get(key) for key in ("after", "duration"))
    with sandbox.write() as session:
        admin.add_stockout(
            session,
            **values,
            after=parse_duration(str(after)) if after else timedelta(),
            duration=parse_duration(str(duration)) if duration else None,
        )


def set_quota(sandbox: World, entry: Json) -> None:
    """Set a quota of the TPU API, or of Compute Engine if the metric is one of its. Raises `InvalidInputError`."""
    metric = str(entry.get("metric", ""))
    if metric and not metric.endswith("ForTPUAPI"):
        words = {key: value for key, value in entry.items() if key in {"limit", "usage", "project"}}
        if "region" not in entry:
            raise InvalidInputError(f"the Compute Engine quota `{metric}` needs a `region`")
        provision.set_region_quota(sandbox, entry["region"], metric, **words)
        return
    if "usage" in entry:
        raise InvalidInputError(
            "`usage` cannot be set for quotas of the TPU API", hint="leave it out: usage is counted"
        )
    with sandbox.write() as session:
        admin.set_quota(session, **entry)
