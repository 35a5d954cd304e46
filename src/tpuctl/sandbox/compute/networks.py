"""Networks and their subnetworks. Each project has the network `default`, in auto mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox.compute import places
from tpuctl.sandbox.compute.documents import BASE, aggregated, identity, kept, link, listed, not_found

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

NETWORK, SUBNETWORK = "compute.network", "compute.subnetwork"
DEFAULT = "default"


def exists(session: Session, project: str, given: str) -> bool:
    """Return whether a network exists, given by id, path or link (of another project with a shared network).

    The sandbox setting `networks` names the networks that every project has in place of `default`.
    """
    name = given.rpartition("/")[2]
    owner = given.partition("projects/")[2].partition("/")[0] or project
    return name in names(session, owner)


def remove_network(session: Session, project: str, name: str) -> None:
    """Remove a network; the default ones too."""
    session.resources.put(NETWORK, project, name, {})


def names(session: Session, project: str) -> tuple[str, ...]:
    """Return the names of a project's networks."""
    return tuple(_networks(session, project))


def add_network(session: Session, project: str, name: str, *, fields: Json) -> Json:
    """Store a network and return it."""
    document = _network(session, project, name, fields=fields)
    session.resources.put(NETWORK, project, name, document)
    return _with_subnetworks(session, project, document)


def add_subnetwork(session: Session, project: str, name: str, *, fields: Json) -> Json:
    """Store a subnetwork and return it. `fields` has its `region` and `network`."""
    region = str(fields["region"]).rpartition("/")[2]
    before = _subnetworks(session, project).get(f"{region}/{name}", {})
    network = {"network": link(project, "global/networks", str(fields.get("network", DEFAULT)))}
    document = {**_subnetwork(session, project, region, name=name), **before, **fields, **network}
    document["region"] = f"{BASE}projects/{project}/regions/{region}"
    session.resources.put(SUBNETWORK, project, f"{region}/{name}", document)
    return document


def get_network(session: Session, call: Call) -> Json:
    """Answer networks.get."""
    project, name = str(call.params["project"]), str(call.params["network"])
    found = _networks(session, project).get(name)
    if found is None:
        raise not_found(f"projects/{project}/global/networks/{name}")
    return _with_subnetworks(session, project, found)


def list_networks(session: Session, call: Call) -> Json:
    """Answer networks.list."""
    project = str(call.params["project"])
    found = [_with_subnetworks(session, project, network) for network in _networks(session, project).values()]
    return listed(call, "networkList", f"projects/{project}/global/networks", found)


def get_subnetwork(session: Session, call: Call) -> Json:
    """Answer subnetworks.get."""
    project, region, name = (str(call.params[key]) for key in ("project", "region", "subnetwork"))
    places.check_region(region)
    found = _subnetworks(session, project).get(f"{region}/{name}")
    if found is None:
        raise not_found(f"projects/{project}/regions/{region}/subnetworks/{name}")
    return found


def list_subnetworks(session: Session, call: Call) -> Json:
    """Answer subnetworks.list."""
    project, region = str(call.params["project"]), str(call.params["region"])
    places.check_region(region)
    subnetworks = _subnetworks(session, project).items()
    found = [subnetwork for name, subnetwork in subnetworks if name.startswith(f"{region}/")]
    return listed(call, "subnetworkList", f"projects/{project}/regions/{region}/subnetworks", found)


def aggregate_subnetworks(session: Session, call: Call) -> Json:
    """Answer subnetworks.aggregatedList."""
    subnetworks = _subnetworks(session, str(call.params["project"])).items()
    found = [(f"regions/{name.partition('/')[0]}", subnetwork) for name, subnetwork in subnetworks]
    scopes = [f"regions/{region}" for region in places.regions()]
    return aggregated(call, "subnetworkAggregatedList", "subnetworks", entries=found, scopes=scopes)


def _networks(session: Session, project: str) -> dict[str, Json]:
    given = session.setting("networks", [DEFAULT])
    return kept(session, NETWORK, project, {name: _network(session, project, name, fields={}) for name in given})


def _network(session: Session, project: str, name: str, *, fields: Json) -> Json:
    return {
        **identity(session, "network", f"projects/{project}/global/networks/{name}"),
        # API field text: a legacy network has an address range, and no such field.
        **({} if "IPv4Range" in fields else {"autoCreateSubnetworks": True}),
        "mtu": 1460,
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "routingConfig": {"routingMode": "REGIONAL"},
        **fields,
    }


def _with_subnetworks(session: Session, project: str, network: Json) -> Json:
    found = _subnetworks(session, project).values()
    links = [subnetwork["selfLink"] for subnetwork in found if subnetwork["network"] == network["selfLink"]]
    return {**network, "subnetworks": links} if links else network


def _subnetworks(session: Session, project: str) -> dict[str, Json]:
    """Return a project's subnetworks by `REGION/NAME`: added ones, and one per region of each auto-mode network."""
    automatic = [name for name, network in _networks(session, project).items() if network.get("autoCreateSubnetworks")]
    defaults = {
        f"{region}/{name}": _subnetwork(session, project, region, name=name)
        for name in automatic
        for region in places.regions()
    }
    return kept(session, SUBNETWORK, project, defaults)


def _subnetwork(session: Session, project: str, region: str, *, name: str) -> Json:
    # Auto mode uses a /20 of 10.128.0.0/9 for each region; the assignment here differs from the real one.
    position = places.regions().index(region) if region in places.regions() else 0
    return {
        **identity(session, "subnetwork", f"projects/{project}/regions/{region}/subnetworks/{name}"),
        "network": f"{BASE}projects/{project}/global/networks/{name}",
        "region": f"{BASE}projects/{project}/regions/{region}",
        "ipCidrRange": f"10.{128 + 2 * position}.0.0/20",
        "gatewayAddress": f"10.{128 + 2 * position}.0.1",
        "privateIpGoogleAccess": False,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "fingerprint": "AAAAAAAAAAA=",
    }
