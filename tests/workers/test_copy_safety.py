"""What a copy must never do: lose or mix files, also with two copies at once or a broken connection.

Most tests start the program that a worker runs, and speak to it as the client does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.hostile import frame
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.agent.copy_files import MAX_PROBLEMS, FileReceiver
from tpuctl.ssh.agent.link import AGENT_MARK
from tpuctl.ssh.agent.tar_stream import END_OF_TAR, FileEntry, Stream, member_head
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.channel import bootstrap
from tpuctl.ssh.transfer import LocalDigests
from tpuctl.workers.copying import FetchedFiles, FetchRequest

GOOD = b"GOOD" * 25_000
PADDING = bytes(-len(GOOD) % 512)
FOLDER, FILE = FileEntry("src", 0o40755, 0, 1), FileEntry("src/x.bin", 0o100644, len(GOOD), 10**18)
X, Y = (FileEntry(name, 0o100644, len(GOOD), 10**18) for name in ("x.bin", "y.bin"))


class WorkerProgram:
    """The program on a worker, which receives files into `target` in a home folder."""

    running: ClassVar[list[WorkerProgram]] = []

    def __init__(self, home: Path, target: str, *entries: FileEntry, trees: Any = ()) -> None:
        is_tree = entries[0].is_folder
        named = 1 if is_tree else len(entries)
        request = {"target": target, "preserve": False, "named": named, "tree": is_tree, "trees": trees}
        words, program = bootstrap("copy_files", f"run_agent(serve_copy_files, {request!r})")
        environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        self.process = subprocess.Popen(
            ["sh", "-c", words], env=environ, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stdin.write(program)
        self.stdin.flush()
        assert self.stdout.read(len(AGENT_MARK)) == AGENT_MARK
        self.running.append(self)
        assert self.hear() is None

    def lose(self) -> None:
        """End as after a broken connection."""
        self.stdin.close()
        assert self.process.wait(5) == 0

    def end_now(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()

    def send(self, *parts: FileEntry | bytes) -> None:
        """Send what comes before the bytes of a file, or bytes."""
        for part in parts:
            self.stdin.write(part if isinstance(part, bytes) else member_head(part))
        self.stdin.flush()

    def hear(self) -> Any:
        head = self.stdout.read(5)
        return json.loads(self.stdout.read(int.from_bytes(head[1:], "big")))

    def end(self, *broken: tuple[str, str]) -> Any:
        """Say that no other file follows, and return the problems."""
        self.send(END_OF_TAR, frame(b"g", json.dumps(broken).encode()))
        problems = self.hear()
        assert self.process.wait(5) == 0
        return problems


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "home" / "d").mkdir(parents=True)
    yield tmp_path / "home"
    while WorkerProgram.running:
        WorkerProgram.running.pop().end_now()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_two_copies_to_a_folder_do_not_mix(home: Path) -> None:
    first, second = WorkerProgram(home, "d", X, Y), WorkerProgram(home, "d", X)
    assert (first.hear(), second.hear()) == (None, None)
    first.send(X, GOOD, PADDING, Y, GOOD[:50_000])
    second.send(X, bytes(len(GOOD)), PADDING)
    assert second.end() == []
    between = (home / "d/x.bin").read_bytes(), (home / "d/y.bin").exists()
    first.send(GOOD[50_000:], PADDING)

    assert first.end() == []
    assert between == (bytes(len(GOOD)), False)
    assert (home / "d/x.bin").read_bytes() == (home / "d/y.bin").read_bytes() == GOOD
    assert names(home / "d") == ["x.bin", "y.bin"]


def test_no_file_appears_before_all_are_whole(home: Path) -> None:
    (home / "d/x.bin").write_bytes(b"precious")
    cut = WorkerProgram(home, "d", X, Y)
    cut.hear()
    cut.send(X, GOOD, PADDING, Y, GOOD[:50_000])
    cut.lose()

    assert (home / "d/x.bin").read_bytes() == b"precious"
    assert names(home / "d") == ["x.bin"]


def test_file_that_its_sender_cannot_read_is_dropped(home: Path) -> None:
    cut = WorkerProgram(home, "d", X, Y)
    cut.hear()
    cut.send(X, GOOD, PADDING, Y, GOOD[:50_000], bytes(50_000), PADDING)

    assert cut.end(("y.bin", "`y.bin`: input/output error")) == [["y.bin", "`y.bin`: input/output error"]]
    assert names(home / "d") == ["x.bin"]


def test_retry_after_the_last_step_does_not_nest_a_tree(home: Path) -> None:
    trees: list[list[int]] = []
    for _ in range(3):  # the client never gets the first two reports
        program = WorkerProgram(home, "out", FOLDER, FILE, trees=trees)
        tree = program.hear()
        trees += [tree] if tree else []
        program.send(FOLDER, FILE, GOOD, PADDING)
        assert program.end() == []

    assert len(trees) == 1
    assert names(home) == ["d", "out", "out/x.bin"]


def test_two_attempts_of_one_copy_may_end_in_any_order(home: Path) -> None:
    first = WorkerProgram(home, "out", FOLDER, FILE)
    trees = [first.hear()]
    second = WorkerProgram(home, "out", FOLDER, FILE, trees=trees)
    second.hear()
    for one in (first, second):
        one.send(FOLDER, FILE, GOOD, PADDING)
        assert one.end() == []

    assert names(home) == ["d", "out", "out/x.bin"]


def test_folder_that_another_program_creates_is_no_finished_tree(home: Path) -> None:
    first = WorkerProgram(home, "out", FOLDER, FILE)
    trees = [first.hear()]
    first.lose()
    (home / "out").mkdir()
    second = WorkerProgram(home, "out", FOLDER, FILE, trees=trees)

    assert second.hear() == {"refused": ["target", "`out` was created during the copy"]}
    assert names(home) == ["d", "out"]


def test_untrusted_sender_cannot_fill_the_memory(home: Path) -> None:
    receiver = FileReceiver(os.fsencode(home), preserve=False, is_confined=True)
    receiver.finish((f"f{number}", "x" * 100) for number in range(MAX_PROBLEMS + 500))
    request = FetchRequest(("a",), "ada", recurse=True, hidden=True)
    files = FetchedFiles(request, [1, True, 4_000_000, 0, [], []])
    files.check(FileEntry("a", 0o40755, 0, 0))
    entry = FileEntry("a/" + "x" * 4000, 0o100644, 0, 0)

    assert (len(receiver.problems), receiver.more_problems) == (MAX_PROBLEMS, 500)
    with pytest.raises(UnexpectedAnswerError, match="longer names than one copy may have"):
        all(files.check(entry) is None for _ in range(100_000))  # type: ignore[func-returns-value]  # until one raises


def test_no_timer_runs_while_the_worker_sends_or_finishes() -> None:
    stream = Stream(
        io.BufferedReader(io.BytesIO(member_head(X) + GOOD + PADDING + END_OF_TAR + frame(b"g", b"[]"))), -1
    )
    assert stream.next_member() == X
    assert b"".join(map(bytes, stream.blocks(X.size))) == GOOD
    assert stream.next_member() is None

    assert stream.receive() == []
    assert signal.alarm(0) == 0


def test_broken_file_does_not_become_part_of_a_new_tree(home: Path) -> None:
    program = WorkerProgram(home, "out", FOLDER, FILE)
    program.hear()
    program.send(FOLDER, FILE, GOOD, PADDING)

    assert program.end(("src/x.bin", "gone")) == [["src/x.bin", "gone"]]
    assert names(home) == ["d", "out"]


def test_digest_of_a_file_is_that_of_its_contents(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(data := os.urandom((1 << 20) + 7))

    assert LocalDigests().get(os.fsencode(tmp_path / "big")) == hashlib.blake2b(data, digest_size=16).hexdigest()
    assert LocalDigests().get(os.fsencode(tmp_path / "gone")) is None


def test_interrupted_download_leaves_no_files(tmp_path: Path, fake_ssh: Callable[[str], None]) -> None:
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone="us-central1-a", acceleratorType="v5litepod-16")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}
    overview, begin = json.dumps([1, False, 1, 1000, [], []]).encode(), member_head(X._replace(size=1000)) + b"x" * 500
    (tmp_path / "answer").write_bytes(AGENT_MARK + frame(b"x", b"null") + frame(b"x", overview) + begin)
    fake_ssh(f'case "$*" in *python3*) cat {tmp_path}/answer; exec sleep 300; esac')
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = ["--sandbox", "scp", "demo:x.bin", "there"]
    with TpuctlProcess(words, env=environ, cwd=tmp_path, **options) as process:
        wait_until(lambda: len(list(tmp_path.glob("there/*/.tpuctl-copy-*/0"))) == 4)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 130
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_interrupted_copy_leaves_no_ssh(
    tmp_path: Path, fake_ssh: Callable[[str], None], number: signal.Signals
) -> None:
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "demo", zone="us-central1-a", acceleratorType="v5litepod-16")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}
    # Before the copy, other connections only try the key.
    fake_ssh(f'case "$*" in *python3*) echo $$ >>{tmp_path}/pids; exec sleep 300; esac')
    (tmp_path / "file").touch()
    pids = tmp_path / "pids"
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with TpuctlProcess(["--sandbox", "scp", "file", "demo:"], env=environ, cwd=tmp_path, **options) as process:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 4)
        time.sleep(0.2)  # after the last ssh has started
        process.send_signal(number)
        process.communicate(timeout=60)

    def is_alive(pid: str) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"

    wait_until(lambda: not any(map(is_alive, pids.read_text().split())))
    assert process.returncode != 0
