"""What is to be checked: a node, there or to be made, and what it will work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.preflight.grants import Grant


class Purpose(StrEnum):
    """What the node is for. Who serves reads; who trains writes checkpoints too."""

    TRAIN = "train"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class BucketUse:
    """A bucket that the node will use, below a prefix where one was named."""

    bucket: str
    prefix: str = ""
    reads: bool = True
    writes: bool = True

    @property
    def url(self) -> str:
        """`gs://bucket/prefix`."""
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be checked.

    `creates` tells that the node is still to be made: then quota, offers and the like matter; `replaces` is the node that
    goes before, whose share of quota comes free. `siblings` are other nodes that the same command makes. `dataset_size` in
    bytes; `billing_project` pays for requests to buckets whose requester pays; `iap` and `internal_ip` say how ssh gets in.
    `egress_prices` are the user's own, dollars per GiB by pair of areas.
    """

    project: str
    zone: str
    spec: NodeSpec
    name: NodeName | None = None
    node: Node | None = None
    replaces: Node | None = None
    creates: bool = True
    siblings: tuple[NodeSpec, ...] = ()
    purpose: Purpose = Purpose.TRAIN
    buckets: tuple[BucketUse, ...] = ()
    machine: str | None = None
    dataset_size: int | None = None
    billing_project: str | None = None
    iap: bool = False
    grants: tuple[Grant, ...] = ()
    no_billing_outside_grants: bool = False
    egress_prices: Mapping[str, str] = field(default_factory=dict)

    @property
    def region(self) -> str:
        """The region of the zone."""
        return self.zone.rpartition("-")[0]

    @property
    def accelerator(self) -> AcceleratorType | None:
        """What the type says, where the table knows it."""
        from tpuctl.accelerators import find  # noqa: PLC0415  # reads the table

        return find(self.spec.accelerator_type)

    @property
    def what(self) -> str:
        """The node in words: its name, else its type."""
        return f"`{self.name.node_id}`" if self.name else f"a {self.spec.accelerator_type}"
