"""What is to be checked: a node, there or to be made, and what it will work with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

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
class Wishes:
    """What a user says about every node that a command makes: what it works with, and what may be spent.

    `dataset_size` in bytes; `billing_project` pays for requests to buckets whose requester pays; `iap` tells that ssh goes
    through Identity-Aware Proxy, `internal_ip` that it comes from within the network; `egress_prices` are the
    user's own, in dollars per GiB by pair of areas.
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
        """Return what is to be checked of one node."""
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
    """One node that is to be checked, and what it will work with.

    `creates` tells that it is still to be made: then quota, offers and the like matter; `replaces` is the node that goes
    before, whose share of quota comes free. `siblings` are other nodes that the same command makes.
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
        """What the type says, where the table knows it."""
        return find(self.spec.accelerator_type)

    @property
    def what(self) -> str:
        """The node in words: its name, else its type."""
        return f"`{self.name.node_id}`" if self.name else f"a {self.spec.accelerator_type}"


def parse_bucket(text: str, *, reads: bool = True, writes: bool = True) -> BucketUse:
    """Return the bucket, and the prefix, that `gs://BUCKET/PREFIX` names; one slash at its end is left out.

    Raises `InvalidInputError` naming the value, for a local path with the reason why it does not do.
    """
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "gs" and not nearly_bucket(text):
        hint = "copy it first: `gcloud storage cp -r` reads `s3://` too" if scheme in {"s3", "s3a"} else _GS_HINT
        raise InvalidInputError(f"`{text}` is not in Cloud Storage: a TPU reads `gs://` buckets", hint=hint)
    if not separator and not nearly_bucket(text):
        _refuse_bare(text)
    if text.endswith("//") and text != "gs://":
        raise InvalidInputError(f"`{text}` names no place: it ends with several slashes", hint=_GS_HINT)
    path = BucketPath.parse(text)
    return BucketUse(path.bucket, path.prefix, reads=reads, writes=writes)


def _refuse_bare(text: str) -> NoReturn:
    if "/" in text or text.startswith((".", "~")):
        raise InvalidInputError(
            f"`{text}` is a path of this machine, which the workers of a TPU do not see",
            hint="put the files into a bucket (`gcloud storage cp -r`), or bring them with `tpuctl scp` or `tpuctl sync`",
        )
    raise InvalidInputError(
        f"`{text}` is not a bucket", hint=_GS_HINT if text in {"", "gs:"} else f"did you mean `gs://{text}`?"
    )


_GS_HINT = "write it like `gs://BUCKET` or `gs://BUCKET/PREFIX`"
