"""Access to the workers of a sandbox that `tpuctl sandbox serve` of this machine serves at the endpoint."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from tpuctl.api.endpoint import Endpoint
from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.model import Node

# Reserved for network tests (RFC 2544): no machine of a real cloud has such an address.
_OF_SANDBOX_WORKERS = ipaddress.ip_network("198.18.0.0/15")


def way_to_workers(app: App) -> Callable[[Node, int], str | None] | None:
    """Return a function that gives ssh's ProxyCommand for a worker; None if the endpoint is not this user's own sandbox."""
    state_file = app.sandbox_path
    if app.is_sandbox or not is_served(app.settings.text("endpoint"), state_file):
        return None
    from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

    def proxy(node: Node, worker: int) -> str | None:
        address = node.endpoints[worker].address or ""
        try:
            is_sandbox_worker = ipaddress.ip_address(address) in _OF_SANDBOX_WORKERS
        except ValueError:
            return None
        return proxy_command(state_file, address) if is_sandbox_worker else None

    return proxy


def is_served(endpoint: str | None, world: Path) -> bool:
    """Return whether the endpoint serves this sandbox: its server writes the address to a file beside the state file."""
    if endpoint is None:
        return False
    from tpuctl.sandbox import shims  # noqa: PLC0415  # only with an endpoint

    try:
        named = Endpoint.parse(endpoint)
        served = Endpoint.parse(shims.served_at(world)) if named.is_loopback else None
    except TpuctlError:
        return False
    return served is not None and served.port == named.port
