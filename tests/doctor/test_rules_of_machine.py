"""Rules about this machine and its ssh key: a case for each problem and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.environment_cases import (
    ADC,
    FILE,
    GOOD,
    KEY,
    LINE,
    MIB,
    OTHER,
    Findings,
    problems,
    remedies,
    row_ids,
    with_,
)
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.findings import AddKeyToSshAgent, CreateSshKey, SetFileMode
from tpuctl.doctor.doctor_facts import EnvironmentFacts, GcloudInstallation, InstalledProgram, PathStatus
from tpuctl.doctor.rule_catalogue import evaluate_environment


def on(year: int, month: int, day: int) -> EnvironmentFacts:
    return replace(with_("machine", python=(3, 11, 7)), now=datetime(year, month, day, tzinfo=UTC))


def gcloud(**fields: Any) -> EnvironmentFacts:
    return with_(
        "machine", gcloud=Known(replace(GcloudInstallation("/g/bin/gcloud", "/g", Known("528.0.0")), **fields))
    )


PYTHON = "`/py`, in the virtual environment `/venv`"
MACHINE: list[tuple[EnvironmentFacts, Findings]] = [
    (with_("machine", python=(3, 10, 14)), [("TPU901", "error", f"Python 3.10.14 is older than 3.11: {PYTHON}")]),
    (with_("machine", python=(3, 99, 0)), []),
    (on(2027, 5, 2), []),
    (on(2027, 5, 3), [("TPU901", "note", f"Python 3.11.7 gets no security fixes after 2027-10-31: {PYTHON}")]),
    (on(2027, 10, 31), [("TPU901", "note", f"Python 3.11.7 gets no security fixes after 2027-10-31: {PYTHON}")]),
    (on(2027, 11, 1), [("TPU901", "warning", f"Python 3.11.7 gets no security fixes since 2027-10-31: {PYTHON}")]),
    (with_("machine", packages={"click": Known("8.1.8")}), []),
    (
        with_("machine", packages={"click": Known("8.1.7")}),
        [("TPU903", "warning", "click 8.1.7 is older than 8.1.8")],
    ),
    (
        with_("machine", packages={"click": Absent()}),
        [("TPU903", "error", "the package `click` cannot be imported")],
    ),
    (with_("machine", gcloud=Absent()), [("TPU904", "note", "gcloud is not on PATH")]),
    (
        replace(with_("machine", gcloud=Absent()), identity=replace(GOOD.identity, file=Absent())),
        [("TPU904", "warning", "gcloud is not on PATH")],
    ),
    (
        gcloud(version=Known("527.9.9")),
        [
            (
                "TPU904",
                "note",
                "gcloud 527.9.9 is older than 528.0.0, with which the printed commands were tested",
            )
        ],
    ),
    (gcloud(version=Known("528.0.1")), []),
    (
        gcloud(root=None, version=Unknown("why")),
        [("TPU904", "unknown", "the version of `/g/bin/gcloud` could not be read: why")],
    ),
    (
        with_("configuration", gcloud_entry=PathStatus(Path("/c"), 0o600, problem="you may not read it")),
        [("TPU906", "warning", "the configuration `default` of gcloud cannot be read: you may not read it")],
    ),
    (with_("configuration", gcloud_entry=PathStatus(Path("/c"))), []),
    (
        with_(
            "configuration",
            gcloud_name="work",
            gcloud_entry=PathStatus(Path("/c")),
            variables={"CLOUDSDK_ACTIVE_CONFIG_NAME": "work"},
        ),
        [("TPU906", "warning", "gcloud has no configuration `work`, which `CLOUDSDK_ACTIVE_CONFIG_NAME` names")],
    ),
    (with_("machine", programs={"ssh": Absent()}), [("TPU907", "error", "`ssh` is not on PATH")]),
    (
        with_("machine", programs={"ssh": Unknown("it was too slow")}),
        [("TPU907", "unknown", "`ssh` could not be checked: it was too slow")],
    ),
    (with_("machine", programs={"scp": Absent()}), [("TPU907", "warning", "`scp` is not on PATH")]),
    (with_("machine", programs={"rsync": Absent()}), [("TPU907", "note", "`rsync` is not on PATH")]),
    (with_("machine", programs={"ssh": Known(InstalledProgram("/ssh", Known("OpenSSH_7.6p1")))}), []),
    (
        with_("machine", programs={"ssh": Known(InstalledProgram("/ssh", Known("OpenSSH_7.5p1")))}),
        [("TPU907", "warning", "`/ssh` is OpenSSH_7.5p1, older than OpenSSH 7.6")],
    ),
    (
        with_("machine", folders={"state": PathStatus(Path("/s"), problem="it is not a folder")}),
        [("TPU908", "error", "the state folder cannot be used: it is not a folder")],
    ),
    (
        with_("machine", folders={"config": PathStatus(Path("/s"), problem="it is not a folder")}),
        [("TPU908", "warning", "the configuration folder cannot be used: it is not a folder")],
    ),
    (
        with_("machine", folders={"state": PathStatus(Path("/s"), 0o750)}),
        [("TPU908", "note", "other users may read the state folder (mode 0750)")],
    ),
    (with_("machine", bytes_left={"/s": 500 * MIB - 1}), [("TPU909", "warning", "its disk has 499 MiB left")]),
    (with_("machine", bytes_left={"/s": 20 * MIB}), [("TPU909", "warning", "its disk has 20 MiB left")]),
    (with_("machine", bytes_left={"/s": 20 * MIB - 1}), [("TPU909", "error", "its disk has 19 MiB left")]),
    (with_("machine", journal=Unknown("why")), [("TPU910", "warning", "the journal cannot be read: why")]),
    (with_("machine", journal=None), []),
    (
        with_("machine", encoding="ascii"),
        [("TPU911", "note", "TERM is xterm, the locale is de_DE.UTF-8, the encoding ascii")],
    ),
    (with_("machine", encoding="UTF_8"), []),
]
LOCKED: dict[str, Any] = {"derived": Unknown("it has a passphrase"), "is_locked": True}
NO_AGENT = "the key has a passphrase, and no agent holds it: "
PAIR_UNKNOWN = (
    "TPU916",
    "unknown",
    "the ssh keys could not be compared: the private key has a passphrase",
)
KEYS: list[tuple[EnvironmentFacts, Findings]] = [
    (
        with_("keys", private=PathStatus(KEY, 0o640)),
        [("TPU915", "error", "other users may read the private key (mode 0640)")],
    ),
    (with_("keys", private=PathStatus(KEY, 0o400)), []),
    (with_("keys", private=PathStatus(KEY, 0o644, is_own=False)), []),
    (
        with_("keys", private=PathStatus(KEY, 0o600, problem="it is a folder")),
        [("TPU915", "error", "the private key cannot be read: it is a folder")],
    ),
    (
        with_("keys", private=PathStatus(KEY), public=Absent(), derived=None),
        [("TPU915", "note", "no ssh key exists yet; `tpuctl up` and `tpuctl ssh` create it when they need it")],
    ),
    (
        with_("keys", private=PathStatus(KEY), public=Absent(), derived=None, home=None),
        [("TPU915", "error", "the key does not exist, and no agent holds it")],
    ),
    (with_("keys", private=PathStatus(KEY), derived=None, home=None, agent=Known(frozenset({LINE}))), []),
    (
        with_("keys", derived=Known(OTHER)),
        [("TPU916", "error", "the public key does not belong to the private key")],
    ),
    (
        with_("keys", public=Unknown("it is not a public key")),
        [("TPU916", "error", "the public key cannot be used: it is not a public key")],
    ),
    (with_("keys", public=Absent()), []),
    (
        with_("keys", derived=Unknown("invalid format")),
        [("TPU916", "error", f"`{KEY}` is not a usable private key: invalid format")],
    ),
    (
        with_("keys", derived=Unknown("it did not answer", is_passing=True)),
        [("TPU916", "unknown", "the ssh keys could not be compared: it did not answer")],
    ),
    (with_("keys", **LOCKED), [PAIR_UNKNOWN, ("TPU917", "warning", f"{NO_AGENT}no agent is running")]),
    (with_("keys", **LOCKED, agent=Known(frozenset({LINE}))), []),
    (
        with_("keys", **LOCKED, agent=Known(frozenset({OTHER}))),
        [PAIR_UNKNOWN, ("TPU917", "warning", f"{NO_AGENT}an agent answers and holds 1 key")],
    ),
    (
        with_("keys", **LOCKED, public=Absent()),
        [
            ("TPU916", "error", "the public key does not exist, and the private one has a passphrase"),
            ("TPU917", "warning", f"{NO_AGENT}no agent is running"),
        ],
    ),
    (
        with_("keys", agent=Unknown("no listener")),
        [("TPU917", "note", "the agent of `SSH_AUTH_SOCK` does not answer: no listener")],
    ),
    (with_("keys", folder=PathStatus(KEY.parent, 0o755)), [("TPU918", "note", "other users may read it (mode 0755)")]),
    (
        with_("keys", folder=PathStatus(KEY.parent, 0o770)),
        [("TPU918", "warning", "other users may write to it (mode 0770)")],
    ),
    (with_("keys", folder=PathStatus(Path("/"), 0o755)), []),
    (
        with_("keys", folder=PathStatus(Path("/tmp"), 0o1777)),
        [("TPU918", "warning", "other users may write to it (mode 1777)")],
    ),
    (
        with_("keys", known_hosts=(PathStatus(Path("/h/known"), 0o664),)),
        [("TPU918", "warning", "other users may write to it (mode 0664)")],
    ),
    (
        with_("keys", known_hosts=(PathStatus(Path("/h/known"), 0o600, problem="it is a folder"),)),
        [("TPU918", "warning", "it cannot be used: it is a folder")],
    ),
]


@pytest.mark.parametrize(("seen", "expected"), [*MACHINE, *KEYS], ids=row_ids([*MACHINE, *KEYS]))
def test_rule_yields_the_finding_of_each_case(seen: EnvironmentFacts, expected: Findings) -> None:
    assert problems(seen) == expected


@pytest.mark.parametrize(
    ("packaging", "command"),
    [
        (None, "gcloud components update"),
        ("apt", "sudo apt-get update && sudo apt-get install --only-upgrade google-cloud-cli"),
        ("snap", "sudo snap refresh google-cloud-cli"),
    ],
)
def test_gcloud_update_command_is_that_of_its_package_manager(packaging: str | None, command: str) -> None:
    assert remedies(gcloud(version=Known("400.0.0"), packaging=packaging), "TPU904") == [("update it", command)]


def test_fixes_are_local_and_remove_nothing() -> None:
    seen = replace(
        with_("machine", folders={"state": PathStatus(Path("/s"), 0o755)}),
        keys=replace(GOOD.keys, private=PathStatus(KEY, 0o644), folder=PathStatus(KEY.parent, 0o777)),
        identity=replace(GOOD.identity, file=Known(replace(FILE, entry=PathStatus(ADC, 0o666)))),
    )
    # The mode of a folder that other users may share is not changed.
    shared = replace(
        with_("machine", folders={"state": PathStatus(Path("/tmp"), 0o1777)}),
        keys=replace(GOOD.keys, folder=PathStatus(Path("/"), 0o777)),
        configuration=replace(GOOD.configuration, variables={"TPUCTL_STATE_DIR": "/tmp"}),
    )
    locked, missing = with_("keys", **LOCKED), with_("keys", private=PathStatus(KEY), public=Absent(), derived=None)

    changes = [
        remedy.change
        for each in (seen, shared, locked, missing)
        for one in evaluate_environment(each).findings
        for remedy in one.found.remedies
        if remedy.change is not None
    ]

    assert changes == [
        SetFileMode(str(KEY), 0o600),
        SetFileMode(str(KEY.parent), 0o700),
        SetFileMode(str(ADC), 0o600),
        SetFileMode("/s", 0o700),
        AddKeyToSshAgent(str(KEY)),
        CreateSshKey("/h"),
    ]
    assert [change.command for change in changes][0::4] == [f"chmod 600 {KEY}", f"ssh-add {KEY}"]


def test_remedy_commands_are_valid_shell() -> None:
    key = Path("/my home/key")
    seen = with_(
        "keys", private=PathStatus(key, 0o600), public_half=PathStatus(key.with_suffix(".pub"), 0o644), public=Absent()
    )

    def commands(one: EnvironmentFacts) -> list[str | None]:
        return [
            remedy.command
            for found in evaluate_environment(one).findings
            for remedy in found.found.remedies
            if found.id == "TPU916"
        ]

    assert commands(replace(seen, keys=replace(seen.keys, **LOCKED))) == [
        "ssh-keygen -y -f '/my home/key' > '/my home/key.pub'"
    ]
    assert commands(replace(seen, keys=replace(seen.keys, public=Known(OTHER), home=None))) == [
        "mv '/my home/key.pub' '/my home/key.pub.old'"
    ]
