"""By which way workers are reached: their external address, their internal one, or a tunnel. Pure but for what it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError, InvalidInputError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpuctl.model import Node

# What gcloud lets through to the shell [gcloud 528 source, util/ssh/ssh.py].
_INSTANCE = re.compile(r"[A-Za-z0-9._-]+")
_NETWORK = re.compile(r"(?:.*/)?projects/(?P<project>[^/]+)/(?:global/)?networks/(?P<name>[^/]+)")


class Way(StrEnum):
    """A way to a worker."""

    EXTERNAL = "external"
    INTERNAL = "internal"
    IAP = "iap"


class GcloudMissingError(TpuctlError):
    """The tunnel needs gcloud, which is not on PATH."""

    kind = "gcloud_missing"

    def __init__(self) -> None:
        super().__init__(
            "a tunnel through Identity-Aware Proxy needs `gcloud`, which is not on PATH",
            hint="install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install\n"
            "or reach the workers without it: `--internal-ip`, `--external-ip`",
        )


class NoWayError(ConflictError):
    """A worker cannot be reached by the way that was chosen."""


class NoTunnelError(ConflictError):
    """The worker's instance, to which a tunnel would lead, is not known. The remedies are gcloud's [gcloud 528 source]."""

    kind = "iap_unavailable"

    def __init__(self, node: Node, worker: int) -> None:
        name = node.name.node_id
        super().__init__(
            f"worker {worker} of `{name}` does not publish the name of its instance, so no tunnel can lead to it",
            hint="the organization policy `compute.disableGuestAttributesAccess` must not be enforced in the project\n"
            "the node must have been created after 24 March 2022\n"
            f"it must be READY and HEALTHY: `tpuctl wait {name} --for healthy`\n"
            "and a firewall rule must let 35.235.240.0/20 in at tcp:22, else the tunnel ends with error 4003",
        )


@dataclass(frozen=True, slots=True)
class Network:
    """A VPC network. `project` is an id or a number; nothing where only the network's name is known."""

    project: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> Network:
        """Read a full name of the Compute Engine API, of the metadata server (without `global`), or a bare name."""
        match = _NETWORK.fullmatch(text)
        return cls(match["project"], match["name"]) if match else cls(None, text.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where this process runs: the networks of its machine, with the id and the number of the machine's project."""

    project: str
    project_number: str
    networks: tuple[Network, ...]


class Neighbourhood(StrEnum):
    """Whether this machine is in the network of a node."""

    SAME = "same"
    PERHAPS = "perhaps"
    OTHER = "other"


def network_of(node: Node) -> Network:
    """Return a node's network, the first where it has several: ssh goes to that one's addresses [gcloud 528 source]."""
    configs = node.raw.get("networkConfigs") or ()
    config = (configs[0] if configs else None) or node.raw.get("networkConfig") or {}
    network = Network.parse(str(config.get("network") or "default"))
    return network if network.project else Network(node.name.project, network.name)


def neighbourhood(network: Network, project: str, here: Surroundings | None) -> Neighbourhood:
    """Return whether a machine is in a network that a node of `project` uses.

    The metadata server names projects by number, the API by id. That tells for the machine's own project; two networks of
    other projects (shared VPC on both sides) with the same name are perhaps the same.
    """
    if here is None:
        return Neighbourhood.OTHER
    ours = {here.project, here.project_number}
    found = [own for own in here.networks if own.name == network.name]
    if any(_is_same_project(own.project, network.project, ours) for own in found):
        return Neighbourhood.SAME
    is_shared = network.project not in {project, *ours}
    if is_shared and any(own.project not in ours for own in found):
        return Neighbourhood.PERHAPS
    return Neighbourhood.OTHER


def _is_same_project(own: str | None, theirs: str | None, ours: Collection[str]) -> bool:
    return own == theirs or (own in ours and theirs in ours)


@dataclass(frozen=True, slots=True)
class Reach:
    """How workers are to be reached. Without a `way` it is decided for each node.

    `here` tells where this machine is; it is asked only where that decides. `gcloud` is the path of the program, nothing where
    it is missing; `impersonate` the service account that its tunnels are opened as, nothing for gcloud's own account.
    """

    way: Way | None = None
    here: Callable[[], Surroundings | None] = lambda: None
    gcloud: Callable[[], str | None] = lambda: None
    impersonate: str | None = None

    def way_to(self, node: Node, worker: int) -> Way:
        """Return the way to a worker.

        Its internal address is taken unasked where this machine is in the node's network, or is perhaps and there is no other.
        Raises `NoWayError` where there is no address for the way.
        """
        name = node.name.node_id
        endpoint = node.endpoints[worker] if worker < len(node.endpoints) else None
        if endpoint is None or endpoint.address is None:
            hint = f"see `tpuctl status {name}`; an address comes once it is READY: `tpuctl wait {name}`"
            raise NoWayError(f"worker {worker} of `{name}` has no address", hint=hint)
        way = self.way or self._nearest(node, has_external=endpoint.external is not None)
        if way is Way.EXTERNAL and endpoint.external is None:
            raise NoWayError(
                f"worker {worker} of `{name}` has no external address: it cannot be reached from outside its network",
                hint="`--iap` tunnels through Identity-Aware Proxy (setting `iap`)\n"
                "`--internal-ip` is for a machine in its network, or in one peered with it (setting `internal_ip`)",
            )
        if way is Way.INTERNAL and endpoint.internal is None:
            raise NoWayError(f"worker {worker} of `{name}` has no internal address", hint=f"see `tpuctl status {name}`")
        return way

    def obstacle(self, node: Node | None = None) -> str | None:
        """Return why workers, or those of one node, cannot be reached; nothing where they can, or that is not known yet."""
        if self.way is Way.IAP and self.gcloud() is None:
            return "tunnels through Identity-Aware Proxy need `gcloud`, which is not on PATH"
        if node is None or not node.endpoints or node.endpoints[0].address is None:
            return None
        try:
            self.way_to(node, 0)
        except NoWayError:
            return "its workers have no external address (`--iap` or `--internal-ip` reach them)"
        return None

    def tunnel(self, node: Node, worker: int, instance: str | None) -> str:
        """Return the ProxyCommand that gcloud's own ssh uses [gcloud 528 source], with gcloud's full path.

        Raises `NoTunnelError` where the instance is not known, `GcloudMissingError`, and `InvalidInputError` for an instance
        whose name the shell must not see.
        """
        program = self.gcloud()
        if program is None:
            raise GcloudMissingError
        if not instance:
            raise NoTunnelError(node, worker)
        if not _INSTANCE.fullmatch(instance) or instance.startswith("-"):
            raise InvalidInputError(f"`{instance}` cannot be the name of an instance", hint="the worker publishes it")
        words = [program, "compute", "start-iap-tunnel", instance, "%p", "--listen-on-stdin"]
        words += [f"--project={node.name.project}", f"--zone={node.name.zone}", "--verbosity=warning"]
        words += [f"--impersonate-service-account={self.impersonate}"] if self.impersonate else []
        return " ".join(word if word == "%p" else shlex.quote(word).replace("%", "%%") for word in words)

    def _nearest(self, node: Node, *, has_external: bool) -> Way:
        near = neighbourhood(network_of(node), node.name.project, self.here())
        if near is Neighbourhood.SAME or (near is Neighbourhood.PERHAPS and not has_external):
            return Way.INTERNAL
        return Way.EXTERNAL
