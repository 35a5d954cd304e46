"""A sandbox on a port, 600 times as fast as real time, and two clients of it: the real gcloud, and tpuctl."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.app.app import Invocation
from tpuctl.cli.main import main
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox.administration import advance_clock
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROJECT = "sandbox"
ZONE = "us-central2-b"
# gcloud first reads an operation after one second; by then it has ended.
_SPEED = 600.0
# What tpuctl adds to the API's fields.
_ADDED = frozenset(
    {"kind", "nodeId", "zone", "project", "workers", "chips", "tier", "owner", "created", "ageSeconds", "billing"}
)

Node = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The output of a program. The `response` of an operation counts as a node."""

    out: str
    err: str
    code: int

    @property
    def node(self) -> Node:
        """The node on stdout, with the fields of the API alone."""
        document = json.loads(self.out)
        return _of_api(document[0] if isinstance(document, list) else document.get("response", document))

    @property
    def nodes(self) -> list[Node]:
        """The nodes on stdout, by name."""
        return sorted(map(_of_api, json.loads(self.out)), key=lambda node: str(node["name"]))

    @property
    def messages(self) -> list[str]:
        """The lines on stderr, without dots of progress, names of operations and error ids."""
        lines = (
            re.sub(r"operation-[-0-9a-f]+|0x[0-9a-f]{16}", "…", line.lstrip(".")) for line in self.err.splitlines()
        )
        return [line for line in lines if line]


def _of_api(document: Node) -> Node:
    return {field: value for field, value in document.items() if field not in {*_ADDED, "@type"}}


@dataclass(frozen=True)
class GcloudProcess:
    """gcloud, loaded once; each command runs in a fork of it."""

    process: subprocess.Popen[str]
    writing: Lock = field(default_factory=Lock)

    def run(self, words: tuple[str, ...], environ: Mapping[str, str], folder: Path) -> Answer:
        """Run one command. Safe to use from several threads."""
        with TemporaryDirectory(dir=folder) as name:
            places = {key: Path(name) / key for key in ("stdout", "stderr", "exit_code")}
            os.mkfifo(places["exit_code"])
            request = {"words": words, "environ": environ, **{key: str(place) for key, place in places.items()}}
            assert self.process.stdin is not None
            with self.writing:
                self.process.stdin.write(json.dumps(request, default=dict) + "\n")
                self.process.stdin.flush()
            code = int(places["exit_code"].read_text("utf-8"))
            return Answer(places["stdout"].read_text("utf-8"), places["stderr"].read_text("utf-8"), code)


@dataclass(frozen=True)
class Service:
    """A sandbox that listens, and its clients."""

    state: SandboxState
    url: str
    folder: Path
    process: GcloudProcess

    def gcloud(self, *words: str, project: str = PROJECT) -> Answer:
        """Run `gcloud compute tpus tpu-vm` with a home and a configuration of its own."""
        return self.any_gcloud("compute", "tpus", "tpu-vm", *words, project=project)

    def any_gcloud(self, *words: str, project: str = PROJECT) -> Answer:
        """Run gcloud, which must be able to parse every response."""
        answer = self.process.run((*words, "--project", project), self._gcloud_environ(), self.folder)
        assert "gcloud crashed" not in answer.err, answer.err
        assert "InvalidDataFromServerError" not in answer.err, answer.err
        return answer

    def tpuctl(self, *words: str) -> Answer:
        """Run tpuctl in this process against the port."""
        stdout, stderr = io.StringIO(), io.StringIO()
        environ = {"HOME": str(self.folder), "TPUCTL_STATE_DIR": str(self.folder / "state"), "TPUCTL_PROJECT": PROJECT}
        streams = StandardStreams(io.StringIO(), stdout, stderr)
        code = main(Invocation(("--endpoint", self.url, "--show-metadata", *words), environ, streams, self.folder))
        return Answer(stdout.getvalue(), stderr.getvalue(), code)

    def settle(self) -> None:
        """Advance the clock until all operations have ended and new nodes are healthy."""
        advance_clock(self.state, timedelta(hours=1))

    def _gcloud_environ(self) -> Mapping[str, str]:
        """Return the environment in which gcloud uses only this port. The path `/` selects each API's default path."""
        apis = (
            "TPU",
            "COMPUTE",
            "STORAGE",
            "CLOUDRESOURCEMANAGER",
            "SERVICEUSAGE",
            "ORGPOLICY",
            "OSLOGIN",
            "CLOUDBILLING",
        )
        return {
            **gcloud_environ(self.folder),
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{self.url}/" for api in apis},
            "CLOUDSDK_COMPUTE_ZONE": ZONE,
        }


def gcloud_environ(folder: Path) -> Mapping[str, str]:
    """Return an environment in which gcloud has a home of its own, and neither prompts nor accounts.

    Little is inherited: a VIRTUAL_ENV or a proxy would interfere.
    """
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.0/8,localhost",
    }


@pytest.fixture(scope="session")
def gcloud_process() -> Iterator[GcloudProcess | None]:
    """The real gcloud, or None if it is not installed."""
    if shutil.which("gcloud") is None:
        yield None
        return
    places = ("gcloud", "info", "--format=value(basic.python_location,installation.sdk_root)")
    python, root = subprocess.run(places, capture_output=True, text=True, check=True).stdout.split()
    script = str(Path(__file__).with_name("gcloud_process.py"))
    with subprocess.Popen([python, script, root], stdin=subprocess.PIPE, text=True) as process:
        yield GcloudProcess(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, gcloud_process: GcloudProcess) -> Iterator[Service]:
    """A listening sandbox for the tests of one file."""
    folder = tmp_path_factory.mktemp("service")
    with (
        SandboxState.open(folder / "sandbox" / "world.sqlite3", speed=_SPEED) as sandbox_state,
        open_server(sandbox_state) as server,
    ):
        server.start()
        yield Service(sandbox_state, server.url, folder, gcloud_process)
