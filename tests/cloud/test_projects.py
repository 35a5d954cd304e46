"""`ProjectsClient`: five APIs, each at its own host or all at one endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cloud.beside import FACES, on_face, outcome, scripted
from tests.cloud.scripted_api import Reply, in_turn, refuse
from tests.conftest import Sandbox
from tpuctl.clock import ManualClock
from tpuctl.cloud.projects import ProjectsClient
from tpuctl.errors import AccessError, NotFoundError, OutcomeUnknownError, TimedOutError, TpuctlError
from tpuctl.models.project import OrgPolicy, Project, QuotaLimit
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import set_tpu_quota

TPU, IAP = "tpu.googleapis.com", "iap.googleapis.com"
ON = {"name": f"projects/1/services/{TPU}", "state": "ENABLED"}
OFF = {"name": f"projects/1/services/{IAP}", "state": "DISABLED"}
BATCH = f"/v1/projects/p/services:batchGet?names=projects/p/services/{IAP}&names=projects/p/services/{TPU}"


@pytest.fixture(params=FACES)
def projects(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[ProjectsClient]:
    with on_face(ProjectsClient, request.param, sandbox.state) as client:
        yield client


def test_project_is_read_with_billing_services_and_quotas(projects: ProjectsClient, sandbox: Sandbox) -> None:
    sandbox_state = sandbox.state
    administration.set_services(sandbox_state, {IAP: False, TPU: True})
    administration.set_org_policy(sandbox_state, "compute.requireOsLogin", {"rules": [{"enforce": True}]})
    administration.add_role(sandbox_state, "reader", includedPermissions=["storage.objects.get"])
    with sandbox_state.write() as session:
        set_tpu_quota(session, limit=32, generation="v4", region="us-central2")

    number = administration.project_number("sandbox")
    assert projects.project("sandbox") == Project("sandbox", number, "ACTIVE")
    assert projects.services("sandbox", [IAP, TPU]) == {IAP: False, TPU: True}
    assert projects.services("sandbox", []) == {}
    assert projects.org_policy("sandbox", "constraints/compute.requireOsLogin").enforced
    assert not projects.org_policy("sandbox", "compute.requireShieldedVm").enforced
    assert projects.role("projects/sandbox/roles/reader") == frozenset({"storage.objects.get"})
    assert "storage.objects.create" in projects.role("roles/storage.objectAdmin")
    assert any(limit.value == 32 for limit in projects.quotas("sandbox", TPU))
    assert projects.billing("sandbox")
    administration.set_billing(sandbox_state, enabled=False)
    assert not projects.billing("sandbox")
    assert "roles/editor" in {binding.role for binding in projects.policy("sandbox").bindings}


def test_service_is_enabled(projects: ProjectsClient, sandbox: Sandbox) -> None:
    administration.set_services(sandbox.state, {IAP: False})
    projects.enable("sandbox", IAP)

    assert projects.services("sandbox", [IAP]) == {IAP: True}


@pytest.mark.parametrize(
    ("kind", "is_certain"),
    [pytest.param("drop-after", True, id="carried-out"), pytest.param("drop-before", False, id="not-carried-out")],
)
def test_lost_answer_of_enable_is_looked_at(
    projects: ProjectsClient, sandbox: Sandbox, kind: str, *, is_certain: bool
) -> None:
    administration.set_services(sandbox.state, {IAP: False})
    sandbox.fault(kind, method="*.services.enable", count=0)

    certain = nullcontext() if is_certain else pytest.raises(OutcomeUnknownError, match="was sent, but its outcome")
    with certain:
        projects.enable("sandbox", IAP)

    assert projects.services("sandbox", [IAP]) == {IAP: is_certain}


def test_missing_role_raises_not_found(projects: ProjectsClient) -> None:
    assert outcome(lambda: projects.role("roles/storage.nothing")) == ("NotFoundError", None)


@pytest.mark.parametrize(
    ("ask", "host", "line"),
    [
        (lambda c: c.project("d.example:p"), "cloudresourcemanager", "GET /v3/projects/d.example:p"),
        (lambda c: c.policy("p"), "cloudresourcemanager", "POST /v3/projects/p:getIamPolicy"),
        (lambda c: c.services("p", [TPU]), "serviceusage", "GET /v1/projects/p/services:batchGet"),
        (lambda c: c.enable("p", TPU), "serviceusage", f"POST /v1/projects/p/services/{TPU}:enable"),
        (lambda c: c.quotas("p", TPU), "serviceusage", f"GET /v1beta1/projects/p/services/{TPU}/consumerQuotaMetrics"),
        (lambda c: c.billing("p"), "cloudbilling", "GET /v1/projects/p/billingInfo"),
        (lambda c: c.org_policy("p", "constraints/a.b"), "orgpolicy", "GET /v2/projects/p/policies/a.b:getEffectivePolicy"),
        (lambda c: c.role("roles/a.b"), "iam", "GET /v1/roles/a.b"),
        (lambda c: c.role("projects/d.example:p/roles/r"), "iam", "GET /v1/projects/d.example:p/roles/r"),
        (lambda c: c.role("organizations/1/roles/r"), "iam", "GET /v1/organizations/1/roles/r"),
    ],
)  # fmt: skip
def test_each_query_has_its_host_and_permission(ask: Callable[[ProjectsClient], Any], host: str, line: str) -> None:
    sent = _Sent()
    with pytest.raises(AccessError, match=r"`\w+\.\w+\.\w+` is not allowed on the "):
        ask(ProjectsClient(lambda: sent, ManualClock()))

    assert sent.lines == [(f"https://{host}.googleapis.com", line)]


class _Sent:
    """An http object that refuses everything and records the URLs."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def request(self, uri: str, method: str = "GET", **_: Any) -> tuple[Any, bytes]:
        import httplib2  # noqa: PLC0415  # costs 95 ms

        parts = urlsplit(uri)
        self.lines.append((f"{parts.scheme}://{parts.hostname}", f"{method} {parts.path}"))
        body = b'{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}'
        return httplib2.Response({"status": "403"}), body


