"""`tpuctl` as real processes, forked from one that has loaded its modules: loading takes longer than most commands.

`ForkServer` starts this module as a program, which forks a process for each request that it gets on a socket. `start`
returns a `ForkedProcess`, which has the methods of `subprocess.Popen` that tests use.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Self, TextIO

_COMMANDS = ("up", "state_changes", "changes", "wait", "watch", "node_lookup", "dry_run", "list_nodes")
_ALSO = (
    *("tpuctl.cli.main", "tpuctl.cli.program", "tpuctl.nodes.plan", "tpuctl.nodes.hooks", "tpuctl.nodes.actions"),
    *("tpuctl.sandbox.in_process", "tpuctl.check.gate", "tpuctl.check.commands.preflight_options"),
    *("googleapiclient.discovery", "googleapiclient.http", "google.oauth2.service_account", "rich.console", "yaml"),
)


class ForkedProcess:
    """A running or ended process. It has its own stdout and stderr, and nothing on stdin."""

    def __init__(self, pid: int, stdout: TextIO, stderr: TextIO, status: TextIO) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._status = status

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read stdout and stderr to their ends, and wait for the end of the process."""
        deadline = None if timeout is None else time.monotonic() + timeout
        read: dict[TextIO, str] = {}

        def read_all(stream: TextIO) -> None:
            read[stream] = "" if stream.closed else stream.read()
            stream.close()

        threads = [Thread(target=read_all, args=(stream,), daemon=True) for stream in (self.stdout, self.stderr)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        if self.returncode is None:
            self.returncode = int(self._status.readline())
            self._status.close()
        return read[self.stdout], read[self.stderr]


class ForkServer:
    """The process that forks others. It ends with the block."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[1],
            )
        self._channel = ours

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.wait(timeout=20)

    def start(self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> ForkedProcess:
        """Start `tpuctl` with these arguments and this environment only."""
        pipes = [os.pipe() for _ in range(3)]
        request = json.dumps({"arguments": list(arguments), "environ": dict(env), "cwd": str(cwd)})
        try:
            socket.send_fds(self._channel, [request.encode()], [writer for _, writer in pipes])
        finally:
            for _, writer in pipes:
                os.close(writer)
        stdout, stderr, status = (os.fdopen(reader, encoding="utf-8", newline="") for reader, _ in pipes)
        return ForkedProcess(int(status.readline()), stdout, stderr, status)


def serve(channel: socket.socket) -> None:
    """Fork a process for each request, until the channel is closed."""
    for name in (*(f"tpuctl.nodes.commands.{name}" for name in _COMMANDS), *_ALSO):
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            return
        if os.fork() == 0:
            channel.close()
            _start_and_report(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _start_and_report(request: dict[str, object], stdout: int, stderr: int, status: int) -> None:
    """Start the process, write its id, wait for it, and write its exit code, which is negative for a signal."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.closerange(3, max(stdout, stderr) + 1)
        _run(request)
    os.close(stdout)
    os.close(stderr)
    os.write(status, b"%d\n" % pid)
    _, ended = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # nobody asks
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _run(request: dict[str, object]) -> None:
    from tpuctl.cli.main import entry_point  # noqa: PLC0415  # loaded by the first import of the server

    arguments, environ = request["arguments"], request["environ"]
    assert isinstance(arguments, list)
    assert isinstance(environ, dict)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(str(request["cwd"]))
    sys.argv = ["tpuctl", *arguments]
    try:
        entry_point()
    finally:
        os._exit(70)  # unreachable: the program ends the process


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests)
