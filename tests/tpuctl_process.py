"""`tpuctl` as a process: a real one, forked from a process that has loaded the program, in a tenth of the time.

Programs that a shell starts, and tests of the start itself, use the installed `tpuctl`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.json_contract import check_output

# Signals that a terminal, or `killpg`, sends to a whole group of processes.
_OF_A_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
_ROOT = Path(__file__).resolve().parents[1]
# Loaded before the first fork: what the commands under test import, and what google-auth does, but not itself.
_MODULES = (
    "tpuctl.app.ssh_options", "tpuctl.check.gate", "tpuctl.check.gathering", "tpuctl.check.rules", "tpuctl.cli.main",
    "tpuctl.cli.program", "tpuctl.cli.tree", "tpuctl.cloud.projects", "tpuctl.cloud.storage", "tpuctl.cloud.transport",
    "tpuctl.config.sources", "tpuctl.config.trusted_files", "tpuctl.nodes.actions", "tpuctl.nodes.commands.list_nodes",
    "tpuctl.nodes.commands.up", "tpuctl.nodes.controller", "tpuctl.nodes.hooks", "tpuctl.nodes.journal",
    "tpuctl.nodes.key_authorization", "tpuctl.nodes.rendering", "tpuctl.nodes.ssh_workers", "tpuctl.output.progress",
    "tpuctl.sandbox.in_process", "tpuctl.sandbox.service", "tpuctl.workers.commands.run", "tpuctl.workers.copying",
    "tpuctl.workers.execution", "tpuctl.workers.targets", "tpuctl.workers.worker_jobs", "asyncio",
    "concurrent.futures.thread", "configparser", "cryptography.hazmat.primitives.serialization", "cryptography.x509",
    "encodings.ascii", "encodings.utf_8_sig", "importlib.readers", "urllib.request", "yaml", "zipfile",
)  # fmt: skip

_PROGRAM = "from tpuctl.cli.main import entry_point; entry_point()"


class TpuctlProcess(subprocess.Popen[Any]):
    """A running `tpuctl`: a `Popen` whose arguments follow `tpuctl`. `program` replaces the call of its entry point."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:  # those of Popen
        self._program = options.pop("program", _PROGRAM)
        self._answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(["tpuctl", *arguments], **options)

    def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:  # those of Popen
        """Wait for the end, and return the output. Its JSON must fit the schemas."""
        found = super().communicate(*arguments, **options)
        texts = (os.fsdecode(text or "") for text in found)
        check_output(self._request["arguments"], self._request["environ"], Path(self._request["folder"]), *texts)
        return found

    # The methods by which `Popen` starts a process and learns of its end: the process is not a child of this one.

    def _execute_child(self, args: list[str], *rest: Any) -> None:  # as `Popen` calls it, since Python 3.11
        names = (
            "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell",
            "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite", "restore_signals", "gid", "gids", "uid",
            "umask", "start_new_session", "process_group",
        )  # fmt: skip
        given = dict(zip(names, rest, strict=True))
        self._request = {
            "arguments": args[1:],
            "environ": {os.fsdecode(name): os.fsdecode(value) for name, value in (given["env"] or os.environ).items()},
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "session": given["start_new_session"],
            "program": self._program,
        }
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        try:
            self._answers.connect(_server())
            socket.send_fds(self._answers, [json.dumps(self._request).encode()], streams)
            self.pid = int(self._answers.recv(16))
            self._child_created = True
        finally:
            self._close_pipe_fds(*(given[name] for name in names[9:15]))  # type: ignore[attr-defined]  # Popen's own

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        try:
            status = self._answers.recv(16, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, int(status)

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]  # Popen's own
        return self.returncode


def run_tpuctl(
    arguments: Sequence[str],
    *,
    input: Any = None,  # noqa: A002  # the name in `subprocess.run`
    timeout: float = 60,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run `tpuctl` to its end, as `subprocess.run` does with `capture_output`."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with TpuctlProcess(arguments, **streams, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@cache
def _server() -> str:
    """Start the process that forks, once in this process, and return the address of its socket."""
    path = f"\0tpuctl-tests-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    # Its stdin ends with this process, also after SIGKILL.
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.tpuctl_process", str(listener.fileno())],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        pass_fds=[listener.fileno()],
    )
    listener.close()

    def end() -> None:
        server.kill()
        server.communicate()

    atexit.register(end)
    return path


def _serve(listener: socket.socket) -> None:
    """Fork a process for each request and send its id, and at its end its status, until stdin ends."""
    from importlib import import_module  # noqa: PLC0415  # only here
    from selectors import EVENT_READ, DefaultSelector  # noqa: PLC0415  # only here

    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # early versions of google-auth need no cryptography
            import_module(name)
    for number in _OF_A_GROUP:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    selector = DefaultSelector()
    selector.register(listener, EVENT_READ)
    selector.register(sys.stdin.fileno(), EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                pid = os.fork()
                if pid == 0:
                    _become_tpuctl(json.loads(text), descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                selector.register(os.pidfd_open(pid), EVENT_READ, (pid, connection))
                _send(connection, pid)
            elif key.data:
                pid, connection = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _send(connection, os.waitpid(pid, 0)[1])
                connection.close()
            else:
                return


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(str(number).encode())


def _become_tpuctl(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run the program, as `python -m tpuctl` does. Does not return."""
    if request["session"]:
        os.setsid()
    for number in _OF_A_GROUP:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = ["tpuctl", *request["arguments"]]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # as Python's own
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # as Python's own
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115  # as Python's own
    exec(request["program"], {"__name__": "__main__"})  # noqa: S102  # written by a test


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
