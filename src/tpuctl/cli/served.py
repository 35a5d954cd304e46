"""The way to the workers of a sandbox that `tpuctl sandbox serve` of this machine offers at the endpoint."""

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

# Reserved for tests of networks (RFC 2544): no machine of a real cloud has such an address.
_OF_SANDBOX_WORKERS = ipaddress.ip_network("198.18.0.0/15")


def way_to_workers(app: App) -> Callable[[Node, int], str | None] | None:
    """Return what gives ssh's ProxyCommand for a worker, where the endpoint is this user's own sandbox; else nothing."""
    world = app.sandbox_path
    if app.is_sandbox or not is_served(app.settings.text("endpoint"), world):
        return None
    from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

    def proxy(node: Node, worker: int) -> str | None:
        address = node.endpoints[worker].address or ""
        return proxy_command(world, address) if _is_of_sandbox(address) else None

    return proxy


def is_served(endpoint: str | None, world: Path) -> bool:
    """Tell whether a world is what an endpoint serves: the server notes its address beside the world's file."""
    if endpoint is None:
        return False
    from tpuctl.sandbox import shims  # noqa: PLC0415  # only with an endpoint

    try:
        named = Endpoint.parse(endpoint)
        served = Endpoint.parse(shims.served_at(world)) if named.is_loopback else None
    except TpuctlError:
        return False
    return served is not None and served.port == named.port


def _is_of_sandbox(address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in _OF_SANDBOX_WORKERS
    except ValueError:
        return False
