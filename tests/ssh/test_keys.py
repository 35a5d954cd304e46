"""The ssh key shared with gcloud, and the metadata value that contains it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tpuctl.ssh.keys import (
    SshKey,
    SshKeyError,
    SshProgramMissingError,
    add_metadata_key,
    ensure_key,
    login_name,
    metadata_key_line,
)

needs_ssh_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")


@needs_ssh_keygen
def test_missing_key_is_created_once_by_parallel_processes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda home: ensure_key(home, login="ada"), [tmp_path] * 8))

    path = tmp_path / ".ssh" / "google_compute_engine"
    assert {(key.path, key.public.split()[0], key.public.split()[2]) for key in made} == {(path, "ssh-ed25519", "ada")}
    assert len(made) == 1
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name, f"{path.name}.pub"]


@needs_ssh_keygen
@pytest.mark.parametrize("damage", [None, "not a key\n"])
def test_missing_or_broken_public_key_is_rewritten(tmp_path: Path, damage: str | None) -> None:
    made = ensure_key(tmp_path, login="ada")
    public = made.path.with_name("google_compute_engine.pub")
    before = public.read_text()
    public.unlink()
    if damage:
        public.write_text(damage)

    assert (ensure_key(tmp_path), public.read_text()) == (made, before)


def test_named_key_is_never_created(tmp_path: Path) -> None:
    with pytest.raises(SshKeyError, match=r"^ssh key .* does not exist") as caught:
        ensure_key(tmp_path, key=tmp_path / "mine")
    assert caught.value.hint == f"check the path, or create the key with `ssh-keygen -t ed25519 -f {tmp_path}/mine`"


@pytest.mark.parametrize(
    ("mode", "content", "said"),
    [
        (0o644, b"-----BEGIN OPENSSH PRIVATE KEY-----\n", "is readable by other users"),
        (0o600, b"hello\n", "it has no PEM header"),
        (0o600, b"\xff\xfe\n", "it is not text"),
        pytest.param(
            0o600, b"-----BEGIN OPENSSH PRIVATE KEY-----\n", "not a usable private key", marks=needs_ssh_keygen
        ),
    ],
)
def test_key_that_ssh_would_reject_raises(tmp_path: Path, mode: int, content: bytes, said: str) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    path.chmod(mode)

    with pytest.raises(SshKeyError, match=said) as caught:
        ensure_key(tmp_path, key=path)
    assert str(path) in (caught.value.hint or "")


def test_missing_ssh_keygen_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SshProgramMissingError) as caught:
        ensure_key(tmp_path)
    assert "openssh-client" in (caught.value.hint or "")


def test_metadata_entry_matches_gcloud() -> None:
    key = SshKey(Path("k"), "ssh-ed25519 AAAA ada@laptop")

    assert metadata_key_line("ada", key) == "ada:ssh-ed25519 AAAA ada"


@pytest.mark.parametrize(
    ("existing", "result"),
    [
        ("", "ada:ssh-rsa A ada"),
        ("\nbob:ssh-rsa B bob\n", "bob:ssh-rsa B bob\nada:ssh-rsa A ada"),
        ("odd line\nada:ssh-rsa OLD ada", "odd line\nada:ssh-rsa OLD ada\nada:ssh-rsa A ada"),
        ("bob:ssh-rsa A bob", "bob:ssh-rsa A bob\nada:ssh-rsa A ada"),
        ("ada:ssh-rsa A other comment\n", "ada:ssh-rsa A other comment\n"),
    ],
)
def test_adding_a_key_keeps_others_and_adds_no_duplicate(existing: str, result: str) -> None:
    assert add_metadata_key(existing, "ada:ssh-rsa A ada") == result


@pytest.mark.parametrize(
    ("environ", "login"),
    [
        ({"LOGNAME": "ada", "USER": "bob"}, "ada"),
        ({"USER": "Ada.L"}, "Ada.L"),
        ({"USER": "CORP\\Ada Lovelace"}, "ada_lovelace"),
        ({"USER": "ada@corp.example"}, "ada"),
        ({"USER": "-oProxyCommand=x"}, "oproxycommand_x"),
        ({"USER": "42"}, "u_42"),
        ({"USER": "é"}, "_"),
    ],
)
def test_login_is_the_local_user_converted_to_a_valid_name(environ: dict[str, str], login: str) -> None:
    assert login_name(environ) == login
