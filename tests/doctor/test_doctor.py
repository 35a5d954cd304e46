"""`tpuctl doctor` on a machine without problems, on broken ones, without an account, and without a network."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.doctor.doctor_console import NOWHERE, found, run_doctor
from tests.lifecycle import both_faces, put
from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import advance_clock
from tpuctl.sandbox.http_server import open_server


@both_faces
def test_doctor_working_sandbox_has_no_problems(tpuctl: Console) -> None:
    found_, code = run_doctor(tpuctl, "--skip", "TPU907")

    assert (code, {level for level, _ in found_.values()} <= {"note"}) == (0, True)
    assert "TPU948" in found_


def test_doctor_sandbox_ignores_real_credentials_and_keys(tpuctl: Console) -> None:
    """They are not even read, so their problems are not reported."""
    home = Path(tpuctl.environ["HOME"])
    (home / ".ssh").mkdir()
    (home / ".ssh" / "google_compute_engine").write_text("no key")
    (home / "adc.json").write_text("{}")

    found_, code = run_doctor(tpuctl, GOOGLE_APPLICATION_CREDENTIALS=str(home / "adc.json"), SSH_AUTH_SOCK="/nowhere")

    assert (code, {"TPU916", "TPU917", "TPU921"} & found_.keys()) == (0, set())
    assert found_["TPU915"][0] == "note"


def test_doctor_without_account_and_network_reports_the_rest(alone: Console) -> None:
    out, err, code = alone("doctor", "-o", "tsv")

    lines = [line.split("\t")[:2] for line in out.splitlines()]
    assert code == 9
    assert [id_ for level, id_ in lines if level == "error"] == ["TPU921", "TPU933"]
    assert {id_ for level, id_ in lines if level == "unknown"} == {"TPU934", "TPU941"}
    assert "log in: `gcloud auth application-default login`" in out
    assert "through the proxy http://127.0.0.1:9" in out
    assert err.splitlines()[-1].startswith("2 errors, 2 warnings, 2 unknown, ")
    assert {rule["id"] for rule in json.loads(alone("doctor", "-o", "json")[0])["examined"]} >= {
        "TPU901",
        "TPU903",
        "TPU908",
    }


def test_doctor_without_ssh_and_gcloud_reports_both(alone: Console) -> None:
    found_, code = run_doctor(alone, PATH="/nowhere")

    assert (code, found_["TPU904"][0]) == (9, "warning")
    out, _, _ = alone("doctor", "-o", "json", PATH="/nowhere")
    missing = [(level, text) for id_, level, text in found(out) if id_ == "TPU907"]
    assert missing == [
        ("error", "`ssh` is not on PATH"),
        ("error", "`ssh-keygen` is not on PATH"),
        ("warning", "`scp` is not on PATH"),
        ("note", "`rsync` is not on PATH"),
        ("note", "`ssh-add` is not on PATH"),
    ]


def gcloud_of(root: Path, *, version: str, disable_updater: bool) -> None:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "gcloud").write_text("#!/bin/sh\nexit 1\n")
    (root / "bin" / "gcloud").chmod(0o755)
    (root / "VERSION").write_text(f"{version}\n")
    about = root / "lib" / "googlecloudsdk" / "core"
    about.mkdir(parents=True)
    (about / "config.json").write_text(json.dumps({"disable_updater": disable_updater}))


def test_doctor_reads_the_gcloud_version_without_starting_it(alone: Console, tmp_path: Path) -> None:
    gcloud_of(tmp_path / "sdk", version="400.0.0", disable_updater=True)
    path = f"{tmp_path / 'sdk' / 'bin'}:{alone.environ['PATH']}"

    out, _, _ = alone("doctor", "-o", "json", "--all", PATH=path)

    report = {one["id"]: one["text"] for one in json.loads(out)["findings"]}
    assert report["TPU904"].startswith("gcloud 400.0.0 is older than 528.0.0")
    assert json.loads(out)["surroundings"]["gcloud"] == "400.0.0"


def test_doctor_invalid_config_file_is_reported_without_calls(alone: Console) -> None:
    (alone.folder / "tpuctl.yaml").write_text("zoen: here\n")

    found_, code = run_doctor(alone)

    assert code == 9
    assert found_["TPU945"] == ("error", f"{alone.folder}/tpuctl.yaml line 1: unknown key `zoen`")
    assert {"TPU933", "TPU931", "TPU924"} & found_.keys() == set()
    assert found_["TPU941"][1].endswith("the settings cannot be read")


@pytest.mark.parametrize(
    ("environ", "id_", "level", "text"),
    [
        ({"HTTPS_PROXY": "socks5://h:1"}, "TPU931", "error", "`socks5`"),
        ({"HTTPS_PROXY": "http://h:x"}, "TPU931", "error", "the URL of the proxy is invalid"),
        (
            {"https_proxy": NOWHERE, "HTTPS_PROXY": "http://127.0.0.1:8"},
            "TPU931",
            "note",
            "`HTTPS_PROXY` names another",
        ),
        ({"TPUCTL_TIMEOUT": "soon"}, "TPU945", "error", "TPUCTL_TIMEOUT: `timeout` is `soon`"),
        ({"TPUCTL_ENDPOINT": "http://example.com"}, "TPU945", "error", "plain http is only allowed for this machine"),
        ({"TPUCTL_PROJETC": "p"}, "TPU947", "warning", "`TPUCTL_PROJETC` has no effect"),
        ({"TPU_LOG_DIR": "deaktiviert"}, "TPU912", "warning", "`TPU_LOG_DIR=deaktiviert`"),
        ({"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": "/nowhere.pem"}, "TPU935", "error", "there is no such file"),
        ({"CLOUDSDK_ACTIVE_CONFIG_NAME": "work"}, "TPU906", "warning", "no configuration `work`"),
        ({"TPUCTL_SSH_KEY": "/nowhere/key"}, "TPU915", "error", "the key does not exist"),
        ({"SSH_AUTH_SOCK": "/nowhere/agent"}, "TPU917", "note", "does not answer"),
    ],
)
def test_doctor_reports_each_invalid_variable(
    alone: Console, environ: dict[str, str], id_: str, level: str, text: str
) -> None:
    found_, _ = run_doctor(alone, **environ)

    assert found_[id_][0] == level
    assert text in found_[id_][1]


def test_doctor_reports_bad_state_folder_and_unreadable_journal(alone: Console, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal").write_text("no folder")
    (tmp_path / "file").write_text("")

    journal, _ = run_doctor(alone)
    folder, code = run_doctor(alone, TPUCTL_STATE_DIR=str(tmp_path / "file"))

    assert journal["TPU910"][0] == "warning"
    assert (code, folder["TPU908"]) == (
        9,
        ("error", "the state folder cannot be used: it is not a folder"),
    )


def test_doctor_fix_enables_a_disabled_api(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.set_services(sandbox.state, {"tpu.googleapis.com": "DISABLED"})

    before, code = run_doctor(tpuctl)
    _, err, _ = tpuctl("doctor", "--fix", "--yes", "--skip", "TPU908,TPU915,TPU918")
    after, fixed = run_doctor(tpuctl)

    assert (code, before["TPU501"][0], fixed, "TPU501" in after) == (9, "error", 0, False)
    assert "done: gcloud services enable tpu.googleapis.com --project=sandbox" in err.splitlines()


def test_doctor_reports_missing_billing_and_permissions(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_project(sandbox.state, "sandbox", denied=("tpu.nodes.create", "tpu.nodes.list"))
    administration.set_billing(sandbox.state, enabled=False)

    out, _, code = tpuctl("doctor", "-o", "json")

    assert code == 9
    assert [(id_, level) for id_, level, _ in found(out) if level in {"error", "warning"}] == [
        ("TPU502", "error"),
        ("TPU941", "error"),
        ("TPU941", "warning"),
    ]


def test_doctor_notes_the_different_clock_of_an_endpoint(alone: Console, sandbox: Sandbox, clock: ManualClock) -> None:
    """An endpoint on this machine refuses no token because of the time, so a wrong clock is only a note."""
    with open_server(sandbox.state) as server:
        server.start()
        advance_clock(sandbox.state, timedelta(minutes=10))
        given = {"TPUCTL_ENDPOINT": server.url, "TPUCTL_PROJECT": "sandbox"}
        found_, _ = run_doctor(replace(alone, clock=clock), **given)

    assert found_["TPU934"][0] == "note"
    assert "10m behind that of the endpoint" in found_["TPU934"][1]


def test_doctor_reports_an_endpoint_that_does_not_answer(alone: Console) -> None:
    found_, code = run_doctor(alone, TPUCTL_ENDPOINT=NOWHERE, TPUCTL_PROJECT="sandbox")

    assert (code, found_["TPU933"]) == (9, ("error", "no answer: 127.0.0.1 cannot be reached: Connection refused"))
    assert found_["TPU941"][1].endswith("the cloud was not reached")


def test_doctor_node_unreachable_cloud_is_not_called_again(alone: Console) -> None:
    """Calling it again would take until the timeout of other commands."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        _, err, code = alone("doctor", "demo", "--timeout", "0s", TPUCTL_ENDPOINT=url, TPUCTL_PROJECT="sandbox")
    _, explained, failed = alone("doctor", "demo", TPUCTL_ENDPOINT=NOWHERE, TPUCTL_PROJECT="sandbox")

    unseen = "`demo` was not checked: the cloud was not reached"
    assert (code, f"error: {unseen}" in err.splitlines()) == (1, True)
    assert (failed, f"warning: {unseen}" in explained.splitlines()) == (9, True)


