"""What a copy must never do: lose or mix files, also with two copies at once, a broken connection, or a planted link.

Most tests start the program that a worker runs, and speak to it as the client does.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.hostile import frame
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.agent.copy_files import MAX_PROBLEMS, FileReceiver
from tpuctl.ssh.agent.file_stream import (
    BLOCK,
    LONGEST_BYTES,
    FileEntry,
    RefusedError,
    Stream,
    lock_file,
)
from tpuctl.ssh.agent.link import AGENT_MARK
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.channel import bootstrap
from tpuctl.ssh.transfer import LocalDigests
from tpuctl.workers.copying import FetchedFiles, FetchRequest

GOOD = b"GOOD" * 25_000
FOLDER, FILE = FileEntry("src", 0o40755, 0, 1), FileEntry("src/x.bin", 0o100644, len(GOOD), 10**18)
X, Y = (FileEntry(name, 0o100644, len(GOOD), 10**18) for name in ("x.bin", "y.bin"))


class WorkerProgram:
    """The program on a worker, which receives files into `target` in a home folder."""

    running: ClassVar[list[WorkerProgram]] = []

    def __init__(self, home: Path, target: str, *, command: str = "a", place: Any = None) -> None:
        request = {"target": target, "preserve": False, "source": "s", "place": place, "token": command}
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
        self.process.wait(5)

    def end_now(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()

    def say(self, *values: Any) -> None:
        """Send values; bytes are those of a file."""
        for value in values:
            is_block = isinstance(value, bytes)
            self.stdin.write(frame(b"i" if is_block else b"g", value if is_block else json.dumps(value).encode()))
        self.stdin.flush()

    def hear(self) -> Any:
        head = self.stdout.read(5)
        return json.loads(self.stdout.read(int.from_bytes(head[1:], "big")))

    def plan(self, *entries: FileEntry) -> Any:
        """Announce entries, take the plan, and say that no file is the same."""
        self.say([1 if entries[0].is_folder else len(entries), entries[0].is_folder, entries])
        return self.hear()

    def end(self) -> Any:
        """Say that no other file follows, and return the problems."""
        self.say(None)
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


def test_second_copy_to_a_folder_waits_for_the_first(home: Path) -> None:
    """Otherwise it would resume parts that the first one moves away meanwhile."""
    first = WorkerProgram(home, "d", command="first")
    assert first.plan(X, Y)[1:] == [[], [], []]
    first.say([], [*X, 0, None], GOOD, None, [*Y, 0, None], GOOD[:50_000])
    second = WorkerProgram(home, "d", command="second")
    second.say([2, False, [X, Y]])
    time.sleep(0.3)
    first.say(GOOD[50_000:], None)
    problems = first.end()
    place, parts, digests, refused = second.hear()
    second.say([0, 1])

    assert (problems, parts, refused, [number for number, _ in digests]) == ([], [], [], [0, 1])
    assert place == ["d", True, "d/.tpuctl-parts", None]
    assert second.end() == []
    assert (home / "d/x.bin").read_bytes() == (home / "d/y.bin").read_bytes() == GOOD
    assert names(home / "d") == ["x.bin", "y.bin"]


@pytest.mark.parametrize("change", ["moved", "shorter"])
def test_part_that_another_program_changes_never_replaces_a_file(home: Path, change: str) -> None:
    cut = WorkerProgram(home, "d")
    cut.plan(X)
    cut.say([], [*X, 0, None], GOOD[:90_000])
    cut.lose()
    (home / "d/x.bin").write_bytes(b"precious")
    resumed = WorkerProgram(home, "d")
    ((_, offset, _),) = resumed.plan(X)[1]
    part = home / "d/.tpuctl-parts" / X.part.decode()
    if change == "moved":
        part.unlink()
    else:
        os.truncate(part, offset - 1)
    resumed.say([], [*X, offset, None], GOOD[offset:], None)
    ((name, _),) = resumed.end()

    assert (offset, name) == (90_000 - (1 << 16), "x.bin")
    assert (home / "d/x.bin").read_bytes() == b"precious"


def test_only_the_file_that_was_written_gets_the_name(home: Path) -> None:
    receiver = FileReceiver(os.fsencode(home / "new"), preserve=False)
    receiver.settle(1, is_tree=True)
    receiver.add(FOLDER)
    receiver.receive(_stream(frame(b"i", GOOD) + frame(b"g", b"null")), FILE, 0, None)
    part = Path(os.fsdecode(receiver.parts)) / FILE.part.decode()
    part.rename(part.with_name("other"))
    part.write_bytes(bytes(len(GOOD)))
    receiver.finish()

    assert receiver.problems == {
        "src/x.bin": f"`{os.fsdecode(receiver.path(FILE))}`: its received part was changed by another program: "
        "repeat the command"
    }
    assert not (home / "new").exists()


def _stream(received: bytes) -> Stream:
    return Stream(io.BufferedReader(io.BytesIO(received)), -1)


def test_retry_terminates_the_program_of_the_same_copy(home: Path) -> None:
    first = WorkerProgram(home, "d", command="same")
    first.plan(X)
    second = WorkerProgram(home, "d", command="same")

    assert second.plan(X)[1:] == [[], [], []]
    assert first.process.wait(5) == -signal.SIGTERM


def test_locked_copy_is_refused_after_a_while(home: Path) -> None:
    path = os.fsencode(home / "parts" / "lock")
    held = lock_file(path, None, 0)
    with pytest.raises(BlockingIOError):
        lock_file(path, None, 0.1)
    os.close(held)
    os.close(lock_file(path, None, 0))


def test_download_waits_for_another_one_to_the_same_folder(home: Path) -> None:
    first, second = (FileReceiver(os.fsencode(home), preserve=False) for _ in range(2))
    first.settle(1, is_tree=False)
    waiting = threading.Thread(target=second.settle, args=(1,), kwargs={"is_tree": False})
    waiting.start()
    waiting.join(0.2)
    is_waiting = waiting.is_alive()
    first.close()
    waiting.join(5)

    assert (is_waiting, waiting.is_alive()) == (True, False)
    second.close()
    assert names(home) == ["d"]


def test_part_of_a_file_that_its_sender_cannot_read_is_dropped(home: Path) -> None:
    cut = WorkerProgram(home, "d")
    cut.plan(X)
    # The sender has announced the bytes of a frame, pads it, and gives up.
    cut.say([], [*X, 0, None], GOOD[:50_000], b"", "`x.bin`: input/output error")

    assert cut.end() == [["x.bin", "`x.bin`: input/output error"]]
    assert names(home / "d") == []


def test_sender_of_an_unreadable_file_pads_one_frame_only(tmp_path: Path) -> None:
    class BrokenDisk(Stream):
        def write_from(self, file: int, offset: int, size: int) -> int:
            if offset >= BLOCK:
                raise OSError(5, "Input/output error")
            return super().write_from(file, offset, min(size, BLOCK))

    path, output = tmp_path / "big", tmp_path / "output"
    with path.open("wb") as file:
        file.truncate(3 * LONGEST_BYTES)
    found = path.stat()
    with output.open("wb") as file:
        stream = BrokenDisk(io.BufferedReader(io.BytesIO()), file.fileno())
        entry = FileEntry("big", found.st_mode, found.st_size, found.st_mtime_ns)
        problem = stream.send_file(os.fsencode(path), entry, 0)
    sent = output.read_bytes()

    assert problem == "input/output error"
    assert len(sent) < LONGEST_BYTES + 1000
    assert sent.endswith(frame(b"o") + frame(b"x", json.dumps(f"`{path}`: input/output error").encode()))


def test_no_timer_runs_while_the_worker_sends_or_finishes() -> None:
    stream = _stream(frame(b"g", b"1") + frame(b"i", b"xy"))

    assert stream.receive() == 1
    assert signal.alarm(0) == 0
    assert [bytes(block) for block in stream.blocks(2)] == [b"xy"]
    assert signal.alarm(0) == 0


def test_retry_after_the_last_step_does_not_nest_a_tree(home: Path) -> None:
    first = WorkerProgram(home, "out")
    place = first.plan(FOLDER, FILE)[0]
    first.say([], [*FILE, 0, None], GOOD, None, None)
    wait_until((home / "out").exists)
    first.process.kill()  # the client never gets the report
    first.process.wait()
    second = WorkerProgram(home, "out", place=place)
    _, parts, ((number, _),), refused = second.plan(FOLDER, FILE)
    second.say([1])

    assert (parts, number, refused, second.end()) == ([], 1, [], [])
    assert names(home) == ["d", "out", "out/x.bin"]


def test_folder_that_another_program_creates_is_no_finished_tree(home: Path) -> None:
    first = WorkerProgram(home, "out")
    place = first.plan(FOLDER, FILE)[0]
    first.lose()
    (home / "out").mkdir()
    second = WorkerProgram(home, "out", place=place)

    assert second.plan(FOLDER, FILE) == {"refused": ["target", "`out` was created during the copy"]}
    assert names(home) == ["d", "out"]


def test_copy_to_a_new_folder_resumes(home: Path) -> None:
    cut = WorkerProgram(home, "new/")
    place = cut.plan(X)[0]
    cut.say([], [*X, 0, None], GOOD[:90_000])
    cut.lose()
    for again in (place, None):
        resumed = WorkerProgram(home, "new/", place=again)
        ((_, offset, _),) = resumed.plan(X)[1]
        assert offset == 90_000 - (1 << 16)
        resumed.lose()
    last = WorkerProgram(home, "new/")
    last.plan(X)
    last.say([], [*X, offset, None], GOOD[offset:], None)

    assert last.end() == []
    assert (names(home), (home / "new/x.bin").read_bytes() == GOOD) == (["d", "new", "new/x.bin"], True)


def test_file_gets_its_name_when_it_is_whole(home: Path) -> None:
    cut = WorkerProgram(home, "d")
    cut.plan(X, Y)
    cut.say([], [*X, 0, None], GOOD, None, [*Y, 0, None], GOOD[:50_000])
    cut.lose()

    assert (home / "d/x.bin").read_bytes() == GOOD
    assert names(home / "d") == [".tpuctl-parts", f".tpuctl-parts/{Y.part.decode()}", "x.bin"]


def test_folder_of_an_unfinished_tree_is_of_one_source_and_no_link(home: Path) -> None:
    def receiver(source: str) -> FileReceiver:
        return FileReceiver(os.fsencode(home / "out"), preserve=False, source=source)

    roots = []
    for source in ("mine", "another"):
        with closing(receiver(source)) as one:
            roots.append(Path(one.settle(1, is_tree=True).root))
    (home / "outside").mkdir()
    roots[0].parent.mkdir(exist_ok=True)
    roots[0].symlink_to(home / "outside")
    with closing(receiver("mine")) as one, pytest.raises(RefusedError, match="is not a folder"):
        one.settle(1, is_tree=True)

    assert roots[0] != roots[1]
    assert names(home / "outside") == []


def test_leftovers_of_an_interrupted_tree_do_not_become_part_of_it(home: Path) -> None:
    with closing(FileReceiver(os.fsencode(home / "out"), preserve=False)) as receiver:
        root = Path(receiver.settle(1, is_tree=True).root)
        (root / "stale").touch()
        receiver.add(FOLDER)
        with pytest.raises(RefusedError, match="remains from an interrupted copy"):
            receiver.finish()

    assert not (home / "out").exists()


def test_untrusted_sender_cannot_fill_the_memory(home: Path) -> None:
    receiver = FileReceiver(os.fsencode(home), preserve=False, is_confined=True)
    for number in range(MAX_PROBLEMS + 500):
        receiver.receive(_stream(b""), FileEntry(f"f{number}", 0o100644, 0, 0), 0, "x" * 100)
    request = FetchRequest(("a",), "ada", recurse=True, hidden=True)
    files = FetchedFiles(request, [1, True, 4_000_000, 0, [], []])
    files.parse_entry(["a", 0o40755, 0, 0, None, 0, None])
    row = ["a/" + "x" * 4000, 0o100644, 0, 0, None, 0, None]

    assert (len(receiver.problems), receiver.more_problems) == (MAX_PROBLEMS, 500)
    with pytest.raises(UnexpectedAnswerError, match="longer names than one copy may have"):
        all(files.parse_entry(row) for _ in range(100_000))


def test_large_value_is_sent_in_blocks() -> None:
    class Recorded(Stream):
        sizes: list[int] = []  # noqa: RUF012  # one stream

        def write(self, data: bytes) -> None:
            self.sizes.append(len(data))

    Recorded(io.BufferedReader(io.BytesIO()), -1).send("x" * (3 * BLOCK))

    assert (sum(Recorded.sizes), max(Recorded.sizes)) == (3 * BLOCK + 2 + 5, BLOCK + 5)


def test_digests_of_beginnings_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(os.urandom((1 << 24) * 2 + 1000))
    digests, size = LocalDigests(), path.stat().st_size

    def fresh(length: int) -> str | None:
        return LocalDigests().get(os.fsencode(path), length)

    lengths = (size, 1 << 24, 5, (1 << 24) + 7, size - 1)
    assert [digests.get(os.fsencode(path), length) for length in lengths] == [fresh(length) for length in lengths]
    assert digests.get(os.fsencode(path)) == fresh(size)
    assert digests.get(os.fsencode(path), size + 1) is None


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
