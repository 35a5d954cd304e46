"""What is known of one node, for the rules of `doctor NODE`."""

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
    """The last change of the node that failed and was not followed by a success, as the journal has it."""

    text: str
    error: str | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation of the API, whoever asked for it. `error` is why it failed, and `error_id` what `diagnosis` calls that."""

    verb: str
    began: datetime | None
    is_done: bool
    error: str | None = None
    error_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node at a moment.

    `request` is the queued resource that owns it, nothing where none does; `published` what each worker published as guest
    attributes; `operations` what was asked of it lately, the newest first; `failure` is of tpuctl's own runs. `obstacle` is why
    its workers are not asked, nothing where they are.
    """

    node: Node
    now: datetime
    request: Fact[QueuedResource] | None
    published: Fact[tuple[Mapping[str, str], ...]]
    failure: Fact[LastFailure]
    operations: Fact[tuple[Asked, ...]]
    obstacle: str | None = None
    remedy: str | None = None
