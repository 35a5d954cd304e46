"""Where this machine is, told by the metadata server of Google Cloud's virtual machines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.remote.reach import Network, Surroundings
from tpuctl.shapes import INTEGER, TEXT, Checker, ListOf, Shape, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

# What the firmware of a Compute Engine machine, a TPU VM among them, calls itself [google-auth, compute_engine/_metadata.py].
_PRODUCT = Path("/sys/class/dmi/id/product_name")
# Its address, not its name: on a laptop no name is looked up [google-auth, as above].
_ADDRESS = "169.254.169.254"
_TIMEOUT_SECONDS = 0.5
_MOST = 1 << 20
_INTERFACES = ListOf(Shape("", {"network": str}))


def surroundings(environ: Mapping[str, str], *, product: Path = _PRODUCT) -> Surroundings | None:
    """Return where this machine is; nothing where it is not on Google Cloud, or its metadata server does not tell.

    The server is asked only where the firmware is Google's or GCE_METADATA_HOST names it; NO_GCE_CHECK=true forbids it. It
    answers within half a second or not at all.
    """
    host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP")
    if environ.get("NO_GCE_CHECK", "").lower() == "true" or not (host or _is_of_google(product)):
        return None
    interfaces = _ask(host or _ADDRESS, "instance/network-interfaces/?recursive=true", _INTERFACES)
    project = _ask(host or _ADDRESS, "project/project-id?alt=json", TEXT)
    number = _ask(host or _ADDRESS, "project/numeric-project-id?alt=json", INTEGER)
    if interfaces is None or project is None:
        return None
    named = [str(one.get("network") or "") for one in interfaces]
    return Surroundings(str(project), str(number), tuple(Network.parse(name) for name in named if name))


def _is_of_google(product: Path) -> bool:
    try:
        return product.read_text("utf-8").strip() in {"Google", "Google Compute Engine"}
    except (OSError, UnicodeDecodeError):
        return False


def _ask(host: str, path: str, kind: Checker) -> Any:  # JSON
    """Return an entry of the metadata, or nothing where it is not told."""
    import http.client  # noqa: PLC0415  # only on machines of Google Cloud

    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    with suppress(OSError, http.client.HTTPException, ValueError):
        try:
            connection.request("GET", f"/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            if answer.status == 200 and answer.headers.get("Metadata-Flavor") == "Google":
                found = parse_json(answer.read(_MOST))
                kind.check(found)
                return found
        finally:
            connection.close()
    return None
