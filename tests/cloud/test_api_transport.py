"""Http objects over real sockets: what reaches a server, and what is certain after a failure."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.scripted_api import Drop, Received, Reply, Script, ScriptedServer, Silence, in_turn
from tpuctl import __version__
from tpuctl.cloud.endpoint import ApiEndpoint, HttpProxy, TransportOptions
from tpuctl.cloud.errors import AnswerLostError, GarbledAnswerError, NotSentError, UntrustedServerError
from tpuctl.cloud.transport import Http, HttpFactory
from tpuctl.errors import SettingError
from tpuctl.fan_out import fan_out


@pytest.fixture
def http() -> Iterator[Http]:
    http = Http(TransportOptions(connect_timeout=timedelta(seconds=20), timeout=timedelta(seconds=20)))
    yield http
    http.close()


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("partial", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"nonsense"])
def test_dropped_change_reaches_the_server_exactly_once(http: Http, method: str, partial: bytes) -> None:
    with ScriptedServer(lambda _: Drop(partial)) as server:
        with pytest.raises(AnswerLostError):
            http.request(f"{server.url}/v2/x", method, body="{}")

        assert server.lines == [f"{method} /v2/x"]


def test_change_never_uses_a_stale_connection(http: Http) -> None:
    with ScriptedServer(lambda _: Reply()) as server:
        for method in ("GET", "GET", "POST", "GET", "DELETE"):
            http.request(f"{server.url}/", method)

        # The GETs share one; each change opens its own, which the GET after it shares.
        assert (len(server.received), server.connections) == (5, 3)


def test_get_on_a_stale_connection_is_sent_again_at_once(http: Http) -> None:
    with ScriptedServer(in_turn(Reply(keep_open=False), Reply({"n": 2}))) as server:
        http.request(f"{server.url}/a")

        assert http.request(f"{server.url}/b")[1] == b'{"n": 2}'


def test_get_dropped_on_a_new_connection_is_a_lost_answer(http: Http) -> None:
    with ScriptedServer(lambda _: Drop()) as server:
        with pytest.raises(AnswerLostError):
            http.request(f"{server.url}/a")

        assert server.lines == ["GET /a"]


def test_no_answer_until_the_timeout_is_a_lost_answer() -> None:
    http = Http(TransportOptions(timeout=timedelta(seconds=0.2)))
    with closing(http), ScriptedServer(lambda _: Silence()) as server:
        with pytest.raises(AnswerLostError, match="timed out"):
            http.request(f"{server.url}/a", "POST")

        assert server.lines == ["POST /a"]


def test_connection_not_accepted_until_the_timeout_means_not_sent() -> None:
    slow_to_read = TransportOptions(connect_timeout=timedelta(seconds=0.1), timeout=timedelta(seconds=60))
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        http = Http(slow_to_read)

        with pytest.raises(NotSentError, match="timed out"):
            http.request(f"http://127.0.0.1:{full.getsockname()[1]}/", "POST")


def test_refused_connection_means_not_sent(http: Http) -> None:
    with pytest.raises(NotSentError, match=r"127\.0\.0\.1 cannot be reached: Connection refused"):
        http.request("http://127.0.0.1:1/", "POST")


def test_proxy_with_an_invalid_name_means_not_sent() -> None:
    http = Http(TransportOptions(proxy=HttpProxy.parse(f"http://{'a' * 64}.test:1")))

    with pytest.raises(NotSentError, match=r"tpu\.test cannot be reached through the proxy"):
        http.request("https://tpu.test/", "POST")


def test_redirect_is_not_followed(http: Http) -> None:
    with ScriptedServer(lambda _: Reply(status=302, headers={"Location": "/elsewhere"})) as server:
        assert http.request(f"{server.url}/a")[0].status == 302
        assert server.lines == ["GET /a"]


def test_request_has_user_agent_and_quota_project() -> None:
    with ScriptedServer(lambda _: Reply(headers={"WWW-Authenticate": "odd,, header="}, status=401)) as server:
        http = Http(TransportOptions(quota_project="payer"))

        assert http.request(server.url)[0].status == 401
        http.request(server.url, headers={"X-Goog-User-Project": "other"})
        http.close()

        assert server.received[1].headers["x-goog-user-project"] == "other"
        headers = server.received[0].headers
        assert headers["user-agent"] == f"tpuctl/{__version__} (gzip)"
        assert headers["x-goog-user-project"] == "payer"


def test_each_thread_has_its_own_http_object() -> None:
    factory = HttpFactory(TransportOptions())
    seen = [factory(), factory()]
    thread = threading.Thread(target=lambda: seen.append(factory()))
    thread.start()
    thread.join()

    assert seen[0] is seen[1]
    assert seen[2] is not seen[0]


def test_http_object_of_an_ended_thread_is_reused_with_its_connection() -> None:
    with ScriptedServer(lambda _: Reply()) as server:
        factory = HttpFactory(TransportOptions())
        for _ in range(3):
            thread = threading.Thread(target=lambda: factory().request(server.url))
            thread.start()
            thread.join()
        factory.close()

        assert (len(server.received), server.connections) == (3, 1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(b"{}"), None),
        (gzip.compress(b" " * 100_001), "the answer is larger than"),
        (gzip.compress(b"{}")[:-9], "cannot be decompressed: it is incomplete"),
        (b"{}", "cannot be decompressed: "),
    ],
    ids=["whole", "large", "cut", "plain"],
)
def test_compressed_answer_is_decompressed_within_the_size_limit(content: bytes, problem: str | None) -> None:
    http = Http(TransportOptions(max_response_bytes=100_000))
    with ScriptedServer(lambda _: Reply(content, headers={"Content-Encoding": "gzip"})) as server:
        if problem is None:
            assert http.request(server.url)[1] == b"{}"
            assert server.received[0].headers["accept-encoding"] == "gzip"
        else:
            with pytest.raises(GarbledAnswerError, match=problem):
                http.request(server.url)
        http.close()


class Token:
    """Credentials whose token gets newer with each refresh, as the http object uses those of google-auth."""

    def __init__(self) -> None:
        self.count = 1

    def before_request(self, _request: Any, _method: str, _url: str, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer t{self.count}"

    def refresh(self, _request: Any) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:tpu.test"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*command, "-keyout", f"{path}.key", "-out", str(path)], check=True, capture_output=True)
    return path


def _refuse_first_token(request: Received) -> Reply:
    return Reply(status=401 if "t1" in request.headers.get("authorization", "") else 200)


class TlsServer(ScriptedServer):
    def __init__(self, certificate: Path, script: Script | None = None) -> None:
        super().__init__(script or _refuse_first_token)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, f"{certificate}.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)


def test_untrusted_server_is_named_and_a_ca_file_makes_it_trusted(certificate: Path) -> None:
    with TlsServer(certificate) as server:
        url = f"https://localhost:{server.port}/a"
        stranger, friend = Http(TransportOptions()), Http(TransportOptions(ca_file=certificate))

        with pytest.raises(UntrustedServerError, match="certificate of localhost is not trusted: self"):
            stranger.request(url, "POST")
        assert friend.request(url)[0].status == 200
        friend.close()


def test_unreadable_ca_file_is_named() -> None:
    with pytest.raises(SettingError, match="cannot read the authorities in `/none`"):
        Http(TransportOptions(ca_file=Path("/none"))).request("https://localhost:1/")


class ConnectProxy(ScriptedServer):
    """A proxy that joins every CONNECT to one port on this machine."""

    def __init__(self, port: int, refusal: bytes = b"") -> None:
        super().__init__(lambda _: Drop(refusal))
        self._target = port
        self._refusal = refusal

    def _answer(self, answer: Any, writer: Any, connection: socket.socket) -> bool:
        if self._refusal:
            return super()._answer(answer, writer, connection)
        with socket.create_connection(("127.0.0.1", self._target)) as target:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            threading.Thread(target=_pump, args=(target, connection), daemon=True).start()
            _pump(connection, target)
        return False


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_https_goes_with_its_token_through_a_connect_proxy(certificate: Path) -> None:
    """The proxy sees a host that no name server knows, and never the token; a 401 is answered with a new one."""
    with TlsServer(certificate) as server, ConnectProxy(server.port) as proxy:
        options = TransportOptions(
            ca_file=certificate, proxy=HttpProxy.parse(f"http://me:pw%40@127.0.0.1:{proxy.port}")
        )
        token = Token()
        factory = HttpFactory(options, credentials=lambda: token, endpoint=ApiEndpoint.parse("https://tpu.test"))

        assert factory().request("https://tpu.test/v2/x", "POST", body="{}")[0].status == 200
        factory.close()

        assert [request.headers["authorization"] for request in server.received] == ["Bearer t1", "Bearer t2"]
        assert [(request.line, request.headers["proxy-authorization"]) for request in proxy.received] == [
            ("CONNECT tpu.test:443", "Basic bWU6cHdA")
        ] * 2


def test_threads_with_the_same_refused_token_refresh_it_once(certificate: Path) -> None:
    all_sent = threading.Barrier(8)

    def script(request: Received) -> Reply:
        if "t1" in request.headers["authorization"]:
            all_sent.wait(timeout=20)
        return _refuse_first_token(request)

    with TlsServer(certificate, script) as server, ConnectProxy(server.port) as proxy:
        options = TransportOptions(ca_file=certificate, proxy=HttpProxy("127.0.0.1", proxy.port))
        token = Token()
        factory = HttpFactory(options, credentials=lambda: token, endpoint=ApiEndpoint.parse("https://tpu.test"))
        found = fan_out(lambda _: factory().request("https://tpu.test/v2/x")[0].status, range(8), limit=8)
        factory.close()

    assert ([one.get() for one in found], token.count) == ([200] * 8, 2)


def test_proxy_that_refuses_is_named_and_means_not_sent(certificate: Path) -> None:
    with ConnectProxy(0, b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n") as proxy:
        http = Http(TransportOptions(ca_file=certificate, proxy=HttpProxy("127.0.0.1", proxy.port)))

        with pytest.raises(NotSentError, match=rf"tpu\.test cannot be reached through the proxy .*{proxy.port}.*407"):
            http.request("https://tpu.test/", "POST")


def test_token_is_not_sent_to_other_hosts() -> None:
    factory = HttpFactory(TransportOptions(), credentials=Token)

    with pytest.raises(SettingError, match=r"no token is sent to `https://evil\.test/v2`"):
        factory().request("https://evil.test/v2?x=1")


def test_loopback_endpoint_gets_no_credentials() -> None:
    with ScriptedServer(lambda _: Reply()) as server:
        factory = HttpFactory(TransportOptions(), credentials=Token, endpoint=ApiEndpoint.parse(server.url))
        factory().request(server.url)
        factory.close()

        assert "authorization" not in server.received[0].headers


def test_environment_sets_the_proxy_and_its_exceptions() -> None:
    environ = {"HTTPS_PROXY": "proxy.corp:3128", "NO_PROXY": ".internal.corp, *.lab,tpu.googleapis.com"}
    proxy = HttpProxy.from_environment(environ)

    assert proxy == HttpProxy("proxy.corp", 3128, bypass=(".internal.corp", "*.lab", "tpu.googleapis.com"))
    hosts = [
        "oauth2.googleapis.com",
        "tpu.googleapis.com",
        "a.internal.corp",
        "x.lab",
        "localhost",
        "metadata.google.internal",
    ]
    assert [host for host in hosts if proxy.applies_to(host)] == ["oauth2.googleapis.com"]
    assert not HttpProxy.parse("http://p:1", no_proxy="*").applies_to("tpu.googleapis.com")
    assert HttpProxy.from_environment({}) is None


@pytest.mark.parametrize("url", ["socks5://p:1", "https://p:1", "http://", "http://p:port"])
def test_unsupported_proxy_scheme_is_refused_by_name(url: str) -> None:
    with pytest.raises(SettingError, match="proxy"):
        HttpProxy.parse(url)
