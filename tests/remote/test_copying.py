"""The parts of a copy that no worker is needed for: addresses, what a hostile worker may name, the line on the terminal."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.output.progress.copying import describe
from tpuctl.remote.copying.addresses import Address, route
from tpuctl.remote.copying.link import DroppedError, Links
from tpuctl.remote.copying.prefixes import Prefixes
from tpuctl.remote.copying.values import Tally, pause_after
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.onboard.copy_frames import STEP, Entry, RefusedError, digest
from tpuctl.remote.onboard.copy_keeping import Keeper
from tpuctl.remote.pipes import Stderr
from tpuctl.remote.ssh import Connection
from tpuctl.remote.syncing.sessions import Session, Sessions
from tpuctl.remote.syncing.values import NotSyncedError


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
def test_what_is_remote_is_told_by_the_colon(text: str, nodes: tuple[str, ...] | None, path: str) -> None:
    assert Address.parse(text) == Address(text, nodes, path)


def test_local_and_remote_sources_do_not_mix() -> None:
    with pytest.raises(InvalidInputError, match="`b` is here already"):
        route(("a:x", "b", "c"), has_labels=False)


@pytest.mark.parametrize("path", ["../x", "..", "x/../../y", "/etc/x", "x//y", "", "x/.", "x\0y", "x/.."])
def test_a_worker_has_no_say_in_where_its_files_go(tmp_path: Path, path: str) -> None:
    keeper = Keeper(os.fsencode(tmp_path), umask=0, preserve=False)
    keeper.settle(1, None)

    with pytest.raises(RefusedError, match="is not a valid path"):
        keeper.expect(0, Entry(is_folder=True, path=path, size=0, mode=0o755, mtime=0, key="0" * 12, sample=""))
    assert list(tmp_path.iterdir()) == []


def test_what_is_unfinished_is_for_its_owner_only_and_behind_no_link(tmp_path: Path) -> None:
    keeper = Keeper(os.fsencode(tmp_path), umask=0, preserve=False)
    keeper.settle(1, None)
    for number, name in enumerate(("open", "trap")):
        keeper.expect(number, Entry(is_folder=False, path=name, size=2, mode=0o666, mtime=0, key="0" * 12, sample=""))
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


def test_the_beginnings_of_a_file_are_told_apart(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "file")
    Path(os.fsdecode(path)).write_bytes(os.urandom(3 * STEP + 5))
    prefixes = Prefixes()

    asked = [2 * STEP, STEP, 3 * STEP + 5, 3 * STEP, 7, 9 * STEP]

    assert [prefixes.digest_of(path, length) for length in asked] == [digest(path, length) for length in asked]


def test_the_program_is_for_the_python_of_old_images() -> None:
    _, source = bootstrap("files", "receive('x', None, preserve=False)")

    ast.parse(source, feature_version=(3, 8))


def test_the_line_on_the_terminal() -> None:
    half, done = Tally(), Tally()
    unknown = describe([half, done], timedelta(seconds=1))
    half.size = done.size = 10_000_000
    half.add(1_000_000, 4_000_000)
    done.add(0, 10_000_000)
    done.has_ended = True

    assert unknown == "connecting  0 of 2 workers ended"
    assert describe([half, done], timedelta(seconds=7)) == (
        " 75%  15 MB of 20 MB  2.0 MB/s  2s left  1 of 2 workers ended"
    )
    vast = Tally(size=2**63 - 1)
    vast.add(0, 1)

    assert describe([vast], timedelta(seconds=9)).endswith("TB  0 B/s  11574d left")
    assert describe([done], timedelta(seconds=5)) == "100%  10 MB of 10 MB  2.0 MB/s"


def test_links_that_bring_nothing_are_tried_a_few_times() -> None:
    waits = [pause_after(failures, 5) for failures in range(1, 6)]

    assert waits == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4), timedelta(seconds=8), None]


def test_links_that_bring_a_little_each_have_an_end() -> None:
    assert [pause_after(1, links) for links in (999, 1000)] == [timedelta(seconds=1), None]


def test_of_what_a_worker_prints_without_end_little_is_kept() -> None:
    with Stderr() as errors:
        line = "exec >&2; echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last"
        subprocess.run(["sh", "-c", line], stderr=errors.writer, check=True)
        said = errors.text()

    assert (said.splitlines()[0], said.splitlines()[-1], len(said)) == ("first", "last", 128 * 1024)


def _let_in_and_silent(tmp_path: Path, fake_ssh: Callable[[str], None]) -> Connection:
    fake_ssh("exec sleep 60")
    places = (tmp_path / "known_hosts", tmp_path / "google")
    return Connection("ada", "192.0.2.1", "tpu.1-0", places, tmp_path / "key", None)


def test_a_copy_from_a_worker_that_lets_one_in_and_is_silent_ends(
    tmp_path: Path, fake_ssh: Callable[[str], None]
) -> None:
    way, links = _let_in_and_silent(tmp_path, fake_ssh), Links(1, start_within=timedelta(seconds=0.3))

    with pytest.raises(DroppedError, match=r"^it let us in, and has not answered for ") as error, links.open(way, "x"):
        pass

    assert error.value.is_final


def test_a_sync_to_a_worker_that_lets_one_in_and_is_silent_ends(
    tmp_path: Path, fake_ssh: Callable[[str], None]
) -> None:
    way = _let_in_and_silent(tmp_path, fake_ssh)
    session = Session(Sessions(), way, "x", start_within=timedelta(seconds=0.3))

    with pytest.raises(NotSyncedError, match=r"^it let us in, and has not answered for "), session:
        session.send([b"x" * (1 << 22)])
