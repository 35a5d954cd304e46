"""Networks, subnetworks and firewall rules. Each project has the network `default`, in auto mode, with some rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import compute_engine
from tpuctl.sandbox.compute_engine import (
    COMPUTE_BASE,
    aggregated_document,
    begin_compute_operation,
    check_resource_name,
    compute_already_exists,
    compute_not_found,
    invalid_compute_value,
    list_document,
    region_names,
    resource_identity,
    resource_link,
    stored_resources,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

NETWORK, SUBNETWORK = "compute.network", "compute.subnetwork"
DEFAULT_NETWORK = "default"


def network_exists(session: StateSession, project: str, given: str) -> bool:
    """Return whether a network exists, given by id, path or link (of another project with a shared network).

    The sandbox setting `networks` names the networks that every project has in place of `default`.
    """
    name = given.rpartition("/")[2]
    owner = given.partition("projects/")[2].partition("/")[0] or project
    return name in network_names(session, owner)


def drop_network(session: StateSession, project: str, name: str) -> None:
    """Remove a network; the default ones too."""
    session.resources.put(NETWORK, project, name, {})


def network_names(session: StateSession, project: str) -> tuple[str, ...]:
    """Return the names of a project's networks."""
    return tuple(_networks(session, project))


def put_network(session: StateSession, project: str, name: str, *, fields: Json) -> Json:
    """Store a network and return it."""
    document = _network(session, project, name, fields=fields)
    session.resources.put(NETWORK, project, name, document)
    return _with_subnetworks(session, project, document)


def put_subnetwork(session: StateSession, project: str, name: str, *, fields: Json) -> Json:
    """Store a subnetwork and return it. `fields` has its `region` and `network`."""
    region = str(fields["region"]).rpartition("/")[2]
    before = _subnetworks(session, project).get(f"{region}/{name}", {})
    network = {"network": resource_link(project, "global/networks", str(fields.get("network", DEFAULT_NETWORK)))}
    document = {**_subnetwork(session, project, region, name=name), **before, **fields, **network}
    document["region"] = f"{COMPUTE_BASE}projects/{project}/regions/{region}"
    session.resources.put(SUBNETWORK, project, f"{region}/{name}", document)
    return document


def get_network(session: StateSession, call: Call) -> Json:
    """Answer networks.get."""
    project, name = str(call.params["project"]), str(call.params["network"])
    found = _networks(session, project).get(name)
    if found is None:
        raise compute_not_found(f"projects/{project}/global/networks/{name}")
    return _with_subnetworks(session, project, found)


def list_networks(session: StateSession, call: Call) -> Json:
    """Answer networks.list."""
    project = str(call.params["project"])
    found = [_with_subnetworks(session, project, network) for network in _networks(session, project).values()]
    return list_document(call, "networkList", f"projects/{project}/global/networks", found)


def get_subnetwork(session: StateSession, call: Call) -> Json:
    """Answer subnetworks.get."""
    project, region, name = (str(call.params[key]) for key in ("project", "region", "subnetwork"))
    compute_engine.check_region(region)
    found = _subnetworks(session, project).get(f"{region}/{name}")
    if found is None:
        raise compute_not_found(f"projects/{project}/regions/{region}/subnetworks/{name}")
    return found


def list_subnetworks(session: StateSession, call: Call) -> Json:
    """Answer subnetworks.list."""
    project, region = str(call.params["project"]), str(call.params["region"])
    compute_engine.check_region(region)
    subnetworks = _subnetworks(session, project).items()
    found = [subnetwork for name, subnetwork in subnetworks if name.startswith(f"{region}/")]
    return list_document(call, "subnetworkList", f"projects/{project}/regions/{region}/subnetworks", found)


def aggregate_subnetworks(session: StateSession, call: Call) -> Json:
    """Answer subnetworks.aggregatedList."""
    subnetworks = _subnetworks(session, str(call.params["project"])).items()
    found = [(f"regions/{name.partition('/')[0]}", subnetwork) for name, subnetwork in subnetworks]
    scopes = [f"regions/{region}" for region in region_names()]
    return aggregated_document(call, "subnetworkAggregatedList", "subnetworks", entries=found, scopes=scopes)


def _networks(session: StateSession, project: str) -> dict[str, Json]:
    given = session.setting("networks", [DEFAULT_NETWORK])
    return stored_resources(
        session, NETWORK, project, {name: _network(session, project, name, fields={}) for name in given}
    )


def _network(session: StateSession, project: str, name: str, *, fields: Json) -> Json:
    return {
        **resource_identity(session, "network", f"projects/{project}/global/networks/{name}"),
        # API field text: a legacy network has an address range, and no such field.
        **({} if "IPv4Range" in fields else {"autoCreateSubnetworks": True}),
        "mtu": 1460,
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "routingConfig": {"routingMode": "REGIONAL"},
        **fields,
    }


def _with_subnetworks(session: StateSession, project: str, network: Json) -> Json:
    found = _subnetworks(session, project).values()
    links = [subnetwork["selfLink"] for subnetwork in found if subnetwork["network"] == network["selfLink"]]
    return {**network, "subnetworks": links} if links else network


def _subnetworks(session: StateSession, project: str) -> dict[str, Json]:
    """Return a project's subnetworks by `REGION/NAME`: added ones, and one per region of each auto-mode network."""
    automatic = [name for name, network in _networks(session, project).items() if network.get("autoCreateSubnetworks")]
    defaults = {
        f"{region}/{name}": _subnetwork(session, project, region, name=name)
        for name in automatic
        for region in region_names()
    }
    return stored_resources(session, SUBNETWORK, project, defaults)


