"""OS Login and Compute Engine's metadata: requests, meaning of answers, and the account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httplib2
import pytest

from tests.cloud.scripted_api import Reply, Script, ScriptedServer, in_turn, refuse
from tpuctl.clock import ManualClock
from tpuctl.cloud.credentials import account_of, load_credentials
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.projects import ComputeClient, LoginKey, LoginProfile, OsLoginClient
from tpuctl.cloud.transport import AuthRequest, HttpFactory
from tpuctl.errors import AccessError, InvalidInputError, ServiceUnavailableError

ACCOUNT = "ada@example.com"
FIRST = {"username": "ada_example_com", "primary": False}
PRIMARY = {"username": "sa_1093", "primary": True}
KEYS = {"f1": {"key": "ssh-rsa A ada@laptop", "fingerprint": "f1", "expirationTimeUsec": "1767225600000000"}}
PROFILE = {"name": "1093", "posixAccounts": [FIRST, PRIMARY], "sshPublicKeys": KEYS}
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def os_login(script: Script) -> Iterator[tuple[OsLoginClient, ScriptedServer]]:
    with ScriptedServer(script) as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        try:
            yield OsLoginClient(factory, ManualClock(), endpoint=server.url), server
        finally:
            factory.close()


def test_profile_has_its_primary_name_first_and_ignores_comments_of_keys() -> None:
    with os_login(in_turn(Reply(PROFILE), refuse(404, "NOT_FOUND"))) as (client, server):
        found, absent = client.profile(ACCOUNT, "p"), client.profile(ACCOUNT, "p")

    key = LoginKey("f1", "ssh-rsa A ada@laptop", NEW_YEAR)
    assert (found, absent) == (LoginProfile(("sa_1093", "ada_example_com"), (key,)), LoginProfile((), ()))
    assert (found.key("ssh-rsa A other"), found.key("ssh-rsa B ada")) == (key, None)
    assert server.received[0].path == f"/v1/users/{ACCOUNT}/loginProfile?projectId=p"


def test_key_is_imported_without_its_comment_and_with_its_expiry() -> None:
    with os_login(
        in_turn(Reply({"loginProfile": PROFILE}), Reply({"loginProfile": PROFILE}), Reply(KEYS["f1"]))
    ) as pair:
        client, server = pair
        client.import_key(ACCOUNT, "ssh-rsa A ada@laptop", project="p", region="us-central2")
        client.import_key(ACCOUNT, "ssh-rsa A", project="p", region="us-central2", expires=NEW_YEAR)
        client.set_expiry(ACCOUNT, LoginKey("f1", "ssh-rsa A", None), NEW_YEAR)

    path = f"/v1/users/{ACCOUNT}:importSshPublicKey?projectId=p&regions=us-central2"
    end = {"expirationTimeUsec": "1767225600000000"}
    assert [(request.method, request.path, request.body) for request in server.received] == [
        ("POST", path, {"key": "ssh-rsa A"}),
        ("POST", path, {"key": "ssh-rsa A", **end}),
        ("PATCH", f"/v1/users/{ACCOUNT}/sshPublicKeys/f1?updateMask=expirationTimeUsec", end),
    ]


def test_refusal_names_the_roles_and_an_invalid_account_is_not_sent() -> None:
    with os_login(in_turn(refuse(403, "PERMISSION_DENIED", "The caller does not have permission"))) as (client, server):
        with pytest.raises(AccessError, match=f"OS Login refuses `{ACCOUNT}`") as caught:
            client.profile(ACCOUNT, "p")
        with pytest.raises(InvalidInputError):
            client.profile("../projects/x?", "p")

    assert "roles/compute.osLogin" in (caught.value.hint or "")
    assert len(server.received) == 1


class Answer:
    """An http object with one answer, which records its requests."""

    def __init__(self, status: int, body: Any) -> None:
        self.asked: list[str] = []
        self._answer = httplib2.Response({"status": str(status)}), json.dumps(body).encode()

    def request(self, uri: str, **_: Any) -> tuple[Any, bytes]:
        self.asked.append(uri)
        return self._answer


@pytest.mark.parametrize(
    ("status", "body", "account"), [(200, {"email": ACCOUNT}, ACCOUNT), (200, {"sub": "1"}, None), (403, {}, None)]
)
def test_caller_is_read_from_google_and_may_be_unknown(status: int, body: Any, account: str | None) -> None:
    http = Answer(status, body)

    assert OsLoginClient(lambda: http, ManualClock()).caller() == account
    assert http.asked == ["https://openidconnect.googleapis.com/v1/userinfo"]


@pytest.mark.parametrize(
    ("answers", "metadata"),
    [
        (
            [Reply({"commonInstanceMetadata": {"items": [{"key": "a", "value": "b"}, {"key": "c"}]}})],
            {"a": "b", "c": ""},
        ),
        ([Reply({})], {}),
        ([refuse(503, "UNAVAILABLE"), Reply({})], {}),
        ([refuse(403, "PERMISSION_DENIED", "Required 'compute.projects.get' permission")], AccessError),
        ([refuse(503, "UNAVAILABLE")], ServiceUnavailableError),
    ],
)
def test_project_metadata_is_read_with_few_retries(answers: list[Reply], metadata: Any) -> None:
    with ScriptedServer(in_turn(*answers)) as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        client = ComputeClient(factory, ManualClock(), endpoint=server.url)
        if isinstance(metadata, dict):
            assert client.project_metadata("example.com:p") == metadata
        else:
            with pytest.raises(metadata):
                client.project_metadata("example.com:p")
        factory.close()

    path = "/compute/v1/projects/example.com:p?fields=commonInstanceMetadata/items"
    assert {request.path for request in server.received} == {path}
    assert len(server.received) <= 2


USER = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
URL = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/ci@p.iam.gserviceaccount.com:generateAccessToken"
IMPERSONATED = {
    "type": "impersonated_service_account",
    "source_credentials": USER,
    "service_account_impersonation_url": URL,
    "delegates": [],
}


@pytest.mark.parametrize(
    ("content", "account"),
    [(USER, None), (USER | {"account": ACCOUNT}, ACCOUNT), (IMPERSONATED, "ci@p.iam.gserviceaccount.com")],
)
def test_account_of_credentials_is_returned_if_known(tmp_path: Path, content: Any, account: str | None) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(content))
    request = AuthRequest(TransportOptions())
    credentials = load_credentials(
        {"NO_GCE_CHECK": "true"}, adc=path, gcloud_token=str, impersonate=None, quota_project=None, request=request
    )

    assert account_of(credentials, request) == account
