"""The network of the node: whether it exists, has a subnetwork in the region, and allows ssh.

Each unreadable fact is reported once: the network by TPU601, the subnetwork by TPU602, the firewall rules by TPU604. If the
network does not exist, the rules about its contents are silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.rules.ssh import iap_in, ssh_in
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.network import Subnetwork
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule

_USES_DEFAULT = "the API uses network `default` if none is named"


@rule("TPU601", "the network exists")
def network(facts: Facts) -> Iterator[Found]:
    """Check whether the node's network exists: the named one, else `default`.

    It is an error if it does not exist; a warning for an existing node. Many organisations have no network `default`. A legacy
    network is a warning: it has no subnetworks, can no longer be created, and whether Cloud TPU accepts it is unverified. A
    network of another project (Shared VPC) is looked up there. Source: API field text of NetworkConfig; documentation of VPC
    networks.
    """
    interface = Interface.of(facts.wanted)
    name, project, subject = interface.network, interface.project, f"network {interface.network}"
    where = {"network": name, "networkProject": project}
    match facts.network:
        case None:
            return
        case Unknown() as fact:
            yield unread(fact, subject, f"network `{name}`", permission="compute.networks.get", project=project)
        case Absent():
            yield _without_network(facts, interface, subject)
        case Known(value) if value.is_legacy:
            yield Found(
                level=Level.WARNING,
                subject=subject,
                text=f"network `{name}` is a legacy network without subnetworks",
                why="legacy networks lack many features, and Cloud TPU may reject them",
                remedies=(Remedy("name a network with subnetworks: `--network`", commands.list_networks(project)),),
                facts={**where, "mode": "legacy"},
            )
        case Known(value):
            mode = "auto" if value.is_auto else "custom"
            text = f"network `{name}` exists, in {mode} mode"
            yield Found(level=Level.OK, subject=subject, text=text, facts={**where, "mode": mode})


@rule("TPU602", "a subnetwork in the region")
def subnetwork(facts: Facts) -> Iterator[Found]:
    """Check whether the node's network has a subnetwork in the region of the zone.

    It is an error if the named subnetwork does not exist there, or is in another region or another network; a warning for an
    existing node. It is a warning if none is named and the network is in custom mode: the API then uses a subnetwork `default`,
    which is not looked up. A subnetwork without a named network is a warning unless it belongs to `default`, which the API
    uses then. A network in auto mode has a subnetwork with its own name in every region; a missing one is a warning. Source:
    API field text of NetworkConfig; documentation of VPC networks.
    """
    interface, region = Interface.of(facts.wanted), facts.wanted.region
    name = interface.subnetwork or interface.network
    where = {"subnetwork": name, "region": region}
    if interface.region not in {None, region}:
        yield _misplaced(interface, interface.region, facts)
        return
    match facts.subnetwork:
        case None:
            return
        case Unknown() if facts.is_without_zone:
            return  # the region may not exist either; TPU301 reports that
        case Unknown() as fact:
            what, permission = f"subnetwork `{name}` in {region}", "compute.subnetworks.get"
            yield unread(fact, _subject(name), what, permission=permission, project=interface.project)
        case Known(value) if interface.subnetwork and value.region not in {"", region}:
            yield _misplaced(interface, value.region, facts)
        case Known(value) if interface.subnetwork:
            about = {"subnetwork": value.name, "region": value.region, "network": value.network}
            if value.network in {"", interface.network}:
                text = f"subnetwork `{value.name}` is in {region} and belongs to network `{interface.network}`"
                yield Found(level=Level.OK, subject=_subject(value.name), text=text, facts=about)
                return
            named = interface.is_named
            yield Found(
                level=_level(facts) if named else Level.WARNING,
                subject=_subject(value.name),
                text=f"subnetwork `{value.name}` belongs to network `{value.network}`, "
                + (f"not to `{interface.network}`" if named else "and no network is named"),
                why=None if named else _USES_DEFAULT,
                remedies=(Remedy(f"name its network: `--network={value.network}`"),),
                facts=about,
            )
        case Absent() if interface.subnetwork:
            yield _misplaced(interface, None, facts)
        case Known() | Absent() as fact:
            yield from _unnamed(fact, interface, facts, where)


@rule("TPU603", "access to Google APIs")
def private_access(facts: Facts) -> Iterator[Found]:
    """Check whether workers without external addresses can reach Google APIs and buckets.

    It is a warning if the node has no external addresses and its subnetwork lacks Private Google Access. Cloud NAT would work
    too, and is not read. Source: API field text of `enableExternalIps`.
    """
    interface, found = Interface.of(facts.wanted), known(facts.subnetwork)
    if found is None or interface.has_external_addresses:
        return
    if found.private_google_access:
        text = f"subnetwork `{found.name}` has Private Google Access"
        yield Found(level=Level.OK, subject=_subject(found.name), text=text, facts={"privateIpGoogleAccess": True})
        return
    command = commands.enable_private_access(interface.project, found.region or facts.wanted.region, found.name)
    yield Found(
        level=Level.WARNING,
        subject=_subject(found.name),
        text=f"the workers have no external address, and subnetwork `{found.name}` has no Private Google Access",
        why="they can reach neither Google APIs nor buckets, except through Cloud NAT, which is not read",
        remedies=(Remedy("enable it; this is free and breaks nothing", command),),
        facts={"privateIpGoogleAccess": False, "subnetwork": found.name, "region": found.region},
    )


def _subject(name: str) -> str:
    return f"subnetwork {name}"


def _level(facts: Facts) -> Level:
    """Return the level of a problem that prevents creation; an existing node was created in spite of it."""
    return Level.ERROR if facts.wanted.creates else Level.WARNING


def _without_network(facts: Facts, interface: Interface, subject: str) -> Found:
    name, project = interface.network, interface.project
    where = {"network": name, "networkProject": project}
    listed = Remedy("name one of the project's networks: `--network`", commands.list_networks(project))
    if not interface.is_named and interface.subnetwork:
        its = known(facts.subnetwork)
        return Found(
            level=Level.WARNING,
            subject=subject,
            text=f"no network is named with subnetwork `{interface.subnetwork}`, and project `{project}` has no `default`",
            why=_USES_DEFAULT,
            remedies=(Remedy(f"name it: `--network={its.network}`") if its and its.network else listed,),
            facts=where,
        )
    if name != "default":
        text = f"project `{project}` has no network `{name}`"
        return Found(level=_level(facts), subject=subject, text=text, remedies=(listed,), facts=where)
    made = "or create it; a new network has no firewall rules, so that ssh must be allowed as well"
    return Found(
        level=_level(facts),
        subject=subject,
        text=f"project `{project}` has no network `default`, and no other is named",
        why="a node needs a network; many organisations delete `default` or never create it",
        remedies=(listed, Remedy(made, commands.create_network(project, "default"))),
        facts=where,
    )


def _unnamed(
    fact: Known[Subnetwork] | Absent, interface: Interface, facts: Facts, where: dict[str, str]
) -> Iterator[Found]:
    """Judge a node whose spec names no subnetwork; `fact` is the subnetwork with the network's own name."""
    its, region, subject = known(facts.network), facts.wanted.region, _subject(interface.network)
    if its is None or its.is_legacy:
        return
    belongs = isinstance(fact, Known) and fact.value.network in {"", its.name}
    listed = commands.list_subnetworks(interface.project, its.name)
    # If none is named, the API uses the subnetwork `default` in networks of every mode [API field text].
    if belongs and (its.is_auto or its.name == "default"):
        text = f"network `{its.name}` has a subnetwork in {region}"
        yield Found(level=Level.OK, subject=subject, text=text, facts=where)
    elif its.is_auto:
        yield Found(
            level=Level.WARNING,
            subject=subject,
            text=f"network `{its.name}` is in auto mode, but has no subnetwork `{its.name}` in {region}",
            why="a node needs a subnetwork in the region of its zone",
            remedies=(Remedy("name another: `--subnetwork`", listed),),
            facts=where,
        )
    elif facts.wanted.creates:
        flag = f"`--subnetwork={its.name}`" if belongs else "`--subnetwork`"
        yield Found(
            level=Level.WARNING,
            subject=subject,
            text=f"network `{its.name}` is in custom mode, and no subnetwork is named",
            why=f"such a network has no default; the API uses a subnetwork called `default` in {region}, if it exists",
            remedies=(Remedy(f"name one in {region}: {flag}", listed),),
            facts=where,
        )


def _misplaced(interface: Interface, found_in: str | None, facts: Facts) -> Found:
    """Return the finding that the subnetwork is not in the region of the node; `found_in` is None if it does not exist."""
    region, name = facts.wanted.region, interface.subnetwork or interface.network
    project = interface.project
    text = (
        f"project `{project}` has no subnetwork `{name}` in {region}"
        if found_in is None
        else f"subnetwork `{name}` is in region {found_in}, the node in {region}"
    )
    return Found(
        level=_level(facts),
        subject=_subject(name),
        text=text,
        why="the subnetwork of a node must be in the region of its zone",
        remedies=(
            Remedy(f"name one in {region}: `--subnetwork`", commands.list_subnetworks(project, interface.network)),
        ),
        facts={"subnetwork": name, "region": region},
    )


RULES: tuple[Rule[Facts], ...] = (network, subnetwork, private_access, ssh_in, iap_in)
