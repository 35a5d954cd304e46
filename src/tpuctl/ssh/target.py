"""One worker that a command acts on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Connection


@dataclass(frozen=True, slots=True)
class Target:
    """A worker and the connection to it. `label` marks its output and is unique among the targets of one command."""

    node: Node
    worker: int
    way: Connection
    label: str
