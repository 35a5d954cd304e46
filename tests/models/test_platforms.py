"""Differences between Linux and macOS; the code for the other system is tested with recorded output of its programs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpuctl import platforms
from tpuctl.platforms import find_processes_with_variable, flush_to_disk, parse_process_list
from tpuctl.ssh.agent.job import WAITID, end_of
from tpuctl.ssh.agent.tar_stream import enlarge_pipe

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")

# Output of `ps -A -E -ww -o pid=,command=` on macOS: the variables follow the words of the command.
LISTED = b"""\
    1 /sbin/launchd
  501 /bin/sh -c sleep 9 MARK=/state/worker 0 HOME=/Users/ada
  502 sleep 9 HOME=/Users/ada MARK=/state/worker 0
  503 sleep 9 MARK=/state/worker 01 HOME=/Users/ada
  504 grep XMARK=/state/worker 0
not a process MARK=/state/worker 0
"""


@pytest.fixture
def marked() -> Iterator[int]:
    """Yield the id of a process with a variable of its own."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "TPUCTL_MARK": "a b"}) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize(("system", "folder"), [("linux", Path("/run/sshd")), ("darwin", None)], ids=["linux", "macos"])
def test_sshd_folder_only_on_linux(system: str, folder: Path | None) -> None:
    assert platforms.sshd_privilege_separation(system) == folder


def test_parse_process_list_finds_processes_by_variable() -> None:
    assert [*parse_process_list(b"MARK=/state/worker 0", LISTED)] == [501, 502]


@needs_proc
def test_find_processes_with_variable_finds_running_ones(marked: int) -> None:
    assert [*find_processes_with_variable("TPUCTL_MARK", "a b")] == [marked]
    assert [*find_processes_with_variable("TPUCTL_MARK", "a")] == []


def test_find_processes_with_variable_waits_for_a_program_that_starts(tmp_path: Path) -> None:
    """The parent continues before the kernel shows the environment of the new program."""
    (tmp_path / "self").mkdir()
    process = tmp_path / "7"
    process.mkdir()
    (process / "exe").symlink_to("sleep")
    (process / "environ").write_bytes(b"")
    (process / "stat").write_bytes(_stat(env_end=0))

    def finish_start() -> None:
        (process / "environ").write_bytes(b"TPUCTL_MARK=a b\0")
        (tmp_path / "stat").write_bytes(_stat(env_end=140722237013993))
        (tmp_path / "stat").replace(process / "stat")

    start = threading.Timer(0.05, finish_start)
    start.start()
    found = [*find_processes_with_variable("TPUCTL_MARK", "a b", proc=tmp_path)]
    start.join()

    assert found == [7]


def _stat(env_end: int) -> bytes:
    return b"7 (a (b) c) S " + b"1 " * 47 + b"%d 0\n" % env_end


def test_find_processes_with_variable_uses_ps_without_proc(tmp_path: Path) -> None:
    """The `ps` of this system may refuse the options of macOS."""
    assert [*find_processes_with_variable("TPUCTL_NO_SUCH_MARK", "1", proc=tmp_path)] == []


def test_flush_to_disk_keeps_the_content(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"kept")
        flush_to_disk(file.fileno())

    assert (tmp_path / "file").read_bytes() == b"kept"


def test_enlarged_pipe_still_works() -> None:
    readable, writable = os.pipe()
    try:
        enlarge_pipe(writable)
        os.write(writable, b"x")
        assert os.read(readable, 2) == b"x"
    finally:
        os.close(readable)
        os.close(writable)


@pytest.mark.parametrize("waitid", [WAITID, None], ids=["waitid", "without-waitid"])
@pytest.mark.parametrize(
    ("line", "end"), [("exit 7", (b"exit", 7)), ("kill -9 $$", (b"signal", 9)), ("exit 0", (b"exit", 0))]
)
def test_end_of_a_command_is_the_same_without_waitid(line: str, end: tuple[bytes, int], waitid: object) -> None:
    process = subprocess.Popen(["sh", "-c", f"read x; {line}"], stdin=subprocess.PIPE)
    assert end_of(process.pid, waitid) is None

    assert process.stdin is not None
    process.stdin.close()
    while (found := end_of(process.pid, waitid)) is None:
        time.sleep(0.005)
    process.wait()

    assert found == end
