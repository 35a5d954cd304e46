"""The sandboxes of the measured programs: filled with nodes, in a temporary folder, some of them on a loopback port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measurement import Program, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROJECT = "sandbox"
ZONE = "us-central2-b"
GCLOUD = shutil.which("gcloud")
_TPUCTL = str(Path(sys.executable).with_name("tpuctl"))
_APIS = ("TPU", "COMPUTE", "STORAGE", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "OSLOGIN")


@dataclass(frozen=True, slots=True)
class Stage:
    """A sandbox in a folder; `url` is its address if it listens."""

    folder: Path
    url: str = ""

    def tpuctl(self, *words: str, on_terminal: bool = False, environ: Mapping[str, str] | None = None) -> Program:
        """Return tpuctl on this sandbox: over its port if it listens, else in process."""
        cloud = {"TPUCTL_ENDPOINT": self.url, "TPUCTL_PROJECT": PROJECT} if self.url else {"TPUCTL_SANDBOX": "1"}
        return Program((_TPUCTL, *words), {**_environ(self.folder), **cloud, **(environ or {})}, on_terminal)

    def timed(self, what: str, *words: str) -> Stopwatch:
        """Return the stopwatch of a client of this sandbox, with the arguments of `benchmarks.client`."""
        environ = {**_environ(self.folder), "PYTHONPATH": str(Path(__file__).parents[1])}
        return Stopwatch(Program((sys.executable, "-m", "benchmarks.client", what, *words), environ))

    @property
    def state_file(self) -> Path:
        """The file of the sandbox."""
        return self.folder / "state" / "sandbox" / "world.sqlite3"

    def gcloud(self, *words: str) -> Program:
        """Return gcloud on this sandbox, without credentials, prompts or look-ups elsewhere."""
        environ = {
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{self.url or 'http://127.0.0.1:9'}/" for api in _APIS},
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud"),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_COMPUTE_ZONE": ZONE,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
            "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        }
        return Program((GCLOUD or "gcloud", *words), {**_environ(self.folder), **environ})


@contextmanager
def listening(folder: Path, *, nodes: int) -> Iterator[Stage]:
    """Yield a new sandbox that listens on a loopback port of its own until the end."""
    with served(filled(folder, nodes=nodes)) as stage:
        yield stage


@contextmanager
def served(quiet: Stage) -> Iterator[Stage]:
    """Yield a sandbox, listening on a loopback port of its own until the end."""
    program = quiet.tpuctl("sandbox", "serve")
    with subprocess.Popen(
        program.command, env=dict(program.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield Stage(quiet.folder, server.stdout.readline().strip())
        finally:
            server.terminate()


def filled(folder: Path, *, nodes: int) -> Stage:
    """Return a sandbox with nodes in all zones that have TPUs."""
    folder.mkdir()
    stage = Stage(folder)
    subprocess.run((sys.executable, "-m", "benchmarks.fill", str(stage.state_file), str(nodes)), check=True)
    return stage


def _environ(folder: Path) -> dict[str, str]:
    """Return an environment without the user's variables."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TPUCTL_STATE_DIR": str(folder / "state"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
