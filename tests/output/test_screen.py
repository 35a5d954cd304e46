"""The screen of a real terminal, drawn by the real program."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.output.screen import on_screen
from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox.sshd.worker_home import WORKER_MARK


class Window:
    """A terminal with the program in it."""

    def __init__(self, leader: int, process: subprocess.Popen[bytes]) -> None:
        self.leader, self.process, self.written = leader, process, ""

    def until(self, pattern: str) -> None:
        """Read until something is there."""
        end = time.monotonic() + 60
        while not re.search(pattern, self.written):
            assert time.monotonic() < end, self.written
            self._read()

    def resize(self, columns: int) -> None:
        """Give the terminal another width."""
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def table(self) -> list[str]:
        """Return the lines of the last table of `top`, without control sequences."""
        last = self.written.rpartition("WORKER")
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", last[1] + last[2]).replace("\r", "").split("\n")

    def ended(self) -> list[str]:
        """Read to the end; returns what is on the screen."""
        self.finish()
        return on_screen(self.written)

    def finish(self) -> None:
        """Read to the end."""
        while self._read():
            pass
        self.process.wait(60)

    def echoes(self) -> bool:
        """Return whether typed characters are echoed."""
        return bool(termios.tcgetattr(self.leader)[3] & termios.ECHO)

    def _read(self) -> bool:
        try:
            chunk = os.read(self.leader, 65536) if select.select([self.leader], [], [], 60)[0] else b""
        except OSError:  # Linux says EIO when the last writer has gone
            chunk = b""
        self.written += chunk.decode()
        return bool(chunk)


@contextmanager
def window(folder: Path, *arguments: str, speed: int = 300) -> Iterator[Window]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_STATE_DIR": str(folder / "state"),
        "TPUCTL_SANDBOX_SPEED": str(speed),
    }
    process = subprocess.Popen(
        ["tpuctl", *arguments],
        env=environ,
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        # The terminal is the program's own, so that Ctrl-C reaches it.
        preexec_fn=lambda: os.login_tty(os.dup(follower)),  # noqa: PLW1509  # no thread runs here
    )
    os.close(follower)
    try:
        yield Window(leader, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)


UP = ("up", "demo", "--type", "v4-8", "--zone", "us-central2-b")


@pytest.mark.sshd
def test_keys_typed_during_the_display_are_not_shown(tmp_path: Path) -> None:
    with window(tmp_path, *UP) as shown:
        shown.until("CREATING  ")
        os.write(shown.leader, b"abc\n\n\n")
        echoes = shown.echoes()
        lines = [" ".join(line.split()[1:4]).removesuffix(" HEALTHY") for line in shown.ended()]

    assert (echoes, shown.process.returncode, lines) == (
        False,
        0,
        [
            "nothing here is",
            "→ demo creating",
            "• demo CREATING",
            "• demo READY",
            "demo usable (ssh)",
            "ZONE TYPE STATE",
            "us-central2-b v4-8 READY",
        ],
    )


@pytest.mark.sshd
def test_ctrl_c_keeps_the_lines_and_restores_the_terminal(tmp_path: Path) -> None:
    with window(tmp_path, *UP, speed=1) as shown:
        shown.until("CREATING  ")
        os.write(shown.leader, b"\x03")
        shown.until("undo: ")
        echoes = shown.echoes()
        # How long a creation takes to be asked for depends on the machine.
        lines = [re.sub(r"^ +[0-9]s ", "     Ns ", line) for line in shown.ended()]

    known = "`demo` in us-central2-b bills as soon as it runs (last status: CREATING)"
    assert (echoes, shown.process.returncode, lines) == (
        True,
        130,
        [
            "sandbox: nothing here is real, and nothing is billed",
            "     Ns → demo creating v4-8 (tpu-ubuntu2204-base, about $12.88/h)",
            "     Ns • demo CREATING",
            "^C",
            f"warning: interrupted: {known};",
            "         nothing was undone",
            "  resume: tpuctl up demo --type v4-8 --zone us-central2-b",
            "  undo:   tpuctl down us-central2-b/demo",
        ],
    )


@pytest.mark.sshd
def test_top_fits_each_width_survives_a_lost_worker_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with window(tmp_path, "up", "demo", "--type", "v4-16", "--zone", "us-central2-b") as up:
        up.ended()
    with window(tmp_path, "top", "demo", "--interval", "0.5s") as top:
        for columns in (120, 80, 60):
            top.resize(columns)
            top.written = ""
            top.until(r"WORKER(?s:.)*\n0 (?s:.)*\n1 (?s:.)*\n2 workers(?s:.)*WORKER")
            top.until(r"2 workers, 8 chips[^\n]*\Z|2 workers, 8 chips[^\n]*\x1b")
            assert max(map(len, top.table())) <= columns
        sessions = Path(f"/proc/{top.process.pid}/task/{top.process.pid}/children").read_text().split()
        os.kill(int(sessions[-1]), signal.SIGTERM)
        top.until("1 without a report")
        top.written = ""
        # It is connected to again.
        top.until(r"2 workers, 8 chips(?!, 1)")
        os.write(top.leader, b"q")
        top.finish()

    marks = [str(path) for path in (tmp_path / "state").glob("**/*.sshd")]
    assert top.process.returncode == 0
    assert len(marks) == 2
    end = time.monotonic() + 10
    while left := list(find_processes_with_variable(WORKER_MARK, *marks)):
        assert time.monotonic() < end, left
        time.sleep(0.1)


@pytest.mark.sshd
def test_list_watch_shows_what_changes_until_ctrl_c(tmp_path: Path) -> None:
    with window(tmp_path, "list", "--watch") as shown:
        shown.until("every 2 s")
        echoes = shown.echoes()
        with window(tmp_path, *UP, "--no-wait") as other:
            other.finish()
        shown.until("demo +us-central2-b")
        shown.resize(60)
        shown.until("not shown, as the terminal is 60 columns wide")
        os.write(shown.leader, b"\x03")
        shown.finish()
        restored = shown.echoes()

    assert (echoes, restored, shown.process.returncode) == (False, True, 130)
    assert shown.written.endswith("(q ends)\r\n\x1b[?25h\r\ninterrupted\r\n")


@pytest.mark.sshd
def test_status_watch_keeps_the_last_report_of_a_node_that_is_gone(tmp_path: Path) -> None:
    with window(tmp_path, *UP, "--no-wait") as made:
        made.finish()
    with window(tmp_path, "status", "demo", "--watch") as shown:
        shown.until("every 2 s")
        with window(tmp_path, "delete", "demo", "--yes", "--zone", "us-central2-b") as other:
            other.finish()
        shown.until("error: ")
        os.write(shown.leader, b"q")
        lines = shown.ended()

    assert shown.process.returncode == 0
    assert any(line.split() == ["name", "demo"] for line in lines)
    assert lines[-1].startswith("error: no node `demo`")


@pytest.mark.sshd
def test_watch_shows_one_line_while_all_is_well(tmp_path: Path) -> None:
    with window(tmp_path, *UP) as made:
        made.finish()
    with window(tmp_path, "watch", "demo", "--for", "ready") as shown:
        shown.until(r"watching 1 node, usable, last look \d+s ago")
        os.write(shown.leader, b"\x03")
        lines = shown.ended()

    assert shown.process.returncode == 130
    assert [line for line in lines if line.startswith("watching")] == []
