"""The guard of a node against odd answers, against what changes while it looks, and against its own end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.hostile.test_hostile_answers import ODD, mutations
from tests.ssh.guarded import NAME, Guarded
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import DroppedConnection, Request, Response
from tpuctl.sandbox.service import dated
from tpuctl.sandbox.sshd.guard_service import CLOUD_PLATFORM, GuardServer
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.agent.guard import KnownEnd, NodeGuard, next_guard_step
from tpuctl.ssh.agent.guard_answers import GuardError, decode_object, parse_missing, parse_node, parse_token

QUEUED = "projects/sandbox/locations/us-central2-b/queuedResources"
NOW = 1_800_000_000
EXPIRED = {
    "id": "7",
    "state": "READY",
    "labels": {"tpuctl-expires": str(NOW - 1), "team": "a"},
    "queuedResource": f"{QUEUED}/q",
}


class Meddler(GuardServer):
    """The servers of a worker, which let a test meddle with each request before its answer."""

    def __init__(self, state: SandboxState) -> None:
        self.meddle: Callable[[str, int], Response | None] = lambda _kind, _number: None
        self.kinds: list[str] = []
        super().__init__(state, {}, (CLOUD_PLATFORM,))

    def answer(self, request: Request) -> Response | DroppedConnection:
        """Return the answer of the test, or the honest one."""
        metadata, permission = request.path.endswith("/token"), ":testIam" in request.path
        kind = "token" if metadata else "permission" if permission else request.method
        self.kinds.append(kind)
        return self.meddle(kind, len(self.kinds) - 1) or super().answer(request)


class Looking:
    """A guard that looks at its node when a test says so."""

    def __init__(self, guarded: Guarded, stack: ExitStack) -> None:
        self.guarded = guarded
        guarded.write_files()
        self.server = stack.enter_context(Meddler(guarded.state))
        self.server.start()
        environ = {
            "HOME": str(guarded.home),
            "PATH": str(guarded.home / "bin"),
            "TPUCTL_DEVICE_ROOT": str(guarded.root),
            "TPUCTL_GUARD_INTERVAL": "1",
            **self.server.environment,
        }
        self.guard = NodeGuard(str(guarded.folder), environ)
        self.look = self.guard.look


@pytest.fixture
def looking(guarded: Guarded) -> Iterator[Callable[[], Looking]]:
    """Start to guard the node as it is then."""
    with ExitStack() as stack:
        yield lambda: Looking(guarded, stack)


def test_record_with_an_odd_value_deletes_nothing_that_it_does_not_name() -> None:
    """An odd id, state or label is an error: no decision, and no end of the guard."""
    decided = set()
    for text in mutations(EXPIRED, 1):
        answer = decode_object(text.encode())
        try:
            node = parse_node(answer or {})
        except GuardError:
            decided.add("not this time")
            continue
        end = KnownEnd(node.expires, node.expires)
        step = next_guard_step({"id": "7", "idle": None, "onIdle": None}, node, end, NOW, None)
        decided.add(step.action)
        same = {name: (answer or {}).get(name) for name in ("id", "state")} == {"id": "7", "state": "READY"}
        expires = ((answer or {}).get("labels") or {}).get("tpuctl-expires")
        assert step.action != "delete" or (same and expires == str(NOW - 1)), text
    assert decided == {"delete", "wait", "not this time"}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_odd_answer_of_the_metadata_server_and_of_the_permission_test_is_parsed(odd: str) -> None:
    for template in ('{"access_token": @, "expires_in": 9}', '{"access_token": "t", "expires_in": @}', "@"):
        answer = decode_object(template.replace("@", odd).encode())
        with suppress(GuardError):
            token, lasts = parse_token(200, answer or {})
            assert (token in {"t", "x", "1e309", "-9"}, 0 <= lasts <= 12 * 3600) == (True, True)
    for template in ('{"permissions": @}', "@"):
        answer = decode_object(template.replace("@", odd).encode())
        assert parse_missing(200, answer or {}, ["tpu.nodes.delete"]) in ([], ["tpu.nodes.delete"])


def replied(status: int, body: bytes | str | dict[str, Any], **headers: str) -> Callable[[SandboxState], Response]:
    """Return an answer, dated by the sandbox unless it has a date."""
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    return lambda state: dated(state, Response(status, data, {"content-type": "application/json", **headers}))


_DEEP = b'{"labels":' * 50_000 + b"1" + b"}" * 50_000
_DIGITS = b"9" * 400
_ODD_ANSWERS: dict[str, tuple[str, Callable[[SandboxState], Response]]] = {
    "labels-are-a-list": ("GET", replied(200, {**EXPIRED, "labels": ["tpuctl-expires"]})),
    "label-is-a-number": ("GET", replied(200, {**EXPIRED, "labels": {"tpuctl-expires": NOW}})),
    "id-is-a-map": ("GET", replied(200, {**EXPIRED, "id": {"a": 1}})),
    "id-is-missing": ("GET", replied(200, {"state": "READY", "labels": EXPIRED["labels"]})),
    "state-is-a-list": ("GET", replied(200, {**EXPIRED, "state": ["READY"]})),
    "deep": ("GET", replied(200, _DEEP)),
    "long": ("GET", replied(200, b'{"x": "' + b"x" * (1 << 20) + b'"}')),
    "no-json": ("GET", replied(200, b"<html>\xff\x1b[2J")),
    "list": ("GET", replied(200, "[]")),
    "error-is-a-list": ("GET", replied(500, {"error": ["x"]})),
    "error-is-a-word": ("GET", replied(404, {"error": "NOT_FOUND"})),
    "error-in-a-success": ("GET", replied(200, {**EXPIRED, "error": []})),
    "deep-error": ("GET", replied(403, b'{"error":{"details":' + b"[" * 900 + b"]" * 900 + b"}}")),
    "not-found-without-a-status": ("GET", replied(404, {"error": {"message": {}}})),
    "date-is-no-time": ("GET", replied(200, EXPIRED, date="NaN")),
    "date-beyond-the-calendar": ("GET", replied(200, EXPIRED, date="Sun, 06 Nov 99999 08:49:37 GMT")),
    "date-of-huge-numbers": ("GET", replied(200, EXPIRED, date="Sun, 06 Nov 1994 999999999999:99:99 GMT")),
    "status-without-a-meaning": ("GET", replied(299, EXPIRED)),
    "token-lasts-400-digits": ("token", replied(401, b'{"access_token": "t", "expires_in": ' + _DIGITS + b"}")),
    "token-with-a-line-end": ("token", replied(200, {"access_token": "t\r\nHost: evil.example"})),
    "token-is-a-list": ("token", replied(200, {"access_token": ["t"]})),
    "token-deep": ("token", replied(200, _DEEP)),
    "token-empty": ("token", replied(200, b"")),
}


@pytest.mark.parametrize(("kind", "odd"), _ODD_ANSWERS.values(), ids=_ODD_ANSWERS.keys())
def test_odd_answer_is_logged_and_tried_again(
    guarded: Guarded, looking: Callable[[], Looking], kind: str, odd: Callable[[SandboxState], Response]
) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))
    one = looking()

    one.server.meddle = lambda asked, _: odd(guarded.state) if asked == kind else None
    pauses = [one.look(), one.look()]

    assert pauses == [0.1, 0.2]
    assert [line.partition(":")[0].partition(" (")[0] for line in guarded.log()] == ["failed", "failed"]
    assert (guarded.is_deleting(), "DELETE" in one.server.kinds) == (False, False)
    one.server.meddle = lambda _kind, _number: None
    assert one.look() == 1.0
    assert guarded.is_deleting()


@pytest.mark.parametrize("lasts", ["9" * 400, "1e999", '"3599"', "-5", "null", "true", "[]"])
def test_token_of_an_odd_lifetime_is_used_and_asked_for_again(
    guarded: Guarded, looking: Callable[[], Looking], lasts: str
) -> None:
    administration.add_node(guarded.state)
    one = looking()
    token = one.server.answer(Request("GET", token_path(one), headers={"metadata-flavor": "Google"}))
    assert isinstance(token, Response)
    text = json.loads(token.body)["access_token"]
    odd = replied(200, f'{{"access_token": "{text}", "expires_in": {lasts}}}')
    one.server.meddle = lambda kind, _: odd(guarded.state) if kind == "token" else None

    assert (one.look(), one.look()) == (1.0, 1.0)
    assert one.server.kinds[1:] == ["token", "permission", "GET", "token", "GET"]


def token_path(one: Looking) -> str:
    """Return the path under which this worker asks for its token."""
    host = one.server.environment["GCE_METADATA_HOST"]
    return "/" + host.partition("/")[2] + "/computeMetadata/v1/instance/service-accounts/default/token"


# Whatever a node's record says of its queued resource, the guard sends nothing to it.
_OWNERS: dict[str, Any] = {
    "its-own": f"{QUEUED}/queued",
    "of-another-node": f"{QUEUED}/production",
    "of-another-project": "projects/other/locations/us-central2-b/queuedResources/queued",
    "of-another-zone": "projects/sandbox/locations/us-central2-a/queuedResources/queued",
    "no-full-name": "production",
    "a-path": f"{QUEUED}/../nodes/production",
    "a-query": f"{QUEUED}/production?force=true",
    "empty": "",
    "a-list": [f"{QUEUED}/production"],
}


@pytest.mark.parametrize("owner", _OWNERS.values(), ids=_OWNERS.keys())
def test_only_the_node_of_the_guard_is_deleted(guarded: Guarded, looking: Callable[[], Looking], owner: object) -> None:
    administration.add_queued_resource(guarded.state, node_ids=("node",))
    administration.add_queued_resource(guarded.state, "production", node_ids=("production",))
    administration.add_node(guarded.state, "production", queued_resource="production")
    administration.add_node(guarded.state, queued_resource="queued", labels=guarded.expires_in(hours=-1))
    one = looking()
    honest = guarded.node()
    one.server.meddle = lambda kind, _: (
        replied(200, {**honest, "queuedResource": owner})(guarded.state) if kind == "GET" else None
    )

    one.look()

    assert one.server.kinds == ["token", "permission", "GET", "GET", "DELETE"]
    assert guarded.is_deleting()
    assert (
        guarded.call("GET", NAME.replace("/node", "/production").replace("/productions", "/nodes"))["state"] == "READY"
    )
    assert guarded.call("GET", f"{QUEUED}/production")["state"]["state"] == "ACTIVE"
    # Nothing of it bills: without its node the request becomes a record, which `gc` deletes.
    guarded.clock.sleep(timedelta(hours=1))
    assert guarded.call("GET", f"{QUEUED}/queued")["state"]["state"] == "SUSPENDED"


def patch(guarded: Guarded, **labels: str) -> None:
    """Change labels as another client does."""
    kept = guarded.node()["labels"] | {f"tpuctl-{name}": text for name, text in labels.items()}
    guarded.call("PATCH", NAME, {"labels": kept}, updateMask="labels")


def extend(guarded: Guarded) -> None:
    """Give the node two hours more."""
    patch(guarded, expires=guarded.expires_in(hours=2)["tpuctl-expires"])


def keep(guarded: Guarded) -> None:
    """Keep the node for good."""
    patch(guarded, keep="yes")


def recreate(guarded: Guarded) -> None:
    """Put another node in its place, which has expired too."""
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))


def stop(guarded: Guarded) -> None:
    """Stop the node."""
    guarded.call("POST", f"{NAME}:stop", {})


# A stop before each request of a look that ends the node. The deletion is the fifth.
_REQUESTS = ["token", "permission", "GET", "GET", "DELETE"]


@pytest.mark.parametrize("change", [extend, keep, recreate, stop])
@pytest.mark.parametrize("number", range(len(_REQUESTS)), ids=[f"{n}-{kind}" for n, kind in enumerate(_REQUESTS)])
def test_change_between_two_requests_of_a_guard_saves_the_node(
    guarded: Guarded, looking: Callable[[], Looking], change: Callable[[Guarded], None], number: int
) -> None:
    """What is left is the length of one request: only the change that the deletion overtakes comes too late."""
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))
    one = looking()

    def meddle(_kind: str, count: int) -> None:
        if count == number:
            change(guarded)

    one.server.meddle = meddle
    one.look()

    is_late = number == len(_REQUESTS) - 1
    assert ("DELETE" in one.server.kinds) is is_late
    assert one.server.kinds == _REQUESTS[: max(number + 1, 3)]


@pytest.mark.parametrize("number", range(len(_REQUESTS)), ids=[f"{n}-{kind}" for n, kind in enumerate(_REQUESTS)])
def test_job_that_begins_between_two_requests_of_a_guard_saves_an_idle_node(
    guarded: Guarded, looking: Callable[[], Looking], number: int
) -> None:
    """The use of the machine is examined right before the last look at the node, which takes the length of one request."""
    administration.add_node(guarded.state)
    guarded.idle = 3600
    one = looking()
    one.look()
    guarded.clock.sleep(timedelta(hours=2))
    one.guard.tested_at = None
    one.guard.service = type(one.guard.service)("https://tpu.googleapis.com", one.guard.environ)
    one.server.kinds.clear()
    job = guarded.home / ".tpuctl" / "jobs" / "train"
    job.mkdir(parents=True, mode=0o700)
    # It only runs: the traces of its start are older than the last look.
    with (job / "lock").open("w") as lock:
        for path in (job / "lock", job, job.parent):
            os.utime(path, (0, 0))

        def meddle(_kind: str, count: int) -> None:
            if count == number:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        one.server.meddle = meddle
        one.look()

    assert ("DELETE" in one.server.kinds) is (number >= 3)


def test_guard_that_was_killed_starts_again(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=1))
    process = guarded.start()
    guarded.looks(1)
    first = guarded.status()["pid"]

    os.kill(first, signal.SIGKILL)
    guarded.until(lambda: guarded.status()["pid"] != first)
    guarded.clock.sleep(timedelta(hours=2))
    guarded.until(guarded.is_deleting)
    guarded.clock.sleep(timedelta(minutes=10))

    assert process.wait(10) == 0
    assert "the guard ended by signal 9, and starts again in 0 s" in guarded.log()


def test_guard_with_damaged_settings_starts_again_until_they_are_whole(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))
    guarded.write_files()
    guarded.start(damaged=True)
    guarded.until(lambda: any(line.startswith("the guard failed: JSONDecodeError") for line in guarded.log()))

    (guarded.folder / "settings").write_text(json.dumps(guarded.settings()))

    guarded.until(guarded.is_deleting)
