"""What is checked: a node, existing or planned, and what it works with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.accelerators import find
from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath, nearly_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.preflight.grants import Grant


class Purpose(StrEnum):
    """What the node is for. Serving reads; training also writes checkpoints."""

    TRAIN = "train"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class BucketUse:
    """A bucket that the node uses, below an optional prefix."""

    bucket: str
    prefix: str = ""
    reads: bool = True
    writes: bool = True

    @property
    def url(self) -> str:
        """`gs://bucket/prefix`."""
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user says about every node of a command: what it works with, and what may be billed.

    `dataset_size` is in bytes. `billing_project` pays for requests to requester-pays buckets. `iap`: ssh goes through
    Identity-Aware Proxy; `internal_ip`: ssh comes from within the network. `egress_prices` are the user's own, in
    dollars per GiB by pair of areas.
    """

    purpose: Purpose = Purpose.TRAIN
    buckets: tuple[BucketUse, ...] = ()
    machine: str | None = None
    dataset_size: int | None = None
    billing_project: str | None = None
    iap: bool = False
    internal_ip: bool = False
    grants: tuple[Grant, ...] = ()
    no_billing_outside_grants: bool = False
    egress_prices: Mapping[str, str] = field(default_factory=dict)

    def wanted(
        self,
        project: str,
        zone: str,
        spec: NodeSpec,
        *,
        name: NodeName | None = None,
        node: Node | None = None,
        replaces: Node | None = None,
        creates: bool = True,
        siblings: tuple[NodeSpec, ...] = (),
    ) -> Wanted:
        """Return the check target for one node."""
        return Wanted(
            project=project,
            zone=zone,
            spec=spec,
            name=name,
            node=node,
            replaces=replaces,
            creates=creates,
            siblings=siblings,
            **{entry.name: getattr(self, entry.name) for entry in fields(Wishes)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Wishes):
    """One node to check, and what it works with.

    `creates`: the node does not exist yet, so that quota, offers and the like matter. `replaces` is the node that will
    be deleted first and frees its quota. `siblings` are the other nodes that the same command creates.
    """

    project: str
    zone: str
    spec: NodeSpec
    name: NodeName | None = None
    node: Node | None = None
    replaces: Node | None = None
    creates: bool = True
    siblings: tuple[NodeSpec, ...] = ()

    @property
    def region(self) -> str:
        """The region of the zone."""
        return self.zone.rpartition("-")[0]

    @property
    def accelerator(self) -> AcceleratorType | None:
        """The accelerator type; None if the table lacks it."""
        return find(self.spec.accelerator_type)

    @property
    def what(self) -> str:
        """The node as text: its name, else its type."""
        return f"`{self.name.node_id}`" if self.name else f"a {self.spec.accelerator_type}"


def parse_bucket(text: str, *, reads: bool = True, writes: bool = True) -> BucketUse:
    """Return the bucket and prefix that `gs://BUCKET/PREFIX` names, without a trailing slash.

    Raises `InvalidInputError` with the value; for a local path with the reason why it cannot be used.
    """
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "gs" and not nearly_bucket(text):
        hint = "copy it first: `gcloud storage cp -r` reads `s3://` too" if scheme in {"s3", "s3a"} else _GS_HINT
        raise InvalidInputError(f"`{text}` is not in Cloud Storage; a TPU reads `gs://` buckets", hint=hint)
    if not separator and not nearly_bucket(text):
        if "/" in text or text.startswith((".", "~")):
            raise InvalidInputError(
                f"`{text}` is a path on this machine; the workers of a TPU cannot read it",
                hint="copy them to a bucket (`gcloud storage cp -r`) or to the workers (`tpuctl scp`, `tpuctl sync`)",
            )
        raise InvalidInputError(
            f"`{text}` is not a bucket", hint=_GS_HINT if text in {"", "gs:"} else f"did you mean `gs://{text}`?"
        )
    if text.endswith("//") and text != "gs://":
        raise InvalidInputError(f"`{text}` is not a valid location: it ends with several slashes", hint=_GS_HINT)
    path = BucketPath.parse(text)
    return BucketUse(path.bucket, path.prefix, reads=reads, writes=writes)


_GS_HINT = "write it like `gs://BUCKET` or `gs://BUCKET/PREFIX`"
