"""Time and size limits of exchanges and calls with misbehaving servers, in real time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.cloud.scripted_api import (
    NAME,
    Answer,
    Drop,
    Endless,
    Received,
    Reply,
    Reset,
    Script,
    ScriptedServer,
    Silence,
    client_of,
    in_turn,
    node,
    refuse,
)
from tests.cloud.test_api_retry import Always
from tpuctl.clock import (
    CLOUD_CALL_TIMEOUT,
    DEADLINE_GRACE,
    ManualClock,
    SystemClock,
    deadline_has_passed,
    limit_cloud_calls,
    time_for_cloud_call,
    with_current_deadlines,
)
from tpuctl.cloud.endpoint import ApiEndpoint, HttpProxy, TransportOptions
from tpuctl.cloud.errors import AnswerLostError, GarbledAnswerError, NotSentError, TransportError
from tpuctl.cloud.requests import RetryPolicy, retrying
from tpuctl.cloud.tpu import TpuClient
from tpuctl.cloud.transport import AuthorizedHttp, Http, HttpFactory
from tpuctl.errors import OutcomeUnknownError, ServiceUnavailableError
from tpuctl.models.spec import NodeSpec

LIMIT = timedelta(seconds=0.1)
SMALL = TransportOptions(timeout=LIMIT, max_response_bytes=100_000)
# Much more than the limit, for a machine under load; without a limit the exchanges would not end.
SOON = 30.0

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
UNENDING = {
    "silence": Silence(),
    "head byte by byte": Endless(b"", b"H", 0.01),
    "body byte by byte": Endless(OK + b"Content-Length: 9999\r\n\r\n", b" ", 0.01),
    "less than promised": Endless(OK + b"Content-Length: 9\r\n\r\n{", b"", 0.01),
    "chunk without end": Endless(CHUNKED + b"f00\r\n", b" ", 0.01),
}
TOO_LARGE = {
    "headers without end": Endless(OK, b"X: y\r\n"),
    "continue without end": Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99),
    "body without end": Endless(OK + b"\r\n", b" " * 9999),
    "length without end": Endless(OK + b"Content-Length: 99999999999999999999\r\n\r\n{", b"", 0.01),
    "chunk of less than nothing": Endless(CHUNKED + b"-5\r\n{", b"", 0.01),
    "chunk of any size": Endless(CHUNKED + b"f" * 40 + b"\r\n", b"", 0.01),
}


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


def get(answer: Answer, options: TransportOptions = SMALL, *, method: str = "GET") -> TransportError:
    with (
        ScriptedServer(lambda _: answer) as server,
        closing(Http(options)) as http,
        soon(),
        pytest.raises(TransportError) as raised,
    ):
        http.request(server.url, method)
    assert len(server.received) <= 1
    return raised.value


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("answer", UNENDING.values(), ids=UNENDING)
def test_endless_exchange_is_a_lost_answer_at_the_limit(answer: Answer, method: str) -> None:
    error = get(answer, method=method)

    assert (type(error), str(error).endswith("timed out (0.1 s)")) == (AnswerLostError, True)


@pytest.mark.parametrize("answer", TOO_LARGE.values(), ids=TOO_LARGE)
def test_response_above_the_size_limit_is_garbled(answer: Answer) -> None:
    error = get(answer, TransportOptions(max_response_bytes=100_000, timeout=timedelta(seconds=2)))

    assert isinstance(error, AnswerLostError)
    assert isinstance(error, GarbledAnswerError) or "got more than 100 headers" in str(error)


def test_close_does_not_wait_for_threads_that_read_an_answer() -> None:
    options = TransportOptions(timeout=timedelta(seconds=2))
    with (
        ScriptedServer(lambda _: Endless(OK + b"Content-Length: 9999\r\n\r\n", b" ", 0.01)) as server,
        closing(HttpFactory(options)) as factory,
    ):
        ended: list[float] = []

        def ask() -> None:
            with suppress(AnswerLostError):
                factory().request(server.url)
            ended.append(time.monotonic())

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.received:
            time.sleep(0.01)
        factory.close()
        closed = time.monotonic()
        thread.join()

        assert closed < ended[0] - 0.2
        assert not factory().connections


def test_proxy_with_an_endless_answer_means_not_sent() -> None:
    with ScriptedServer(lambda _: Endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.01)) as server, soon():
        http = Http(TransportOptions(timeout=LIMIT, proxy=HttpProxy("127.0.0.1", server.port)))

        with pytest.raises(NotSentError, match="timed out"):
            http.request("https://tpu.test/", "POST")


def test_server_that_never_answers_the_tls_handshake_means_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Http(SMALL)) as http, soon():
        url = f"https://localhost:{server.getsockname()[1]}/"

        with pytest.raises(NotSentError, match="timed out"):
            http.request(url, "POST")


class Slow:
    """Credentials whose token comes from a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def before_request(self, request: Any, _method: str, _url: str, headers: dict[str, str]) -> None:
        for _ in range(5):  # as google-auth tries again
            request(self.url)
        headers["authorization"] = "Bearer t"


