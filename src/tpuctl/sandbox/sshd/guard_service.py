"""The service `tpuctl-guard` of a sandbox worker, in place of systemd, and the servers that it needs.

One process for one worker: it runs the program of the unit file, and answers it on a loopback port as the metadata server
and as the TPU API. Only a request with the token that it gave out itself reaches the API, and of other APIs only the test of
permissions. The metadata server answers only below a path that the worker's program alone knows: the port opens nothing to
other users of this machine. It ends with its program, with the worker, and with the sandbox.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import ApiError, Response
from tpuctl.sandbox.http_server import SandboxServer
from tpuctl.sandbox.service import dated
from tpuctl.sandbox.sshd.worker_home import SERVICE_UNIT, is_rebooting
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import find_worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuctl.sandbox.api_calls import DroppedConnection, Request
    from tpuctl.sandbox.sshd.daemon import WorkerFolders
    from tpuctl.sandbox.worker_lookup import SandboxWorker

# Seconds of real time between two looks of the guard at its node: sandbox time runs faster, and users advance it.
GUARD_INTERVAL = 1
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_SERVED = re.compile(r"/v2/projects/|/v3/projects/[^/:]+:testIamPermissions$")
_METADATA = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"
_CHECK_INTERVAL = 1.0
_END_TIMEOUT = 2.0
_RESTARTS = 5


class GuardServer(SandboxServer):
    """The metadata server of one worker, and the TPU API for the token that it gives out."""

    def __init__(self, sandbox: SandboxState, metadata: Mapping[str, str], scopes: tuple[str, ...]) -> None:
        self._metadata = {_METADATA + path: text for path, text in metadata.items()}
        self._scopes = scopes
        self._token = f"sandbox-{secrets.token_urlsafe(24)}"
        self._secret = f"/{secrets.token_urlsafe(24)}"
        super().__init__(sandbox, 0, log=lambda _line: None)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Google's libraries, gcloud and the guard reach this server."""
        return {
            "GCE_METADATA_HOST": self.url.removeprefix("http://") + self._secret,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{self.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": f"{self.url}/",
        }

    def answer(self, request: Request) -> Response | DroppedConnection:
        """Return the response of the metadata server or of the API."""
        path = request.path.removeprefix(self._secret)
        if path != request.path and path.startswith("/computeMetadata/"):
            return self._answer_metadata(replace(request, path=path))
        error = None
        if request.headers.get("authorization") != f"Bearer {self._token}":
            error = ApiError(401, "UNAUTHENTICATED", "The request has no valid token of this worker.")
        elif not _SERVED.match(request.path):
            error = ApiError(403, "PERMISSION_DENIED", "Only the TPU API and tests of permissions are served here.")
        if error is not None:
            return dated(self.state, error.response())
        if CLOUD_PLATFORM not in self._scopes:
            return dated(self.state, _missing_scope())
        return super().answer(request)

    def _answer_metadata(self, request: Request) -> Response:
        if request.headers.get("metadata-flavor") != "Google":
            return Response(403, b"Missing Metadata-Flavor:Google header.\n", {"metadata-flavor": "Google"})
        text = self._metadata.get(request.path)
        if request.path == f"{_METADATA}{_ACCOUNT}token":
            text = json.dumps({"access_token": self._token, "expires_in": 3599, "token_type": "Bearer"})
        elif request.path == f"{_METADATA}{_ACCOUNT}scopes":
            text = "".join(f"{scope}\n" for scope in self._scopes)
        if text is None:
            return Response(404, b"not found\n", {"metadata-flavor": "Google"})
        return Response(200, text.encode(), {"metadata-flavor": "Google"})


def _missing_scope() -> Response:
    """Return the error for a token without the scope [Google's error model: reason in ErrorInfo]."""
    error = {
        "code": 403,
        "message": "Request had insufficient authentication scopes.",
        "status": "PERMISSION_DENIED",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
                "domain": "googleapis.com",
            }
        ],
    }
    return Response(403, json.dumps({"error": error}).encode(), {"content-type": "application/json; charset=UTF-8"})


def account_scopes(worker: SandboxWorker) -> tuple[str, ...]:
    """Return the scopes of the worker's service account: that of the cloud platform if the node names none."""
    account = worker.node.document.get("serviceAccount") or {}
    return tuple(map(str, account.get("scope") or (CLOUD_PLATFORM,)))


def run_service(state_path: Path, worker: SandboxWorker, folders: WorkerFolders) -> None:
    """Run the program of the worker's unit file, again after a failure, while the worker runs."""
    with suppress(OSError):  # it leads its group already
        os.setsid()
    with folders.service_lock.open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        os.fchmod(lock.fileno(), 0o600)
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), str(os.getpid()).encode())
        command = _unit_command(folders)
        if command is None:
            return
        paths = (path for path in folders.metadata.rglob("*") if path.is_file())
        metadata = {str(path.relative_to(folders.metadata)): path.read_text("utf-8") for path in paths}
        with (
            SandboxState.open(state_path) as sandbox,
            GuardServer(sandbox, metadata, account_scopes(worker)) as server,
        ):
            server.start()
            for _ in range(_RESTARTS):
                if not _run_program(command, server, worker, folders):
                    return


def _unit_command(folders: WorkerFolders) -> str | None:
    """Return the command line of the unit file, None without one."""
    try:
        lines = (folders.devices / SERVICE_UNIT).read_text("utf-8").splitlines()
    except OSError:
        return None
    commands = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    return shlex.join(shlex.split(commands[0].replace("%%", "%"))) if commands else None


def _run_program(command: str, server: GuardServer, worker: SandboxWorker, folders: WorkerFolders) -> bool:
    """Run the program as a session of the worker does. Return whether it failed while the worker runs."""
    environ = {
        "SHELL": "/bin/sh",
        **os.environ,
        **server.environment,
        "TPUCTL_GUARD_INTERVAL": str(GUARD_INTERVAL),
        "SSH_ORIGINAL_COMMAND": f"exec {command}",
    }
    null = subprocess.DEVNULL
    with subprocess.Popen(
        [str(folders.control / "session")], stdin=null, stdout=null, stderr=null, env=environ, start_new_session=True
    ) as process:

        def stop(*_: object) -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

        signal.signal(signal.SIGTERM, stop)
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_CHECK_INTERVAL)
                return code > 0
            if not _is_up(server.state, worker, folders):
                stop()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_TIMEOUT)
                process.kill()
                return False


def _is_up(sandbox: SandboxState, worker: SandboxWorker, folders: WorkerFolders) -> bool:
    """Return whether the same worker still runs."""
    if not sandbox.path.exists():  # opening would create it
        return False
    with sandbox.read() as session:
        node = worker.node
        now = find_worker(session, f"{node.project}/{node.zone}/{node.node_id}/{worker.index}")
        is_same = now is not None and now.node.number == node.number and now.phase.state == "READY"
        return is_same and not is_rebooting(folders, session.now)
