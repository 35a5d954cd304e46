"""A sandbox that `tpuctl sandbox serve` serves at an endpoint: how ssh reaches its workers."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from tpuctl.cloud.endpoint import ApiEndpoint
from tpuctl.errors import TpuctlError
from tpuctl.sandbox.sshd import proxy_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tpuctl.app.app import App
    from tpuctl.models.node import Node

# Reserved for network tests (RFC 2544): no machine of a real cloud has such an address.
_SANDBOX_NETWORK = "198.18.0.0/15"


def served_sandbox_proxy(app: App) -> Callable[[Node, int], str | None] | None:
    """Return a function that gives ssh's ProxyCommand for a worker; None if the endpoint is not this user's own sandbox."""
    state_file = app.sandbox_path
    if app.is_sandbox or not is_served_sandbox(app.settings.text("endpoint"), state_file):
        return None

    def proxy(node: Node, worker: int) -> str | None:
        address = node.endpoints[worker].address or ""
        try:
            is_sandbox_worker = ipaddress.ip_address(address) in ipaddress.ip_network(_SANDBOX_NETWORK)
        except ValueError:
            return None
        return proxy_command(state_file, address) if is_sandbox_worker else None

    return proxy


def is_served_sandbox(endpoint: str | None, state_file: Path) -> bool:
    """Return whether the endpoint serves this sandbox: its server writes the address to a file beside the state file."""
    if endpoint is None:
        return False
    from tpuctl.sandbox.shims import read_served_address  # noqa: PLC0415  # only with an endpoint

    try:
        named = ApiEndpoint.parse(endpoint)
        served = ApiEndpoint.parse(read_served_address(state_file)) if named.is_loopback else None
    except TpuctlError:
        return False
    return served is not None and served.port == named.port
