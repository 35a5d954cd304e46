"""Changes of networks and subnetworks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox.compute import firewalls, networks, operations
from tpuctl.sandbox.compute.documents import already_exists, check_name

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session


def insert_network(session: Session, call: Call) -> Json:
    """Answer networks.insert, for auto mode and custom mode. The network has no firewall rules (documentation)."""
    project, name = str(call.params["project"]), str(call.body.get("name") or "")
    path = f"projects/{project}/global/networks/{name}"
    session.log_request(call.method, path)
    check_name(name)
    if networks.exists(session, project, name):
        raise already_exists(path)
    if name == networks.DEFAULT:
        firewalls.clear(session, project)
    networks.add_network(session, project, name, fields=call.body)
    return operations.begin(session, call, "insert", target=path)


def set_private_ip_google_access(session: Session, call: Call) -> Json:
    """Answer subnetworks.setPrivateIpGoogleAccess."""
    subnetwork = networks.get_subnetwork(session, call)
    project, region, name = (str(call.params[key]) for key in ("project", "region", "subnetwork"))
    path = f"projects/{project}/regions/{region}/subnetworks/{name}"
    session.log_request(call.method, path)
    changed = {**subnetwork, "privateIpGoogleAccess": bool(call.body.get("privateIpGoogleAccess"))}
    networks.add_subnetwork(session, project, name, fields=changed)
    return operations.begin(session, call, "compute.subnetworks.setPrivateIpGoogleAccess", target=path)
