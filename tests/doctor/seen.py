"""Surroundings in which everything is in order, and what the rules say of others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tpuctl.checkup.catalogue import judge
from tpuctl.checkup.surroundings.facts import (
    Answer,
    Cloud,
    Configuration,
    CredentialFile,
    Entry,
    Gcloud,
    Host,
    Identity,
    Keys,
    Machine,
    Network,
    Program,
    Surroundings,
    Token,
)
from tpuctl.checkup.surroundings.project import NEEDED
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Level
from tpuctl.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 2**20
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
KEY, PUBLIC = Path("/h/.ssh/google_compute_engine"), Path("/h/.ssh/google_compute_engine.pub")
LINE, OTHER = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"
ADC = Path("/h/adc.json")
TPU = "tpu.googleapis.com"
FILE = CredentialFile(Entry(ADC, 0o600), "authorized_user", None, "ada@example.com", "p")

GOOD = Surroundings(
    now=NOW,
    machine=Machine(
        python=(3, 13, 0),
        executable="/py",
        environment="/venv",
        tpuctl="1.0",
        installed_by="pipx",
        packages={"click": Known("8.2.0")},
        required={"click": "8.1.8"},
        gcloud=Known(Gcloud("/g/bin/gcloud", "/g", Known("528.0.0"))),
        programs={"ssh": Known(Program("/ssh", Known("OpenSSH_9.2p1")))},
        folders={"state": Entry(Path("/state"), 0o700)},
        bytes_left={"/state": 500 * MIB},
        journal=Known(1),
        term="xterm",
        locale="de_DE.UTF-8",
    ),
    keys=Keys(
        private=Entry(KEY, 0o600),
        public_half=Entry(PUBLIC, 0o644),
        home=Path("/h"),
        folder=Entry(KEY.parent, 0o700),
        known_hosts=(Entry(Path("/h/known"), 0o644), Entry(Path("/h/absent"))),
        public=Known(LINE),
        derived=Known(LINE),
        agent=Absent(),
    ),
    identity=Identity(
        file=Known(FILE),
        token=Known(Token("ada@example.com", frozenset({SCOPE}), NOW + timedelta(hours=1))),
        gcloud_account="ada@example.com",
    ),
    network=Network(
        proxy=Absent(),
        hosts=(Host(TPU, Known(("192.0.2.1",)), Known(Answer(404, timedelta(seconds=0.1), timedelta()))),),
    ),
    configuration=Configuration(settings=Known(Settings({})), gcloud_entry=Entry(Path("/h/config_default"), 0o600)),
    cloud=Cloud(project=Known("p"), wanted_permissions=tuple(NEEDED), permissions=Known(frozenset(NEEDED))),
)

LATE = Unknown("no answer within 4s", is_passing=True)

Said = list[tuple[str, str, str]]


def with_(part: str, **changes: Any) -> Surroundings:
    """Return what is in order, but for some fields of one part."""
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **changes)})


def said(seen: Surroundings) -> Said:
    """Return id, level and text of everything that is not in order."""
    return [(one.id, str(one.level), one.found.text) for one in judge(seen) if one.level is not Level.OK]


def remedies(seen: Surroundings, id_: str) -> list[tuple[str, str | None]]:
    """Return what is advised under one id: words and commands."""
    return [(one.text, one.command) for found in judge(seen) if found.id == id_ for one in found.found.remedies]
