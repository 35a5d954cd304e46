"""Authorize our ssh key in the metadata of a node or its project, or in OS Login, and let it expire."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces
from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT, OS_LOGIN_KIND
from tpuctl.ssh.keys import OsLoginError, check_os_login_requirements, ensure_key

PATCHED = "adding our ssh key to the metadata of `trainer`\n"
IMPORTED = f"adding our ssh key to the OS Login profile of `{OS_LOGIN_ACCOUNT}`\n"


@pytest.fixture
def argv(tmp_path: Path, fake_ssh: Callable[[str], None]) -> Callable[[], list[str]]:
    """A fake ssh that records its arguments; the call returns them."""
    written = tmp_path / "argv"
    fake_ssh(f"printf '%s\\n' \"$@\" > '{written}'")
    return lambda: written.read_text().splitlines() if written.exists() else []


@pytest.fixture
def known(tpuctl: Console, sandbox: Sandbox, face: dict[str, str]) -> Callable[..., str]:
    """Make the key, and return what of a line of `ssh-keys` comes before the comment."""
    home = (
        Path(tpuctl.environ["TPUCTL_STATE_DIR"], "sandbox")
        if "TPUCTL_SANDBOX" in face
        else Path(tpuctl.environ["HOME"])
    )
    login = getuser() if "TPUCTL_SANDBOX" in face else "ada"
    kind, blob = ensure_key(home, login=login).public.split()[:2]
    return lambda comment=login: f"{login}:{kind} {blob} {comment}"


def set_project(sandbox: Sandbox, **metadata: str) -> None:
    items = [{"key": key.replace("_", "-"), "value": value} for key, value in metadata.items()]
    with sandbox.state.write() as session:
        session.put_project("sandbox", {"items": items})


def metadata_of(sandbox: Sandbox, name: str = "trainer") -> dict[str, str]:
    with sandbox.state.read() as session:
        (found,) = [node for node in session.nodes() if node.node_id == name]
        return dict(found.document.get("metadata") or {})


def profile_keys(sandbox: Sandbox) -> list[dict[str, Any]]:
    with sandbox.state.read() as session:
        return [found.document for found in session.resources.list_records(OS_LOGIN_KIND, OS_LOGIN_ACCOUNT)]


@both_faces
def test_key_of_the_project_needs_no_patch_unless_the_node_blocks_it(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], known: Callable[..., str]
) -> None:
    set_project(sandbox, ssh_keys=f"bob:ssh-rsa B bob\n{known('somebody@laptop')}")
    sandbox.add_node("trainer")
    sandbox.add_node("own", metadata={"block-project-ssh-keys": "TRUE"})

    assert tpuctl("ssh", "trainer", "--", "true") == ("", "", 0)
    assert sandbox.changes() == []
    assert tpuctl("ssh", "own", "--", "true") == ("", PATCHED.replace("trainer", "own"), 0)
    assert metadata_of(sandbox, "own")["ssh-keys"] == known()


@both_faces
def test_project_that_cannot_be_read_is_no_error(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], known: Callable[..., str]
) -> None:
    administration.set_services(sandbox.state, {"compute.googleapis.com": False})
    sandbox.add_node("trainer", metadata={"ssh-keys": "bob:ssh-rsa B bob"})

    assert tpuctl("ssh", "trainer", "--", "true") == ("", PATCHED, 0)
    assert metadata_of(sandbox) == {"ssh-keys": f"bob:ssh-rsa B bob\n{known()}"}


@pytest.mark.parametrize(
    ("node", "project", "uses_it"),
    [
        ({"enable-oslogin": "TRUE"}, "", True),
        ({"enable-oslogin": "true"}, "FALSE", True),
        ({"enable-oslogin": "FALSE"}, "TRUE", False),
        ({}, "True", True),
        ({}, "FALSE", False),
    ],
)
def test_os_login_setting_of_the_node_overrides_the_project(
    tpuctl: Console,
    sandbox: Sandbox,
    argv: Callable[[], list[str]],
    *,
    node: dict[str, str],
    project: str,
    uses_it: bool,
) -> None:
    set_project(sandbox, enable_oslogin=project)
    sandbox.add_node("trainer", metadata=node)

    assert tpuctl("ssh", "trainer", "--", "true") == ("", IMPORTED if uses_it else PATCHED, 0)
    # Cached: neither is requested again.
    assert tpuctl("ssh", "trainer", "--", "true") == ("", "", 0)

    assert sandbox.changes() == ["importSshPublicKey" if uses_it else "patch"]
    assert ("ssh-keys" in metadata_of(sandbox)) is not uses_it


@pytest.mark.parametrize("face", ["http"], indirect=True)
def test_os_login_uses_the_login_of_a_known_account(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]]
) -> None:
    sandbox.add_node("trainer", metadata={"enable-oslogin": "TRUE"})

    out, err, code = tpuctl("ssh", "ada@trainer", "--", "true")
    assert (out, code, argv()) == ("", 4, [])
    assert err.startswith("error: `trainer` uses OS Login, but the account of the credentials is unknown\n")
    assert "gcloud config set account EMAIL" in err

    ended = tpuctl("ssh", "ada@trainer", "--", "true", CLOUDSDK_CORE_ACCOUNT=OS_LOGIN_ACCOUNT)
    chosen = f"using the login name of OS Login, `{getuser()}`, instead of `ada`\n"
    assert ended == ("", IMPORTED + chosen, 0)
    assert f"{getuser()}@198.18.0.1" in argv()
    assert tpuctl("ssh", "trainer", "--", "true", CLOUDSDK_CORE_ACCOUNT="Bob@example.com")[2] == 0
    assert "bob_example_com@198.18.0.1" in argv()


@pytest.mark.parametrize(
    ("switch", "what"),
    [
        ("enable-oslogin-2fa", f"a second factor of `{OS_LOGIN_ACCOUNT}`"),
        ("enable-oslogin-certificates", "a certificate signed by OS Login"),
        ("enable-oslogin-sk", "a security key registered with the account"),
    ],
)
def test_os_login_requirements_are_checked_before_ssh(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], switch: str, what: str
) -> None:
    set_project(sandbox, enable_oslogin="TRUE", **{switch: "TRUE"})
    sandbox.add_node("trainer")

    out, err, code = tpuctl("ssh", "trainer", "--", "true")

    first, *_, last = err.splitlines()
    assert (out, code, argv(), sandbox.changes()) == ("", 4, [], [])
    assert first == f"error: OS Login on `trainer` requires {what} (`{switch}`)"
    assert last.endswith(f"disable it for this node: `tpuctl update trainer --metadata {switch}=FALSE`")
    # The hint works.
    assert tpuctl("update", "trainer", "--metadata", f"{switch}=FALSE")[2] == 0
    assert tpuctl("ssh", "trainer", "--", "true")[2] == 0


def test_os_login_of_a_service_account_needs_no_second_factor() -> None:
    both = {"enable-oslogin": "TRUE", "enable-oslogin-2fa": "TRUE"}

    check_os_login_requirements("t", "ci@p.iam.gserviceaccount.com", both, {})
    with pytest.raises(OsLoginError, match="a second factor of"):
        check_os_login_requirements("t", "ada@example.com", {}, both)


def test_expiring_key_has_the_format_of_google_and_is_renewed_at_half_time(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], known: Callable[..., str], clock: ManualClock
) -> None:
    login = getuser()
    over = f'{login}:ssh-rsa OLD google-ssh {{"userName":"{login}","expireOn":"2025-12-31T23:59:59+0000"}}'
    others = ["bob:ssh-rsa B bob", over.replace(login, "bob"), f"{login}:ssh-rsa LASTING mine", "odd"]
    sandbox.add_node("trainer", metadata={"ssh-keys": "\n".join([over, *others])})
    command = ("ssh", "trainer", "--ssh-key-expire-after", "8h", "--", "true")

    def line(end: str) -> str:
        return known(f'google-ssh {{"userName":"{login}","expireOn":"{end}"}}')

    assert tpuctl(*command) == ("", PATCHED, 0)
    assert metadata_of(sandbox)["ssh-keys"].splitlines() == [*others, line("2026-01-01T08:00:00+0000")]
    clock.sleep(timedelta(hours=3, minutes=59))
    assert tpuctl(*command) == ("", "", 0)
    assert tpuctl("ssh", "trainer", "--", "true") == ("", "", 0)
    clock.sleep(timedelta(minutes=2))
    assert tpuctl(*command) == ("", PATCHED, 0)
    assert metadata_of(sandbox)["ssh-keys"].splitlines() == [*others, line("2026-01-01T12:01:00+0000")]
    # Without an expiry the key gets none, once the old expiry is near.
    clock.sleep(timedelta(hours=7, minutes=30))
    assert tpuctl("ssh", "trainer", "--", "true") == ("", PATCHED, 0)
    assert metadata_of(sandbox)["ssh-keys"].splitlines() == [*others, known()]


def test_expiring_key_in_os_login_has_its_expiry(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], clock: ManualClock
) -> None:
    sandbox.add_node("trainer", metadata={"enable-oslogin": "TRUE"})
    command = ("ssh", "trainer", "--ssh-key-expire-after", "8h", "--", "true")
    start = int(clock.now().timestamp())

    assert tpuctl(*command) == ("", IMPORTED, 0)
    assert [key["expirationTimeUsec"] for key in profile_keys(sandbox)] == [f"{start + 8 * 3600}000000"]
    clock.sleep(timedelta(hours=5))
    assert tpuctl(*command) == ("", "", 0)
    assert [key["expirationTimeUsec"] for key in profile_keys(sandbox)] == [f"{start + 13 * 3600}000000"]
    assert sandbox.changes() == ["importSshPublicKey", "patch"]


def test_created_node_has_the_key_with_its_expiry(tpuctl: Console, sandbox: Sandbox, known: Callable[..., str]) -> None:
    made = tpuctl(
        "create", "trainer", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait", TPUCTL_SSH_KEY_EXPIRE_AFTER="90m"
    )

    assert made[2] == 0
    end = f'google-ssh {{"userName":"{getuser()}","expireOn":"2026-01-01T01:30:00+0000"}}'
    assert metadata_of(sandbox) == {"ssh-keys": known(end)}


@pytest.mark.parametrize("text", ["0s", "soon"])
def test_invalid_expiry_is_refused_before_any_request(tpuctl: Console, sandbox: Sandbox, text: str) -> None:
    sandbox.add_node("trainer")

    out, err, code = tpuctl("ssh", "trainer", "--ssh-key-expire-after", text, "--", "true")

    assert (out, code, sandbox.changes()) == ("", 2, [])
    assert re.search("8h|2h", err)


def test_ssh_key_shows_where_it_is_authorized_and_rotates_on_demand(
    tpuctl: Console, sandbox: Sandbox, argv: Callable[[], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "state" / "sandbox" / ".ssh"
    path = folder / "google_compute_engine"
    out, err, code = tpuctl("ssh-key", "show")
    assert (out, code, err.splitlines()[0]) == ("", 1, f"error: ssh key `{path}` does not exist yet")
    assert not folder.exists()
    sandbox.add_node("trainer")
    tpuctl("ssh", "trainer", "--", "true")

    out, err, code = tpuctl("ssh-key", "show", "trainer")
    shown = dict(line.split("\t") for line in out.splitlines())
    assert (err, code, shown["file"], shown["login"], shown["known by"]) == (
        "",
        0,
        str(path),
        getuser(),
        "node metadata",
    )
    assert shown["fingerprint"].startswith("SHA256:")

    old = path.read_bytes()
    assert tpuctl("ssh-key", "renew")[2] == 2
    assert path.read_bytes() == old
    assert tpuctl("ssh-key", "renew", stdin="y\n")[2] == 0
    second = path.read_bytes()
    assert tpuctl("ssh-key", "renew", "--yes")[2] == 0
    assert [(folder / f"old-{extra}google_compute_engine").read_bytes() for extra in ("", "2-")] == [old, second]
    assert tpuctl("ssh-key", "show", "trainer", "-o", "json")[0].count('"knownBy": null') == 1
    assert tpuctl("ssh-key", "renew", "--ssh-key", "mine", "--yes")[2] == 2
