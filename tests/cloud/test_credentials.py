"""Credentials: which source is used, and that no program is started to find it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.scripted_api import NAME, Reply, ScriptedServer, client_of
from tpuctl.clock import ManualClock
from tpuctl.cloud.credentials import GcloudCredentials, is_on_google_cloud, load_credentials
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.tpu import TpuClient
from tpuctl.cloud.transport import AuthRequest, HttpFactory
from tpuctl.errors import AccessError, CredentialsError, ServiceUnavailableError, TpuctlError

USER = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
# The client id of Google's own command line, for which google-auth warns about a missing quota project.
GCLOUD_USER = USER | {"client_id": "764086051850-6qr4p6gpi6hn506pt8ejuq83di341hur.apps.googleusercontent.com"}
FEDERATED = {
    "type": "external_account",
    "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
    "credential_source": {"file": "/none"},
}
IMPERSONATED = {
    "type": "impersonated_service_account",
    "source_credentials": USER,
    "delegates": [],
    "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b.c:generateAccessToken",
}
REQUEST = AuthRequest(TransportOptions())
NOWHERE = {"NO_GCE_CHECK": "true"}


@pytest.fixture(scope="module")
def private_key() -> str:
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def key_file(path: Path, private_key: str, server: str = "http://127.0.0.1:1") -> Path:
    account = {
        "type": "service_account",
        "client_email": "me@p.iam.gserviceaccount.com",
        "token_uri": f"{server}/token",
    }
    path.write_text(json.dumps(account | {"private_key": private_key, "private_key_id": "1", "project_id": "p"}))
    return path


def no_gcloud() -> str:
    raise AccessError("gcloud is not installed", hint="install it")


def loaded(environ: dict[str, str], adc: Path, **options: Any) -> Any:
    found = {"gcloud_token": no_gcloud, "impersonate": None, "quota_project": None, **options}
    return load_credentials({**NOWHERE, **environ}, adc=adc, request=REQUEST, **found)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (USER, "oauth2"),
        (GCLOUD_USER, "oauth2"),
        (FEDERATED, "identity_pool"),
        (IMPERSONATED, "impersonated_credentials"),
    ],
)
def test_each_kind_of_credentials_file_is_read_without_gcloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any], kind: str
) -> None:
    called = tmp_path / "called"
    fake = tmp_path / "gcloud"
    fake.write_text(f"#!/bin/sh\ntouch {called}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    adc = tmp_path / "adc.json"
    adc.write_text(json.dumps(content))

    credentials = loaded({}, adc, quota_project="payer")

    assert kind in type(credentials).__module__
    assert credentials.quota_project_id == "payer"
    assert not called.exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pipe", "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
        ("large", "it is larger than 1 MiB"),
        ("deep", "it contains no credentials"),
        (".", "Is a directory"),
    ],
)
def test_unusable_credentials_file_is_refused(tmp_path: Path, name: str, why: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(10 << 30)
    (tmp_path / "deep").write_text("[" * 100_000)

    with pytest.raises(
        CredentialsError, match=f"^cannot use the credentials.* of GOOGLE_APPLICATION_CREDENTIALS: {why}$"
    ):
        loaded({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / name)}, tmp_path / "absent")


def test_google_application_credentials_override_the_default_file(tmp_path: Path, private_key: str) -> None:
    adc = tmp_path / "adc.json"
    adc.write_text(json.dumps(USER))
    named = key_file(tmp_path / "key.json", private_key)

    credentials = loaded({"GOOGLE_APPLICATION_CREDENTIALS": str(named)}, adc)

    assert credentials.service_account_email == "me@p.iam.gserviceaccount.com"
    assert credentials.scopes == ["https://www.googleapis.com/auth/cloud-platform"]


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"type": "service_account"}', '{"type": "authorized_user"}', "5"]
)
def test_file_without_credentials_is_named(tmp_path: Path, content: str | None) -> None:
    named = tmp_path / "key.json"
    if content is not None:
        named.write_text(content)

    with pytest.raises(
        AccessError, match=r"^cannot use the credentials.* of GOOGLE_APPLICATION_CREDENTIALS: "
    ) as caught:
        loaded({"GOOGLE_APPLICATION_CREDENTIALS": str(named)}, tmp_path / "none", gcloud_token=lambda: "unused")
    assert "gcloud auth application-default login" in str(caught.value.hint)


def test_gcloud_token_is_used_last_and_fetched_again_after_a_refusal(tmp_path: Path) -> None:
    tokens = iter(["one", "two"])
    credentials = loaded({}, tmp_path / "none", gcloud_token=lambda: next(tokens))

    assert isinstance(credentials, GcloudCredentials)
    assert (credentials.token, credentials.valid) == ("one", True)
    credentials.refresh(None)
    assert credentials.token == "two"


def test_missing_credentials_name_the_searched_places(tmp_path: Path) -> None:
    with pytest.raises(AccessError) as caught:
        loaded({}, tmp_path / "none.json")

    assert all(
        word in caught.value.message for word in ("GOOGLE_APPLICATION_CREDENTIALS", "none.json", "metadata", "gcloud")
    )
    assert str(caught.value.hint).startswith("install it\nrun `gcloud auth application-default login`")


@pytest.mark.parametrize("chain", ["a@x,b@x,c@x", ("a@x", "b@x", "c@x")])
def test_last_account_of_a_chain_is_impersonated(tmp_path: Path, chain: str | tuple[str, ...]) -> None:
    credentials = loaded({}, tmp_path / "none", gcloud_token=lambda: "t", impersonate=chain)

    assert credentials.service_account_email == "c@x"
    assert credentials._delegates == ["a@x", "b@x"]


@pytest.mark.parametrize(("flavor", "expected"), [({"Metadata-Flavor": "Google"}, True), ({}, False)])
def test_metadata_server_is_recognised_by_its_header(tmp_path: Path, flavor: dict[str, str], expected: bool) -> None:
    with ScriptedServer(lambda _: Reply(headers=flavor)) as server:
        environ = {"GCE_METADATA_HOST": f"127.0.0.1:{server.port}"}

        assert is_on_google_cloud(environ) is expected
        assert not is_on_google_cloud({**environ, "NO_GCE_CHECK": "True"})
        if expected:
            credentials = loaded({**environ, "NO_GCE_CHECK": ""}, tmp_path / "none")
            assert "compute_engine" in type(credentials).__module__
    assert not is_on_google_cloud({"GCE_METADATA_HOST": "127.0.0.1:1"})


def failure_of(credentials: Any) -> tuple[TpuctlError, ManualClock]:
    """Return the error of a call without a token. The call itself is not sent."""
    endpoint = "https://tpu.test"
    factory = HttpFactory(TransportOptions(), credentials=lambda: credentials, endpoint=ApiEndpoint.parse(endpoint))
    clock = ManualClock()
    with pytest.raises(TpuctlError) as caught:
        TpuClient(factory, clock, endpoint=endpoint).delete_node(NAME, lambda _: None)
    factory.close()
    return caught.value, clock


def test_refused_token_raises_a_credentials_error(tmp_path: Path, private_key: str) -> None:
    answer = Reply({"error": "invalid_grant", "error_description": "Token has been expired or revoked."}, 400)
    with ScriptedServer(lambda _: answer) as server:
        credentials = loaded({}, key_file(tmp_path / "key", private_key, server.url))
        error, clock = failure_of(credentials)

        assert type(error) is CredentialsError
        assert "invalid_grant" in error.message
        assert "gcloud auth" in str(error.hint)
        assert server.lines == ["POST /token"]
        assert clock.monotonic().total_seconds() == 0


def test_token_lost_to_a_network_failure_means_not_sent(tmp_path: Path, private_key: str) -> None:
    error, clock = failure_of(loaded({}, key_file(tmp_path / "key", private_key)))

    assert type(error) is ServiceUnavailableError
    assert "cannot fetch an access token" in error.message
    assert clock.monotonic().total_seconds() > 0


def test_message_of_gcloud_about_its_token_is_quoted(tmp_path: Path) -> None:
    """After a refused token the refresh fails with gcloud's error and remedy."""
    credentials = GcloudCredentials(lambda: "t")
    credentials.token = None
    credentials._access_token = no_gcloud

    error, _ = failure_of(credentials)

    assert (type(error), error.message, error.hint) == (AccessError, "gcloud is not installed", "install it")


def test_loopback_endpoint_loads_no_credentials() -> None:
    with client_of(lambda _: Reply({"nodes": []})) as (client, server):
        client.list_nodes("p")
        assert "authorization" not in server.received[0].headers
