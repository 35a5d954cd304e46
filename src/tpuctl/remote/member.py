"""One worker that a command acts on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.model import Node
    from tpuctl.remote.ssh import Connection


@dataclass(frozen=True, slots=True)
class Member:
    """A worker and the connection to it. `label` marks its output and is unique among the targets of one command."""

    node: Node
    worker: int
    way: Connection
    label: str
