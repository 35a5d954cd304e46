"""Rules about the network: a row for each answer and each form of its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.rule_cases import REFUSED, REGION, commands, facts, levels, summaries, wanted
from tpuctl.check.facts import EXTERNAL_IPS, Absent, Known, NetworkInterface
from tpuctl.check.findings import Level
from tpuctl.check.rules.network_rules import network_exists, private_access_is_on, subnetwork_is_in_region
from tpuctl.models.compute_resources import ComputeNetwork, Subnetwork
from tpuctl.models.project import OrgPolicy

AUTO, CUSTOM = Known(ComputeNetwork("default", "", True, False)), Known(ComputeNetwork("mine", "", False, False))
LEGACY = Known(ComputeNetwork("default", "", False, True))
HOST = "projects/host/global/networks/shared"
HOST_SUBNET = f"projects/host/regions/{REGION}/subnetworks/tpus"


def subnet(
    name: str = "default", network: str = "default", *, region: str = REGION, private: bool = True
) -> Known[Any]:
    return Known(Subnetwork(name, region, network, private))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ("p", "default", False, None, None, True)),
        ({"network": "mine", "subnetwork": "s", "internal_ips": True}, ("p", "mine", True, "s", None, False)),
        ({"network": HOST}, ("host", "shared", True, None, None, True)),
        ({"network": f"https://www.googleapis.com/compute/v1/{HOST}"}, ("host", "shared", True, None, None, True)),
        ({"network": "global/networks/mine"}, ("p", "mine", True, None, None, True)),
        ({"subnetwork": HOST_SUBNET}, ("host", "default", False, "tpus", REGION, True)),
        ({"subnetwork": "regions/us-east1/subnetworks/s"}, ("p", "default", False, "s", "us-east1", True)),
        (
            {"kept": {"networkConfigs": [{"network": HOST, "enableExternalIps": False}, {"network": "second"}]}},
            ("host", "shared", True, None, None, False),
        ),
    ],
)
def test_interface_from_spec(spec: dict[str, Any], expected: tuple[Any, ...]) -> None:
    names = ("project", "network", "is_named", "subnetwork", "region", "has_external_addresses")

    assert NetworkInterface.of(wanted(spec=spec)) == NetworkInterface(**dict(zip(names, expected, strict=True)))


@pytest.mark.parametrize(
    ("spec", "changes", "lines"),
    [
        ({}, {}, []),
        ({}, {"network": AUTO}, []),
        ({"network": "mine"}, {"network": CUSTOM}, []),
        (
            {},
            {"network": LEGACY},
            ["warning network default: network `default` is a legacy network without subnetworks"],
        ),
        (
            {},
            {"network": Absent()},
            ["error network default: project `p` has no network `default`, and no other is named"],
        ),
        ({"network": "mine"}, {"network": Absent()}, ["error network mine: project `p` has no network `mine`"]),
        ({"network": HOST}, {"network": Absent()}, ["error network shared: project `host` has no network `shared`"]),
        (
            {"subnetwork": HOST_SUBNET},
            {"network": Absent()},
            [
                "warning network default: no network is named with subnetwork `tpus`, and project `host` has no `default`"
            ],
        ),
        ({}, {"network": REFUSED}, ["unknown network default: network `default` could not be read: permission denied"]),
    ],
)
def test_network_levels(spec: dict[str, Any], changes: dict[str, Any], lines: list[str]) -> None:
    assert summaries(network_exists, facts(want={"spec": spec}, **changes)) == lines


def test_missing_default_network_suggests_creation() -> None:
    assert commands(network_exists, facts(network=Absent())) == [
        "gcloud compute networks list --project=p",
        "gcloud compute networks create default --subnet-mode=auto --project=p",
    ]


@pytest.mark.parametrize(
    ("spec", "changes", "lines"),
    [
        # Named.
        (
            {"network": "mine", "subnetwork": "s"},
            {"network": CUSTOM, "subnetwork": subnet("s", "mine")},
            [],
        ),
        (
            {"network": "mine", "subnetwork": "s"},
            {"network": CUSTOM, "subnetwork": Absent()},
            ["error subnetwork s: project `p` has no subnetwork `s` in us-central2"],
        ),
        (
            {"network": "mine", "subnetwork": "s"},
            {"network": CUSTOM, "subnetwork": subnet("s", "other")},
            ["error subnetwork s: subnetwork `s` belongs to network `other`, not to `mine`"],
        ),
        (
            {"subnetwork": "s"},
            {"network": AUTO, "subnetwork": subnet("s", "other")},
            ["warning subnetwork s: subnetwork `s` belongs to network `other`, and no network is named"],
        ),
        (
            {"subnetwork": "s"},
            {"network": AUTO, "subnetwork": subnet("s", "default")},
            [],
        ),
        (
            {"subnetwork": "s"},
            {"subnetwork": subnet("s", region="us-east1")},
            ["error subnetwork s: subnetwork `s` is in region us-east1, the node in us-central2"],
        ),
        # Its link alone says where it is.
        (
            {"subnetwork": "regions/us-east1/subnetworks/s"},
            {"subnetwork": REFUSED},
            ["error subnetwork s: subnetwork `s` is in region us-east1, the node in us-central2"],
        ),
        (
            {"network": HOST, "subnetwork": HOST_SUBNET},
            {"subnetwork": subnet("tpus", "shared")},
            [],
        ),
        (
            {"network": HOST, "subnetwork": HOST_SUBNET},
            {"subnetwork": Absent()},
            ["error subnetwork tpus: project `host` has no subnetwork `tpus` in us-central2"],
        ),
        (
            {"subnetwork": "s"},
            {"subnetwork": REFUSED},
            ["unknown subnetwork s: subnetwork `s` in us-central2 could not be read: permission denied"],
        ),
        # Left to the network.
        ({}, {"network": AUTO}, []),
        (
            {},
            {"network": AUTO, "subnetwork": subnet()},
            [],
        ),
        (
            {},
            {"network": AUTO, "subnetwork": Absent()},
            [
                (
                    "warning subnetwork default: network `default` is in auto mode, but has no subnetwork "
                    "`default` in us-central2"
                )
            ],
        ),
        (
            {},
            {"network": AUTO, "subnetwork": REFUSED},
            ["unknown subnetwork default: subnetwork `default` in us-central2 could not be read: permission denied"],
        ),
        ({}, {"network": LEGACY, "subnetwork": Absent()}, []),
        ({}, {"network": Absent(), "subnetwork": Absent()}, []),
        ({}, {"network": REFUSED, "subnetwork": Absent()}, []),
        # In custom mode only `default` of `default` is taken unnamed.
        (
            {},
            {"network": Known(ComputeNetwork("default", "", False, False)), "subnetwork": subnet()},
            [],
        ),
        (
            {"network": "mine"},
            {"network": CUSTOM, "subnetwork": Absent()},
            ["warning subnetwork mine: network `mine` is in custom mode, and no subnetwork is named"],
        ),
        (
            {"network": "mine"},
            {"network": CUSTOM, "subnetwork": subnet("mine", "mine")},
            ["warning subnetwork mine: network `mine` is in custom mode, and no subnetwork is named"],
        ),
    ],
)
def test_subnetwork_levels(spec: dict[str, Any], changes: dict[str, Any], lines: list[str]) -> None:
    assert summaries(subnetwork_is_in_region, facts(want={"spec": spec}, **changes)) == lines


@pytest.mark.parametrize(
    ("rule", "spec", "changes"),
    [
        (network_exists, {}, {"network": Absent()}),
        (network_exists, {"network": "mine"}, {"network": Absent()}),
        (subnetwork_is_in_region, {"network": "mine", "subnetwork": "s"}, {"subnetwork": Absent()}),
        (subnetwork_is_in_region, {"network": "mine", "subnetwork": "s"}, {"subnetwork": subnet("s", "other")}),
        (subnetwork_is_in_region, {"subnetwork": "regions/us-east1/subnetworks/s"}, {}),
    ],
)
def test_missing_network_of_existing_node_is_warning(rule: Any, spec: dict[str, Any], changes: dict[str, Any]) -> None:
    asked = [levels(rule, facts(want={"spec": spec, "creates": creates}, **changes)) for creates in (True, False)]

    assert asked == [[Level.ERROR], [Level.WARNING]]


FORBIDDEN = {EXTERNAL_IPS: Known(OrgPolicy(EXTERNAL_IPS, denies_all=True))}
CLOSED = (
    "warning subnetwork default: the workers have no external address, and subnetwork `default` has no "
    "Private Google Access"
)


@pytest.mark.parametrize(
    ("internal", "changes", "lines"),
    [
        (False, {"subnetwork": subnet(private=False)}, []),
        (True, {"subnetwork": subnet(private=False)}, [CLOSED]),
        (False, {"subnetwork": subnet(private=False), "org_policies": FORBIDDEN}, []),  # TPU503 says so
        (True, {"subnetwork": subnet()}, []),
        (True, {"subnetwork": REFUSED}, []),  # TPU602 says so
        (True, {"subnetwork": Absent()}, []),
        (True, {}, []),
    ],
)
def test_private_access_levels(internal: bool, changes: dict[str, Any], lines: list[str]) -> None:
    assert summaries(private_access_is_on, facts(want={"spec": {"internal_ips": internal}}, **changes)) == lines


def test_private_access_command_names_region() -> None:
    spec = {"network": HOST, "subnetwork": HOST_SUBNET, "internal_ips": True}
    these = facts(want={"spec": spec}, subnetwork=subnet("tpus", "shared", private=False))

    assert commands(private_access_is_on, these) == [
        "gcloud compute networks subnets update tpus --region=us-central2 --project=host --enable-private-ip-google-access"
    ]
