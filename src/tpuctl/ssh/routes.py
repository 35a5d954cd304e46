"""Choose the route to a worker: its external address, its internal address, or a tunnel. Does no I/O of its own."""

from __future__ import annotations

import http.client
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.decoding import decoder_of, parse_json
from tpuctl.errors import ConflictError, InvalidInputError, TpuctlError
from tpuctl.models.api_values import ApiNumber, ApiText

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.models.node import Node

# The names that gcloud passes to the shell [gcloud 528 source, util/ssh/ssh.py].
_INSTANCE = re.compile(r"[A-Za-z0-9._-]+")
_NETWORK = re.compile(r"(?:.*/)?projects/(?P<project>[^/]+)/(?:global/)?networks/(?P<name>[^/]+)")


class Route(StrEnum):
    """A route to a worker."""

    EXTERNAL = "external"
    INTERNAL = "internal"
    IAP = "iap"


class GcloudMissingError(TpuctlError):
    """A tunnel needs gcloud, which is not on PATH."""

    kind = "gcloud_missing"

    def __init__(self) -> None:
        super().__init__(
            "a tunnel through Identity-Aware Proxy needs `gcloud`, which is not on PATH",
            hint="install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install\n"
            "or connect without it: `--internal-ip`, `--external-ip`",
        )


class UnreachableError(ConflictError):
    """The chosen route does not lead to a worker."""


class TunnelUnavailableError(ConflictError):
    """The instance name of a worker is unknown, so no tunnel can be opened. The remedies are gcloud's [gcloud 528 source]."""

    kind = "iap_unavailable"

    def __init__(self, node: Node, worker: int) -> None:
        name = node.name.node_id
        super().__init__(
            f"worker {worker} of `{name}` does not publish its instance name, so no tunnel can be opened",
            hint="the organization policy `compute.disableGuestAttributesAccess` must not be enforced in the project\n"
            "the node must have been created after 24 March 2022\n"
            f"it must be READY and HEALTHY: `tpuctl wait {name} --for healthy`\n"
            "and a firewall rule must allow 35.235.240.0/20 on tcp:22, else the tunnel fails with error 4003",
        )


