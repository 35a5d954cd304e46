"""By which way workers are reached: their external address, their internal one, or a tunnel. Pure but for what it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.errors import ConflictError, InvalidInputError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
    return network_named(str(_network_config(node).get("network") or ""), node.name.project)


def network_named(text: str, project: str) -> Network:
    """Return the network that a node of a project gets under this name; the default one without a name [API v2]."""
    network = Network.parse(text or "default")
    return network if network.project else Network(project, network.name)


def _network_config(node: Node) -> Mapping[str, Any]:
    configs = node.raw.get("networkConfigs") or ()
    return (configs[0] if configs else None) or node.raw.get("networkConfig") or {}


def _promises_external(node: Node) -> bool:
    """Tell whether a node that has no addresses yet is to get external ones; where nothing is told, it is believed to."""
    config = _network_config(node)
    return not config or bool(config.get("enableExternalIps"))  # off when absent [API v2, NetworkConfig]


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
        has_external = endpoint.external is not None
        way = self.way or self._nearest(network_of(node), node.name.project, has_external=has_external)
        if way is Way.EXTERNAL and not has_external:
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
        if node is None:
            return None
        if node.endpoints and node.endpoints[0].address is not None:
            has_external = node.endpoints[0].external is not None
        else:
            has_external = _promises_external(node)
        return self.obstacle_in(network_of(node), node.name.project, has_external=has_external)

    def obstacle_in(self, network: Network, project: str, *, has_external: bool) -> str | None:
        """Return why workers of a node of `project`, which need not be there yet, cannot be reached; nothing where they can."""
        way = self.way or self._nearest(network, project, has_external=has_external)
        if way is Way.EXTERNAL and not has_external:
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

    def _nearest(self, network: Network, project: str, *, has_external: bool) -> Way:
        near = neighbourhood(network, project, self.here())
        if near is Neighbourhood.SAME or (near is Neighbourhood.PERHAPS and not has_external):
            return Way.INTERNAL
        return Way.EXTERNAL
