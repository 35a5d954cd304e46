"""Which value wins, its source, which files may set it, and errors for missing or invalid values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.config.settings import (
    ConfigEntry,
    ConfigFile,
    GcloudProperty,
    RawValue,
    ResolvedSetting,
    Settings,
    SettingSource,
    SourceKind,
    resolve_settings,
)
from tpuctl.errors import SettingError

PROJECT = Path("/repo/tpuctl.yaml")
USER = Path("/home/me/.config/tpuctl/config.yaml")
LADDER: list[tuple[SourceKind, str, RawValue, Path | None]] = [
    (SourceKind.FLAG, "--zone", "flag", None),
    (SourceKind.ENVIRONMENT, "TPUCTL_ZONE", "env", None),
    (SourceKind.CLOUDSDK, "CLOUDSDK_COMPUTE_ZONE", "cloudsdk", None),
    (SourceKind.PROJECT_FILE, "tpuctl.yaml line 3", "project", PROJECT),
    (SourceKind.USER_FILE, f"{USER} line 7", "user", USER),
    (SourceKind.GCLOUD, "gcloud configuration `work`", "gcloud", None),
]


def of(
    flags: Mapping[str, RawValue] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    project: Mapping[str, RawValue] | None = None,
    user: Mapping[str, RawValue] | None = None,
    gcloud: Mapping[str, str] | None = None,
) -> Settings:
    return resolve_settings(
        flags or {},
        environ or {},
        ConfigFile(PROJECT, {key: ConfigEntry(value, 3) for key, value in project.items()}) if project else None,
        ConfigFile(USER, {key: ConfigEntry(value, 7) for key, value in user.items()}) if user else None,
        {name: GcloudProperty(value, "work") for name, value in (gcloud or {}).items()},
    )


@pytest.mark.parametrize("step", range(len(LADDER)))
def test_resolve_highest_source_wins_and_is_recorded(step: int) -> None:
    kinds = {kind for kind, *_ in LADDER[step:]}
    settings = of(
        {"zone": "flag"} if SourceKind.FLAG in kinds else {},
        {
            **({"TPUCTL_ZONE": "env"} if SourceKind.ENVIRONMENT in kinds else {"TPUCTL_ZONE": ""}),
            **({"CLOUDSDK_COMPUTE_ZONE": "cloudsdk"} if SourceKind.CLOUDSDK in kinds else {}),
        },
        project={"zone": "project"} if SourceKind.PROJECT_FILE in kinds else {},
        user={"zone": "user"} if SourceKind.USER_FILE in kinds else {},
        gcloud={"compute/zone": "gcloud"},
    )

    kind, place, value, path = LADDER[step]
    assert settings["zone"] == ResolvedSetting(value, SettingSource(kind, place, path))


def test_resolve_without_sources_has_only_defaults() -> None:
    assert {spec.key: str(setting.value) for spec, setting in of() if setting} == {
        "sandbox": "false",
        "token_cache": "true",
        "trust_project_file": "false",
        "ssh_keep": "5m",
        "timeout": "30m",
        "repair": "restart",
        "max_reboots": "1",
        "max_restarts": "2",
        "max_recreates": "1",
        "max_failures": "3",
        "healthy_after": "30m",
        "restart_on": "42,128-255",
        "hang_after": "30m",
        "kept_log_mib": "1024",
        "start_grace": "40m",
        "unhealthy_after": "5m",
        "unanswered_after": "10m",
        "devices_after": "5m",
        "starting_after": "15m",
        "restarting_after": "15m",
        "repairing_after": "30m",
        "provisioning_after": "2h",
        "recheck_after": "3m",
        "per_worker": "10s",
        "check_timeout": "15s",
        "timestamps": "auto",
    }


def test_google_variables_rank_below_gclouds_own() -> None:
    both = {"GOOGLE_CLOUD_PROJECT": "google", "CLOUDSDK_CORE_PROJECT": "sdk"}

    assert of(environ=both).text("project") == "sdk"
    assert of(environ={"GOOGLE_CLOUD_PROJECT": "google"}).text("project") == "google"


def test_values_are_converted_to_their_type() -> None:
    settings = of(
        {"internal_ips": "true"},
        {"TPUCTL_TIMEOUT": "1h30m", "TPUCTL_LABELS": "team=nlp, run=a=b", "TPUCTL_DATA_DISKS": "source=a,mode=rw  b"},
        project={"metadata": {"script": "a,b"}, "tags": ("x", "y"), "startup_script": "boot.sh", "max_restarts": "0"},
        user={"ssh_key": "~/.ssh/tpu"},
    )

    assert settings.is_on("internal_ips") is True
    assert settings.duration("timeout") == timedelta(minutes=90)
    assert settings.pairs("labels") == {"team": "nlp", "run": "a=b"}
    assert settings.pairs("metadata") == {"script": "a,b"}
    assert settings.items("data_disks") == ("source=a,mode=rw", "b")
    assert settings.items("tags") == ("x", "y")
    assert settings.items("scopes") == ()
    assert settings.number("max_restarts") == 0
    # Relative to the folder of the configuration file, not to the working directory.
    assert settings.path("startup_script") == Path("/repo/boot.sh")


def test_path_with_tilde_is_in_the_home_folder() -> None:
    settings = of(environ={"HOME": "/home/me"}, user={"ssh_key": "~/.ssh/tpu"})

    assert settings.path("ssh_key") == Path("/home/me/.ssh/tpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", True),
        ("TRUE", True),
        ("yes", True),
        ("on", True),
        ("0", False),
        ("no", False),
        ("off", False),
        ("", False),
    ],
)
def test_boolean_variable_overrides_the_project_file(text: str, *, expected: bool) -> None:
    assert of(environ={"TPUCTL_SANDBOX": text}, project={"sandbox": "true"}).is_on("sandbox") is expected


BROKEN: list[tuple[Callable[[Settings], object], dict[str, str], str]] = [
    (lambda s: s.is_on("sandbox"), {"TPUCTL_SANDBOX": "maybe"}, "`sandbox` is `maybe`: it must be true or false"),
    (lambda s: s.number("max_restarts"), {"TPUCTL_MAX_RESTARTS": "-1"}, "it must be a whole number, 0 or more"),
    (lambda s: s.duration("timeout"), {"TPUCTL_TIMEOUT": "soon"}, "it must be a duration like 90s, 30m, 2h or 1h30m"),
    (
        lambda s: s.text("tier"),
        {"TPUCTL_TIER": "spt"},
        "one of on-demand, spot, preemptible, reserved, best-effort, flex-start; did you mean `spot`?",
    ),
    (lambda s: s.pairs("labels"), {"TPUCTL_LABELS": "team"}, "it must be KEY=VALUE pairs"),
]


@pytest.mark.parametrize(("read", "environ", "words"), BROKEN)
def test_invalid_variable_is_named_with_its_value(
    read: Callable[[Settings], object], environ: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingError) as caught:
        read(of(environ=environ))

    (name,) = environ
    assert caught.value.message.startswith(f"{name}: `")
    assert caught.value.message.endswith(words)


def test_invalid_secret_is_not_shown() -> None:
    with pytest.raises(SettingError) as caught:
        of({"metadata": "hunter2"}).pairs("metadata")

    assert caught.value.message == "--metadata: `metadata`: it must be KEY=VALUE pairs"


def test_empty_flag_is_an_error() -> None:
    with pytest.raises(SettingError, match="--zone: `zone` is ``: it is empty"):
        of({"zone": ""}, {"TPUCTL_ZONE": "elsewhere"}).text("zone")


@pytest.mark.parametrize(
    ("place", "entries", "message", "hint"),
    [
        (
            "project",
            {"endpoint": "https://evil.example"},
            "/repo/tpuctl.yaml line 3: `endpoint` is never read from a project file",
            "use `--endpoint`, `TPUCTL_ENDPOINT` or the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)",
        ),
        (
            "project",
            {"impersonate_service_account": "a@b"},
            "/repo/tpuctl.yaml line 3: `impersonate_service_account` is never read from a project file",
            (
                "use `--impersonate-service-account`, `TPUCTL_IMPERSONATE_SERVICE_ACCOUNT`, the user file "
                "($XDG_CONFIG_HOME/tpuctl/config.yaml) or `gcloud config set auth/impersonate_service_account`"
            ),
        ),
        (
            "project",
            {"sandbox": "false"},
            "/repo/tpuctl.yaml line 3: `sandbox: false` is never read from a project file",
            "set `TPUCTL_SANDBOX=0`; without a setting for the sandbox, commands use the real cloud",
        ),
        (
            "user",
            {"sandbox": "true"},
            f"{USER} line 7: `sandbox: true` is never read from the user file",
            "pass `--sandbox`, set `TPUCTL_SANDBOX=1`, or put it in the `tpuctl.yaml` of a project",
        ),
        (
            "project",
            {"grants": ({"zone": "z"},)},
            "/repo/tpuctl.yaml line 3: `grants` is never read from a project file",
            "use `TPUCTL_GRANTS` or the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)",
        ),
        (
            "project",
            {"no_billing_outside_grants": "false"},
            "/repo/tpuctl.yaml line 3: `no_billing_outside_grants` is never read from a project file",
            (
                "use `--no-billing-outside-grants`, `TPUCTL_NO_BILLING_OUTSIDE_GRANTS` or the user file "
                "($XDG_CONFIG_HOME/tpuctl/config.yaml)"
            ),
        ),
        (
            "user",
            {"timeout": "soon"},
            f"{USER} line 7: `timeout` is `soon`: it must be a duration like 90s, 30m, 2h or 1h30m",
            None,
        ),
    ],
)
def test_file_entry_not_allowed_names_sources(
    place: str, entries: dict[str, RawValue], message: str, hint: str | None
) -> None:
    with pytest.raises(SettingError) as caught:
        of(
            {"timeout": "1m"},
            project=entries if place == "project" else None,
            user=entries if place == "user" else None,
        )

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_missing_setting_lists_sources_and_ways_to_set() -> None:
    error = of(user={"project": "p"}, gcloud={"core/account": "me@example.com"}).missing("zone")

    assert (error.message, error.hint) == (
        "no zone is set",
        "pass `--zone ZONE`, or set one: `tpuctl config set zone ZONE`; other ways: `tpuctl help settings`",
    )
    error = of(user={"zone": "z"}, gcloud={"core/account": "me@example.com"}).missing("project")
    assert error.message == (
        "no project is set; looked at --project, TPUCTL_PROJECT, CLOUDSDK_CORE_PROJECT, GOOGLE_CLOUD_PROJECT, "
        f"tpuctl.yaml (none here or above), {USER}, core/project of gcloud configuration `work`"
    )


@pytest.mark.parametrize(("word", "expected"), [("CURRENT_PROJECT", "p"), ("LEGACY", None), ("other", "other")])
def test_special_values_of_quota_project(word: str, expected: str | None) -> None:
    assert of({"project": "p"}, gcloud={"billing/quota_project": word}).text("quota_project") == expected


def test_gcloud_settings_have_no_tpuctl_variable() -> None:
    settings = of(environ={"TPUCTL_ACCOUNT": "x", "CLOUDSDK_PROXY_PORT": "3128"}, gcloud={"proxy/port": "1"})

    assert settings.text("account") is None
    assert settings.number("proxy_port") == 3128
