"""The gRPC of `top`, held against grpcio: the client on workers, and the server of the sandbox's stand-ins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc  # type: ignore[import-untyped]  # it ships no types
import pytest

from tests.workers.programs import GUEST
from tpuctl.ssh.agent.grpc_call import NOT_FOUND, GrpcError, encode_text, unary_call
from tpuctl.ssh.agent.tpu_metrics import METRICS, SERVICE, cores_of, read_metric, supported_metrics


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The module with the sandbox's server."""
    monkeypatch.syspath_prepend(str(GUEST / "frameworks" / "chips"))
    monkeypatch.setenv("TPUCTL_SANDBOX_WORKER", str(tmp_path / "0.sshd"))
    import sandbox_metrics  # type: ignore[import-not-found]  # noqa: PLC0415  # of the guest

    yield sandbox_metrics
    del sys.modules["sandbox_metrics"]


@contextmanager
def grpcio_server(stand_in: ModuleType) -> Iterator[int]:
    """A server of grpcio with the stand-in's answers."""
    metrics = stand_in.ChipMetrics("v4", 4, 0)

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
        def service(self, details: Any) -> Any:
            def answer(message: bytes, context: Any) -> bytes:
                status, answer = stand_in._answer_call(metrics, details.method, message)
                if status:
                    context.abort(grpc.StatusCode.NOT_FOUND, "no such metric")
                return bytes(answer)

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_client_reads_a_server_of_grpcio(stand_in: ModuleType) -> None:
    with grpcio_server(stand_in) as port:
        assert supported_metrics(port) == {*METRICS.values()}
        assert read_metric(port, METRICS["hbmTotal"]) == dict.fromkeys(range(4), float(32 << 30))
        assert all(0 < duty <= 100 for duty in read_metric(port, METRICS["duty"]).values())
        assert [core["core"] for core in cores_of(port)] == [0, 1, 2, 3]
        with pytest.raises(GrpcError) as raised:
            read_metric(port, "nope")

    assert raised.value.status == NOT_FOUND


def test_client_of_grpcio_reads_the_server_of_the_sandbox(tmp_path: Path) -> None:
    program = "import sandbox_metrics as m, time; print(m.serve_metrics(m.ChipMetrics('v4', 4, 0)), flush=True); time.sleep(60)"
    environ = {"PYTHONPATH": str(GUEST / "frameworks" / "chips"), "TPUCTL_SANDBOX_WORKER": str(tmp_path / "0.sshd")}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary(f"{SERVICE}GetRuntimeMetric")
                ours = unary_call(port, f"{SERVICE}GetRuntimeMetric", encode_text(1, METRICS["hbmTotal"]), 5)

                # Later calls on one connection refer to the headers of the first.
                assert {call(encode_text(1, METRICS["hbmTotal"]), timeout=5) for _ in range(100)} == {ours}
                with pytest.raises(grpc.RpcError) as raised:
                    call(encode_text(1, "nope"), timeout=5)
        finally:
            server.kill()

    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
