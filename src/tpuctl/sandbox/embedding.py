"""The sandbox for tests of other tools: `from tpuctl.sandbox import Sandbox`. This interface is public and stable.

With a manual clock (the default) time moves only by `advance`: tests do not wait and always see the same. Programs
in other processes (gcloud, ssh to workers) need running time: give a `speed`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.clock import Clock, ManualClock
from tpuctl.durations import parse_duration
from tpuctl.sandbox import faults, http_server
from tpuctl.sandbox.administration import DEFAULT_PROJECT, DEFAULT_ZONE
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.scenarios import play_scenario, read_scenario
from tpuctl.sandbox.seeding import apply_seed, read_seed
from tpuctl.sandbox.shims import gcloud_environment, record_served_address, remove_served_address
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from tpuctl.sandbox.in_process import SandboxHttp
    from tpuctl.sandbox.request_log import LoggedCall


class Sandbox:
    """A private Cloud TPU API, empty at first. Close it, or use it in a `with`.

    `folder` holds its files (None: a temporary folder, which `close` removes). `speed` is its time per real time, such as 600;
    without a speed its time stands still until `advance`, or follows `clock`. It listens only after `start`.
    """

    def __init__(self, folder: Path | None = None, *, speed: float | None = None, clock: Clock | None = None) -> None:
        self._own_folder = None if folder else Path(tempfile.mkdtemp(prefix="tpuctl-sandbox-"))
        chosen = clock or (None if speed else ManualClock())
        self._state = SandboxState.open(
            (folder or self._own_folder or Path()) / "world.sqlite3", clock=chosen, speed=speed
        )
        self._server: http_server.SandboxServer | None = None

    def start(self, port: int = 0) -> str:
        """Listen on a loopback port (0: a free one) and return the URL, `http://127.0.0.1:PORT`.

        Raises `OSError` if the port is in use.
        """
        if self._server is None:
            self._server = open_server(self._state, port).start()
            record_served_address(self._state.path, self._server.url)
        return self._server.url

    def http(self) -> SandboxHttp:
        """Return the `http` argument for google-api-python-client: requests are answered in this process, without a socket."""
        return SandboxHttp(self._state)

    def environment(self, *, project: str = DEFAULT_PROJECT, zone: str = DEFAULT_ZONE) -> dict[str, str]:
        """Return the variables with which gcloud uses this sandbox and reaches its workers. Calls `start`.

        Merge them into the environment of a process. Give it a separate HOME too: gcloud stores its ssh key there.
        """
        return gcloud_environment(self._state.path, self.start(), project=project, zone=zone, environ=os.environ)

    def seed(self, seed: str | Path | Mapping[str, Any]) -> None:
        """Add the resources of a seed: YAML text, a file, or a mapping. All or none. Raises `SeedError` naming line and key."""
        apply_seed(self._state, read_seed(*_yaml_text(seed)))

    def scenario(self, scenario: str | Path | Mapping[str, Any]) -> None:
        """Plan the events of a scenario from now on: YAML text, a file, or a mapping. Raises `SeedError`."""
        play_scenario(self._state, read_scenario(*_yaml_text(scenario)))

    def fault(self, kind: str, **words: str | float) -> int:
        """Add a fault, with the options of `tpuctl sandbox fault`, and return its number for `remove_fault`.

        `sandbox.fault("hang", node="trainer", state="CREATING", duration="20m", times=2)`. Raises `InvalidInputError`.
        """
        with self._state.write() as session:
            return faults.add_fault(session, faults.parse_fault({"kind": kind, **words}))

    def remove_fault(self, number: int) -> bool:
        """Remove a fault. Return whether it existed."""
        with self._state.write() as session:
            return faults.remove_fault(session, number)

    def advance(self, duration: str | timedelta) -> None:
        """Advance its clock by `10m` or a timedelta. Raises `ValueError` for an invalid duration."""
        self._state.advance(parse_duration(duration) if isinstance(duration, str) else duration)

    def requests(self) -> list[LoggedCall]:
        """Return the requests that it received, oldest first: `method`, `path`, `status`, `client`, `at`."""
        return read_log(self._state.path)

    def close(self) -> None:
        """Stop listening; remove a temporary folder. A second call does nothing."""
        if self._server is not None:
            remove_served_address(self._state.path, self._server.url)
            self._server.close()
            self._server = None
        self._state.close()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _yaml_text(source: str | Path | Mapping[str, Any]) -> tuple[str, str]:
    """Return YAML text, and a name for it in errors."""
    if isinstance(source, Path):
        return source.read_text("utf-8"), str(source)
    if isinstance(source, str):
        return source, "the text"

    return json.dumps(source), "the mapping"
