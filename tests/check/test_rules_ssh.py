"""Rules about ssh through the firewall: from outside, from inside, through Identity-Aware Proxy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.check.rule_cases import REFUSED, REGION, allow, deny, facts, found, summaries
from tpuctl.check.facts import Absent, Known
from tpuctl.check.findings import OpenFirewall, Remedy
from tpuctl.check.rules.network_rules import firewall_allows_iap, firewall_allows_ssh, firewall_allows_workers
from tpuctl.models.compute_resources import FirewallRule, Subnetwork

HOST = "projects/host/global/networks/shared"
HOST_SUBNET = f"projects/host/regions/{REGION}/subnetworks/tpus"
INTERNAL = {"spec": {"internal_ips": True}}
OWN = allow("own", "10.128.0.0/9")
BASTION = allow("bastion", source_ranges=(), source_tags=("bastion",))
NONE_OUTSIDE = "warning network default: no firewall rule of network `default` allows ssh (tcp:22) from outside"
NONE_INSIDE = "warning network default: no firewall rule of network `default` allows ssh (tcp:22) from inside it"


@pytest.mark.parametrize(
    ("want", "firewalls", "lines"),
    [
        ({}, None, []),
        (
            {},
            REFUSED,
            [
                (
                    "unknown network default: the firewall rules, which decide whether ssh is allowed, could not be read: "
                    "permission denied"
                ),
            ],
        ),
        ({}, [allow("open")], []),
        ({}, [], [NONE_OUTSIDE]),
        ({}, [OWN, BASTION, allow("iap", "35.235.240.0/20")], [NONE_OUTSIDE]),
        ({}, [allow("open", target_tags=("web",))], [NONE_OUTSIDE]),
        (
            {"spec": {"tags": ("web",)}},
            [allow("open", target_tags=("web",))],
            [],
        ),
        ({}, [allow("open"), deny("shut")], [f"{NONE_OUTSIDE}; `shut` denies it"]),
        (
            {},
            [allow("office", "198.51.100.0/24")],
            ["note network default: ssh is allowed only from 198.51.100.0/24; tpuctl does not know your address"],
        ),
        (
            {},
            [allow("office", *(f"198.51.100.{number}/32" for number in range(1, 12, 2)))],
            [
                (
                    "note network default: ssh is allowed only from 198.51.100.1/32, 198.51.100.3/32, "
                    "198.51.100.5/32, 198.51.100.7/32 and 2 more ranges; tpuctl does not know your address"
                ),
            ],
        ),
        # The default account of project number 7.
        (
            {},
            [allow("open", target_accounts=("7-compute@developer.gserviceaccount.com",))],
            [],
        ),
        ({"iap": True}, [], []),
        ({"internal_ip": True}, [OWN], []),
        ({"internal_ip": True}, [], [NONE_INSIDE]),
        (INTERNAL, [allow("open")], []),
        (
            INTERNAL,
            [BASTION],
            ["note network default: ssh is allowed only from machines with a tag or account of `bastion`"],
        ),
        (INTERNAL, [allow("office", "198.51.100.0/24")], [NONE_INSIDE]),
        (INTERNAL, [OWN, deny("shut")], [f"{NONE_INSIDE}; `shut` denies it"]),
    ],
)
def test_ssh_firewall_levels(want: dict[str, Any], firewalls: Any, lines: list[str]) -> None:
    fact = Known(tuple(firewalls)) if isinstance(firewalls, list) else firewalls

    assert summaries(firewall_allows_ssh, facts(want=want, firewalls=fact)) == lines


def test_ssh_unknown_account_is_silent() -> None:
    rules = (allow("open", target_accounts=("robot@p.iam.gserviceaccount.com",)),)

    assert summaries(firewall_allows_ssh, facts(project=REFUSED, firewalls=Known(rules))) == []
    assert summaries(firewall_allows_iap, facts(project=REFUSED, firewalls=Known(rules), want={"iap": True})) == []
    assert summaries(firewall_allows_ssh, facts(project=REFUSED, firewalls=Known((*rules, allow("all"))))) == []


def test_ssh_missing_network_is_silent() -> None:
    these = facts(network=Absent(), firewalls=Known(()), want={"iap": True})

    assert summaries(firewall_allows_ssh, these) + summaries(firewall_allows_iap, these) == []


def test_ssh_remedies_never_open_to_the_world() -> None:
    (one,) = found(firewall_allows_ssh, facts(firewalls=Known(())))

    assert one.remedies == (
        Remedy(
            "connect through Identity-Aware Proxy: `--iap`, and allow its range 35.235.240.0/20",
            "gcloud compute firewall-rules create allow-ssh-from-iap --project=p --network=default --direction=INGRESS "
            "--allow=tcp:22 --source-ranges=35.235.240.0/20",
        ),
        Remedy(
            "or allow your own address: `gcloud compute firewall-rules create allow-ssh --project=p --network=default "
            "--direction=INGRESS --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32`"
        ),
        Remedy("or run tpuctl on a machine of the network, with `--internal-ip`"),
    )


TUNNELS = allow("tunnels", "35.235.240.0/20")
NO_TUNNELS = "no firewall rule of network `default` allows tunnels of Identity-Aware Proxy (35.235.240.0/20) to port 22"


@pytest.mark.parametrize(
    ("want", "rules", "lines"),
    [
        ({}, [], []),
        ({"iap": True}, [], [f"warning network default: {NO_TUNNELS}"]),
        (INTERNAL, [], [f"warning network default: {NO_TUNNELS}"]),
        (INTERNAL | {"iap": True}, [], [f"warning network default: {NO_TUNNELS}"]),
        (INTERNAL | {"internal_ip": True}, [], []),
        ({"iap": True}, [allow("half", "35.235.240.0/21")], [f"warning network default: {NO_TUNNELS}"]),
        (
            {"iap": True},
            [TUNNELS, deny("shut", priority=10)],
            [f"warning network default: {NO_TUNNELS}; `shut` denies it"],
        ),
        (
            {"iap": True},
            [TUNNELS],
            [],
        ),
    ],
)
def test_iap_firewall_levels(want: dict[str, Any], rules: list[Any], lines: list[str]) -> None:
    assert summaries(firewall_allows_iap, facts(want=want, firewalls=Known(tuple(rules)))) == lines


@pytest.mark.parametrize(
    ("network", "rules", "remedy"),
    [
        (
            "default",
            [],
            Remedy.by(
                OpenFirewall("p", "default", "allow-ssh-from-iap", ("35.235.240.0/20",)),
                "allow its range 35.235.240.0/20",
            ),
        ),
        # Names are unique in a project: one of another network, or one that is off, has it already.
        (
            HOST,
            [allow("allow-ssh-from-iap")],
            Remedy.by(
                OpenFirewall("host", "shared", "allow-ssh-from-iap-shared", ("35.235.240.0/20",)),
                "allow its range 35.235.240.0/20",
            ),
        ),
        (
            "default",
            [allow("allow-ssh-from-iap", is_disabled=True), allow("allow-ssh-from-iap-default", is_disabled=True)],
            Remedy.by(
                OpenFirewall("p", "default", "allow-ssh-from-iap-default-2", ("35.235.240.0/20",)),
                "allow its range 35.235.240.0/20",
            ),
        ),
        # A rule that comes first would still keep them out.
        (
            "default",
            [deny("shut", priority=900)],
            Remedy("allow its range 35.235.240.0/20 by a rule with a priority before `shut`"),
        ),
    ],
)
def test_iap_remedy_creates_rule(network: str, rules: list[Any], remedy: Remedy) -> None:
    want = {"spec": {"network": network}, "iap": True}

    assert [one.remedies for one in found(firewall_allows_iap, facts(want=want, firewalls=Known(tuple(rules))))] == [
        (remedy,)
    ]


def test_ssh_network_comes_from_subnetwork() -> None:
    these = facts(
        want={"spec": {"subnetwork": HOST_SUBNET}},
        subnetwork=Known(Subnetwork("tpus", REGION, "shared", private_google_access=True)),
        firewalls=Known((allow("open", network="shared"),)),
    )

    assert found(firewall_allows_ssh, these) == []
    assert found(firewall_allows_ssh, replace(these, firewalls=Known((allow("open"),))))[0].subject == "network shared"


# What Compute Engine opens for TPUs by itself [jax#35905].
_GOOGLES = allow("tpu", "10.0.0.0/8", protocols={"tcp": ("8470", "8471", "8474", "8476", "11211")})
_CLOSED = "warning network default: no firewall rule of network `default` lets workers reach one another at "
_NEW_PORT, _MULTISLICE = "8482 (JAX's coordinator from 0.8.1 on)", "8080 (multislice), 8081 (multislice)"
_COMMAND = (
    "gcloud compute firewall-rules create allow-tpu-workers --project=p --network=default --direction=INGRESS "
    "--allow={} --source-ranges=10.0.0.0/8"
)


@pytest.mark.parametrize(
    ("slices", "closed"),
    [
        pytest.param(None, [], id="node"),
        pytest.param(2, [8482, 8080, 8081], id="group"),
    ],
)
def test_group_of_slices_with_one_worker_each_needs_the_ports_of_several(slices: int | None, closed: list[int]) -> None:
    these = facts(firewalls=Known((_GOOGLES,)), want={"spec": {"accelerator_type": "v4-8", "slices": slices}})

    results = found(firewall_allows_workers, these)

    assert [port for one in results for port in one.facts["ports"]] == closed


def test_group_of_slices_needs_the_ports_of_multislice() -> None:
    rules = (_GOOGLES, allow("more", "10.0.0.0/8", protocols={"tcp": ("8482",)}))
    these = facts(firewalls=Known(rules), want={"spec": {"accelerator_type": "v4-16", "slices": 2}})

    assert [one.facts["ports"] for one in found(firewall_allows_workers, these)] == [[8080, 8081]]


@pytest.mark.parametrize(
    ("rules", "type_", "lines", "remedies"),
    [
        pytest.param([allow("internal", "10.128.0.0/9", protocols={"tcp": ("0-65535",)})], "v4-16", [], [], id="open"),
        pytest.param([], "v4-8", [], [], id="one worker"),
        pytest.param(
            [_GOOGLES],
            "v4-16",
            [f"{_CLOSED}{_NEW_PORT}, {_MULTISLICE}"],
            [_COMMAND.format("tcp:8482,tcp:8080,tcp:8081"), "JAX_COORDINATOR_PORT=8476"],
            id="Google's rule",
        ),
        pytest.param(
            [_GOOGLES, allow("more", "10.0.0.0/8", protocols={"tcp": ("8482",)})], "v4-16", [], [], id="slice"
        ),
        pytest.param(
            [],
            "v4-16",
            [
                f"{_CLOSED}8471 (libtpu, for the slice), 8476 (JAX's coordinator up to 0.8.0), {_NEW_PORT}, {_MULTISLICE}"
            ],
            [_COMMAND.format("tcp:8471,tcp:8476,tcp:8482,tcp:8080,tcp:8081")],
            id="none",
        ),
        pytest.param(
            [allow("by tag", source_ranges=(), source_tags=("tpu",), protocols={"tcp": ()})], "v4-16", [], [], id="tags"
        ),
    ],
)
def test_ports_between_the_workers_of_a_slice(
    rules: list[FirewallRule], type_: str, lines: list[str], remedies: list[str]
) -> None:
    these = facts(firewalls=Known(tuple(rules)), want={"spec": {"accelerator_type": type_}})

    assert summaries(firewall_allows_workers, these) == lines
    assert [
        part in f"{remedy.command} {remedy.text}"
        for one in found(firewall_allows_workers, these)
        for remedy, part in zip(one.remedies, remedies, strict=True)
    ] == [True] * len(remedies)
