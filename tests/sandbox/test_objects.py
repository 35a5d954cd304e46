"""Objects in the sandbox: uploads of every kind, downloads, and preconditions that hold for any number of writers."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from base64 import b64encode
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import google_auth_httplib2
import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient.discovery import build
from googleapiclient.http import MediaInMemoryUpload

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.uploads import multipart_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

B = "/storage/v1/b"
UP = "/upload/storage/v1/b/data/o?uploadType=media"
FAILED = (412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    administration.add_bucket(sandbox_state, "data", location="us-central2")
    return Wire(sandbox_state)


@pytest.fixture(params=["in process", "over http"])
def storage(request: pytest.FixtureRequest, sandbox_state: SandboxState) -> Iterator[Any]:
    """Google's client on both interfaces."""
    administration.add_bucket(sandbox_state, "data", location="us-central2")
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]  # google-auth types only part of itself
    if request.param == "in process":
        http = google_auth_httplib2.AuthorizedHttp(anonymous, http=SandboxHttp(sandbox_state))
        yield build("storage", "v1", static_discovery=True, http=http)
        return
    with open_server(sandbox_state).start() as server:
        endpoint = {"api_endpoint": f"{server.url}/storage/v1/"}
        # Uploads ignore the endpoint: they go to the document's root unless it is replaced.
        client = build("storage", "v1", static_discovery=True, credentials=anonymous, client_options=endpoint)
        client._rootDesc["rootUrl"] = f"{server.url}/"
        yield client
        client.close()


def test_googles_client_uploads_and_downloads_with_every_protocol(storage: Any) -> None:
    media = {
        "media": MediaInMemoryUpload(b"one\r\ntwo\r", mimetype="text/plain"),
        "multipart": MediaInMemoryUpload(b"--=== \r\n\r\n", mimetype="text/plain"),
    }
    content = {"media": b"one\r\ntwo\r", "multipart": b"--=== \r\n\r\n"}
    for kind, upload in media.items():
        body = None if kind == "media" else {"name": kind, "metadata": {"by": "test"}}
        name = kind if kind == "media" else None
        stored = storage.objects().insert(bucket="data", name=name, body=body, media_body=upload).execute()
        assert (stored["name"], stored["size"]) == (kind, str(len(content[kind])))
        assert stored["md5Hash"] == b64encode(hashlib.md5(content[kind], usedforsecurity=False).digest()).decode()
        assert storage.objects().get(bucket="data", object=kind).execute() == stored
        assert storage.objects().get_media(bucket="data", object=kind).execute() == content[kind]

    assert storage.objects().delete(bucket="data", object="media").execute() in {"", b""}
    listed = storage.objects().list(bucket="data").execute()["items"]
    assert [(entry["name"], entry["contentType"]) for entry in listed] == [("multipart", "text/plain")]


def test_object_without_a_type_is_bytes(wire: Wire) -> None:
    assert wire("POST", UP + "&name=x", b"x")["contentType"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("condition", "absent", "present"),
    [
        ("ifGenerationMatch=0", True, False),
        ("ifGenerationMatch={generation}", False, True),
        ("ifGenerationMatch=7", False, False),
        ("ifMetagenerationMatch=1", False, True),
    ],
)
def test_insert_checks_its_preconditions(wire: Wire, condition: str, absent: bool, present: bool) -> None:
    there = administration.add_object(wire.state, "data", "there", b"old")
    outcomes = []
    for name in ("new", "there"):
        answer = wire("POST", f"{UP}&name={name}&" + condition.format(**there), b"x")
        outcomes.append(answer != FAILED)
        assert answer == FAILED or answer["size"] == "1"
    assert outcomes == [absent, present]


def test_each_insert_gets_a_new_generation_at_the_same_time(wire: Wire, clock: ManualClock) -> None:
    first = wire("POST", UP + "&name=o", b"1")
    second = wire("POST", UP + f"&name=o&ifGenerationMatch={first['generation']}", b"2")
    assert wire("DELETE", f"{B}/data/o/o?ifGenerationMatch={first['generation']}") == FAILED
    assert wire.send("DELETE", f"{B}/data/o/o?ifGenerationMatch={second['generation']}").status == 204
    assert wire("DELETE", f"{B}/data/o/o")[0] == 404
    third = wire("POST", UP + "&name=o&ifGenerationMatch=0", b"3")
    clock.sleep(timedelta(seconds=1))
    fourth = wire("POST", UP + "&name=o", b"4")

    generations = [int(document["generation"]) for document in (first, second, third, fourth)]
    assert generations == sorted(set(generations))
    assert wire("GET", f"{B}/data/o/o?generation={first['generation']}")[0] == 404


