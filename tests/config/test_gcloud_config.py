"""gcloud's configuration files, and its access token, from a fake gcloud on PATH."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.cloud.credentials import gcloud_access_token
from tpuctl.config import sources
from tpuctl.config.settings import GcloudProperty
from tpuctl.config.sources import gcloud_may_have_login, read_gcloud_properties
from tpuctl.errors import AccessError


def configuration(folder: Path, name: str, text: str) -> None:
    (folder / "configurations").mkdir(exist_ok=True)
    (folder / "configurations" / f"config_{name}").write_text(text)


WORK = "[core]\nproject = p\nAccount = me@example.com\nverbosity = debug\n[compute]\nzone = us-central2-b\nregion =\n"


def test_properties_of_the_active_configuration(tmp_path: Path) -> None:
    configuration(tmp_path, "work", WORK)
    configuration(tmp_path, "default", "[core]\nproject = other\n")
    (tmp_path / "active_config").write_text("work")

    assert read_gcloud_properties({"CLOUDSDK_CONFIG": str(tmp_path)}) == {
        "core/project": GcloudProperty("p", "work"),
        "core/account": GcloudProperty("me@example.com", "work"),
        "compute/zone": GcloudProperty("us-central2-b", "work"),
    }


@pytest.mark.parametrize(
    ("name", "project"),
    [("other", "o"), ("NONE", None), ("absent", None), ("../default", "d"), ("", "w")],
)
def test_properties_of_the_configuration_of_a_variable(tmp_path: Path, name: str, project: str | None) -> None:
    for key, value in (("work", "w"), ("other", "o"), ("default", "d")):
        configuration(tmp_path, key, f"[core]\nproject = {value}\n")
    (tmp_path / "active_config").write_text("work")

    found = read_gcloud_properties({"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_ACTIVE_CONFIG_NAME": name})

    assert (found["core/project"].value if found else None) == project


@pytest.mark.parametrize(
    "text", ["project = p\n", "[core\n", "[core]\n[core]\n", "[core]\nproject\n", "\x00", "[a]\nb = %(c)s\n"]
)
def test_properties_of_an_invalid_file_are_empty(tmp_path: Path, text: str) -> None:
    configuration(tmp_path, "default", text)

    assert read_gcloud_properties({"CLOUDSDK_CONFIG": str(tmp_path)}) == {}


def test_properties_unreadable_or_absent_are_empty(tmp_path: Path) -> None:
    (tmp_path / "active_config").write_bytes(b"\xff")
    (tmp_path / "configurations").mkdir()
    (tmp_path / "configurations" / "config_default").write_bytes(b"\xff\xfe")

    assert read_gcloud_properties({"CLOUDSDK_CONFIG": str(tmp_path)}) == {}
    assert read_gcloud_properties({"HOME": str(tmp_path / "absent")}) == {}
    assert read_gcloud_properties({}) == {}


def test_properties_with_percent_signs_match_gcloud(tmp_path: Path) -> None:
    configuration(tmp_path, "default", "[proxy]\npassword = 50%%\nusername = 50%\nport = 1\n")

    assert read_gcloud_properties({"CLOUDSDK_CONFIG": str(tmp_path)}) == {
        "proxy/password": GcloudProperty("50%", "default"),
        "proxy/port": GcloudProperty("1", "default"),
    }


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/k.json", "HOME": "/h"}, "/k.json"),
        ({"CLOUDSDK_CONFIG": "/c", "HOME": "/h"}, "/c/application_default_credentials.json"),
        ({"HOME": "/h"}, "/h/.config/gcloud/application_default_credentials.json"),
    ],
)
def test_adc_path_of_each_environment(environ: dict[str, str], expected: str) -> None:
    assert sources.adc_path(environ) == Path(expected)


def fake(folder: Path, script: str) -> dict[str, str]:
    program = folder / "gcloud"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT": "robot@p"}


def test_access_token_without_prompt_and_impersonation(tmp_path: Path) -> None:
    environ = fake(
        tmp_path, 'read x; echo "$*,$x,$CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT" >"$0.asked"; echo ya29.t; echo w >&2'
    )

    assert gcloud_access_token(environ) == "ya29.t"
    assert (tmp_path / "gcloud.asked").read_text() == "auth print-access-token --quiet,,\n"


NO_ACCOUNT = "ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected."
REAUTH = "ERROR: There was a problem reauthenticating while refreshing your current auth tokens: x"


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        (
            f"echo '{NO_ACCOUNT}' >&2; exit 1",
            "gcloud gave no token: gcloud is not logged in",
            "run `gcloud auth login`, or choose an account with `gcloud config set account ACCOUNT`",
        ),
        (
            f"echo '{REAUTH}' >&2; exit 1",
            (
                "gcloud gave no token: the login session has ended under the organisation's session policy, and "
                "only a person can renew it"
            ),
            (
                "run `gcloud auth login` and `gcloud auth application-default login`\n"
                "for unattended work, use a service account instead of a person's credentials"
            ),
        ),
        (
            "echo; echo 'ERROR: gcloud crashed (X): y' >&2; exit 1",
            "gcloud gave no token: ERROR: gcloud crashed (X): y",
            "run `gcloud auth login`, then try again",
        ),
        ("exit 1", "gcloud gave no token: it gave no reason", "run `gcloud auth login`, then try again"),
        ("echo a; echo b", "gcloud printed no access token", "run `gcloud auth login`, then try again"),
        ("exit 0", "gcloud printed no access token", "run `gcloud auth login`, then try again"),
    ],
)
def test_access_token_failure_has_reason_and_hint(tmp_path: Path, script: str, message: str, hint: str) -> None:
    with pytest.raises(AccessError) as caught:
        gcloud_access_token(fake(tmp_path, script))

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_access_token_without_gcloud_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="gcloud is not installed"):
        gcloud_access_token({"PATH": str(tmp_path)})


def test_access_token_timeout_terminates_gcloud_and_its_children(tmp_path: Path) -> None:
    environ = fake(tmp_path, 'sleep 60 & echo $! >"$0.pid"; wait')
    before = time.monotonic()

    with pytest.raises(AccessError) as caught:
        gcloud_access_token(environ, timeout=timedelta(seconds=4))

    assert caught.value.message == "gcloud gave no token within 4 s"
    assert time.monotonic() - before < 40
    child = int((tmp_path / "gcloud.pid").read_text())
    deadline = time.monotonic() + 30
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(child)


def _is_running(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(shown.strip()) and not shown.startswith("Z")


@pytest.mark.gcloud
def test_real_gcloud_configuration_and_refusal_are_read(tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
    }
    argv = ["gcloud", "config", "set", "proxy/username", "50%", "--quiet"]
    subprocess.run(argv, env=environ, check=True, capture_output=True)

    assert read_gcloud_properties(environ)["proxy/username"] == GcloudProperty("50%", "default")
    with pytest.raises(AccessError) as caught:
        gcloud_access_token(environ, timeout=timedelta(seconds=60))
    assert caught.value.error_id == "auth-no-active-account"


def test_properties_of_a_pipe_do_not_block(tmp_path: Path) -> None:
    (tmp_path / "configurations").mkdir()
    for name in ("active_config", "configurations/config_default", "properties"):
        os.mkfifo(tmp_path / name)
    environ = {"CLOUDSDK_CONFIG": str(tmp_path), "PATH": "/none"}

    assert read_gcloud_properties(environ) == {}
    assert gcloud_may_have_login(environ)
