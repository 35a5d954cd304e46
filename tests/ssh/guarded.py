"""A node in a sandbox, and the program that guards it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from tpuctl.clock import ManualClock
from tpuctl.sandbox.api_calls import Json, Request, Response
from tpuctl.sandbox.service import answer_request
from tpuctl.sandbox.sshd.guard_service import CLOUD_PLATFORM, GuardServer
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.agent.guard_answers import parse_node
from tpuctl.ssh.channel import standalone_program

NAME = "projects/sandbox/locations/us-central2-b/nodes/node"


@dataclass
class Guarded:
    """A node in a sandbox, and the program that guards it, as the worker runs it."""

    state: SandboxState
    clock: ManualClock
    home: Path
    scopes: tuple[str, ...] = (CLOUD_PLATFORM,)
    idle: int | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    # It lives in the place of root, not in the home.
    is_shared: bool = False

    @property
    def root(self) -> Path:
        return self.home / "root"

    @property
    def folder(self) -> Path:
        return self.root / "var/lib/tpuctl/guard" if self.is_shared else self.home / ".tpuctl" / "guard"

    def settings(self) -> dict[str, Any]:
        return {
            "node": NAME,
            "id": self.node()["id"],
            "endpoint": "https://tpu.googleapis.com",
            "idle": self.idle,
            "onIdle": "delete",
        }

    def write_files(self) -> None:
        """Write the files of a guard that has known the end of the node's label before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, self.folder.parent):
            folder.chmod(0o700)
        (self.folder / "guard.py").write_text(standalone_program("guard", "guard_main()"))
        (self.folder / "guard.py").chmod(0o600)
        (self.folder / "settings").write_text(json.dumps(self.settings()))
        node = parse_node(self.node())
        end = {"id": node.id, "known": node.expires, "seen": node.expires, "since": None}
        (self.folder / "expiry").write_text(json.dumps(end))

    def start(self, *, damaged: bool = False) -> subprocess.Popen[bytes]:
        self.write_files()
        if damaged:
            (self.folder / "settings").write_text("{")
        programs = self.home / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "wall").write_text('#!/bin/sh\nprintf "%s\\n" "$*" >>"$HOME/wall"\n')
        (programs / "wall").chmod(0o755)
        server = GuardServer(self.state, {}, self.scopes).start()
        self.servers.append(server)
        environ = {
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TPUCTL_DEVICE_ROOT": str(self.root),
            "TPUCTL_GUARD_INTERVAL": "0.05",
            **server.environment,
        }
        words = [sys.executable, "-I", str(self.folder / "guard.py")]
        process = subprocess.Popen(words, env=environ, start_new_session=True)
        self.processes.append(process)
        return process

    servers: list[GuardServer] = field(default_factory=list)

    def call(self, method: str, path: str, body: Json | None = None, **query: str) -> Json:
        sent = b"" if body is None else json.dumps(body).encode()
        answer = answer_request(self.state, Request(method, f"/v2/{path}", tuple(query.items()), body=sent))
        assert isinstance(answer, Response)
        return json.loads(answer.body)  # type: ignore[no-any-return]  # JSON

    def node(self) -> Json:
        return self.call("GET", NAME)

    def until(self, has_happened: Callable[[], bool]) -> None:
        """Wait until something has happened, at most 10 s."""
        end = time.monotonic() + 60
        while not has_happened():
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def looks(self, count: int = 3) -> None:
        """Wait for some looks of the guard from now on."""
        for _ in range(count):
            before = (self.folder / "status").stat().st_ino if (self.folder / "status").exists() else None
            self.until(
                lambda before=before: (
                    (self.folder / "status").exists()  # type: ignore[misc]  # of this round
                    and (self.folder / "status").stat().st_ino != before
                )
            )

    def log(self) -> list[str]:
        path = self.folder / "log"
        return [line.partition(" ")[2] for line in path.read_text().splitlines()] if path.exists() else []

    def status(self) -> dict[str, Any]:
        return json.loads((self.folder / "status").read_text())  # type: ignore[no-any-return]  # JSON

    def expires_in(self, **duration: float) -> dict[str, str]:
        return {"tpuctl-expires": str(int((self.state.clock.now() + timedelta(**duration)).timestamp()))}

    def is_deleting(self) -> bool:
        # Not by a request, which would meet the faults that are for the guard.
        with self.state.read() as session:
            node = session.node("sandbox", "us-central2-b", "node")
            return node is None or node.state(session.now) != "READY"


@contextmanager
def guarded_node(folder: Path) -> Iterator[Guarded]:
    """Yield a node of a new sandbox, and end its guards."""
    clock = ManualClock()
    with SandboxState.open(folder / "world.sqlite3", clock=clock) as state:
        found = Guarded(state, clock, folder)
        yield found
        for process in found.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for server in found.servers:
            server.close()
