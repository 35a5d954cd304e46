"""Rules about credentials and network: a case for each problem and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.environment_cases import ADC, FILE, GOOD, LATE, TPU, Findings, problems, remedies, row_ids, with_
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.doctor.doctor_facts import AccessFailure, AccessToken, CloudHost, EnvironmentFacts, HostAnswer, PathStatus
from tpuctl.doctor.rule_catalogue import ENVIRONMENT_RULES, evaluate_environment


def test_rules_without_problems_are_silent() -> None:
    assert problems(GOOD) == []
    assert set(evaluate_environment(GOOD).examined) >= {rule.id for rule in ENVIRONMENT_RULES}


@pytest.mark.parametrize("part", ["machine", "keys", "identity", "network", "configuration", "cloud"])
def test_rules_are_never_silent_about_unknown_facts(part: str) -> None:
    """With every fact of one part unknown, no rule raises, and no rule about one of them is silent."""
    gap = Unknown("why")
    unknown: dict[str, dict[str, Any]] = {
        "machine": {"gcloud": gap, "journal": gap, "packages": {"click": gap}, "programs": {"ssh": gap}},
        "keys": {"public": gap, "derived": gap, "agent": gap},
        "identity": {"file": gap, "token": gap},
        "network": {"proxy": gap, "hosts": (CloudHost(TPU, gap, gap),)},
        "configuration": {"settings": gap},
        "cloud": {"project": gap, "permissions": gap},
    }
    blind = {
        "machine": {"TPU903", "TPU904", "TPU907", "TPU910"},
        "keys": {"TPU916", "TPU917"},
        "identity": {"TPU921"},
        "network": {"TPU931", "TPU932", "TPU934"},
        "configuration": {"TPU945"},
        "cloud": {"TPU940", "TPU941"},
    }
    seen = with_(part, **unknown[part])
    found = {rule.id: list(rule.judge(seen)) for rule in ENVIRONMENT_RULES}

    assert {id_ for id_ in blind[part] if not found[id_]} == set()


def refused(**fields: Any) -> EnvironmentFacts:
    return with_("identity", token=Known(AccessFailure("why", ("do this",), "auth-grant-expired")), **fields)


IDENTITY: list[tuple[EnvironmentFacts, Findings]] = [
    (with_("identity", is_needed=False, file=Absent(), token=None), []),
    (
        refused(file=Absent(), gcloud_account=None),
        [("TPU921", "error", "not logged in: there are no credentials on this machine")],
    ),
    (
        refused(file=Absent()),
        [
            (
                "TPU921",
                "error",
                "there is no credentials file, and gcloud's login of `ada@example.com` gives no token: why",
            )
        ],
    ),
    (with_("identity", file=Absent()), []),
    (
        with_("identity", file=Absent(), token=Unknown("too slow")),
        [
            (
                "TPU921",
                "unknown",
                "there is no credentials file, and it is unknown whether this machine or gcloud has a login: too slow",
            )
        ],
    ),
    (
        with_("identity", file=Unknown("there is no `/x`"), named_by="GOOGLE_APPLICATION_CREDENTIALS", token=None),
        [
            (
                "TPU921",
                "error",
                "`GOOGLE_APPLICATION_CREDENTIALS` names a file that cannot be used: there is no `/x`",
            )
        ],
    ),
    (
        with_("identity", file=Known(replace(FILE, entry=PathStatus(ADC, 0o644)))),
        [("TPU922", "warning", "other users may read the credentials (mode 0644)")],
    ),
    (
        with_("identity", file=Known(replace(FILE, quota_project=None))),
        [("TPU923", "warning", "the login names no quota project")],
    ),
    (with_("identity", file=Known(replace(FILE, quota_project=None)), quota_project="q"), []),
    (with_("identity", file=Known(replace(FILE, quota_project=None, kind="service_account"))), []),
    (refused(), [("TPU924", "error", "no access token: why")]),
    (
        with_("identity", token=Unknown("too slow")),
        [("TPU924", "unknown", "it is unknown whether Google accepts the credentials: too slow")],
    ),
    (
        with_("identity", token=Known(AccessToken("ada@example.com", frozenset({"https://a/b"})))),
        [("TPU924", "error", "the credentials of `ada@example.com` lack the scope `cloud-platform`")],
    ),
    (with_("identity", token=Known(AccessToken())), []),
    (
        with_("identity", gcloud_account="bob@example.com"),
        [("TPU925", "note", "tpuctl acts as `ada@example.com`, gcloud as `bob@example.com`")],
    ),
    (with_("identity", gcloud_account="ADA@example.com"), []),
    (with_("identity", gcloud_account="bob@example.com", impersonated="sa@p.iam.gserviceaccount.com"), []),
]


def ahead(seconds: float, **fields: Any) -> EnvironmentFacts:
    answer = HostAnswer(timedelta(seconds=seconds))
    return with_("network", hosts=(CloudHost(TPU, None, Known(answer)),), **fields)


NO_CLOCK = ("TPU934", "unknown", "the clock could not be checked: no host answered with its time")
CLOCK = "the clock of this machine is"
NETWORK: list[tuple[EnvironmentFacts, Findings]] = [
    (with_("network", proxy=Known("http://h:1"), proxy_source="`HTTPS_PROXY`"), []),
    (with_("network", proxy=Unknown("why")), [("TPU931", "error", "the proxy cannot be used: why")]),
    (
        with_("network", proxy=Known("http://h:1"), bypassed=(TPU,)),
        [("TPU931", "note", f"`NO_PROXY` excludes {TPU} from the proxy http://h:1")],
    ),
    (with_("network", proxy=Known("http://h:1"), bypassed=("localhost:1",)), []),
    (
        with_("network", proxy=Known("http://h:1"), other_proxies=("HTTPS_PROXY",)),
        [("TPU931", "note", "`HTTPS_PROXY` names another proxy, which is not used")],
    ),
    (
        with_(
            "network",
            hosts=(CloudHost(TPU, Unknown("no such name"), Unknown("no such name")), CloudHost("b", None, LATE)),
        ),
        [
            ("TPU932", "error", "the name cannot be resolved: no such name"),
            ("TPU933", "unknown", "no answer within 4s"),
            NO_CLOCK,
        ],
    ),
    (
        with_(
            "network",
            hosts=tuple(CloudHost(name, None, Unknown(f"{name} cannot be reached: refused")) for name in "ab"),
        ),
        [("TPU933", "error", "no answer: cannot be reached: refused"), NO_CLOCK],
    ),
    (with_("network", hosts=()), [NO_CLOCK]),
    (
        with_("network", hosts=(CloudHost(TPU, LATE, LATE),)),
        [
            ("TPU932", "unknown", "the name was not resolved in time: no answer within 4s"),
            ("TPU933", "unknown", "no answer within 4s"),
            NO_CLOCK,
        ],
    ),
    (ahead(60), []),
    (ahead(-60), []),
    (ahead(61), [("TPU934", "warning", f"{CLOCK} 1m01s behind")]),
    (ahead(-300), [("TPU934", "warning", f"{CLOCK} 5m ahead")]),
    (ahead(-301), [("TPU934", "error", f"{CLOCK} 5m01s ahead")]),
    (
        ahead(301, is_local=True),
        [
            (
                "TPU934",
                "note",
                f"{CLOCK} 5m01s behind that of the endpoint, which is on this machine and may have its own clock",
            )
        ],
    ),
    (with_("network", ca_file=PathStatus(Path("/ca"), 0o644)), []),
    (
        with_("network", ca_file=PathStatus(Path("/ca"))),
        [("TPU935", "error", "the CA certificates cannot be read: there is no such file")],
    ),
]


@pytest.mark.parametrize(("seen", "expected"), [*IDENTITY, *NETWORK], ids=row_ids([*IDENTITY, *NETWORK]))
def test_rule_yields_the_finding_of_each_case(seen: EnvironmentFacts, expected: Findings) -> None:
    assert problems(seen) == expected


def test_login_remedy_only_if_a_login_helps() -> None:
    login = "gcloud auth application-default login"
    logged_out = refused(file=Absent(), gcloud_account=None)
    without = replace(logged_out, machine=replace(GOOD.machine, gcloud=Absent()))
    named = with_("identity", file=Unknown("why"), named_by="GOOGLE_APPLICATION_CREDENTIALS", token=None)
    unasked = with_("identity", file=Absent(), token=Unknown("the settings are invalid"))

    assert remedies(logged_out, "TPU921")[0] == ("log in", login)
    assert remedies(without, "TPU921")[0] == (
        "install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then log in",
        login,
    )
    # A variable goes before every login.
    assert [command for _, command in remedies(named, "TPU921")] == ["unset GOOGLE_APPLICATION_CREDENTIALS", login]
    assert remedies(unasked, "TPU921") == []


def test_unreachable_host_behind_a_proxy_suggests_checking_the_proxy() -> None:
    def advice(seen: EnvironmentFacts) -> list[str]:
        return [text.partition(":")[0] for text, _ in remedies(seen, "TPU933")]

    silent = (CloudHost(TPU, None, LATE),)
    assert advice(with_("network", hosts=silent)) == [
        "check the network and the firewall, and whether a proxy is needed"
    ]
    assert advice(with_("network", hosts=silent, proxy=Known("http://h:1"))) == [
        "check that the proxy is running and correct"
    ]
