"""Facts about one node, for the rules of `doctor NODE`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.model import Node, QueuedResource
    from tpuctl.preflight.fact import Fact


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last change of the node that failed without a later success, from the journal."""

    text: str
    error: str | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Asked:
    """An API operation, of any client. `error` is why it failed, `error_id` the id of that message."""

    verb: str
    began: datetime | None
    is_done: bool
    error: str | None = None
    error_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node at one moment.

    `request` is the queued resource that owns it, or None; `published` are the guest attributes of each worker; `operations`
    are recent ones, newest first; `failure` is of tpuctl's own runs. `obstacle` is why its workers are not examined, None if
    they are, and `remedy` what helps.
    """

    node: Node
    now: datetime
    request: Fact[QueuedResource] | None
    published: Fact[tuple[Mapping[str, str], ...]]
    failure: Fact[LastFailure]
    operations: Fact[tuple[Asked, ...]]
    obstacle: str | None = None
    remedy: str | None = None
