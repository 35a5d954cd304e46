"""`tpuctl doctor` on invalid or readable credentials and ssh keys, and how `--fix` changes them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.doctor.doctor_console import found, make_key, run_doctor


def credentials(home: Path, **about: object) -> Path:
    path = home / "login.json"
    path.write_text(json.dumps(about))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no `{path}`"),
        ("no json", "`{path}` contains no credentials"),
        ("[1]", "`{path}` contains no credentials"),
        ('{"type": 1}', "`{path}` contains no credentials"),
        ("[" * 100_000, "`{path}` contains no credentials"),
    ],
)
def test_credentials_file_invalid_is_reported(alone: Console, text: str | None, reason: str) -> None:
    path = Path(alone.environ["HOME"]) / "login.json"
    if text is not None:
        path.write_text(text)

    found_, code = run_doctor(alone, GOOGLE_APPLICATION_CREDENTIALS=str(path))

    start = "`GOOGLE_APPLICATION_CREDENTIALS` names a file that cannot be used: "
    assert (code, found_["TPU921"]) == (9, ("error", start + reason.format(path=path)))
    assert "TPU924" not in found_


def test_credentials_file_pipe_does_not_block(alone: Console) -> None:
    path = Path(alone.environ["HOME"]) / "login.json"
    os.mkfifo(path)

    found_, _ = run_doctor(alone, GOOGLE_APPLICATION_CREDENTIALS=str(path))

    assert found_["TPU921"][1].endswith(f"`{path}`: it is not a regular file")


def test_credentials_file_mode_and_missing_quota_project(alone: Console) -> None:
    """The proxy prevents asking Google about the token, so its validity is unknown. `--fix` changes only the mode."""
    home = Path(alone.environ["HOME"])
    path = credentials(home, type="authorized_user", client_id="i", client_secret="s", refresh_token="very-secret")
    path.chmod(0o644)
    given = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}

    before, _ = run_doctor(alone, **given)
    console = replace(alone, environ={**alone.environ, **given})
    out, err, code = console("doctor", "--fix", "--yes", "-o", "json")

    assert {id_: level for id_, (level, _) in before.items() if id_.startswith("TPU92")} == {
        "TPU922": "warning",
        "TPU923": "warning",
        "TPU924": "unknown",
    }
    assert {id_ for id_, _, _ in found(out)} >= {"TPU923", "TPU924"}
    assert {"TPU922"} & {id_ for id_, _, _ in found(out)} == set()
    assert (code, f"done: chmod 600 {path}" in err, path.stat().st_mode & 0o777) == (9, True, 0o600)
    assert "very-secret" not in out + err


def test_credentials_gcloud_login_suffices(alone: Console, tmp_path: Path) -> None:
    """Its token is used unchecked if Google cannot be asked; if gcloud returns none, the reason is reported."""
    programs = tmp_path / "programs"
    gcloud = programs / "gcloud"
    gcloud.write_text("#!/bin/sh\necho very-secret\n")
    gcloud.chmod(0o755)
    given = {"CLOUDSDK_CORE_ACCOUNT": "ada@example.com"}
    logins = Path(alone.environ["HOME"]) / ".config" / "gcloud" / "credentials.db"
    logins.parent.mkdir(parents=True)
    logins.touch()

    out, err, _ = alone("doctor", "--all", "-o", "tsv", CLOUDSDK_CORE_ACCOUNT="ada@example.com")
    gcloud.write_text("#!/bin/sh\necho 'ERROR: some reason' >&2\nexit 1\n")
    refused, code = run_doctor(alone, **given)

    assert {line.split("\t")[1] for line in out.splitlines()}.isdisjoint({"TPU921", "TPU924"})
    assert "very-secret" not in out + err
    start = "there is no credentials file, and gcloud's login of `ada@example.com` gives no token: "
    assert (code, refused["TPU921"][1].startswith(start)) == (9, True)
    assert "some reason" in refused["TPU921"][1]


def break_mode(pair: Path) -> None:
    pair.chmod(0o640)


def break_folder(pair: Path) -> None:
    pair.parent.chmod(0o777)


def swap_public_half(pair: Path) -> None:
    make_key(pair.parent / "other").with_suffix(".pub").replace(pair.with_suffix(".pub"))


def garble_public_half(pair: Path) -> None:
    pair.with_suffix(".pub").write_text("nonsense\n")


def garble(pair: Path) -> None:
    pair.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n")


def lock(pair: Path) -> None:
    pair.unlink()
    make_key(pair, passphrase="open sesame")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda _: None, {}),
        (break_mode, {"TPU915": "error"}),
        (break_folder, {"TPU918": "warning"}),
        (swap_public_half, {"TPU916": "error"}),
        (garble_public_half, {"TPU916": "error"}),
        (garble, {"TPU916": "error"}),
        (lock, {"TPU916": "unknown", "TPU917": "warning"}),
    ],
)
def test_ssh_key_pair_problems_are_reported(
    alone: Console, pair: Path, damage: Callable[[Path], None], expected: dict[str, str]
) -> None:
    damage(pair)

    found_, _ = run_doctor(alone)

    report = {id_: level for id_, (level, _) in found_.items() if "TPU915" <= id_ <= "TPU918"}
    assert report == expected


def test_fix_restricts_modes_after_confirmation(alone: Console, pair: Path) -> None:
    break_mode(pair)
    break_folder(pair)
    fix = ("doctor", "--fix", "--skip", "TPU908")

    _, _, unasked = alone(*fix)
    _, refused, _ = alone(*fix, stdin="n\n")
    kept = pair.stat().st_mode & 0o777
    _, err, code = alone(*fix, stdin="y\n")

    assert (kept, refused.splitlines()[-1]) == (0o640, "do these? [y/N] nothing was changed")
    assert [line[line.index("done: ") :] for line in err.splitlines() if "done: " in line] == [
        f"done: chmod 600 {pair}",
        f"done: chmod 700 {pair.parent}",
    ]
    assert (pair.stat().st_mode & 0o777, pair.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (unasked, code) == (2, 9)


def test_fix_creates_a_missing_ssh_key(alone: Console) -> None:
    _, err, _ = alone("doctor", "--fix", "--yes", LOGNAME="ada")
    path = Path(alone.environ["HOME"]) / ".ssh" / "google_compute_engine"

    assert "done: tpuctl ssh-key renew" in err.splitlines()
    assert (path.stat().st_mode & 0o777, path.with_suffix(".pub").is_file()) == (0o600, True)
    assert "TPU915" not in run_doctor(alone)[0]
