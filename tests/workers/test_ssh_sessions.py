"""Sessions with a sandbox worker through the real ssh: a shell on a terminal, tmux across a lost connection, a port."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox import administration
from tpuctl.sandbox.sshd.daemon import terminal_obstacle
from tpuctl.sandbox.state import SandboxState

pytestmark = pytest.mark.sshd
PATIENCE = 60


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An embedded sandbox with one node."""
    folder = tmp_path / "state"
    with SandboxState.open(folder / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "TPUCTL_STATE_DIR": str(folder),
        "TPUCTL_SANDBOX": "1",
    }


class Screen:
    """The program on a terminal of its own."""

    def __init__(self, environ: dict[str, str], folder: Path, *arguments: str) -> None:
        self.terminal, theirs = os.openpty()
        argv = [sys.executable, "-m", "tpuctl", *arguments]
        self.process = subprocess.Popen(
            argv,
            env=environ,
            cwd=folder,
            preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509  # no other thread runs here
        )
        os.close(theirs)
        self._unread = ""

    def until(self, pattern: str) -> str:
        """Read on until what was shown matches, and return it."""
        deadline = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self._unread)):
            readable, _, _ = select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))
            shown = os.read(self.terminal, 65536) if readable else b""
            assert shown, f"no {pattern!r} in {self._unread[-2000:]!r}"
            self._unread += shown.decode(errors="replace")
        shown_text, self._unread = self._unread[: match.end()], self._unread[match.end() :]
        return shown_text

    def type(self, line: str) -> None:
        os.write(self.terminal, f"{line}\n".encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture
def show(environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    if obstacle := terminal_obstacle():
        pytest.skip(obstacle)
    screens: list[Screen] = []

    def show(*arguments: str) -> Screen:
        screens.append(Screen(environ, tmp_path, *arguments))
        return screens[-1]

    yield show
    for screen in screens:
        screen.close()


def test_shell_has_the_terminal_and_returns_its_exit_code(show: Callable[..., Screen]) -> None:
    screen = show("ssh", "demo")

    screen.until(r"adding our ssh key to the metadata of `demo`")
    screen.type("stty size; [ -t 0 ] && echo on a $((1)) terminal; exit 7")
    screen.until(r"on a 1 terminal")

    assert screen.process.wait(PATIENCE) == 7


def test_tmux_session_survives_a_lost_connection(show: Callable[..., Screen]) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    screen = show("ssh", "demo", "--tmux=work", "--", "PS1=+ exec sh -i")
    screen.type("kept=$((40+2))")
    screen.type("echo begun-$kept")
    screen.until(r"begun-42")

    for child in _children(screen.process.pid):
        os.kill(child, signal.SIGKILL)  # the link: ssh's ProxyCommand
    screen.until(r"connection lost; the session continues")
    screen.until(r"\[work\]")
    screen.type("echo joined-$kept")
    screen.until(r"joined-42")
    # What is left behind ends soon after.
    screen.type("(sleep 1; kill -9 $$) & tmux detach")
    back = screen.until(r"attach again with\s+`[^`]*`")

    assert screen.process.wait(PATIENCE) == 0
    assert "`tpuctl ssh demo --worker 0 --tmux=work`" in back


def _children(parent: int) -> list[int]:
    """Return the child processes of the ssh that a process started."""
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below.setdefault(int(fields[1]), []).append(int(folder.name))
    return [process for ssh in below.get(parent, []) for process in below.get(ssh, [])]


def test_forwarded_port_is_open_until_interrupted(environ: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as board:
        remote = board.getsockname()[1]
        with TpuctlProcess(
            ["ssh", "demo", "--forward", str(remote)],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ, cwd=tmp_path, text=True,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith("http://"))
            local = int(line.split("localhost:")[1].split("/")[0])
            with _connected(local) as user, board.accept()[0] as server:
                user.sendall(b"step 7")
                arrived = server.recv(6)
            process.send_signal(signal.SIGINT)
            code = process.wait(PATIENCE)  # ssh's own for such an end

    assert (local != remote, arrived, code) == (True, b"step 7", 255)


def _connected(port: int) -> socket.socket:
    """Return a connection to a port, as soon as a program listens on it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
