"""The parts of a copy without a worker: addresses, the tar stream, the status line, retries."""

from __future__ import annotations

import ast
import io
import os
import tarfile
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.clock import ManualClock
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Node
from tpuctl.ssh.agent.copy_files import FileReceiver
from tpuctl.ssh.agent.tar_stream import BLOCK, END_OF_TAR, FileEntry, Stream, member_head, pack
from tpuctl.ssh.channel import AgentError, bootstrap
from tpuctl.ssh.connection import Connection, Target
from tpuctl.ssh.transfer import open_transfer, with_retries
from tpuctl.workers.copy_progress import describe_copy
from tpuctl.workers.copying import CopyAddress, CopyProgress, parse_copy_request


@pytest.mark.parametrize(
    ("text", "nodes", "path"),
    [
        ("trainer:x", ("trainer",), "x"),
        ("trainer:", ("trainer",), ""),
        ("ada@trainer:/tmp/a:b", ("ada@trainer",), "/tmp/a:b"),
        ("us-central2-b/trainer:x", ("us-central2-b/trainer",), "x"),
        ("projects/p/locations/z-1-a/nodes/n:x", ("projects/p/locations/z-1-a/nodes/n",), "x"),
        ("a,b:x\ny", ("a", "b"), "x\ny"),
        (":x", (), "x"),
        ("./trainer:x", None, "./trainer:x"),
        ("/tmp/a:b", None, "/tmp/a:b"),
        ("data/a:b", None, "data/a:b"),
        ("a b:c", None, "a b:c"),
        ("plain", None, "plain"),
    ],
)
def test_parse_address_with_colon_is_remote(text: str, nodes: tuple[str, ...] | None, path: str) -> None:
    assert CopyAddress.parse(text) == CopyAddress(text, nodes, path)


def test_parse_arguments_with_mixed_sources_raises() -> None:
    with pytest.raises(InvalidInputError, match="`b` is already on this machine"):
        parse_copy_request(("a:x", "b", "c"), has_labels=False)


def _stream(received: bytes) -> Stream:
    return Stream(io.BufferedReader(io.BytesIO(received)), -1)


ENTRIES = (
    FileEntry("a", 0o100640, 3, 10**18 + 1),
    FileEntry("d" * 60 + "/" + "e" * 90, 0o100755, 0, -1_500_000_000),
    FileEntry("\udcff\n", 0o100600, 513, 2**62),
    FileEntry("d", 0o40700, 0, 0),
    FileEntry("large", 0o100600, 2**40, 1),
)


@pytest.mark.parametrize("entry", ENTRIES, ids=range(len(ENTRIES)))
def test_file_is_the_same_at_the_other_end_and_for_other_programs(entry: FileEntry) -> None:
    head = member_head(entry, exact=True)

    assert _stream(head).next_member() == entry
    with tarfile.open(fileobj=io.BytesIO(head + bytes(1024)), mode="r|", errors="surrogateescape") as archive:
        info = archive.next()
    assert info is not None
    assert (info.name, info.mode, info.size, info.isdir()) == (
        entry.path,
        entry.mode & 0o7777,
        entry.size,
        entry.is_folder,
    )


def test_other_programs_read_the_stream(tmp_path: Path) -> None:
    files = [
        (os.fsencode(tmp_path / name), FileEntry(name, 0o100644, 0, 0)) for name in ("empty", "small", "large", "gone")
    ]
    texts = {"empty": b"", "small": b"x" * 513, "large": os.urandom(BLOCK * 2 + 1)}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    problems: dict[str, str] = {}

    blocks = list(pack(files, problems))

    with tarfile.open(fileobj=io.BytesIO(b"".join(data for data, _ in blocks) + END_OF_TAR)) as archive:
        found = {one.name: file.read() for one in archive if (file := archive.extractfile(one))}
    assert found == texts
    assert sum(count for _, count in blocks) == sum(map(len, texts.values()))
    assert problems == {"gone": f"`{tmp_path}/gone`: no such file or directory"}


def test_received_files_are_private_and_replace_no_planted_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with closing(FileReceiver(os.fsencode(tmp_path / "d"), preserve=False)) as receiver:
        receiver.settle(2, is_tree=False)
        (stage,) = (tmp_path / "d").iterdir()
        (stage / "1").symlink_to(tmp_path / "outside")
        for name in ("whole", "trap", "cut"):
            receiver.receive(_stream(b"xy" + bytes(510)), FileEntry(name, 0o100666, 2, 0))
        modes = {stage.lstat().st_mode & 0o777, *((stage / name).lstat().st_mode & 0o777 for name in ("0", "2"))}
        receiver.finish([("cut", "gone")])

    assert modes == {0o700, 0o600}
    assert receiver.problems == {"cut": "gone", "trap": f"`{tmp_path}/d/trap`: file exists"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["d", "whole"]


@pytest.mark.parametrize("program", ["copy_files", "sync_tree"])
def test_program_for_workers_parses_as_python_3_8(program: str) -> None:
    _, source = bootstrap(program, "call()")

    ast.parse(source, feature_version=(3, 8))


_CONNECTION = Connection("ada", "192.0.2.1", "tpu.1-0", (Path("known_hosts"), Path("google")), Path("key"), None)
TARGET = Target(Node.from_api({"name": "projects/p/locations/z/nodes/demo"}), 0, _CONNECTION, "0")


def test_status_line_shows_bytes_rate_and_time_left() -> None:
    half, done = CopyProgress(), CopyProgress()
    unknown = describe_copy([half, done], timedelta(seconds=1))
    half.size = done.size = 10_000_000
    half.moved, half.total_moved = 5_000_000, 4_000_000
    done.moved = done.total_moved = 10_000_000
    done.has_ended = True

    assert unknown == "connecting  0 of 2 workers ended"
    assert describe_copy([half, done], timedelta(seconds=7)) == (
        " 75%  15 MB of 20 MB  2.0 MB/s  2s left  1 of 2 workers ended"
    )
    vast = CopyProgress(size=2**63 - 1, moved=1, total_moved=1)
    assert describe_copy([vast], timedelta(seconds=9)).endswith("PB  0 B/s  11574d left")
    assert describe_copy([done], timedelta(seconds=5)) == "100%  10 MB of 10 MB  2.0 MB/s"


def test_broken_connection_is_retried_four_times() -> None:
    clock, made = ManualClock(), []
    started = clock.monotonic()

    def attempt(shared: tuple[str, ...] | None) -> None:
        made.append(shared)
        raise AgentError(TARGET, "broken", is_retriable=True)

    with pytest.raises(AgentError):
        with_retries(attempt, shared=("-o", "shared"), clock=clock)

    assert clock.monotonic() - started == timedelta(seconds=1 + 2 + 4 + 8)
    assert made == [("-o", "shared"), *[None] * 4]


def test_transfer_to_silent_worker_times_out(fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("exec sleep 60")

    with (
        pytest.raises(AgentError, match="no answer within") as error,
        open_transfer(TARGET, "copy_files", {"target": "x" * (1 << 22)}, start_within=timedelta(seconds=0.3)),
    ):
        pass

    assert not error.value.is_retriable