def test_token_request_without_an_answer_ends_with_its_exchange() -> None:
    lock = threading.Lock()
    with ScriptedServer(lambda _: Silence()) as server, soon():
        http = AuthorizedHttp(SMALL, lambda: Slow(server.url), endpoint=None, lock=lock)
        with pytest.raises(NotSentError, match="cannot fetch an access token"):
            http.request("https://tpu.googleapis.com/v2/x")
        assert len(server.received) <= 1
        with (
            lock,
            pytest.raises(NotSentError, match="cannot fetch an access token"),
        ):  # another thread waits for its token
            http.request("https://tpu.googleapis.com/v2/x")


def test_reused_connection_has_a_limit_for_each_exchange() -> None:
    with ScriptedServer(lambda _: Reply()) as server, closing(Http(TransportOptions())) as http:
        http.timeout = 2.0
        http.request(server.url)
        time.sleep(2)
        http.request(server.url)

        assert server.connections == 1


@pytest.mark.parametrize(
    ("timeout", "passed", "grace", "call"),
    [
        (None, 0, 0, 60),
        (90, 0, 0, 60),
        (90, 50, 0, 40),
        (90, 89.9, 0, 1),
        (90, 90, 0, 0),
        (90, 99, 5, 5),  # a clock that is no real one leaves no time for a grace
        (0, 0, 5, 5),
    ],
    ids=str,
)
def test_call_gets_the_time_left_until_the_deadline(
    timeout: float | None, passed: float, grace: float, call: float
) -> None:
    clock, limit = ManualClock(), None if timeout is None else timedelta(seconds=timeout)
    with limit_cloud_calls(clock, limit, grace=timedelta(seconds=grace)):
        clock.sleep(timedelta(seconds=passed))
        elsewhere: list[timedelta] = []
        thread = threading.Thread(
            target=with_current_deadlines(lambda: elsewhere.append(time_for_cloud_call(CLOUD_CALL_TIMEOUT)))
        )
        thread.start()
        thread.join()

        assert (time_for_cloud_call(CLOUD_CALL_TIMEOUT), elsewhere) == (
            timedelta(seconds=call),
            [timedelta(seconds=call)],
        )
    assert (time_for_cloud_call(CLOUD_CALL_TIMEOUT), deadline_has_passed()) == (CLOUD_CALL_TIMEOUT, False)


def test_grace_of_the_real_clock_is_shared_and_the_earliest_of_several_limits_counts() -> None:
    clock = SystemClock()
    with (
        limit_cloud_calls(clock, timedelta(), grace=DEADLINE_GRACE),
        limit_cloud_calls(ManualClock(), CLOUD_CALL_TIMEOUT),
    ):
        assert (
            DEADLINE_GRACE - timedelta(seconds=2) < time_for_cloud_call(CLOUD_CALL_TIMEOUT) <= DEADLINE_GRACE,
            deadline_has_passed(),
        ) == (True, True)
        with limit_cloud_calls(clock, timedelta(), since=clock.monotonic() - 2 * DEADLINE_GRACE, grace=DEADLINE_GRACE):
            assert time_for_cloud_call(CLOUD_CALL_TIMEOUT) == timedelta()