def test_policy_is_requested_with_its_conditions() -> None:
    with scripted(ProjectsClient, in_turn(Reply({"bindings": []}))) as (client, server):
        client.policy("p")

    assert server.received[0].body == {"options": {"requestedPolicyVersion": 3}}


@pytest.mark.parametrize("refusal", [refuse(501, "UNIMPLEMENTED"), refuse(404, "NOT_FOUND"), refuse(400, "X")])
def test_services_are_listed_if_batch_get_is_unsupported(refusal: Reply) -> None:
    first, second = Reply({"services": [ON], "nextPageToken": "t"}), Reply({})
    with scripted(ProjectsClient, in_turn(refusal, first, second)) as (client, server):
        assert client.services("p", [TPU, IAP]) == {TPU: True, IAP: False}

    line = "/v1/projects/p/services?filter=state:ENABLED&pageSize=200"
    fields = "&fields=services(name,state),nextPageToken"
    assert [request.path for request in server.received] == [
        f"{BATCH}&fields=services(name,state)",
        f"{line}{fields}",
        f"{line}{fields}&pageToken=t",
    ]


def test_services_by_name_take_one_call_and_a_403_is_final() -> None:
    answers = in_turn(Reply({"services": [OFF, ON]}), refuse(403, "PERMISSION_DENIED", "no"))
    with scripted(ProjectsClient, answers) as (client, server):
        assert client.services("p", [TPU, IAP]) == {TPU: True, IAP: False}
        assert outcome(lambda: client.services("p", [TPU])) == ("AccessError", None)

    assert len(server.received) == 2


def test_services_above_the_batch_limit_are_listed() -> None:
    names = [f"s{number}.googleapis.com" for number in range(31)]
    with scripted(ProjectsClient, in_turn(Reply({"services": [ON]}))) as (client, server):
        assert client.services("p", names) == dict.fromkeys(names, False)

    assert server.lines == ["GET /v1/projects/p/services"]