def test_patch_object_changes_metadata_and_keeps_the_bytes(wire: Wire, clock: ManualClock) -> None:
    path = f"{B}/data/o/o"
    first = administration.add_object(
        wire.state, "data", "o", b"x", metadata={"a": "1", "b": "2"}, cacheControl="no-store"
    )
    clock.sleep(timedelta(seconds=1))

    change = {"metadata": {"a": None, "c": "3"}, "cacheControl": None, "storageClass": "NEARLINE"}
    patched = wire("PATCH", f"{path}?ifMetagenerationMatch=1", change)

    own = {"metadata", "cacheControl", "metageneration", "etag", "updated"}
    assert {key: value for key, value in patched.items() if key not in own} == {
        key: value for key, value in first.items() if key not in own
    }
    assert (patched["metageneration"], patched["metadata"], "cacheControl" in patched) == (
        "2",
        {"b": "2", "c": "3"},
        False,
    )
    assert patched["etag"] != first["etag"]
    assert patched["updated"] > first["updated"] == first["timeCreated"]
    assert wire("GET", path) == patched
    assert wire.send("GET", f"{path}?alt=media").body == b"x"
    assert wire("PATCH", f"{path}?ifMetagenerationMatch=1", {}) == FAILED
    assert wire("PATCH", f"{B}/data/o/gone", {})[0] == 404


def test_change_of_an_object_without_permission_is_rejected(wire: Wire) -> None:
    administration.add_bucket(wire.state, "shut", denied=["storage.objects.update"])
    administration.add_object(wire.state, "shut", "o", b"x")

    assert wire("PATCH", f"{B}/shut/o/o", {})[0] == 403


_COUNTER = """
import json, sys
from pathlib import Path
from tpuctl.sandbox.api_calls import Request
from tpuctl.sandbox.service import answer_request
from tpuctl.sandbox.state import SandboxState
sandbox = SandboxState.open(Path(sys.argv[1]))
def send(method, path, query=(), body=b""):
    return answer_request(sandbox, Request(method, path, query, {}, body))
done = 0
while done < 25:
    read = send("GET", "/storage/v1/b/data/o/count")
    seen = json.loads(read.body) if read.status == 200 else {"generation": "0"}
    query = (("generation", seen["generation"]), ("alt", "media"))
    value = send("GET", "/storage/v1/b/data/o/count", query).body if read.status == 200 else b"0"
    if not value.isdigit():
        continue
    query = (("uploadType", "media"), ("name", "count"), ("ifGenerationMatch", seen["generation"]))
    done += send("POST", "/upload/storage/v1/b/data/o", query, b"%d" % (int(value) + 1)).status == 200
"""


def test_four_processes_lose_no_update_under_preconditions(wire: Wire) -> None:
    command = (sys.executable, "-W", "error", "-c", _COUNTER, str(wire.state.path))
    writers = [subprocess.Popen(command) for _ in range(4)]

    assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    assert wire.send("GET", f"{B}/data/o/count?alt=media").body == b"100"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_multipart_body_is_split_exactly(newline: bytes) -> None:
    content = b"a\r\n\r\n--b\r"
    lines = [
        b"--x",
        b"Content-Type: application/json",
        b"",
        b"{}",
        b"--x",
        b"content-type: t/u",
        b"",
        content,
        b"--x--",
    ]

    metadata, media = multipart_parts(newline.join(lines), 'multipart/related; boundary="x"')

    assert (metadata, media.content, media.content_type) == (b"{}", content, "t/u")


@pytest.mark.parametrize(("body", "kind"), [(b"", "multipart"), (b"--x\n{}", "multipart"), (b"", "resumable")])
def test_invalid_upload_is_rejected(wire: Wire, body: bytes, kind: str) -> None:
    answer = wire("POST", UP.replace("media", kind), body, content_type="multipart/related; boundary=x")

    assert answer[:2] == (400, "badRequest")
