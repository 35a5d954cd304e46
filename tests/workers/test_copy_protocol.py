"""The parts of a copy without a worker: addresses, hostile names, the status line."""

from __future__ import annotations

import ast
import io
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.hostile import frame
from tpuctl.clock import ManualClock
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Node
from tpuctl.ssh.agent.copy_files import FileReceiver
from tpuctl.ssh.agent.file_stream import FileEntry, RefusedError, Stream
from tpuctl.ssh.channel import AgentError, bootstrap
from tpuctl.ssh.connection import Connection, Target
from tpuctl.ssh.transfer import open_transfer, with_retries
from tpuctl.workers.commands.scp import describe_copy
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


def test_download_parts_are_private_and_not_behind_symlinks(tmp_path: Path) -> None:
    receiver = FileReceiver(os.fsencode(tmp_path), preserve=False)
    whole, cut, trap = (FileEntry(name, 0o100666, 2, 0) for name in ("whole", "cut", "trap"))
    parts = Path(os.fsdecode(receiver.parts))
    parts.mkdir(0o700)
    (parts / os.fsdecode(trap.part)).symlink_to("elsewhere")

    for entry in (whole, cut, trap):
        problem = b'"gone"' if entry is cut else b"null"
        receiver.receive(_stream(frame(b"i", b"xy") + frame(b"g", problem)), entry, 0, None)
    modes = {path.name: path.lstat().st_mode & 0o777 for path in parts.iterdir()}
    receiver.finish()
    receiver.close()

    assert modes == {"lock": 0o600}
    assert receiver.problems == {
        "cut": "gone",
        "trap": f"`{tmp_path}/trap`: too many levels of symbolic links",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]


def test_download_parts_folder_that_is_a_symlink_raises(tmp_path: Path) -> None:
    receiver = FileReceiver(os.fsencode(tmp_path), preserve=False)
    (tmp_path / "outside").mkdir()
    (tmp_path / ".tpuctl-parts").symlink_to("outside")

    with pytest.raises(RefusedError, match="is a symlink"):
        receiver.receive(_stream(b""), FileEntry("a", 0o100666, 2, 0), 0, None)
    assert list((tmp_path / "outside").iterdir()) == []


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
    half.kept, half.moved, half.total_moved = 1_000_000, 4_000_000, 4_000_000
    done.moved = done.total_moved = 10_000_000
    done.has_ended = True

    assert unknown == "connecting  0 of 2 workers ended"
    assert describe_copy([half, done], timedelta(seconds=7)) == (
        " 75%  15 MB of 20 MB  2.0 MB/s  2s left  1 of 2 workers ended"
    )
    vast = CopyProgress(size=2**63 - 1, moved=1, total_moved=1)
    assert describe_copy([vast], timedelta(seconds=9)).endswith("PB  0 B/s  11574d left")
    assert describe_copy([done], timedelta(seconds=5)) == "100%  10 MB of 10 MB  2.0 MB/s"


@pytest.mark.parametrize(
    ("progress", "attempts", "waited"),
    [
        pytest.param([0] * 9, 5, 15, id="without-progress"),
        pytest.param([0, 5, 5, 9, 9, 9, 9, 9], 8, 1 + 1 + 2 + 1 + 2 + 4 + 8, id="with-progress"),
        pytest.param(range(2000), 1000, 999, id="without-end"),
    ],
)
def test_broken_connection_is_retried_while_there_is_progress(progress: list[int], attempts: int, waited: int) -> None:
    clock, made = ManualClock(), []
    started = clock.monotonic()

    def attempt(shared: tuple[str, ...] | None) -> None:
        made.append(shared)
        raise AgentError(TARGET, "broken", is_retriable=True)

    with pytest.raises(AgentError):
        with_retries(attempt, lambda: progress[len(made) - 1], shared=("-o", "shared"), clock=clock)

    assert (len(made), clock.monotonic() - started) == (attempts, timedelta(seconds=waited))
    assert made == [("-o", "shared"), *[None] * (attempts - 1)]


def test_transfer_to_silent_worker_times_out(fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("exec sleep 60")

    with (
        pytest.raises(AgentError, match="no answer within") as error,
        open_transfer(TARGET, "copy_files", {"target": "x" * (1 << 22)}, start_within=timedelta(seconds=0.3)),
    ):
        pass

    assert not error.value.is_retriable
