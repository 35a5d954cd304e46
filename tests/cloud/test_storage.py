"""`StorageClient` on both faces of the sandbox, also with lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Sandbox
from tpuctl.clock import ManualClock
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.storage import Blob, StorageClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.errors import (
    AccessError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    QuotaError,
    ServiceUnavailableError,
)
from tpuctl.names import BucketPath
from tpuctl.sandbox import administration
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState

# Every kind of character that a name may have and a URL must not.
NAME = "a folder/ü+%2F?&=/record.json"


@pytest.fixture(params=["in process", "over http"])
def storage(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[StorageClient]:
    administration.add_bucket(sandbox.state, "data")
    if request.param == "in process":
        yield StorageClient(lambda: SandboxHttp(sandbox.state), sandbox.state.clock)
        return
    with open_server(sandbox.state).start() as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        yield StorageClient(factory, sandbox.state.clock, endpoint=server.url)
        factory.close()


def test_object_is_written_read_and_deleted(storage: StorageClient, clock: ManualClock) -> None:
    content = bytes(range(256)) + b"\r\n"
    assert storage.read("data", NAME) is None

    first = storage.write("data", NAME, content, generation=0)
    clock.sleep(timedelta(minutes=3))
    assert storage.read("data", NAME) == Blob(content, first, timedelta(minutes=3))

    second = storage.write("data", NAME, b"", generation=first)
    third = storage.write("data", NAME, b"3", generation=None)
    assert first < second < third
    assert storage.read("data", NAME) == Blob(b"3", third, timedelta())

    storage.delete("data", NAME, generation=third)
    storage.delete("data", NAME, generation=third)
    storage.delete("data", NAME, generation=None)
    assert storage.read("data", NAME) is None
    assert storage.write("data", NAME, b"4", generation=0) > third


def test_second_writer_gets_a_conflict_and_changes_nothing(storage: StorageClient) -> None:
    first = storage.write("data", NAME, b"1", generation=0)
    second = storage.write("data", NAME, b"2", generation=first)

    for generation in (0, first):
        with pytest.raises(PreconditionFailedError, match="was changed by another client meanwhile"):
            storage.write("data", NAME, b"x", generation=generation)
    with pytest.raises(PreconditionFailedError, match=r"record\.json` was changed by another client meanwhile"):
        storage.delete("data", NAME, generation=first)

    assert storage.read("data", NAME) == Blob(b"2", second, timedelta())


@pytest.mark.parametrize("kind", ["drop-before", "drop-after", "http-error"])
def test_write_with_a_lost_answer_is_applied_once(storage: StorageClient, sandbox: Sandbox, kind: str) -> None:
    first = storage.write("data", NAME, b"1", generation=0)
    sandbox.fault(kind, method="storage.objects.insert", status=503)

    second = storage.write("data", NAME, b"2", generation=first)

    assert storage.read("data", NAME) == Blob(b"2", second, timedelta())
    assert sandbox.changes() == ["insert", "insert"]


@pytest.mark.parametrize("kind", ["drop-before", "drop-after"])
def test_write_of_any_generation_whose_answers_are_lost_is_looked_at(
    storage: StorageClient, sandbox: Sandbox, kind: str
) -> None:
    storage.write("data", NAME, b"1", generation=0)
    sandbox.fault(kind, method="storage.objects.insert", count=0)

    if kind == "drop-after":
        storage.write("data", NAME, b"2", generation=None)
        assert (storage.read("data", NAME) or Blob(b"", 0, timedelta())).content == b"2"
    else:
        with pytest.raises(OutcomeUnknownError, match="it is unknown whether"):
            storage.write("data", NAME, b"2", generation=None)


def test_read_is_retried_until_the_attempts_are_used_up(storage: StorageClient, sandbox: Sandbox) -> None:
    generation = storage.write("data", NAME, b"1", generation=0)
    sandbox.fault("http-error", method="storage.objects.get", status=503, count=3)
    found = storage.read("data", NAME)
    assert found is not None
    assert (found.content, found.generation) == (b"1", generation)

    sandbox.fault("drop-before", method="storage.*", count=0)
    with pytest.raises(ServiceUnavailableError):
        storage.read("data", NAME)
    with pytest.raises(OutcomeUnknownError, match="it is unknown whether `gs://data/a folder/"):
        storage.write("data", NAME, b"2", generation=generation)


def test_rate_limited_write_waits(storage: StorageClient, sandbox: Sandbox) -> None:
    """One object may be written once per second."""
    sandbox.fault("http-error", method="storage.objects.insert", status=429, count=2)

    generation = storage.write("data", NAME, b"1", generation=0)

    assert storage.read("data", NAME) == Blob(b"1", generation, timedelta())
    sandbox.fault("http-error", method="storage.objects.insert", status=429, count=0)
    with pytest.raises(QuotaError):
        storage.write("data", NAME, b"2", generation=generation)


@dataclass
class Quicker(SandboxHttp):
    """Another client replaces the object between two requests, this many times."""

    state: SandboxState
    times: int

    def __post_init__(self) -> None:
        super().__init__(self.state)

    def request(self, *arguments: Any, **options: Any) -> Any:
        answer = super().request(*arguments, **options)
        if self.times:
            self.times -= 1
            administration.add_object(self.state, "data", NAME, str(self.times))
        return answer


def test_content_and_generation_are_of_one_version(sandbox: Sandbox, clock: ManualClock) -> None:
    administration.add_bucket(sandbox.state, "data")
    first = int(administration.add_object(sandbox.state, "data", NAME, "old")["generation"])
    http = Quicker(sandbox.state, 3)

    assert StorageClient(lambda: http, clock).read("data", NAME) == Blob(b"0", first + 3, timedelta())

    http.times = 100
    with pytest.raises(ServiceUnavailableError, match="changes faster than it can be read"):
        StorageClient(lambda: http, clock).read("data", NAME)


def test_missing_bucket_is_distinguished_from_a_missing_object(storage: StorageClient) -> None:
    for call in (
        lambda: storage.read("missing", NAME),
        lambda: storage.write("missing", NAME, b"", generation=0),
        lambda: list(storage.list("missing", "")),
    ):
        with pytest.raises(NotFoundError, match="there is no bucket `gs://missing`") as caught:
            call()
        assert caught.value.hint == (
            "create it with `gcloud storage buckets create gs://missing --location=REGION`, or check the name"
        )


def test_refusal_names_the_permission(storage: StorageClient, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "theirs", denied=("*",))

    for permission, call in (
        ("storage.objects.get", lambda: storage.read("theirs", NAME)),
        ("storage.objects.create", lambda: storage.write("theirs", NAME, b"", generation=0)),
        ("storage.objects.delete", lambda: storage.delete("theirs", NAME, generation=None)),
        ("storage.objects.list", lambda: list(storage.list("theirs", ""))),
    ):
        with pytest.raises(AccessError, match=f"`{permission}` is not allowed on `gs://theirs`") as caught:
            call()
        assert caught.value.hint == (
            "grant `roles/storage.objectUser` on the bucket to your identity (`tpuctl config show`)"
        )


def test_list_has_all_pages(storage: StorageClient, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        for index in range(1001):
            administration.add_object(session, "data", f"many/{index:04}", b"")
    storage.write("data", "other", b"", generation=0)

    assert list(storage.list("data", "many/")) == [f"many/{index:04}" for index in range(1001)]


def test_bucket_path_is_parsed_and_checked() -> None:
    assert BucketPath.parse("gs://my-bucket") == BucketPath("my-bucket")
    assert BucketPath.parse("gs://my-bucket/team/tpu/") == BucketPath("my-bucket", "team/tpu")
    assert str(BucketPath.parse("gs://my-bucket/team/")) == "gs://my-bucket/team"
    assert BucketPath("b-1", "x").object_name("p/n.json") == "x/p/n.json"
    assert BucketPath("b-1").object_name("p/n.json") == "p/n.json"

    for text in ("my-bucket", "s3://my-bucket", "gs://", "gs://B", "gs://10.0.0.1", "gs://b-1/a/../c", "gs://b-1/a//b"):
        with pytest.raises(InvalidInputError, match="`" + text.replace(".", r"\.") + "`"):
            BucketPath.parse(text)
