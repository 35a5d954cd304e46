"""Fetch the networks of this machine from the metadata server of Google Cloud's virtual machines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.remote.reach import Network, Surroundings
from tpuctl.shapes import INTEGER, TEXT, Checker, ListOf, Shape, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

# The firmware of a Compute Engine machine, TPU VMs included, has its name here [google-auth, compute_engine/_metadata.py].
_PRODUCT = Path("/sys/class/dmi/id/product_name")
# The address, not the name, so a laptop makes no DNS lookup [google-auth, as above].
_SERVER_ADDRESS = "169.254.169.254"
_TIMEOUT_SECONDS = 0.5
_MAX_ANSWER_BYTES = 1 << 20
_INTERFACES = ListOf(Shape("", {"network": str}))


def surroundings(environ: Mapping[str, str], *, product: Path = _PRODUCT) -> Surroundings | None:
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
    interfaces = _fetch(host or _SERVER_ADDRESS, "instance/network-interfaces/?recursive=true", _INTERFACES)
    project = _fetch(host or _SERVER_ADDRESS, "project/project-id?alt=json", TEXT)
    number = _fetch(host or _SERVER_ADDRESS, "project/numeric-project-id?alt=json", INTEGER)
    if interfaces is None or project is None:
        return None
    named = [str(one.get("network") or "") for one in interfaces]
    return Surroundings(str(project), str(number), tuple(Network.parse(name) for name in named if name))


def _fetch(host: str, path: str, kind: Checker) -> Any:  # JSON
    """Return an entry of the metadata. None without a valid answer."""
    import http.client  # noqa: PLC0415  # only on machines of Google Cloud

    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    with suppress(OSError, http.client.HTTPException, ValueError):
        try:
            connection.request("GET", f"/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            if answer.status == 200 and answer.headers.get("Metadata-Flavor") == "Google":
                found = parse_json(answer.read(_MAX_ANSWER_BYTES))
                kind.check(found)
                return found
        finally:
            connection.close()
    return None
