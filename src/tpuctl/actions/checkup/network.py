"""Call the hosts of the cloud: resolve their names, send a request without credentials, read their clock."""

from __future__ import annotations

import socket
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.actions.checkup.files import entry
from tpuctl.api.failures import TransportError
from tpuctl.api.headers import parse_date
from tpuctl.checkup.surroundings.facts import Answer, Host, Network
from tpuctl.preflight.fact import Fact, Known, Unknown, known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.actions.checkup.ways import CloudAccess, Ways
    from tpuctl.api.endpoint import Endpoint
    from tpuctl.clock import Clock

GOOGLE = ("tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com", "oauth2.googleapis.com")
# The URL that the sandbox answers itself, by its name in findings: its http object has no socket.
SANDBOX = {"the sandbox": f"https://{GOOGLE[0]}/"}
# The variables of `Proxy.from_environment`, in its order.
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
# A `Date` header has no fractions of a second.
_HALF = timedelta(seconds=0.5)


def origins(endpoint: Endpoint | None) -> dict[str, str]:
    """Return the hosts that commands call, of Google or of another endpoint, each with a URL for a request."""
    if endpoint is None:
        return {name: f"https://{name}/" for name in GOOGLE}
    own = {f"{endpoint.host}:{endpoint.port}": endpoint.url()}
    return own if endpoint.is_loopback else {**own, GOOGLE[3]: f"https://{GOOGLE[3]}/"}


def look(context: Ways, hosts: Mapping[str, tuple[Fact[tuple[str, ...]] | None, Fact[Answer]]]) -> Network:
    """Return the facts about the network, with the answers of the hosts."""
    found = known(context.proxy)
    names = tuple(name for name in hosts if found is not None and not found.applies_to(name.partition(":")[0]))
    given = {name: context.environ[name] for name in PROXIES if context.environ.get(name)}
    first = next(iter(given.values()), None)
    now = datetime.now().astimezone()
    return Network(
        proxy=Known(str(found)) if found else context.proxy,  # type: ignore[arg-type]  # it is absent or unknown
        proxy_source=context.proxy_source,
        bypassed=names,
        other_proxies=tuple(name for name, value in given.items() if value != first),
        ca_file=entry(context.ca_file) if context.ca_file else None,
        hosts=tuple(Host(name, addresses, answer) for name, (addresses, answer) in hosts.items()),
        closed=context.closed,
        is_local=context.is_local,
        time_zone=str(now.tzinfo),
    )


def looks_up(context: Ways, host: str) -> bool:
    """Return whether this machine resolves the name: a proxy does so for its requests, a sandbox has no names."""
    found = known(context.proxy)
    has_names = context.cloud is not None and context.cloud.has_names
    return has_names and (found is None or not found.applies_to(host.partition(":")[0]))


def resolve(host: str) -> Fact[tuple[str, ...]]:
    """Return the addresses of a host, each once."""
    name, _, port = host.partition(":")
    try:
        found = socket.getaddrinfo(name, int(port or 443), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Unknown((getattr(error, "strerror", None) or str(error)).lower())
    return Known(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def ask(cloud: CloudAccess, clock: Clock, name: str) -> Fact[Answer]:
    """Send a request without credentials to a host of the cloud, and return its answer; any status is fine."""
    http, url = cloud.http(), cloud.origins[name]
    began, asked = clock.monotonic(), cloud.clock.now()
    try:
        response, _ = http.request(url, method="GET")
    except TransportError as error:
        return Unknown(str(error))
    except OSError as error:
        return Unknown(str(error).lower())
    finally:
        http.close()
    answered = cloud.clock.now()
    date, ours = parse_date(response.get("date")), asked + (answered - asked) / 2
    ahead = None if date is None else date + _HALF - ours
    return Known(Answer(int(response.status), clock.monotonic() - began, ahead))