def _subnetwork(session: StateSession, project: str, region: str, *, name: str) -> Json:
    # Auto mode uses a /20 of 10.128.0.0/9 for each region; the assignment here differs from the real one.
    position = region_names().index(region) if region in region_names() else 0
    return {
        **resource_identity(session, "subnetwork", f"projects/{project}/regions/{region}/subnetworks/{name}"),
        "network": f"{COMPUTE_BASE}projects/{project}/global/networks/{name}",
        "region": f"{COMPUTE_BASE}projects/{project}/regions/{region}",
        "ipCidrRange": f"10.{128 + 2 * position}.0.0/20",
        "gatewayAddress": f"10.{128 + 2 * position}.0.1",
        "privateIpGoogleAccess": False,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "fingerprint": "AAAAAAAAAAA=",
    }


def insert_network(session: StateSession, call: Call) -> Json:
    """Answer networks.insert, for auto mode and custom mode. The network has no firewall rules (documentation)."""
    project, name = str(call.params["project"]), str(call.body.get("name") or "")
    path = f"projects/{project}/global/networks/{name}"
    session.log_request(call.method, path)
    check_resource_name(name)
    if network_exists(session, project, name):
        raise compute_already_exists(path)
    if name == DEFAULT_NETWORK:
        drop_default_firewalls(session, project)
    put_network(session, project, name, fields=call.body)
    return begin_compute_operation(session, call, "insert", target=path)


def set_private_ip_google_access(session: StateSession, call: Call) -> Json:
    """Answer subnetworks.setPrivateIpGoogleAccess."""
    subnetwork = get_subnetwork(session, call)
    project, region, name = (str(call.params[key]) for key in ("project", "region", "subnetwork"))
    path = f"projects/{project}/regions/{region}/subnetworks/{name}"
    session.log_request(call.method, path)
    changed = {**subnetwork, "privateIpGoogleAccess": bool(call.body.get("privateIpGoogleAccess"))}
    put_subnetwork(session, project, name, fields=changed)
    return begin_compute_operation(session, call, "compute.subnetworks.setPrivateIpGoogleAccess", target=path)


FIREWALL_KIND = "compute.firewall"
# Documentation: the rules of the default network.
_DEFAULT_RULES: Mapping[str, Json] = {
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


def put_firewall(session: StateSession, project: str, name: str, *, fields: Json) -> Json:
    """Store a firewall rule and return it."""
    path = f"projects/{project}/global/firewalls/{name}"
    network = resource_link(project, "global/networks", str(fields.get("network", DEFAULT_NETWORK)))
    document = {
        **resource_identity(session, "firewall", path),
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
    session.resources.put(FIREWALL_KIND, project, name, document)
    return document


def drop_firewall(session: StateSession, project: str, name: str) -> None:
    """Remove a firewall rule; those of the default network too."""
    if name in _DEFAULT_RULES:
        session.resources.put(FIREWALL_KIND, project, name, {})
    else:
        session.resources.delete(FIREWALL_KIND, project, name)


def drop_default_firewalls(session: StateSession, project: str) -> None:
    """Remove the rules of the default network: a recreated one has none."""
    for name in _DEFAULT_RULES:
        if session.resources.get(FIREWALL_KIND, project, name) is None:
            drop_firewall(session, project, name)


def get_firewall(session: StateSession, call: Call) -> Json:
    """Answer firewalls.get."""
    project, name = str(call.params["project"]), str(call.params["firewall"])
    found = _firewalls(session, project).get(name)
    if found is None:
        raise compute_not_found(f"projects/{project}/global/firewalls/{name}")
    return found


def list_firewalls(session: StateSession, call: Call) -> Json:
    """Answer firewalls.list."""
    project = str(call.params["project"])
    found = list(_firewalls(session, project).values())
    return list_document(call, "firewallList", f"projects/{project}/global/firewalls", found)


def insert_firewall(session: StateSession, call: Call) -> Json:
    """Answer firewalls.insert."""
    project, name = str(call.params["project"]), str(call.body.get("name") or "")
    path = f"projects/{project}/global/firewalls/{name}"
    session.log_request(call.method, path)
    check_resource_name(name)
    network = str(call.body.get("network") or DEFAULT_NETWORK)
    if not network_exists(session, project, network):
        link_ = resource_link(project, "global/networks", network)
        raise invalid_compute_value("resource.network", link_, "The referenced network resource cannot be found.")
    if name in _firewalls(session, project):
        raise compute_already_exists(path)
    put_firewall(session, project, name, fields=call.body)
    return begin_compute_operation(session, call, "insert", target=path)


def delete_firewall(session: StateSession, call: Call) -> Json:
    """Answer firewalls.delete."""
    project, name = str(call.params["project"]), str(call.params["firewall"])
    path = f"projects/{project}/global/firewalls/{name}"
    session.log_request(call.method, path)
    if name not in _firewalls(session, project):
        raise compute_not_found(path)
    drop_firewall(session, project, name)
    return begin_compute_operation(session, call, "delete", target=path)


def _firewalls(session: StateSession, project: str) -> dict[str, Json]:
    defaults: dict[str, Json] = {}
    if DEFAULT_NETWORK in network_names(session, project):
        network = f"{COMPUTE_BASE}projects/{project}/global/networks/{DEFAULT_NETWORK}"
        common = {"network": network, "direction": "INGRESS", "priority": 65534, "disabled": False}
        for name, rule in _DEFAULT_RULES.items():
            path = f"projects/{project}/global/firewalls/{name}"
            defaults[name] = {
                **resource_identity(session, "firewall", path),
                **common,
                "logConfig": {"enable": False},
                **rule,
            }
    return stored_resources(session, FIREWALL_KIND, project, defaults)