@dataclass(frozen=True, slots=True)
class VpcNetwork:
    """A VPC network. `project` is an id or a number; None if only the name of the network is known."""

    project: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> VpcNetwork:
        """Parse a full name of the Compute Engine API or of the metadata server (without `global`), or a bare name."""
        match = _NETWORK.fullmatch(text)
        return cls(match["project"], match["name"]) if match else cls(None, text.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class GceMetadata:
    """The networks of this machine, and the id and the number of its project."""

    project: str
    project_number: str
    networks: tuple[VpcNetwork, ...]


class NetworkRelation(StrEnum):
    """Whether this machine is in the same network as a node."""

    SAME = "same"
    PERHAPS = "perhaps"
    OTHER = "other"


def network_of_node(node: Node) -> VpcNetwork:
    """Return the network of a node. If it has several, ssh uses the addresses of the first [gcloud 528 source]."""
    return resolve_network(str(_network_config(node).get("network") or ""), node.name.project)


def resolve_network(text: str, project: str) -> VpcNetwork:
    """Return the network that a name means for a node of a project; the network `default` without a name [API v2]."""
    network = VpcNetwork.parse(text or "default")
    return network if network.project else VpcNetwork(project, network.name)


def _network_config(node: Node) -> Mapping[str, Any]:
    configs = node.raw.get("networkConfigs") or ()
    return (configs[0] if configs else None) or node.raw.get("networkConfig") or {}


def compare_networks(network: VpcNetwork, project: str, here: GceMetadata | None) -> NetworkRelation:
    """Compare the networks of this machine with the network of a node of `project`.

    The metadata server names projects by number, the API by id. Both are known only for the project of this machine, so two
    networks of other projects (shared VPC on both sides) with the same name may or may not be the same: `PERHAPS`.
    """
    if here is None:
        return NetworkRelation.OTHER
    ours = {here.project, here.project_number}
    found = [own for own in here.networks if own.name == network.name]
    if any(own.project == network.project or {own.project, network.project} <= ours for own in found):
        return NetworkRelation.SAME
    is_shared = network.project not in {project, *ours}
    if is_shared and any(own.project not in ours for own in found):
        return NetworkRelation.PERHAPS
    return NetworkRelation.OTHER


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses the route to workers: `route` if it is set, else the nearest for each node."""

    route: Route | None = None
    # Returns the networks of this machine; called only if they decide.
    here: Callable[[], GceMetadata | None] = lambda: None
    # Returns the path of gcloud; None if it is missing.
    gcloud: Callable[[], str | None] = lambda: None
    # The service account that opens the tunnels; None for gcloud's own account.
    impersonate: str | None = None

    def route_to(self, node: Node, worker: int) -> Route:
        """Return the route to a worker.

        By default this is the internal address if this machine is in the node's network, or may be and there is no external
        address. Raises `UnreachableError` if the worker has no address for the route.
        """
        name = node.name.node_id
        endpoint = node.endpoints[worker] if worker < len(node.endpoints) else None
        if endpoint is None or endpoint.address is None:
            hint = f"see `tpuctl status {name}`; an address comes once it is READY: `tpuctl wait {name}`"
            raise UnreachableError(f"worker {worker} of `{name}` has no address", hint=hint)
        has_external = endpoint.external is not None
        route = self.route or self._nearest(network_of_node(node), node.name.project, has_external=has_external)
        if route is Route.EXTERNAL and not has_external:
            raise UnreachableError(
                f"worker {worker} of `{name}` has no external address, so it is not reachable from outside its network",
                hint="use `--iap` to tunnel through Identity-Aware Proxy (setting `iap`)\n"
                "or `--internal-ip` on a machine in its network or a peered one (setting `internal_ip`)",
            )
        if route is Route.INTERNAL and endpoint.internal is None:
            raise UnreachableError(
                f"worker {worker} of `{name}` has no internal address", hint=f"see `tpuctl status {name}`"
            )
        return route

    def obstacle(self, node: Node | None = None) -> str | None:
        """Return why workers, or those of one node, are unreachable. None if they are reachable, or it is not known yet."""
        if self.route is Route.IAP and self.gcloud() is None:
            return "tunnels through Identity-Aware Proxy need `gcloud`, which is not on PATH"
        if node is None:
            return None
        if node.endpoints and node.endpoints[0].address is not None:
            has_external = node.endpoints[0].external is not None
        else:
            # Without addresses yet, the configuration decides; `enableExternalIps` is off when absent [API v2, NetworkConfig].
            config = _network_config(node)
            has_external = not config or bool(config.get("enableExternalIps"))
        return self.obstacle_in(network_of_node(node), node.name.project, has_external=has_external)

    def obstacle_in(self, network: VpcNetwork, project: str, *, has_external: bool) -> str | None:
        """Return why workers of a node of `project` are unreachable, None if they are not. The node need not exist yet."""
        route = self.route or self._nearest(network, project, has_external=has_external)
        if route is Route.EXTERNAL and not has_external:
            return "its workers have no external address (use `--iap` or `--internal-ip`)"
        return None

    def tunnel(self, node: Node, worker: int, instance: str | None) -> str:
        """Return the ProxyCommand that gcloud's own ssh uses [gcloud 528 source], with gcloud's full path.

        Raises `TunnelUnavailableError` if the instance is unknown, `GcloudMissingError`, and `InvalidInputError` for an
        instance name that is not safe for the shell.
        """
        program = self.gcloud()
        if program is None:
            raise GcloudMissingError
        if not instance:
            raise TunnelUnavailableError(node, worker)
        if not _INSTANCE.fullmatch(instance) or instance.startswith("-"):
            raise InvalidInputError(f"`{instance}` is not a valid instance name", hint="the worker publishes this name")
        words = [program, "compute", "start-iap-tunnel", instance, "%p", "--listen-on-stdin"]
        words += [f"--project={node.name.project}", f"--zone={node.name.zone}", "--verbosity=warning"]
        words += [f"--impersonate-service-account={self.impersonate}"] if self.impersonate else []
        return " ".join(word if word == "%p" else shlex.quote(word).replace("%", "%%") for word in words)

    def _nearest(self, network: VpcNetwork, project: str, *, has_external: bool) -> Route:
        near = compare_networks(network, project, self.here())
        if near is NetworkRelation.SAME or (near is NetworkRelation.PERHAPS and not has_external):
            return Route.INTERNAL
        return Route.EXTERNAL


# The firmware of a Compute Engine machine, TPU VMs included, has its name here [google-auth, compute_engine/_metadata.py].
_PRODUCT = Path("/sys/class/dmi/id/product_name")
# The address, not the name, so a laptop makes no DNS lookup [google-auth, as above].
_SERVER_ADDRESS = "169.254.169.254"
_TIMEOUT_SECONDS = 0.5
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Interface:
    network: ApiText = ""


def fetch_gce_metadata(environ: Mapping[str, str], *, product: Path = _PRODUCT) -> GceMetadata | None:
    """Return the project and the networks of this machine. None outside Google Cloud, or without an answer.

    Asks the server only if the firmware is Google's or GCE_METADATA_HOST is set, and never with NO_GCE_CHECK=true. Each request
    times out after half a second.
    """
    host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP")
    if environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    if not host:
        try:
            if product.read_text("utf-8").strip() not in {"Google", "Google Compute Engine"}:
                return None
        except (OSError, UnicodeDecodeError):
            return None
    interfaces = _fetch(host or _SERVER_ADDRESS, "instance/network-interfaces/?recursive=true", tuple[_Interface, ...])
    project = _fetch(host or _SERVER_ADDRESS, "project/project-id?alt=json", ApiText)
    number = _fetch(host or _SERVER_ADDRESS, "project/numeric-project-id?alt=json", ApiNumber)
    if interfaces is None or project is None:
        return None
    networks = tuple(VpcNetwork.parse(entry.network) for entry in interfaces if entry.network)
    return GceMetadata(project, str(number), networks)


def _fetch(host: str, path: str, kind: Any) -> Any:  # an annotation; a value of it
    """Return an entry of the metadata. None without a valid answer."""
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    with suppress(OSError, http.client.HTTPException, ValueError):
        try:
            connection.request("GET", f"/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            if answer.status == 200 and answer.headers.get("Metadata-Flavor") == "Google":
                return decoder_of(kind)(parse_json(answer.read(_MAX_ANSWER_BYTES)))
        finally:
            connection.close()
    return None
