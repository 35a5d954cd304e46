"""Facts without any problem, facts with one change, and the findings about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.config.settings import Settings
from tpuctl.doctor.cloud_rules import NEEDED_PERMISSIONS
from tpuctl.doctor.doctor_facts import (
    AccessToken,
    CallerIdentity,
    CloudHost,
    ConfigFacts,
    CredentialFile,
    EnvironmentFacts,
    GcloudInstallation,
    HostAnswer,
    InstalledProgram,
    LocalMachine,
    NetworkFacts,
    PathStatus,
    ProjectFacts,
    SshKeyFacts,
)
from tpuctl.doctor.rule_catalogue import evaluate_environment

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 2**20
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
KEY, PUBLIC = Path("/h/.ssh/google_compute_engine"), Path("/h/.ssh/google_compute_engine.pub")
LINE, OTHER = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"
ADC = Path("/h/adc.json")
TPU = "tpu.googleapis.com"
FILE = CredentialFile(PathStatus(ADC, 0o600), "authorized_user", None, "ada@example.com", "p")

GOOD = EnvironmentFacts(
    now=NOW,
    machine=LocalMachine(
        python=(3, 13, 0),
        executable="/py",
        environment="/venv",
        tpuctl="1.0",
        installed_by="pipx",
        packages={"click": Known("8.2.0")},
        required={"click": "8.1.8"},
        gcloud=Known(GcloudInstallation("/g/bin/gcloud", "/g", Known("528.0.0"))),
        programs={"ssh": Known(InstalledProgram("/ssh", Known("OpenSSH_9.2p1")))},
        folders={"state": PathStatus(Path("/state"), 0o700)},
        bytes_left={"/state": 500 * MIB},
        journal=Known(1),
        term="xterm",
        locale="de_DE.UTF-8",
    ),
    keys=SshKeyFacts(
        private=PathStatus(KEY, 0o600),
        public_half=PathStatus(PUBLIC, 0o644),
        home=Path("/h"),
        folder=PathStatus(KEY.parent, 0o700),
        known_hosts=(PathStatus(Path("/h/known"), 0o644), PathStatus(Path("/h/absent"))),
        public=Known(LINE),
        derived=Known(LINE),
        agent=Absent(),
    ),
    identity=CallerIdentity(
        file=Known(FILE),
        token=Known(AccessToken("ada@example.com", frozenset({SCOPE}), NOW + timedelta(hours=1))),
        gcloud_account="ada@example.com",
    ),
    network=NetworkFacts(
        proxy=Absent(),
        hosts=(CloudHost(TPU, Known(("192.0.2.1",)), Known(HostAnswer(timedelta()))),),
    ),
    configuration=ConfigFacts(settings=Known(Settings({})), gcloud_entry=PathStatus(Path("/h/config_default"), 0o600)),
    cloud=ProjectFacts(
        project=Known("p"),
        permissions=Known(frozenset(NEEDED_PERMISSIONS)),
    ),
)

LATE = Unknown("no answer within 4s", is_passing=True)

Findings = list[tuple[str, str, str]]


def with_(part: str, **changes: Any) -> EnvironmentFacts:
    """Return facts without problems, except for some fields of one part."""
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **changes)})


def problems(seen: EnvironmentFacts) -> Findings:
    """Return id, level and text of each finding, by id."""
    found = [(one.id, str(one.level), one.found.text) for one in evaluate_environment(seen).findings]
    return sorted(found, key=lambda one: one[0])


def remedies(seen: EnvironmentFacts, id_: str) -> list[tuple[str, str | None]]:
    """Return the remedies of the findings with one id: texts and commands."""
    return [
        (one.text, one.command)
        for found in evaluate_environment(seen).findings
        if found.id == id_
        for one in found.found.remedies
    ]


def row_ids(rows: list[tuple[EnvironmentFacts, Findings]]) -> list[str]:
    """Return an id for each row of a table: the ids and levels of its findings."""
    return [", ".join(f"{id_} {level}" for id_, level, _ in expected) or "no finding" for _, expected in rows]
