"""Contracts with scripts: the ids of the findings of `tpuctl doctor`, and what its JSON hides."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.doctor.environment_cases import GOOD, with_
from tpuctl.check.facts import Absent, Known
from tpuctl.check.rules import RETIRED_RULES, RULES
from tpuctl.config.settings import ResolvedSetting, Settings, SettingSource, SourceKind
from tpuctl.doctor.doctor_facts import environment_json
from tpuctl.doctor.rule_catalogue import (
    DOCTOR_RULE_IDS,
    DOCTOR_RULES,
    ENVIRONMENT_RULES,
    REFERENCE_CHAPTERS,
)

# An id never changes its meaning. Ids about a node begin with TPU950, about its workers with TPU966.
FROZEN = (
    *(f"TPU{number}" for number in range(901, 913)),
    *(f"TPU{number}" for number in range(915, 919)),
    *(f"TPU{number}" for number in range(921, 926)),
    *(f"TPU{number}" for number in range(931, 936)),
    *("TPU940", "TPU941"),
    *(f"TPU{number}" for number in range(945, 949)),
    *(f"TPU{number}" for number in range(950, 963)),
    *(f"TPU{number}" for number in range(965, 991)),
)


def test_finding_ids_stay_the_same() -> None:
    """Rules about the project and an existing node belong to `check`; `--skip` accepts the ids of both, also retired ones."""
    assert sorted(rule.id for rule in DOCTOR_RULES) == [id_ for id_ in FROZEN if id_ not in RETIRED_RULES]
    assert {*FROZEN, *RETIRED_RULES, *(rule.id for rule in RULES)} == set(DOCTOR_RULE_IDS)


def test_each_rule_has_a_chapter_a_title_and_a_text() -> None:
    assert [
        rule.id
        for rule in DOCTOR_RULES
        if rule.id < min(REFERENCE_CHAPTERS) or rule.title.endswith(".") or not rule.title
    ] == []
    # The docstring is the text of the reference.
    assert [rule.id for rule in DOCTOR_RULES if not rule.text.endswith((".", "]"))] == []


def test_doctor_hides_secret_settings() -> None:
    """The JSON has the source of each setting, and no value."""
    settings = Settings(
        {"proxy_password": ResolvedSetting("hunter2", SettingSource(SourceKind.CLOUDSDK, "CLOUDSDK_PROXY_PASSWORD"))}
    )
    seen = with_("configuration", settings=Known(settings))

    report = environment_json(replace(seen, machine=replace(GOOD.machine, gcloud=Absent())))

    assert report["settings"] == {"proxy_password": "CLOUDSDK_PROXY_PASSWORD"}
    assert (report["gcloud"], report["packages"], report["account"]) == (None, {"click": "8.2.0"}, "ada@example.com")
    assert "hunter2" not in json.dumps(report)
    assert "hunter2" not in str([found.text for rule in ENVIRONMENT_RULES for found in rule.judge(seen)])
