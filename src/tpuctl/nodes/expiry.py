"""When the time of a node ends, who created it, and how both are written as labels. Pure: `now` is the time of the service."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ConflictError
from tpuctl.models.node import EXPIRY_LABEL, OWNER_LABEL
from tpuctl.models.node_changes import changed_fields
from tpuctl.models.spec import MAX_LABEL_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec

# How much longer than its run a node of `run --up --rm` lives, if the client was killed.
DEFAULT_GRACE: Final = timedelta(hours=1)
# A node is not brought up in a shorter time.
SHORTEST_TIME: Final = timedelta(minutes=5)
LONGEST_TIME: Final = timedelta(days=365)


def expiry_label(moment: datetime) -> str:
    """Return the value of `EXPIRY_LABEL`: seconds since 1970."""
    return str(int(moment.timestamp()))


def with_expiry(labels: Mapping[str, str], end: datetime | None) -> dict[str, str]:
    """Return the labels of a node whose time ends then; None for never."""
    kept = {key: value for key, value in labels.items() if key != EXPIRY_LABEL}
    return kept if end is None else {**kept, EXPIRY_LABEL: expiry_label(end)}


def set_expiry(node: Node, end: datetime | None) -> dict[str, Any]:
    """Return the fields to write so that the time of the node ends then; None for never."""
    return changed_fields(node, {"labels": with_expiry(node.labels, end)})


def move_expiry(node: Node, end: datetime) -> dict[str, Any]:
    """Return the fields to write so that the node does not end earlier. An end that a user moved or removed meanwhile stays."""
    return set_expiry(node, end) if node.expires is not None and node.expires < end else {}


class ExpiryChange:
    """A change of the end of a node's time, for `TpuClient.change_node`. `new_end` gets the node as it is at first.

    Another client may change the end at the same time: of two extensions the later end counts. `end` is the end that counts.
    """

    def __init__(self, new_end: Callable[[Node], datetime | None]) -> None:
        self._new_end = new_end
        self._before: Node | None = None
        self._wanted: datetime | None = None
        self.end: datetime | None = None

    def __call__(self, node: Node) -> dict[str, Any]:
        """Return the fields to write. Raises `ConflictError` if another client moved an end that was to become earlier."""
        if self._before is None:
            self._before, self._wanted = node, self._new_end(node)
        self.end = self._wanted
        before = self._before.expires
        is_changed_by_other = node.expires not in {before, self._wanted}
        if is_changed_by_other and self._wanted is not None and (node.expires or self._wanted) >= self._wanted:
            if before is None or self._wanted < before:
                raise ConflictError(
                    f"another client changed the end of `{node.name.node_id}` at the same time",
                    hint=f"see `tpuctl status {node.name.zone}/{node.name.node_id}`, then run the command again",
                )
            self.end = node.expires
            return {}
        return set_expiry(node, self._wanted)


def time_left(node: Node, now: datetime) -> timedelta | None:
    """Return the time until the node expires, negative after it; None without a valid label."""
    return None if node.expires is None else node.expires - now


def is_expired(node: Node, now: datetime) -> bool:
    """Return whether the time of the node has ended. A node without a valid label never expires."""
    left = time_left(node, now)
    return left is not None and left <= timedelta()


def extended_expiry(node: Node, by: timedelta, now: datetime) -> datetime:
    """Return the new end of a node: counted from its present end, or from now if it has none or has passed it."""
    return max(node.expires or now, now) + by


def later_end(end: datetime, ttl: timedelta, now: datetime) -> datetime | None:
    """Return `ttl` from now as the end of a node whose run is alive; None while three quarters of that are left."""
    return (now + ttl).replace(microsecond=0) if end - now < ttl * 3 / 4 else None


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """The end that a user wants for the time of a node: a moment, or None for never."""

    at: datetime | None

    def __str__(self) -> str:
        return (
            "removing its time limit"
            if self.at is None
            else f"setting the end of its time: {format_timestamp(self.at)}"
        )

    @property
    def option(self) -> str:
        """The option of `tpuctl extend` that sets this end."""
        return "--no-expiry" if self.at is None else f"--until {format_timestamp(self.at)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """What a user wants for the limits of a node that exists: an end, and with `changes_idle` a limit of idleness."""

    end: NodeEnd | None = None
    changes_idle: bool = False

    def shortens(self, node: Node) -> bool:
        """Return whether the node would end earlier than without the change."""
        end = self.end.at if self.end else None
        return end is not None and (node.expires is None or end < node.expires)

    def objections(self, node: Node, owner: str) -> tuple[str, ...]:
        """Return why the change needs a question to the user, whose label is `owner`; empty if it needs none."""
        found = []
        end = self.end.at if self.end else None
        changes_end = end not in {None, node.expires} or (self.end == NodeEnd(None) and EXPIRY_LABEL in node.labels)
        if (changes_end or self.changes_idle) and (not owner or node.owner != owner):
            found.append(f"its owner is {node.owner}" if node.owner else "its owner is unknown")
        if end is not None and node.expires is not None and end < node.expires:
            found.append(f"its end moves from {format_timestamp(node.expires)} to {format_timestamp(end)}")
        return tuple(found)

    def describe(self, name: str) -> str:
        """Return the change of a node of that name, in words."""
        words = []
        if self.end is not None and self.end.at is not None:
            words.append(f"set the end of its time to {format_timestamp(self.end.at)}")
        elif self.end is not None:
            words.append("remove its time limit")
        if self.changes_idle:
            words.append("change its idle limit")
        return f"`{name}`: {' and '.join(words)}"


def end_of_new_node(spec: NodeSpec, now: datetime) -> datetime | None:
    """Return when the time of a node that is created now ends: `spec.expires`, once that has passed `spec.ttl` from now."""
    if spec.expires is not None and spec.expires > now:
        return spec.expires
    return None if spec.ttl is None else (now + spec.ttl).replace(microsecond=0)


def stamp_spec(spec: NodeSpec, *, owner: str, now: datetime) -> NodeSpec:
    """Return the spec of a node that is created now, with the labels of its end and its owner."""
    end = end_of_new_node(spec, now)
    labels = dict(spec.labels)
    if end is not None:
        labels[EXPIRY_LABEL] = expiry_label(end)
    if owner:
        labels[OWNER_LABEL] = owner
    return replace(spec, expires=end, labels=labels)


def inherit_expiry(spec: NodeSpec, node: Node, *, watches: bool) -> NodeSpec:
    """Return the spec to recreate a node: it keeps its end, or gets the same duration again if that has passed.

    A node without an end gets none from `watch`; other commands give it that of the spec.
    """
    if node.expires is None:
        ttl = None if watches else spec.ttl
        return spec if (spec.expires, spec.ttl) == (None, ttl) else replace(spec, expires=None, ttl=ttl)
    if node.expires == spec.expires:
        return spec
    lasted = node.expires - node.created if node.created and node.expires > node.created else None
    return replace(spec, expires=node.expires, ttl=spec.ttl or lasted)


def expiry_note(node: Node, now: datetime | None) -> str:
    """Return what users need to know about the end of a node, empty without the label. Without `now` times are absolute."""
    if node.has_invalid_expiry:
        return f"never expires: label {EXPIRY_LABEL}={node.labels[EXPIRY_LABEL]} is not a time"
    if node.expires is None:
        return ""
    if now is None:
        return f"expires {format_timestamp(node.expires)}"
    left = node.expires - now
    return f"expires in {format_duration(left)}" if left > timedelta() else f"expired {format_duration(-left)} ago"


# These are written into the label without a loss: no two of them have the same.
_PLAIN_IDENTITY: Final = re.compile(r"([a-z0-9_]+@[a-z0-9.]+)?")
_HASH_LENGTH: Final = 8


def owner_label(identity: str) -> str:
    """Return an account or `user@host` as a value of `OWNER_LABEL`: `ann@example.com` is `ann_example-com`.

    Two identities never have the same. One that differs from another only in characters that a label cannot have, or that is
    too long, ends with a part of its hash: `ann.lee@example.com` is `ann-lee_example-com-b7e0d837`, and so is
    `ann-lee@example.com` with another one. A label without it, which earlier versions wrote, counts as that of another.
    """
    name = identity.strip().lower()
    text = re.sub(r"[^a-z0-9_-]", "-", name.replace("@", "_"))
    is_plain = _PLAIN_IDENTITY.fullmatch(name) and not re.search(rf"-[0-9a-f]{{{_HASH_LENGTH}}}$", text)
    if is_plain and len(text) <= MAX_LABEL_LENGTH:
        return text
    import hashlib  # noqa: PLC0415  # 2 ms, and `list` needs only the notes

    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{text[: MAX_LABEL_LENGTH - _HASH_LENGTH - 1]}-{digest}"
