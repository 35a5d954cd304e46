"""The gcloud commands that `--dry-run` prints, in gcloud itself: it accepts each."""

from __future__ import annotations

import re
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.conformance.conftest import gcloud_environ
from tests.nodes.test_dry_run import plan
from tests.nodes.test_plan import FULL, NAME, QUEUED, SMALL
from tpuctl.models.node import Tier
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.plan import PlanStep, gcloud_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conformance.conftest import Answer, GcloudProcess
    from tests.conftest import Console, Sandbox

pytestmark = pytest.mark.gcloud


class _NothingHere(BaseHTTPRequestHandler):
    """Answers everything with 404 at once: gcloud retries a refused connection for half a minute."""

    def _answer(self) -> None:
        body = b'{"error": {"code": 404, "status": "NOT_FOUND", "message": "nothing here"}}'
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815  # the names that http.server requires

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _NothingHere)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def gcloud(gcloud_process: GcloudProcess, tmp_path: Path) -> Callable[..., Answer]:
    """Return what runs a command line of gcloud without an account."""

    def run(command: str, **more: str) -> Answer:
        # Split by a shell, as a user would run it.
        split = subprocess.run(["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
        program, *words = split.stdout.split("\0")[:-1]
        assert program == "gcloud"
        return gcloud_process.run(tuple(words), {**gcloud_environ(tmp_path), **more}, tmp_path)

    return run


@pytest.mark.parametrize(
    "step",
    [
        PlanStep(Verb.CREATE, NAME, "", spec=FULL),
        PlanStep(Verb.CREATE, NAME, "", spec=replace(SMALL, topology="2x4", tier=Tier.RESERVED)),
        PlanStep(Verb.DELETE, NAME, "", queued_resource=QUEUED),
        PlanStep(
            Verb.UPDATE,
            NAME,
            "",
            changes={"labels": {"a": "b"}, "metadata": {"k": "a,b"}, "tags": ["t"], "description": ""},
        ),
    ],
)
def test_gcloud_sends_the_requests_of_a_plan(gcloud: Callable[..., Answer], endpoint: str, step: PlanStep) -> None:
    """A command that gcloud cannot parse ends with 2; one that reached the API ends with the API's error."""
    (command,) = gcloud_commands(step)

    ended = gcloud(command, CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU=endpoint)

    assert (ended.code, "NOT_FOUND: nothing here" in ended.err) == (1, True), ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("update", "demo", "--labels", "b=2", "--remove-labels", "a", "--tags", "n", "--remove-tags", "old",
         "--metadata", "new=1", "--remove-metadata", "token", "--description", "d e"),
        ("update", "demo", "--attach-disk", "d"),
        ("update", "demo", "--internal-ips"),
        ("down", "owned"),
        ("up", "new", "--type", "v6e-8", "--zone", "us-east5-b", "--tier", "flex-start", "--run-for", "24h",
         "--start-after", "1h", "--queue-for", "6h", "--labels", "a=b"),
        ("up", "new", "--type", "v6e-8", "--zone", "us-east5-b", "--queue", "--reserved", "--skip-check", "all"),
        ("up", "new", "--type", "v6e-8", "--zone", "us-east5-b", "--queue", "--reservation", "r", "--calendar",
         "--skip-check", "all"),
        ("up", "new", "--type", "v6e-8", "--zone", "us-east5-b", "--tier", "best-effort"),
    ],
    ids=["update", "attach", "addresses", "down", "flex-start", "reserved", "calendar", "best-effort"],
)  # fmt: skip
def test_gcloud_parser_accepts_the_command(
    gcloud: Callable[..., Answer], tpuctl: Console, sandbox: Sandbox, arguments: tuple[str, ...]
) -> None:
    sandbox.add_node("demo", labels={"a": "1"}, tags=["old"], metadata={"token": "geheim"})
    sandbox.add_node("owned", queued_resource="request")
    sandbox.add_queued_resource("request", node_ids=("owned",))
    (command,) = plan(tpuctl, *arguments)[1]

    # One flag that gcloud does not have keeps it from going on; it is all that its parser has to complain about.
    ended = gcloud(f"{command} --zzzzzzzzzz")

    assert ended.code == 2
    assert re.findall(r"unrecognized arguments:\s+(.*\S)", ended.err) == ["--zzzzzzzzzz"], ended.err
