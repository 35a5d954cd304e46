"""Rules about the project and the settings: a case for each problem and each boundary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.environment_cases import GOOD, LATE, Findings, problems, remedies, row_ids, with_
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.config.settings import ConfigEntry, ConfigFile, ResolvedSetting, Settings, SettingSource, SourceKind
from tpuctl.doctor.cloud_rules import NEEDED_PERMISSIONS
from tpuctl.doctor.doctor_facts import AccessToken, EnvironmentFacts


def lacking(*names: str) -> EnvironmentFacts:
    held = frozenset(NEEDED_PERMISSIONS) - set(names)
    return with_("cloud", permissions=Known(held))


CLOUD: list[tuple[EnvironmentFacts, Findings]] = [
    (with_("cloud", project=Absent(), permissions=None), [("TPU940", "warning", "no project is set")]),
    (
        with_("cloud", project=Absent(), permissions=None, node="demo"),
        [("TPU940", "error", "no project is set")],
    ),
    (
        with_("cloud", skip_reason="no answer"),
        [("TPU941", "unknown", "its APIs, its billing and your permissions were not checked: no answer")],
    ),
    (
        with_("cloud", permissions=LATE),
        [("TPU941", "unknown", "your permissions in the project are unknown: no answer within 4s")],
    ),
    (
        lacking("tpu.nodes.list", "tpu.nodes.stop", "compute.projects.get"),
        [
            ("TPU941", "error", "you lack `tpu.nodes.list` in project `p`"),
            ("TPU941", "warning", "you lack `tpu.nodes.stop` in project `p`"),
            ("TPU941", "note", "you lack `compute.projects.get` in project `p`"),
        ],
    ),
]


def setting(key: str, value: str, kind: SourceKind, place: str) -> Known[Settings]:
    return Known(Settings({key: ResolvedSetting(value, SettingSource(kind, place))}))


USER_FILE = ConfigFile(Path("/c.yaml"), {"project": ConfigEntry("mine", 3)})
BY_ENVIRONMENT = setting("project", "other", SourceKind.ENVIRONMENT, "TPUCTL_PROJECT")


def variables(**found: str) -> EnvironmentFacts:
    return with_("configuration", variables=found)


SANDBOX = (
    "commands use the local sandbox (`TPUCTL_SANDBOX`): nothing is real or billed, and real credentials are not used"
)
CONFIGURATION: list[tuple[EnvironmentFacts, Findings]] = [
    (variables(TPU_LOG_DIR="disabled", TPU_MIN_LOG_LEVEL="3"), []),
    (variables(TPU_LOG_DIR="/tmp/logs"), []),
    (
        variables(TPU_LOG_DIR="deaktiviert"),
        [("TPU912", "warning", "`TPU_LOG_DIR=deaktiviert` is set here, and libtpu does not accept that value")],
    ),
    (
        variables(TPU_STDERR_LOG_LEVEL="4"),
        [("TPU912", "warning", "`TPU_STDERR_LOG_LEVEL=4` is set here, and libtpu does not accept that value")],
    ),
    (
        with_("configuration", settings=Unknown("/c.yaml line 1: unknown key `zoen`")),
        [("TPU945", "error", "/c.yaml line 1: unknown key `zoen`")],
    ),
    (
        with_("configuration", problems=("TPUCTL_TIMEOUT: `timeout` is `x`",)),
        [("TPU945", "error", "TPUCTL_TIMEOUT: `timeout` is `x`")],
    ),
    (
        with_("configuration", settings=BY_ENVIRONMENT, files=(USER_FILE,)),
        [
            (
                "TPU946",
                "note",
                "`TPUCTL_PROJECT` sets `project` to `other`, which overrides `/c.yaml` line 3",
            )
        ],
    ),
    (
        with_(
            "configuration",
            settings=setting("project", "mine", SourceKind.ENVIRONMENT, "TPUCTL_PROJECT"),
            files=(USER_FILE,),
        ),
        [],
    ),
    (
        with_("configuration", settings=setting("project", "x", SourceKind.FLAG, "--project"), files=(USER_FILE,)),
        [],
    ),
    (variables(TPUCTL_PROJEKT=""), [("TPU947", "warning", "`TPUCTL_PROJEKT` has no effect: tpuctl does not read it")]),
    (variables(TPUCTL_PROJECT="", TPUCTL_STATE_DIR="", TPUCTL_NODE="", CLOUDSDK_CORE_PROJECT=""), []),
    (
        variables(CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU="http://h/"),
        [
            (
                "TPU947",
                "note",
                "`CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU` sends gcloud to http://h/, which tpuctl does not use",
            )
        ],
    ),
    (
        with_("configuration", endpoint="https://h/"),
        [("TPU948", "note", "calls go to `https://h/`, not to Google")],
    ),
    (
        with_(
            "configuration", is_sandbox=True, settings=setting("sandbox", "1", SourceKind.ENVIRONMENT, "TPUCTL_SANDBOX")
        ),
        [
            (
                "TPU948",
                "note",
                SANDBOX,
            )
        ],
    ),
]


@pytest.mark.parametrize(("seen", "expected"), [*CLOUD, *CONFIGURATION], ids=row_ids([*CLOUD, *CONFIGURATION]))
def test_rule_yields_the_finding_of_each_case(seen: EnvironmentFacts, expected: Findings) -> None:
    assert problems(seen) == expected


@pytest.mark.parametrize(
    ("identity", "member"),
    [
        ({}, "user:ada@example.com"),
        ({"impersonated": "sa@p.iam.gserviceaccount.com"}, "serviceAccount:sa@p.iam.gserviceaccount.com"),
        ({"file": Absent(), "token": Known(AccessToken()), "gcloud_account": None}, "user:EMAIL"),
    ],
)
def test_permission_remedy_names_the_account(identity: dict[str, Any], member: str) -> None:
    seen = replace(lacking("tpu.nodes.list"), identity=replace(GOOD.identity, **identity))

    assert [command for _, command in remedies(seen, "TPU941")] == [
        f"gcloud projects add-iam-policy-binding p --member={member} --role=roles/tpu.admin --condition=None"
    ]
