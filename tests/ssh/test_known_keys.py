"""Expiry of keys in metadata, keys in ssh agents, and replacing the key pair."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tpuctl.clock import ManualClock
from tpuctl.ssh.keys import (
    OS_LOGIN_CACHE_LIFETIME,
    OsLoginCache,
    SshKey,
    SshKeyError,
    add_metadata_key,
    ensure_key,
    has_metadata_key,
    metadata_key_line,
    renew_key,
    run_program,
)

pytestmark = pytest.mark.skipif(not shutil.which("ssh-agent"), reason="ssh-agent is not installed")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def line(end: str, login: str = "ada", blob: str = "A") -> str:
    return f'{login}:ssh-rsa {blob} google-ssh {{"userName":"{login}@x","expireOn":"{end}"}}'


def test_expiring_line_has_googles_form() -> None:
    entry = metadata_key_line(
        "ada", SshKey(Path("k"), "ssh-rsa A mine"), expires=NOW + timedelta(hours=10, microseconds=5)
    )

    assert entry == 'ada:ssh-rsa A google-ssh {"userName":"ada","expireOn":"2026-01-01T10:00:00+0000"}'


LASTING, TWO_HOURS = "ada:ssh-rsa A ada", line("2026-01-01T02:00:00+0000")


@pytest.mark.parametrize(
    ("existing", "entry", "is_held"),
    [
        (LASTING, TWO_HOURS, True),
        (line("2026-01-01T01:00:00+0000"), TWO_HOURS, True),
        (line("2026-01-01T00:59:59+0000"), TWO_HOURS, False),
        (line("2026-01-01T01:00:00+0000"), LASTING, True),
        (line("2026-01-01T00:59:59Z"), LASTING, False),
        (line("2025-12-31T23:00:00+0000"), LASTING, False),
        (line("2026-01-01T05:00:00+0000", login="bob"), LASTING, False),
        (line("2026-01-01T05:00:00+0000", blob="B"), LASTING, False),
        (line("whenever"), LASTING, False),
        ("ada:ssh-rsa A google-ssh", LASTING, False),
    ],
)
def test_line_counts_while_valid_long_enough(existing: str, entry: str, *, is_held: bool) -> None:
    assert has_metadata_key(f"odd\n{existing}\n", entry, now=NOW) is is_held


def test_only_own_expired_lines_are_removed() -> None:
    ended = "2025-12-31T23:00:00+0000"
    others = ["odd", line(ended, login="bob"), "ada:ssh-rsa B google-ssh {}", "ada:ssh-dss C ada"]
    existing = "\n".join([line(ended, blob="B"), *others, line(ended)])

    assert add_metadata_key(existing, LASTING, now=NOW).splitlines() == [*others, LASTING]
    # Without the time only the line that is replaced goes.
    assert add_metadata_key(existing, LASTING).splitlines() == [line(ended, blob="B"), *others, LASTING]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The path of a socket may have 107 characters at most.
    socket = Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp")) / f"tpuctl-agent-{os.getpid()}"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        yield
        process.terminate()
    socket.unlink(missing_ok=True)


def test_agent_key_is_named_by_its_public_key(tmp_path: Path, agent: None) -> None:
    made = ensure_key(tmp_path, login="ada")
    public = made.path.with_name("google_compute_engine.pub")
    subprocess.run(["ssh-add", "-q", str(made.path)], check=True)
    made.path.unlink()

    for named in (public, made.path):
        found = ensure_key(tmp_path, key=named)
        assert (found, found.is_in_agent) == (SshKey(public, made.public), True)
    subprocess.run(["ssh-add", "-q", "-D"], check=True)
    with pytest.raises(SshKeyError, match="is neither in a file nor in an ssh agent"):
        ensure_key(tmp_path, key=public)


def test_public_key_beside_private_key_means_the_pair(tmp_path: Path) -> None:
    made = ensure_key(tmp_path, login="ada")

    assert ensure_key(tmp_path, key=made.path.with_name("google_compute_engine.pub")) == made


def test_encrypted_key_without_public_key_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "locked"
    run_program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)])
    public = path.with_name("locked.pub")
    assert ensure_key(tmp_path, key=path).public == public.read_text().strip()
    public.unlink()

    with pytest.raises(SshKeyError, match="has a passphrase, and its public key file is missing") as caught:
        ensure_key(tmp_path, key=path)
    assert (caught.value.hint or "").count(f"ssh-keygen -y -f {path} > {public}") == 1
    assert f"ssh-add {path}" in (caught.value.hint or "")


def test_renew_without_new_key_restores_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ensure_key(tmp_path, login="ada")
    before = made.path.read_bytes()
    program = tmp_path / "bin" / "ssh-keygen"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))

    with pytest.raises(SshKeyError, match="created no key"):
        renew_key(tmp_path, login="ada")
    assert (made.path.read_bytes(), ensure_key(tmp_path)) == (before, made)
    assert sorted(one.name for one in made.path.parent.iterdir()) == [made.path.name, f"{made.path.name}.pub"]


def test_switches_cache_stores_only_switches_and_expires(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "state" / "os-login.json"
    seen = OsLoginCache(path, clock)
    assert seen.of("p") is None
    seen.remember("p", {"enable-oslogin": "TRUE", "secret": "s"})
    seen.remember("q", {})

    assert (seen.of("p"), seen.of("q")) == ({"enable-oslogin": "TRUE"}, {})
    assert (path.stat().st_mode & 0o777, "secret" in path.read_text()) == (0o600, False)
    clock.sleep(OS_LOGIN_CACHE_LIFETIME)
    assert (seen.of("p"), seen.of("q")) == (None, None)
    path.write_text("[1")
    seen.remember("p", {})
    assert seen.of("p") == {}
