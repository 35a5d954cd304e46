"""The access token between commands: the real program, a token server and an API with TLS, both behind a proxy on loopback."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.scripted_api import Received, Reply, ScriptedServer, refuse
from tests.cloud.test_api_transport import ConnectProxy
from tests.tpuctl_process import run_tpuctl

USER = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
TOKEN, LIST = "POST /token", "GET /v2/projects/p/locations/us-central2-b/runtimeVersions"
# It sends one request.
COMMAND = ("versions", "--zone", "us-central2-b")
IMPERSONATE = "POST /v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken"
# Whether google-auth was imported is the last line of stderr.
PROGRAM = """\
import os, sys
assert "google.auth" not in sys.modules
leave = os._exit
def leave_with_report(code):
    print("google.auth" in sys.modules, file=sys.stderr, flush=True)
    leave(code)
os._exit = leave_with_report
from tpuctl.cli.main import entry_point
entry_point()
"""


@dataclass
class Cloud:
    """A source of tokens and an API, which accepts the tokens that it gave and has not revoked."""

    lifetime: int = 3600
    tokens: list[str] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)
    received: list[Received] = field(default_factory=list)

    def __call__(self, request: Received) -> Reply:
        self.received.append(request)
        if request.line == TOKEN:
            self.tokens.append(f"token-{len(self.tokens)}")
            return Reply({"access_token": self.tokens[-1], "expires_in": self.lifetime, "token_type": "Bearer"})
        if request.line == IMPERSONATE:
            self.tokens.append(f"token-{len(self.tokens)}")
            return Reply(
                {
                    "accessToken": self.tokens[-1],
                    "expireTime": f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
                }
            )
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens or token in self.revoked:
            return refuse(401, "UNAUTHENTICATED")
        return Reply({"runtimeVersions": []})

    def taken(self) -> list[str]:
        """Return the requests since the last call."""
        lines = [request.line for request in self.received]
        self.received.clear()
        return lines


@dataclass
class Account:
    """A user with a credentials file. `run` runs a command and returns whether google-auth was imported."""

    cloud: Cloud
    home: Path
    run: Callable[..., bool]

    @property
    def credentials(self) -> Path:
        return self.home / "credentials.json"

    @property
    def folder(self) -> Path:
        return self.home / "state" / "tokens"

    @property
    def entry(self) -> Path:
        (entry,) = self.folder.iterdir()
        return entry

    def store(self, **fields: Any) -> None:
        """Overwrite fields of the cached token."""
        entry = self.entry
        entry.write_text(json.dumps(json.loads(entry.read_text()) | fields))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = "subjectAltName=DNS:tpu.googleapis.com,DNS:oauth2.googleapis.com,DNS:iamcredentials.googleapis.com"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=x",
        "-addext",
        names,
    ]
    subprocess.run([*command, "-keyout", f"{path}.key", "-out", str(path)], check=True, capture_output=True)
    return path


@contextmanager
def tls_server(cloud: Cloud, certificate: Path) -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, f"{certificate}.key")
    with ScriptedServer(cloud) as server:
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        yield server


@pytest.fixture
def account(tmp_path: Path, certificate: Path) -> Iterator[Account]:
    cloud = Cloud()
    with tls_server(cloud, certificate) as server, ConnectProxy(server.port) as proxy:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "TPUCTL_STATE_DIR": str(tmp_path / "state"),
            "TPUCTL_PROJECT": "p",
            "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "credentials.json"),
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": str(certificate),
            "HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}",
        }

        def run(*arguments: str, code: int = 0, **variables: str) -> bool:
            words = arguments or COMMAND
            done = run_tpuctl(words, program=PROGRAM, env=environ | variables, cwd=tmp_path, text=True)
            assert done.returncode == code, done.stderr
            return bool(done.stderr.splitlines()[-1] == "True")

        account = Account(cloud, tmp_path, run)
        account.credentials.write_text(json.dumps(USER))
        yield account


def test_second_command_uses_the_token_of_the_first_without_google_auth(account: Account) -> None:
    assert account.run() is True
    assert account.cloud.taken() == [TOKEN, LIST]

    assert account.run() is False
    assert account.cloud.taken() == [LIST]


def test_cached_token_is_private_and_expires_with_its_hour(account: Account) -> None:
    account.run()
    entry = json.loads(account.entry.read_text())

    assert stat.S_IMODE(account.entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(account.folder.stat().st_mode) == 0o700
    assert entry.keys() == {"token", "expires"}
    left = datetime.fromisoformat(entry["expires"]) - datetime.now(UTC)
    assert timedelta(minutes=55) < left <= timedelta(hours=1)


def test_key_of_a_service_account_is_cached_too(account: Account) -> None:
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    file = {"type": "service_account", "client_email": "me@p.iam.gserviceaccount.com", "private_key": key}
    file |= {"private_key_id": "1", "token_uri": "https://oauth2.googleapis.com/token"}
    account.credentials.write_text(json.dumps(file))

    assert (account.run(), account.cloud.taken()) == (True, [TOKEN, LIST])
    assert (account.run(), account.cloud.taken()) == (False, [LIST])


def test_quota_project_of_the_credentials_is_sent_with_a_cached_token(account: Account) -> None:
    account.credentials.write_text(json.dumps(USER | {"quota_project_id": "payer"}))
    account.run()
    account.run()

    assert [request.headers.get("x-goog-user-project") for request in account.cloud.received] == [
        None,
        "payer",
        "payer",
    ]


def test_other_credentials_get_their_own_token(account: Account) -> None:
    account.run()
    account.credentials.write_text(json.dumps(USER | {"refresh_token": "other"}))
    account.cloud.taken()

    account.run()
    assert account.cloud.taken() == [TOKEN, LIST]
    assert len(list(account.folder.iterdir())) == 2


def test_rejected_token_is_removed_and_fetched_once(account: Account) -> None:
    account.run()
    account.cloud.revoked.add("token-0")
    account.cloud.taken()

    account.run()
    assert account.cloud.taken() == [LIST, TOKEN, LIST]
    assert json.loads(account.entry.read_text())["token"] == "token-1"  # no secret


def test_call_fails_if_the_new_token_is_rejected_too(account: Account) -> None:
    account.run()
    account.cloud.revoked |= {"token-0", "token-1"}
    account.cloud.taken()

    account.run(code=4)
    assert account.cloud.taken() == [LIST, TOKEN, LIST]


def test_token_that_expires_within_five_minutes_is_not_used(account: Account) -> None:
    account.run()
    account.store(expires=(datetime.now(UTC) + timedelta(minutes=4)).isoformat())
    account.cloud.taken()

    assert (account.run(), account.cloud.taken()) == (True, [TOKEN, LIST])
    assert (account.run(), account.cloud.taken()) == (False, [LIST])


def test_token_is_neither_saved_nor_used_if_the_cache_is_off(account: Account) -> None:
    account.run(TPUCTL_TOKEN_CACHE="0")
    assert not account.folder.exists()

    account.run()
    account.cloud.taken()
    account.run(TPUCTL_TOKEN_CACHE="0")
    assert account.cloud.taken() == [TOKEN, LIST]


def test_token_of_an_impersonated_account_is_not_cached(account: Account) -> None:
    for _ in range(2):
        account.run(*COMMAND, "--impersonate-service-account", "a@p.iam.gserviceaccount.com")
        assert account.cloud.taken() == [TOKEN, IMPERSONATE, LIST]
    assert not account.folder.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"token": "token-0"}',
        b'{"token": "", "expires": "2099-01-01T00:00:00Z"}',
        b'{"token": "a\\r\\nx: y", "expires": "2099-01-01T00:00:00Z"}',
        b'{"token": "token-0", "expires": "2099-01-01T00:00:00Z"}',
        b'{"token": "token-0", "expires": "2030-01-01T00:00:00"}',
        b'{"token": "token-0", "expires": 1}',
        b'{"token": ["x"], "expires": "2030-01-01T00:00:00Z"}',
        b"[" * 15_000,
        b" " * (1 << 20),
    ],
    ids=lambda content: content[:24].decode(),
)
def test_damaged_entry_is_replaced(account: Account, content: bytes) -> None:
    account.run()
    account.entry.write_bytes(content)
    account.cloud.taken()

    assert (account.run(), account.cloud.taken()) == (True, [TOKEN, LIST])
    assert json.loads(account.entry.read_bytes())["token"] == "token-1"  # no secret


def test_entry_that_others_may_read_or_a_pipe_is_not_used(account: Account) -> None:
    account.run()
    account.entry.chmod(0o640)
    account.cloud.taken()
    account.run()
    assert account.cloud.taken() == [TOKEN, LIST]
    assert stat.S_IMODE(account.entry.stat().st_mode) == 0o600

    entry = account.entry
    entry.unlink()
    os.mkfifo(entry)
    account.run()
    assert account.cloud.taken() == [TOKEN, LIST]


def test_only_own_files_in_a_folder_of_ours_are_removed(account: Account) -> None:
    account.run()
    entry = account.entry
    elsewhere = account.folder.with_name("documents")
    elsewhere.mkdir()
    own = [account.folder / name for name in ("a" * 64, f".{'a' * 64}.01234567")]
    others = [folder / name for folder in (account.folder, elsewhere) for name in ("thesis.tex", "A" * 64)]
    for file in (*own, *others, elsewhere / ("b" * 64)):
        file.touch()
        os.utime(file, (0, 0))
    entry.unlink()
    account.folder.chmod(0o755)

    account.run()
    assert [file.exists() for file in (*own, *others)] == [False, False, True, True, True, True]
    assert stat.S_IMODE(account.folder.stat().st_mode) == 0o700
    account.folder.rename(account.folder.with_name("moved"))
    account.folder.symlink_to(elsewhere)
    account.cloud.taken()

    assert (account.run(), account.run()) == (True, True)
    assert account.cloud.taken() == [TOKEN, LIST] * 2
    assert sorted(file.name for file in elsewhere.iterdir()) == ["A" * 64, "b" * 64, "thesis.tex"]


def test_folder_that_cannot_be_written_costs_only_the_cache(account: Account) -> None:
    account.folder.parent.mkdir()
    account.folder.write_text("a file")

    assert (account.run(), account.run()) == (True, True)
    assert account.cloud.taken() == [TOKEN, LIST] * 2


def test_doctor_fetches_a_token_whatever_is_cached(account: Account) -> None:
    """A login that was revoked is found although the cached token is still accepted."""
    account.run()
    account.cloud.taken()

    account.run("doctor", code=9)
    assert TOKEN in account.cloud.taken()