def test_services_up_to_the_batch_limit_take_one_call() -> None:
    names = [f"s{number}.googleapis.com" for number in range(30)]
    with scripted(ProjectsClient, in_turn(Reply({"services": [ON]}))) as (client, server):
        assert client.services("p", names) == dict.fromkeys(names, False)

    assert server.lines == ["GET /v1/projects/p/services:batchGet"]


def test_quotas_of_all_pages_are_returned() -> None:
    def metric(name: str, *buckets: dict[str, Any]) -> dict[str, Any]:
        limits = [{"metric": f"{TPU}/{name}", "unit": "1/{project}/{region}", "quotaBuckets": list(buckets)}]
        return {"metric": f"{TPU}/{name}", "displayName": name.upper(), "consumerQuotaLimits": limits}

    here = {"effectiveLimit": "8", "dimensions": {"region": "us-east1"}}
    first = Reply({"metrics": [metric("v4", {"effectiveLimit": "-1"}, here)], "nextPageToken": "t"})
    with scripted(ProjectsClient, in_turn(first, Reply({"metrics": [metric("v5", {})]}))) as (client, server):
        found = client.quotas("p", TPU)

    unit = "1/{project}/{region}"
    assert found == (
        QuotaLimit(f"{TPU}/v4", "V4", unit, None),
        QuotaLimit(f"{TPU}/v4", "V4", unit, 8, {"region": "us-east1"}),
        QuotaLimit(f"{TPU}/v5", "V5", unit, 0),
    )
    assert "view=BASIC" in server.received[0].path
    assert "pageToken=t" in server.received[1].path


def test_enable_waits_for_its_operation() -> None:
    clock = ManualClock()
    pending, done = {"name": "operations/acf.1"}, {"name": "operations/acf.1", "done": True}
    with scripted(ProjectsClient, in_turn(Reply(pending), Reply(pending), Reply(done)), clock=clock) as (
        client,
        server,
    ):
        client.enable("p", TPU)

    assert server.lines == [f"POST /v1/projects/p/services/{TPU}:enable", *["GET /v1/operations/acf.1"] * 2]
    assert clock.monotonic() == timedelta(seconds=2)


def test_enable_raises_if_its_operation_fails_or_never_ends() -> None:
    failed = Reply({"name": "operations/x", "done": True, "error": {"code": 9, "message": "billing is needed"}})
    with (
        scripted(ProjectsClient, in_turn(failed)) as (client, _),
        pytest.raises(TpuctlError, match="billing is needed"),
    ):
        client.enable("p", TPU)
    endless = Reply({"name": "operations/x"})
    with scripted(ProjectsClient, in_turn(endless)) as (client, _), pytest.raises(TimedOutError):
        client.enable("p", TPU)


def test_deleted_role_raises_not_found() -> None:
    answer = Reply({"includedPermissions": ["a.b.c"], "deleted": True})
    with scripted(ProjectsClient, in_turn(answer)) as (client, _), pytest.raises(NotFoundError, match="is deleted"):
        client.role("projects/p/roles/r")


def test_effective_organisation_policy_is_read() -> None:
    name = "projects/1/policies/compute.vmExternalIpAccess"
    answer = Reply({"name": name, "spec": {"rules": [{"denyAll": True}]}})
    with scripted(ProjectsClient, in_turn(answer)) as (client, _):
        assert client.org_policy("p", "constraints/compute.vmExternalIpAccess") == OrgPolicy(
            "compute.vmExternalIpAccess", denies_all=True
        )


def test_disabled_api_is_distinguished_from_a_missing_permission() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED"}
    text = "Organization Policy API has not been used in project 1 before or it is disabled."
    with scripted(ProjectsClient, in_turn(refuse(403, "PERMISSION_DENIED", text, info))) as (client, _):
        assert outcome(lambda: client.org_policy("p", "a.b")) == ("AccessError", "api-disabled")
