"""`BucketsClient`: requests, meaning of answers, and grants that keep other changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.cloud.beside import FACES, older, on_face, outcome, scripted
from tests.cloud.scripted_api import Drop, Received, Reply, in_turn, refuse
from tests.conftest import Sandbox
from tpuctl.clock import ManualClock
from tpuctl.cloud.endpoint import TransportOptions
from tpuctl.cloud.requests import ApiRequest
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.transport import AuthorizedHttp
from tpuctl.errors import AccessError, ConflictError, NotFoundError
from tpuctl.models.bucket import AnywhereCache, BucketContents, BucketPlacement
from tpuctl.models.project import IamBinding, IamPolicy
from tpuctl.sandbox import administration

ROLE = "roles/storage.objectUser"
ROBOT = "serviceAccount:robot@p.iam.gserviceaccount.com"
PAYS_NOBODY = older(400, "required", "Bucket is a requester pays bucket but no user project provided.")
DENIED = older(403, "forbidden", "ada does not have storage.buckets.get access to the Google Cloud Storage bucket.")


@pytest.fixture(params=FACES)
def buckets(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[BucketsClient]:
    administration.add_bucket(sandbox.state, "data", location="EUR4")
    administration.add_bucket(sandbox.state, "paid", billing={"requesterPays": True})
    administration.add_bucket(sandbox.state, "strange", denied=("storage.buckets.get", "storage.buckets.getIamPolicy"))
    with on_face(BucketsClient, request.param, sandbox.state) as client:
        yield client


def test_bucket_has_location_and_contents(buckets: BucketsClient, sandbox: Sandbox) -> None:
    administration.add_object(sandbox.state, "data", "train/", "")
    administration.add_object(sandbox.state, "data", "train/empty.txt", "")
    administration.add_object(sandbox.state, "data", "train/a", "12345")
    administration.add_object(sandbox.state, "data", "elsewhere", "123")
    administration.add_cache(sandbox.state, "data", "europe-west4-a")

    found = buckets.bucket("data")
    assert (found.name, found.placement.location, found.placement.kind) == ("data", "EUR4", "dual-region")
    assert buckets.layout("data").location == "EUR4"
    assert buckets.contents("data", "train/") == BucketContents(2, 5, is_complete=True)
    assert buckets.contents("data", "") == BucketContents(3, 8, is_complete=True)
    assert buckets.contents("data", "none/") == BucketContents(0, 0, is_complete=True)
    assert [cache.zone for cache in buckets.caches("data")] == ["europe-west4-a"]
    asked = ["storage.objects.get", "storage.objects.list"]
    assert buckets.test_permissions("data", asked) == frozenset(asked)


def test_absent_refused_and_requester_pays_raise_different_errors(buckets: BucketsClient) -> None:
    assert outcome(lambda: buckets.bucket("absent")) == ("NotFoundError", None)
    assert outcome(lambda: buckets.bucket("strange")) == ("AccessError", "iam-permission-denied")
    assert outcome(lambda: buckets.bucket("paid")) == ("InvalidRequestError", "storage-requester-pays")
    assert buckets.layout("strange").location == "US"
    assert buckets.bucket("paid", user_project="sandbox").requester_pays
    assert buckets.layout("paid", user_project="sandbox").location == "US"
    assert buckets.caches("paid", user_project="sandbox") == ()


def test_grant_is_added_once_and_keeps_other_bindings(buckets: BucketsClient) -> None:
    before = buckets.policy("data")
    buckets.grant("data", ROLE, ROBOT)
    granted = buckets.policy("data")
    buckets.grant("data", ROLE, ROBOT)

    assert granted.bindings == (*before.bindings, IamBinding(ROLE, (ROBOT,)))
    assert buckets.policy("data") == granted


def test_simultaneous_grants_are_all_applied(buckets: BucketsClient) -> None:
    members = [f"user:u{number}@example.com" for number in range(4)]
    threads = [threading.Thread(target=buckets.grant, args=("data", ROLE, member)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    held = next(binding.members for binding in buckets.policy("data").bindings if binding.role == ROLE)
    assert sorted(held) == members


@pytest.mark.parametrize(
    ("ask", "line", "payer"),
    [
        (lambda b: b.bucket("a.b"), "/storage/v1/b/a.b?userProject=p", None),
        (lambda b: b.layout("a.b"), "/storage/v1/b/a.b/storageLayout", "p"),
        (lambda b: b.policy("a.b"), "/storage/v1/b/a.b/iam?optionsRequestedPolicyVersion=3&userProject=p", None),
        (
            lambda b: b.test_permissions("a.b", ["y", "x"]),
            "/storage/v1/b/a.b/iam/testPermissions?permissions=x&permissions=y&userProject=p",
            None,
        ),
        (
            lambda b: b.contents("a.b", "ü &/"),
            "/storage/v1/b/a.b/o?prefix=%C3%BC%20%26/&maxResults=1000&fields=items(name,size),nextPageToken&userProject=p",
            None,
        ),
        (lambda b: b.caches("a.b"), "/storage/v1/b/a.b/anywhereCaches?pageSize=1000", "p"),
    ],
)
def test_each_query_is_one_request_with_its_user_project(
    ask: Callable[[Any], Any], line: str, payer: str | None
) -> None:
    with scripted(BucketsClient, in_turn(Reply({"kind": "storage#bucket", "name": "a.b"}))) as (client, server):
        ask(_Paying(client))

    assert [request.path for request in server.received] == [line]
    assert server.received[0].headers.get("x-goog-user-project") == payer


@pytest.mark.parametrize("payer", ["bucket-payer", None])
def test_user_project_of_a_bucket_overrides_the_quota_project(payer: str | None) -> None:
    class Credentials:
        def before_request(self, *given: Any) -> None:
            given[-1].update({"authorization": "Bearer t", "x-goog-user-project": "of-the-credentials"})

    options = TransportOptions(quota_project="of-the-settings")
    http = AuthorizedHttp(options, Credentials, endpoint=None, lock=threading.Lock())
    request = ApiRequest("GET", "https://storage.googleapis.com/storage/v1/b/data", payer=payer)

    assert http._with_token(request.url, "GET", request.headers) == {
        "accept": "application/json",
        "authorization": "Bearer t",
        "x-goog-user-project": payer or "of-the-settings",
    }


class _Paying:
    """A client whose queries are billed to the project `p`."""

    def __init__(self, client: BucketsClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *values: getattr(self._client, name)(*values, user_project="p")


@pytest.mark.parametrize(
    ("answer", "kind", "error_id"),
    [
        (older(404, "notFound", "The specified bucket does not exist."), "NotFoundError", None),
        (DENIED, "AccessError", None),
        (PAYS_NOBODY, "InvalidRequestError", "storage-requester-pays"),
        (older(401, "authError", "Invalid Credentials"), "CredentialsError", None),
        (refuse(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."), "CredentialsError", "auth-missing"),
        (older(403, "rateLimitExceeded", "Rate Limit Exceeded"), "QuotaError", "quota-rate-older"),
        (older(503, "backendError", "Backend Error"), "ServiceUnavailableError", None),
        # A page of a proxy's says nothing about the bucket.
        (Reply(b"<html>not found</html>", 404), "ServiceUnavailableError", None),
        (Reply([]), "ServiceUnavailableError", None),
    ],
)  # fmt: skip
def test_refusal_raises_its_error_class(answer: Reply, kind: str, error_id: str | None) -> None:
    with scripted(BucketsClient, in_turn(answer)) as (client, _):
        assert outcome(lambda: client.bucket("data")) == (kind, error_id)


def test_refusal_names_the_permission_and_the_absent_resource() -> None:
    absent = older(404, "notFound", "The specified bucket does not exist.")
    with scripted(BucketsClient, in_turn(DENIED, absent)) as (client, _):
        with pytest.raises(AccessError) as denied:
            client.bucket("data")
        with pytest.raises(NotFoundError) as missing:
            client.bucket("data")

    assert denied.value.message.startswith(
        "`storage.buckets.get` is not allowed on the bucket `gs://data`: ada does not"
    )
    assert missing.value.message == "the bucket `gs://data` does not exist"


def test_folder_markers_are_not_counted_and_further_pages_are_noted() -> None:
    items = [{"name": "x/", "size": "0"}, {"name": "y/", "size": "3"}, {"name": "z", "size": "0"}]
    with scripted(BucketsClient, in_turn(Reply({"items": items, "nextPageToken": "t"}), Reply({}))) as (client, _):
        assert client.contents("data", "") == BucketContents(2, 3, is_complete=False)
        assert client.contents("data", "") == BucketContents(0, 0, is_complete=True)


def test_caches_of_all_pages_and_both_data_locations_are_returned() -> None:
    first = {"items": [{"zone": "us-central1-a", "state": "running"}], "nextPageToken": "t"}
    second = {"items": [{"anywhereCacheId": "us-central1-b", "state": "paused"}]}
    layout = {"location": "us", "locationType": "dual-region", "customPlacementConfig": {"dataLocations": ["us-west1"]}}
    with scripted(BucketsClient, in_turn(Reply(first), Reply(second), Reply(layout))) as (client, _):
        assert client.caches("data") == (
            AnywhereCache("us-central1-a", "running"),
            AnywhereCache("us-central1-b", "paused"),
        )
        assert client.layout("data") == BucketPlacement("US", "dual-region", ("US-WEST1",))


CONDITION = {"title": "t", "description": "d", "expression": "request.time < timestamp('2027-01-01T00:00:00Z')"}
CONDITIONAL = {"role": ROLE, "members": [ROBOT], "condition": CONDITION}
PLAIN = {"role": ROLE, "members": ["user:ada@example.com"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [{"role": ROLE, "members": [ROBOT]}]),
        ([PLAIN], [{"role": ROLE, "members": ["user:ada@example.com", ROBOT]}]),
        # A role that holds only sometimes is kept, and not taken for one that always holds.
        ([CONDITIONAL], [CONDITIONAL, {"role": ROLE, "members": [ROBOT]}]),
        ([CONDITIONAL, PLAIN], [CONDITIONAL, {"role": ROLE, "members": ["user:ada@example.com", ROBOT]}]),
        ([{"role": ROLE, "members": [ROBOT]}], None),
        ([PLAIN, {"role": ROLE, "members": [ROBOT]}], None),
    ],
)
def test_grant_changes_one_member_only(before: list[dict[str, Any]], after: list[dict[str, Any]] | None) -> None:
    policy = {"kind": "storage#policy", "version": 1, "etag": "CAE=", "bindings": before}
    with scripted(BucketsClient, in_turn(Reply(policy))) as (client, server):
        client.grant("data", ROLE, ROBOT)

    written = [request.body for request in server.received if request.method == "PUT"]
    assert written == ([] if after is None else [{**policy, "version": 3, "bindings": after}])


class _Policy:
    """A bucket's policy that other clients change before each of the first `quicker` writes; the first answer may be lost."""

    def __init__(self, *, quicker: int = 0, loses: bool = False) -> None:
        self.members: list[str] = []
        self.serial, self.quicker, self.loses = 1, quicker, loses

    def __call__(self, request: Received) -> Reply | Drop:
        if request.method == "GET":
            bindings = [{"role": ROLE, "members": [*self.members]}] if self.members else []
            return Reply({"etag": str(self.serial), "bindings": bindings})
        if self.quicker:
            self.quicker -= 1
            self.members.append(f"user:u{self.serial}@example.com")
            self.serial += 1
        if request.body["etag"] != str(self.serial):
            return older(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        self.members, self.serial = request.body["bindings"][0]["members"], self.serial + 1
        lost, self.loses = self.loses, False
        return Drop() if lost else Reply({})


def test_simultaneous_change_by_another_client_is_kept() -> None:
    policy = _Policy(quicker=2)
    with scripted(BucketsClient, policy) as (client, _):
        client.grant("data", ROLE, ROBOT)

    assert policy.members == ["user:u1@example.com", "user:u2@example.com", ROBOT]


def test_grant_with_a_lost_answer_is_not_added_twice() -> None:
    policy = _Policy(loses=True)
    with scripted(BucketsClient, policy) as (client, server):
        client.grant("data", ROLE, ROBOT)

    assert policy.members == [ROBOT]
    assert [request.method for request in server.received] == ["GET", "PUT", "PUT", "GET"]


@pytest.mark.parametrize("code", [409, 412])
def test_policy_changed_meanwhile_is_read_again_after_a_delay(code: int) -> None:
    clock = ManualClock()
    answers = in_turn(Reply({"etag": "1"}), older(code, "conflict", "changed"), Reply({"etag": "2"}), Reply({}))
    with scripted(BucketsClient, answers, clock=clock) as (client, server):
        client.grant("data", ROLE, ROBOT)

    assert [request.method for request in server.received] == ["GET", "PUT", "GET", "PUT"]
    assert [request.body["etag"] for request in server.received if request.method == "PUT"] == ["1", "2"]
    assert clock.monotonic() > timedelta()


def test_refused_grant_is_not_retried_and_names_its_permission() -> None:
    denied = older(403, "forbidden", "ada does not have storage.buckets.setIamPolicy access.")
    with (
        scripted(BucketsClient, in_turn(Reply({"etag": "1"}), denied)) as (client, server),
        pytest.raises(AccessError, match=r"`storage\.buckets\.setIamPolicy` is not allowed on the bucket `gs://data`"),
    ):
        client.grant("data", ROLE, ROBOT)

    assert [request.method for request in server.received] == ["GET", "PUT"]


def test_policy_that_keeps_changing_raises_a_conflict() -> None:
    with (
        scripted(BucketsClient, _Policy(quicker=99)) as (client, _),
        pytest.raises(ConflictError, match="changes faster"),
    ):
        client.grant("data", ROLE, ROBOT)


def test_policy_is_read_with_its_conditions() -> None:
    with scripted(BucketsClient, in_turn(Reply({"etag": "x", "bindings": [CONDITIONAL]}))) as (client, _):
        binding = IamBinding(ROLE, (ROBOT,), CONDITION["expression"])
        assert client.policy("data") == IamPolicy((binding,), "x")