@pytest.mark.parametrize("is_safe", [True, False])
def test_nothing_is_sent_after_the_deadline(*, is_safe: bool) -> None:
    sent: list[timedelta] = []
    clock = ManualClock()
    with limit_cloud_calls(clock, timedelta()), pytest.raises(NotSentError, match="deadline has passed"):
        retrying(sent.append, is_safe=is_safe, policy=RetryPolicy(), clock=clock, random=Always())

    assert sent == []


FAILING: dict[str, Answer] = {
    "reset": Reset(),
    "closed": Drop(),
    "503": refuse(503, "UNAVAILABLE"),
    "garbled": Reply(b"<html>"),
    "retry-after": refuse(503, "UNAVAILABLE", retry_after="20"),
}


@pytest.mark.parametrize("answer", FAILING.values(), ids=FAILING)
def test_call_that_keeps_failing_ends_within_a_minute_and_the_deadline(answer: Answer) -> None:
    clock = ManualClock()
    with client_of(lambda _: answer, clock=clock) as (client, _):
        with pytest.raises(ServiceUnavailableError):
            client.find_node(NAME)
        assert clock.monotonic() <= CLOUD_CALL_TIMEOUT
        before = clock.monotonic()
        with limit_cloud_calls(clock, timedelta(seconds=2)), pytest.raises(ServiceUnavailableError):
            client.find_node(NAME)
        assert clock.monotonic() - before <= timedelta(seconds=2)


def test_retry_after_beyond_the_time_left_raises_at_once() -> None:
    clock = ManualClock()
    with client_of(lambda _: refuse(503, "UNAVAILABLE", retry_after="999999999"), clock=clock) as (client, server):
        with pytest.raises(ServiceUnavailableError) as raised:
            client.find_node(NAME)

        assert (len(server.received), clock.monotonic()) == (1, timedelta())
        assert "wait 1157d before you try again, as the service requests" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            lambda client: client.create_node(NAME, NodeSpec(accelerator_type="v4-8", runtime_version="v2")),
            refuse(404, "NOT_FOUND"),
        ),
        (lambda client: client.delete_node(NAME, lambda _: None), Reply(node())),
        (lambda client: client.stop_node(NAME, lambda _: None), Reply(node())),
    ],
    ids=["create", "delete", "stop"],
)
def test_change_whose_answer_is_lost_at_the_deadline_is_not_sent_again(
    change: Callable[[TpuClient], object], found: Answer
) -> None:
    clock = ManualClock()

    def script(request: Received) -> Answer:
        if request.method == "GET":
            return found
        clock.sleep(timedelta(seconds=10))
        return Drop()

    with client_of(script, clock=clock) as (client, server):
        with limit_cloud_calls(clock, timedelta(seconds=10), grace=DEADLINE_GRACE), pytest.raises(OutcomeUnknownError):
            change(client)

        assert [request.method for request in server.received if request.method != "GET"] in (["POST"], ["DELETE"])


@contextmanager
def client_with(script: Script, seconds: float) -> Iterator[TpuClient]:
    """Return a client with a time limit for each call."""
    policy = RetryPolicy(deadline=timedelta(seconds=seconds))
    with ScriptedServer(script) as server, soon():
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        yield TpuClient(factory, SystemClock(), endpoint=server.url, policy=policy)
        factory.close()


def test_endless_pages_end_at_the_limit() -> None:
    count = iter(range(10**9))

    with (
        client_with(lambda _: Reply({"nodes": [], "nextPageToken": str(next(count))}), 0.1) as client,
        pytest.raises(ServiceUnavailableError),
    ):
        client.list_nodes("p", ("us-central2-b",))


def test_unanswered_zones_share_one_limit_and_are_named() -> None:
    zones = [f"zone{number}-a" for number in range(20)]

    with client_with(in_turn(Reply({"nodes": []}), Silence()), 0.2) as client:
        assert len(client.list_nodes("p", zones).unreachable) == len(zones) - 1
