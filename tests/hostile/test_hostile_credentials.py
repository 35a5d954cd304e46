"""Files of credentials and of gcloud with values that fit no header and no type: one error, without the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console

SECRET = "hunter2-s3cr3t"
USER = {"type": "authorized_user", "client_id": "c", "client_secret": SECRET, "refresh_token": SECRET}
KEY = {
    "type": "service_account",
    "client_email": "me@p.iam.gserviceaccount.com",
    "token_uri": "https://oauth2.googleapis.com/token",
    "private_key": SECRET,
}
NOT_TEXT: tuple[Any, ...] = (
    [SECRET],
    {"a": SECRET},
    5,
    True,
    f"{SECRET}\n{SECRET}",
    f"{SECRET}\r\nX-Evil: 1",
    f"\0{SECRET}",
)
FILES: list[tuple[dict[str, Any], str, Any]] = [
    *((USER, field, value) for field in ("type", "refresh_token", "quota_project_id", "account") for value in NOT_TEXT),
    *((KEY, field, value) for field in ("client_email", "token_uri", "universe_domain") for value in NOT_TEXT),
    (USER, "quota_project_id", "проект"),
    (KEY, "token_uri", f"file:///{SECRET}"),
    (KEY, "private_key", [SECRET]),
    ({"type": "impersonated_service_account"}, "source_credentials", [SECRET]),
    ({"type": "impersonated_service_account"}, "source_credentials", {"type": [SECRET]}),
    ({"type": "impersonated_service_account"}, "delegates", [[SECRET]]),
]


@pytest.mark.parametrize(("fields", "field", "value"), FILES)
def test_invalid_field_of_a_credentials_file_is_one_error_without_its_value(
    offline: Console, tmp_path: Path, fields: dict[str, Any], field: str, value: Any
) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps({**fields, field: value}))

    results = [
        offline(*words, "--project", "p", GOOGLE_APPLICATION_CREDENTIALS=str(path))
        for words in (("list",), ("status", "n", "--zone", "us-central2-b"))
    ]

    error = f"error: cannot use the credentials file `{path}` of GOOGLE_APPLICATION_CREDENTIALS: `{field}"
    assert [(out, err.startswith(error), SECRET in err, code) for out, err, code in results] == [
        ("", True, False, 4)
    ] * 2


@pytest.mark.parametrize(
    "setting",
    [
        "project",
        "account",
        "billing/quota_project",
        "auth/impersonate_service_account",
        "core/custom_ca_certs_file",
        "zone",
    ],
)
@pytest.mark.parametrize("value", ["a\n b", "a\r b", "\x00", "\ud800"], ids=["line", "return", "zero", "no text"])
def test_value_of_gclouds_configuration_that_is_no_text_is_one_error(
    offline: Console, setting: str, value: str
) -> None:
    section, _, key = setting.rpartition("/")
    file = Path(offline.environ["HOME"]) / ".config" / "gcloud" / "configurations" / "config_default"
    file.parent.mkdir(parents=True)
    text = f"[core]\nproject = p\n[{section or ('compute' if key == 'zone' else 'core')}]\n{key} = {value}\n"
    file.write_bytes(text.replace("[core]\nproject = p\n[core]", "[core]").encode("utf-8", "surrogatepass"))

    _, err, code = offline("status", "n")

    assert (code in {2, 4}, [line for line in err.splitlines() if line.startswith("error: ")] != []) == (True, True)
