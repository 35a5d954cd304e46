"""The network of the workers of a node, as its spec names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.names import short

if TYPE_CHECKING:
    from tpuctl.preflight.wanted import Wanted

_PROJECT = re.compile(r"(?:.*/)?projects/([^/]+)/.*")
_REGION = re.compile(r"(?:.*/)?regions/([^/]+)/.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The first network interface of the workers.

    `project` owns the network; with a Shared VPC it is not the node's project. `network` is `default` if none is named
    [API field text]; `is_named` says whether one is named. `subnetwork` is None if none is named. `region` is the
    region in the subnetwork's link; None if the subnetwork is named without a link.
    """

    project: str
    network: str
    is_named: bool
    subnetwork: str | None
    region: str | None
    has_external_addresses: bool

    @classmethod
    def of(cls, wanted: Wanted) -> Interface:
        """Return the interface that the spec requests; the first one if an earlier node had several."""
        spec = wanted.spec
        network, subnetwork, external = spec.network or "", spec.subnetwork or "", not spec.internal_ips
        if several := spec.kept.get("networkConfigs"):
            first = several[0]
            network, subnetwork = first.get("network") or "", first.get("subnetwork") or ""
            external = bool(first.get("enableExternalIps"))
        owner = _PROJECT.fullmatch(network) or _PROJECT.fullmatch(subnetwork)
        region = _REGION.fullmatch(subnetwork)
        return cls(
            project=owner[1] if owner else wanted.project,
            network=short(network or "default"),
            is_named=bool(network),
            subnetwork=short(subnetwork) if subnetwork else None,
            region=region[1] if region else None,
            has_external_addresses=external,
        )
