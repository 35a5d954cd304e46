"""Firewall rules. The network `default` has some by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox.compute import networks, operations
from tpuctl.sandbox.compute.documents import (
    BASE,
    already_exists,
    check_name,
    identity,
    invalid_value,
    kept,
    link,
    listed,
    not_found,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "compute.firewall"
# Documentation: the rules of the default network.
_RULES: Mapping[str, Json] = {
    "default-allow-icmp": {"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "icmp"}]},
    "default-allow-internal": {
        "sourceRanges": ["10.128.0.0/9"],
        "allowed": [
            {"IPProtocol": "tcp", "ports": ["0-65535"]},
            {"IPProtocol": "udp", "ports": ["0-65535"]},
            {"IPProtocol": "icmp"},
        ],
    },
    "default-allow-rdp": {"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "tcp", "ports": ["3389"]}]},
    "default-allow-ssh": {"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]},
}


def add(session: Session, project: str, name: str, *, fields: Json) -> Json:
    """Store a firewall rule and return it."""
    path = f"projects/{project}/global/firewalls/{name}"
    network = link(project, "global/networks", str(fields.get("network", networks.DEFAULT)))
    document = {
        **identity(session, "firewall", path),
        "direction": "INGRESS",
        "priority": 1000,  # API field text
        "disabled": False,
        "logConfig": {"enable": False},
        **fields,
        "network": network,
    }
    if (
        document["direction"] == "INGRESS"
        and not {"sourceRanges", "sourceTags", "sourceServiceAccounts"} & fields.keys()
    ):
        document["sourceRanges"] = ["0.0.0.0/0"]  # API field text
    session.resources.put(KIND, project, name, document)
    return document


def remove(session: Session, project: str, name: str) -> None:
    """Remove a firewall rule; those of the default network too."""
    if name in _RULES:
        session.resources.put(KIND, project, name, {})
    else:
        session.resources.delete(KIND, project, name)


def clear(session: Session, project: str) -> None:
    """Remove the rules of the default network: a recreated one has none."""
    for name in _RULES:
        if session.resources.get(KIND, project, name) is None:
            remove(session, project, name)


def get(session: Session, call: Call) -> Json:
    """Answer firewalls.get."""
    project, name = str(call.params["project"]), str(call.params["firewall"])
    found = _firewalls(session, project).get(name)
    if found is None:
        raise not_found(f"projects/{project}/global/firewalls/{name}")
    return found


def list_(session: Session, call: Call) -> Json:
    """Answer firewalls.list."""
    project = str(call.params["project"])
    found = list(_firewalls(session, project).values())
    return listed(call, "firewallList", f"projects/{project}/global/firewalls", found)


def insert(session: Session, call: Call) -> Json:
    """Answer firewalls.insert."""
    project, name = str(call.params["project"]), str(call.body.get("name") or "")
    path = f"projects/{project}/global/firewalls/{name}"
    session.log_request(call.method, path)
    check_name(name)
    network = str(call.body.get("network") or networks.DEFAULT)
    if not networks.exists(session, project, network):
        link_ = link(project, "global/networks", network)
        raise invalid_value("resource.network", link_, "The referenced network resource cannot be found.")
    if name in _firewalls(session, project):
        raise already_exists(path)
    add(session, project, name, fields=call.body)
    return operations.begin(session, call, "insert", target=path)


def delete(session: Session, call: Call) -> Json:
    """Answer firewalls.delete."""
    project, name = str(call.params["project"]), str(call.params["firewall"])
    path = f"projects/{project}/global/firewalls/{name}"
    session.log_request(call.method, path)
    if name not in _firewalls(session, project):
        raise not_found(path)
    remove(session, project, name)
    return operations.begin(session, call, "delete", target=path)


def _firewalls(session: Session, project: str) -> dict[str, Json]:
    defaults: dict[str, Json] = {}
    if networks.DEFAULT in networks.names(session, project):
        network = f"{BASE}projects/{project}/global/networks/{networks.DEFAULT}"
        common = {"network": network, "direction": "INGRESS", "priority": 65534, "disabled": False}
        for name, rule in _RULES.items():
            path = f"projects/{project}/global/firewalls/{name}"
            defaults[name] = {**identity(session, "firewall", path), **common, "logConfig": {"enable": False}, **rule}
    return kept(session, KIND, project, defaults)