def test_doctor_skip_accepts_findings_and_strict_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.set_services(sandbox.state, {"tpu.googleapis.com": "DISABLED"})

    assert tpuctl("doctor", "--skip", "tpu501")[2] == 0
    assert tpuctl("doctor", "--skip", "tpu501", "--strict")[2] == 9
    assert tpuctl("doctor", "--skip", "TPU9001")[1].splitlines() == [
        "error: `--skip TPU9001`: unknown finding",
        "  hint: did you mean `TPU901`?",
    ]
    assert tpuctl("doctor", "--skip", "TPU955,all")[2] == 0


def test_doctor_absent_node_fails_after_the_other_findings(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "demo")

    out, err, code = tpuctl("doctor", "dmeo")

    assert (code, "TPU948" in out) == (3, True)
    assert "error: no node `dmeo` in any zone of project sandbox" in err.splitlines()


def test_doctor_json_is_that_of_check_with_surroundings(alone: Console) -> None:
    said: dict[str, Any] = json.loads(alone("doctor", "-o", "json")[0])

    assert list(said) == ["schemaVersion", "target", "surroundings", "summary", "findings", "examined"]
    assert list(said["target"]) == ["project", "nodeIds"]
    assert said["summary"]["error"] == 2
    assert alone("doctor", "-o", "name")[0].split()[:2] == ["TPU921", "TPU933"]
