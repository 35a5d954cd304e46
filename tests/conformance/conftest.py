"""A sandbox on a port whose hours pass in seconds, and two clients of it: the real gcloud, and tpuctl."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.cli.invocation import Invocation
from tpuctl.cli.main import main
from tpuctl.output.terminal import Streams
from tpuctl.sandbox import admin
from tpuctl.sandbox.server import serve
from tpuctl.sandbox.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PROJECT = "sandbox"
ZONE = "us-central2-b"
# gcloud looks at an operation after one second; by then it has ended.
_SPEED = 600.0
# What tpuctl adds to the API's fields.
_ADDED = frozenset({"nodeId", "zone", "project", "workers"})

Node = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a program said. A node of an operation's `response` counts as a node."""

    out: str
    err: str
    code: int

    @property
    def node(self) -> Node:
        """The node on stdout, with the fields of the API alone."""
        shown = json.loads(self.out)
        return _of_api(shown[0] if isinstance(shown, list) else shown.get("response", shown))

    @property
    def nodes(self) -> list[Node]:
        """The nodes on stdout, by name."""
        return sorted(map(_of_api, json.loads(self.out)), key=lambda node: str(node["name"]))

    @property
    def story(self) -> list[str]:
        """The lines on stderr, without dots of progress, names of operations and error ids."""
        lines = (
            re.sub(r"operation-[-0-9a-f]+|0x[0-9a-f]{16}", "…", line.lstrip(".")) for line in self.err.splitlines()
        )
        return [line for line in lines if line]


def _of_api(shown: Node) -> Node:
    return {field: value for field, value in shown.items() if field not in {*_ADDED, "@type"}}


@dataclass(frozen=True)
class Service:
    """A sandbox that listens, and those who call it."""

    world: World
    url: str
    folder: Path

    def gcloud(self, *words: str, project: str = PROJECT) -> Answer:
        """Run `gcloud compute tpus tpu-vm` with a home and a configuration of its own."""
        return self.any_gcloud("compute", "tpus", "tpu-vm", *words, project=project)

    def any_gcloud(self, *words: str, project: str = PROJECT) -> Answer:
        """Run gcloud, which must be able to read whatever it is answered."""
        command = ("gcloud", *words, "--project", project)
        done = subprocess.run(command, env=self._gcloud_environ(), capture_output=True, text=True, check=False)
        assert "gcloud crashed" not in done.stderr, done.stderr
        assert "InvalidDataFromServerError" not in done.stderr, done.stderr
        return Answer(done.stdout, done.stderr, done.returncode)

    def tpuctl(self, *words: str) -> Answer:
        """Run tpuctl in this process against the port."""
        stdout, stderr = io.StringIO(), io.StringIO()
        environ = {"HOME": str(self.folder), "TPUCTL_STATE_DIR": str(self.folder / "state"), "TPUCTL_PROJECT": PROJECT}
        streams = Streams(io.StringIO(), stdout, stderr)
        code = main(Invocation(("--endpoint", self.url, "--show-metadata", *words), environ, streams, self.folder))
        return Answer(stdout.getvalue(), stderr.getvalue(), code)

    def settle(self) -> None:
        """Let everything that has begun end, the health of a young node too."""
        admin.advance(self.world, timedelta(hours=1))

    def _gcloud_environ(self) -> Mapping[str, str]:
        """Return the environment in which gcloud talks to this port alone, asks nothing and knows nobody.

        The path `/` stands for each API's usual one. A set VIRTUAL_ENV or a proxy would get in the way, so little is inherited.
        """
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
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud"),
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{self.url}/" for api in apis},
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
            "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_COMPUTE_ZONE": ZONE,
            "NO_PROXY": "127.0.0.0/8,localhost",
        }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A listening sandbox for the tests of one file: gcloud takes a second each time, so that they share what they can."""
    folder = tmp_path_factory.mktemp("service")
    with World.open(folder / "world" / "world.sqlite3", speed=_SPEED) as world, serve(world) as server:
        server.start()
        yield Service(world, server.url, folder)
