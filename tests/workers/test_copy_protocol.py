"""The parts of a copy without a worker: addresses, hostile names, the status line."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.agent.copy_files import STEP, CopyEntry, CopyRefusedError, FileReceiver, digest_of_beginning
from tpuctl.ssh.connection import Connection, StderrPipe
from tpuctl.ssh.transfer_channels import CopyLinkLostError, CopyLinks, NotSyncedError, SyncProcesses, SyncSession
from tpuctl.workers.commands.scp import describe_copy
from tpuctl.workers.copying import CopyAddress, CopyProgress, PrefixDigests, copy_retry_pause, parse_copy_request


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


@pytest.mark.parametrize("path", ["../x", "..", "x/../../y", "/etc/x", "x//y", "", "x/.", "x\0y", "x/.."])
def test_download_with_hostile_path_stays_in_target(tmp_path: Path, path: str) -> None:
    keeper = FileReceiver(os.fsencode(tmp_path), umask=0, preserve=False)
    keeper.settle(1, None)

    with pytest.raises(CopyRefusedError, match="is not a valid path"):
        keeper.expect(0, CopyEntry(is_folder=True, path=path, size=0, mode=0o755, mtime=0, key="0" * 12, sample=""))
    assert list(tmp_path.iterdir()) == []


def test_download_partial_files_are_private_and_not_behind_symlinks(tmp_path: Path) -> None:
    keeper = FileReceiver(os.fsencode(tmp_path), umask=0, preserve=False)
    keeper.settle(1, None)
    for number, name in enumerate(("open", "trap")):
        keeper.expect(
            number, CopyEntry(is_folder=False, path=name, size=2, mode=0o666, mtime=0, key="0" * 12, sample="")
        )
    (tmp_path / ".trap.tpuctl-000000000000").symlink_to("elsewhere")

    keeper.begin(0)
    keeper.write(memoryview(b"x"))
    mode = (tmp_path / ".open.tpuctl-000000000000").stat().st_mode
    keeper.end(0, None)
    keeper.begin(1)

    assert mode & 0o777 == 0o600
    assert [(number, bool(problem)) for number, problem in keeper.reports] == [(0, True), (1, True)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".open.tpuctl-000000000000",
        ".trap.tpuctl-000000000000",
    ]


def test_prefix_digests_differ_by_length_and_content(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "file")
    Path(os.fsdecode(path)).write_bytes(os.urandom(3 * STEP + 5))
    prefixes = PrefixDigests()

    asked = [2 * STEP, STEP, 3 * STEP + 5, 3 * STEP, 7, 9 * STEP]

    assert [prefixes.digest_of(path, length) for length in asked] == [
        digest_of_beginning(path, length) for length in asked
    ]


def test_copy_program_parses_as_python_3_8() -> None:
    _, source = bootstrap("copy_files", "receive('x', None, preserve=False)")

    ast.parse(source, feature_version=(3, 8))


def test_status_line_shows_bytes_rate_and_time_left() -> None:
    half, done = CopyProgress(), CopyProgress()
    unknown = describe_copy([half, done], timedelta(seconds=1))
    half.size = done.size = 10_000_000
    half.add(1_000_000, 4_000_000)
    done.add(0, 10_000_000)
    done.has_ended = True

    assert unknown == "connecting  0 of 2 workers ended"
    assert describe_copy([half, done], timedelta(seconds=7)) == (
        " 75%  15 MB of 20 MB  2.0 MB/s  2s left  1 of 2 workers ended"
    )
    vast = CopyProgress(size=2**63 - 1)
    vast.add(0, 1)

    assert describe_copy([vast], timedelta(seconds=9)).endswith("TB  0 B/s  11574d left")
    assert describe_copy([done], timedelta(seconds=5)) == "100%  10 MB of 10 MB  2.0 MB/s"


def test_retry_pause_without_progress_ends_after_four_retries() -> None:
    waits = [copy_retry_pause(failures, 5) for failures in range(1, 6)]

    assert waits == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4), timedelta(seconds=8), None]


def test_retry_pause_after_too_many_links_is_none() -> None:
    assert [copy_retry_pause(1, links) for links in (999, 1000)] == [timedelta(seconds=1), None]


def test_stderr_of_endless_output_is_bounded() -> None:
    with StderrPipe() as errors:
        line = "exec >&2; echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last"
        subprocess.run(["sh", "-c", line], stderr=errors.writer, check=True)
        said = errors.text()

    assert (said.splitlines()[0], said.splitlines()[-1], len(said)) == ("first", "last", 128 * 1024)


def _let_in_and_silent(tmp_path: Path, fake_ssh: Callable[[str], None]) -> Connection:
    fake_ssh("exec sleep 60")
    places = (tmp_path / "known_hosts", tmp_path / "google")
    return Connection("ada", "192.0.2.1", "tpu.1-0", places, tmp_path / "key", None)


def test_copy_from_silent_worker_times_out(tmp_path: Path, fake_ssh: Callable[[str], None]) -> None:
    way, links = _let_in_and_silent(tmp_path, fake_ssh), CopyLinks(1, start_within=timedelta(seconds=0.3))

    with (
        pytest.raises(CopyLinkLostError, match=r"^it accepted the login, but did not answer within ") as error,
        links.open(way, "x"),
    ):
        pass

    assert error.value.is_final


def test_sync_to_silent_worker_times_out(tmp_path: Path, fake_ssh: Callable[[str], None]) -> None:
    way = _let_in_and_silent(tmp_path, fake_ssh)
    session = SyncSession(SyncProcesses(), way, "x", start_within=timedelta(seconds=0.3))

    with pytest.raises(NotSyncedError, match=r"^it accepted the login, but did not answer within "), session:
        session.send([b"x" * (1 << 22)])
