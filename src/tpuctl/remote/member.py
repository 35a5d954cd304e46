"""One worker on which something is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.model import Node
    from tpuctl.remote.ssh import Connection


@dataclass(frozen=True, slots=True)
class Member:
    """A worker, and the way to it. `label` is what its output is marked with: unique among the members of one run."""

    node: Node
    worker: int
    way: Connection
    label: str
