"""Rules about the project: a row for each answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.rule_cases import LATE, REFUSED, commands, facts, found, levels, summaries
from tpuctl.check.facts import (
    COMPUTE_API,
    EXTERNAL_IPS,
    IAP_API,
    OS_LOGIN,
    SHIELDED_VM,
    STORAGE_API,
    TPU_API,
    Absent,
    BucketUse,
    Known,
    Unknown,
)
from tpuctl.check.findings import EnableService, Level, Remedy, RuleResult
from tpuctl.check.rules.project_rules import (
    apis_are_enabled,
    external_addresses_allowed,
    os_login_required,
    project_is_active,
    project_is_billed,
    secure_boot_satisfied,
)
from tpuctl.models.compute_resources import ComputeNetwork
from tpuctl.models.project import OrgPolicy, Project

ALL = dict.fromkeys((TPU_API, COMPUTE_API, STORAGE_API, IAP_API), True)
TYPES = Known(("v4-8",))
NETWORK = Known(ComputeNetwork("default", "", True, False))
COMPUTE_ANSWERS: tuple[dict[str, Any], ...] = ({"network": NETWORK}, {"region_quotas": Known({})})


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, []),
        ({"services": Known(ALL)}, []),
        (
            {"services": Known(ALL), "want": {"buckets": (BucketUse("b"),), "iap": True}},
            [],
        ),
        (
            {"services": Known(ALL | {TPU_API: False, COMPUTE_API: False, STORAGE_API: False, IAP_API: False})},
            [f"error project p: `{name}` is not enabled in project `p`" for name in (TPU_API, COMPUTE_API)],
        ),
        (
            {
                "services": Known(ALL | {STORAGE_API: False, IAP_API: False}),
                "want": {"buckets": (BucketUse("b"),), "iap": True},
            },
            [*(f"warning project p: `{name}` is not enabled in project `p`" for name in (STORAGE_API, IAP_API))],
        ),
        # It has answered: the list is behind.
        (
            {"services": Known(ALL | {TPU_API: False}), "types": TYPES},
            [],
        ),
        *(
            (
                {"services": Known(ALL | {COMPUTE_API: False}), **answer},
                [],
            )
            for answer in COMPUTE_ANSWERS
        ),
        # A network of another project says nothing of this one.
        (
            {
                "services": Known(ALL | {COMPUTE_API: False}),
                "network": NETWORK,
                "want": {"spec": {"network": "projects/host/global/networks/shared"}},
            },
            [f"error project p: `{COMPUTE_API}` is not enabled in project `p`"],
        ),
        ({"services": Known({TPU_API: True})}, []),
        ({"services": REFUSED}, ["unknown project p: the list of enabled APIs could not be read: permission denied"]),
        (
            {"services": REFUSED, "types": TYPES},
            [
                (
                    f"unknown project p: the list of enabled APIs except `{TPU_API}`, which answered, could not be read: "
                    "permission denied"
                ),
            ],
        ),
        (
            {"services": Absent()},
            ["unknown project p: the list of enabled APIs could not be read: the API knows no project `p`"],
        ),
    ],
)
def test_apis_must_be_enabled(changes: dict[str, Any], lines: list[str]) -> None:
    assert summaries(apis_are_enabled, facts(**changes)) == lines


def test_disabled_api_has_fix() -> None:
    change = EnableService("p", TPU_API)

    assert found(apis_are_enabled, facts(services=Known({TPU_API: False}))) == [
        RuleResult(
            level=Level.ERROR,
            subject="project p",
            text=f"`{TPU_API}` is not enabled in project `p`",
            why="nodes are created through this API",
            remedies=(Remedy.by(change, "enable it; this may take a few minutes to take effect"),),
            facts={"service": TPU_API, "enabled": False},
        )
    ]


@pytest.mark.parametrize(
    ("fact", "advice", "permission", "is_passing"),
    [
        (REFUSED, "ask for the permission `the.permission` on project `p`", "the.permission", False),
        (
            LATE,
            "check again; reading it takes the permission `serviceusage.services.get` on project `p`",
            "serviceusage.services.get",
            True,
        ),
        (
            Unknown("the API is disabled"),
            "fix that and check again; reading it takes the permission `serviceusage.services.get` on project `p`",
            "serviceusage.services.get",
            False,
        ),
    ],
)
def test_unread_project_facts_name_permission(fact: Unknown, advice: str, permission: str, is_passing: bool) -> None:
    assert found(apis_are_enabled, facts(services=fact)) == [
        RuleResult(
            level=Level.UNKNOWN,
            subject="project p",
            text=f"the list of enabled APIs could not be read: {fact.reason}",
            remedies=(Remedy(advice),),
            facts={"permission": permission},
            is_passing=is_passing,
        )
    ]


@pytest.mark.parametrize(
    ("fact", "lines"),
    [
        (None, []),
        (Known(value=True), []),
        (Known(value=False), ["error project p: billing is off in project `p`"]),
        (REFUSED, ["unknown project p: whether it is billed could not be read: permission denied"]),
        (Absent("no project"), ["unknown project p: whether it is billed could not be read: no project"]),
    ],
)
def test_billing_must_be_open(fact: Any, lines: list[str]) -> None:
    assert summaries(project_is_billed, facts(billing=fact)) == lines


@pytest.mark.parametrize(
    ("fact", "lines", "advised"),
    [
        (Known(Project("p", "7", "ACTIVE")), [], []),
        (
            Known(Project("p", "7", "DELETE_REQUESTED")),
            ["error project p: project `p` is not active, but DELETE_REQUESTED"],
            ["gcloud projects undelete p"],
        ),
        (
            Known(Project("p", "7", "DELETE_IN_PROGRESS")),
            ["error project p: project `p` is not active, but DELETE_IN_PROGRESS"],
            ["gcloud projects undelete p"],
        ),
        (
            Known(Project("p", "7", "NEW_STATE")),
            ["unknown project p: project `p` is NEW_STATE, a state that this version does not know"],
            ["gcloud projects list"],
        ),
        (Absent(), ["error project p: there is no project `p`"], ["gcloud projects list"]),
        (
            REFUSED,
            [
                (
                    "unknown project p: the project, with its default account and its number, "
                    "could not be read: permission denied"
                ),
            ],
            [],
        ),
    ],
)
def test_project_state_levels(fact: Any, lines: list[str], advised: list[str]) -> None:
    assert summaries(project_is_active, facts(project=fact)) == lines
    assert commands(project_is_active, facts(project=fact)) == advised


INTERNAL = {"spec": {"internal_ips": True}}
EXISTS = {"creates": False}


@pytest.mark.parametrize(
    ("policy", "want", "level"),
    [
        (Absent(), {}, []),
        (Known(OrgPolicy(EXTERNAL_IPS)), {}, []),
        (Known(OrgPolicy(EXTERNAL_IPS, allows_all=True)), {}, []),
        (Known(OrgPolicy(EXTERNAL_IPS, allows_all=True, allowed=("vm",))), {}, []),
        (Known(OrgPolicy(EXTERNAL_IPS, denies_all=True)), {}, [Level.ERROR]),
        (Known(OrgPolicy(EXTERNAL_IPS, denies_all=True)), INTERNAL, []),
        (Known(OrgPolicy(EXTERNAL_IPS, denies_all=True)), EXISTS, []),
        (Known(OrgPolicy(EXTERNAL_IPS, denies_all=True, is_conditional=True)), {}, [Level.WARNING]),
        (Known(OrgPolicy(EXTERNAL_IPS, allowed=("projects/p/zones/z/instances/vm",))), {}, [Level.WARNING]),
        (Known(OrgPolicy(EXTERNAL_IPS, denied=("projects/p/zones/z/instances/vm",))), {}, [Level.WARNING]),
        (REFUSED, {}, [Level.UNKNOWN]),
        (REFUSED, INTERNAL, [Level.UNKNOWN]),
    ],
)
def test_external_address_policy_levels(policy: Any, want: dict[str, Any], level: list[Level]) -> None:
    assert levels(external_addresses_allowed, facts(want=want, org_policies={EXTERNAL_IPS: policy})) == level


@pytest.mark.parametrize(
    ("policy", "level"),
    [
        (Absent(), []),
        (Known(OrgPolicy(OS_LOGIN)), []),
        (Known(OrgPolicy(OS_LOGIN, enforced=True)), [Level.NOTE]),
        (Known(OrgPolicy(OS_LOGIN, is_conditional=True)), [Level.NOTE]),
        (REFUSED, []),  # TPU503 says so
    ],
)
def test_os_login_policy_is_note(policy: Any, level: list[Level]) -> None:
    assert levels(os_login_required, facts(org_policies={OS_LOGIN: policy})) == level


SECURE = {"spec": {"shielded_secure_boot": True}}


@pytest.mark.parametrize(
    ("policy", "want", "level"),
    [
        (Absent(), {}, []),
        (Known(OrgPolicy(SHIELDED_VM)), {}, []),
        (Known(OrgPolicy(SHIELDED_VM, enforced=True)), {}, [Level.ERROR]),
        (Known(OrgPolicy(SHIELDED_VM, enforced=True)), SECURE, []),
        (Known(OrgPolicy(SHIELDED_VM, enforced=True)), EXISTS, []),
        (Known(OrgPolicy(SHIELDED_VM, enforced=True, is_conditional=True)), {}, [Level.WARNING]),
        (Known(OrgPolicy(SHIELDED_VM, is_conditional=True)), {}, [Level.WARNING]),
        (REFUSED, {}, []),
    ],
)
def test_secure_boot_policy_levels(policy: Any, want: dict[str, Any], level: list[Level]) -> None:
    assert levels(secure_boot_satisfied, facts(want=want, org_policies={SHIELDED_VM: policy})) == level


def test_unread_policies_are_one_finding() -> None:
    policies = {EXTERNAL_IPS: REFUSED, OS_LOGIN: LATE, SHIELDED_VM: REFUSED}

    assert found(external_addresses_allowed, facts(org_policies=policies)) == [
        RuleResult(
            level=Level.UNKNOWN,
            subject="project p",
            text="whether an organisation policy forbids it (external addresses, OS Login, Secure Boot) could not be "
            "read: no answer within 15s",
            remedies=(Remedy("check again; reading it takes the permission `orgpolicy.policy.get` on project `p`"),),
            facts={"permission": "orgpolicy.policy.get"},
            is_passing=True,
        )
    ]
