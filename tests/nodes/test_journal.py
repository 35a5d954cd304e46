"""The journal: written lines survive crashes, full disks and other writers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tpuctl.clock import ManualClock, SystemClock, limit_cloud_calls
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.storage import Blob, StorageClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.errors import ExitCode, TpuctlError
from tpuctl.models.spec import NodeSpec
from tpuctl.names import BucketPath, NodeName
from tpuctl.nodes.journal import BucketJournalStore, Journal, JournalError
from tpuctl.nodes.lease import LeaseRecord, LocalLeaseStore
from tpuctl.sandbox import administration
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp

NAME = NodeName("p", "us-central2-b", "trainer")
AT = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="img", metadata={"note": "line\nsep\u2028arator é"})
_FILE = "p/us-central2-b/trainer.jsonl"


def test_journal_returns_the_last_spec_with_its_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path, writer="here 1")
    journal.append(NAME, "create", AT, spec=NodeSpec(accelerator_type="v4-16", runtime_version="old").to_json())
    journal.append(NAME, "delete", AT, spec=SPEC.to_json(), id="7")
    journal.append(NAME, "restart", AT + timedelta(seconds=1.0625), durable=False, reason="stuck")

    past = journal.past(NAME)
    assert (past.spec, past.spec_at) == (SPEC, AT)
    assert [entry["event"] for entry in journal.entries(NAME)] == ["create", "delete", "restart"]
    assert journal.entries(NAME)[2] == {
        "at": "2026-01-02T00:00:01.062Z", "by": "here 1", "event": "restart", "reason": "stuck"
    }  # fmt: skip


def test_journal_without_entries_has_no_spec(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")

    assert (journal.entries(NAME), journal.past(NAME).spec, journal.names()) == ([], None, [])
    assert (journal.usual("p", "v4-8", "us-central2-b"), list(tmp_path.iterdir())) == (None, [])


def test_torn_line_is_reported_once_and_loses_no_other_line(tmp_path: Path) -> None:
    warnings: list[str] = []
    journal = Journal(tmp_path, warn=warnings.append)
    journal.append(NAME, "first", AT)
    with (tmp_path / _FILE).open("ab") as file:
        file.write(b'{"event": "torn\r\xff')

    seen = [[entry["event"] for entry in journal.entries(NAME)] for _ in range(2)]
    journal.append(NAME, "last", AT)
    seen.append([entry["event"] for entry in Journal(tmp_path, warn=warnings.append).entries(NAME)])

    assert seen == [["first"], ["first"], ["first", "last"]]
    assert warnings == [f"skipped the incomplete last line of the journal: {tmp_path / _FILE}"]


_WRITER = """
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from tpuctl.nodes.journal import Journal
from tpuctl.names import NodeName
journal = Journal(Path(sys.argv[1]), writer=sys.argv[2])
name, now = NodeName("p", "us-central2-b", "trainer"), datetime.now(timezone.utc)
for index in range(55):
    journal.append(name, "note", now, durable=False, index=index, pad="x" * 6000)
"""


def test_several_writers_lose_no_line_during_a_rotation(tmp_path: Path) -> None:
    """Together they write 1.3 MB: one rotation while they write."""
    journal = Journal(tmp_path)
    journal.append(NAME, "create", AT, spec=SPEC.to_json())

    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(by)]) for by in range(4)]
    codes = [writer.wait(timeout=60) for writer in writers]

    everything = journal.entries(NAME)
    written = [(entry["by"], entry["index"]) for entry in everything[1:]]
    assert codes == [0] * 4
    assert (everything[0]["event"], sorted(written)) == (
        "create", sorted((str(by), index) for by in range(4) for index in range(55))
    )  # fmt: skip
    assert [[index for by, index in written if by == str(one)] for one in range(4)] == [list(range(55))] * 4
    assert sorted(path.name for path in (tmp_path / _FILE).parent.iterdir()) == ["trainer.1.jsonl", "trainer.jsonl"]
    assert journal.names() == [NAME]


def test_creation_and_setup_survive_each_rotation(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(NAME, "create", AT, spec=SPEC.to_json())
    journal.append(NAME, "setup", AT, id="7", ok=True)
    for index in range(50):
        journal.append(NAME, "note", AT, durable=False, index=index, pad="x" * 100_000)

    sizes = [path.stat().st_size for path in (tmp_path / _FILE).parent.iterdir()]
    past = journal.past(NAME)
    assert (past.spec, past.spec_at, [one.at for one in past.creations], [*past.setups]) == (SPEC, AT, [AT], ["7"])
    assert journal.entries(NAME)[-1]["index"] == 49
    assert max(sizes) <= (1 << 20) + 101_000


def test_rotation_counts_no_line_twice_also_when_it_is_interrupted(tmp_path: Path) -> None:
    """A rotation copies lines into the new file, and may end before it has made one."""
    journal, path = Journal(tmp_path), tmp_path / _FILE
    for index in range(12):
        journal.append(NAME, "note", AT, durable=False, index=index, pad="x" * 100_000)
    found = [entry["index"] for entry in journal.entries(NAME)]
    path.unlink()

    assert (found, [entry["index"] for entry in journal.entries(NAME)]) == ([*range(12)], [*range(11)])


def test_journal_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Journal(tmp_path / "state" / "journal").append(NAME, "create", AT)
    finally:
        os.umask(before)

    paths = sorted((tmp_path / "state").rglob("*"))
    modes = {
        str(path.relative_to(tmp_path)): oct(stat.S_IMODE(path.stat().st_mode)) for path in (tmp_path / "state", *paths)
    }
    assert modes == {
        "state": "0o700",
        "state/journal": "0o700",
        "state/journal/p": "0o700",
        "state/journal/p/us-central2-b": "0o700",
        f"state/journal/{_FILE}": "0o600",
    }


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_full_disk_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / _FILE
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")

    with pytest.raises(JournalError) as refused:
        Journal(tmp_path).append(NAME, "delete", AT)

    assert str(refused.value) == f"cannot write the journal: {path}: No space left on device"


def test_unwritable_journal_fails_before_a_deletion(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file where the folder should be")

    with pytest.raises(JournalError) as refused:
        Journal(tmp_path).append(NAME, "delete", AT)

    assert (str(refused.value), refused.value.kind, refused.value.exit_code, refused.value.hint) == (
        f"cannot write the journal: {tmp_path / _FILE}: Not a directory",
        "journal",
        ExitCode.FAILURE,
        "the change was not sent; free some space or make the folder writable, or set TPUCTL_STATE_DIR",
    )


def test_read_only_journal_is_still_read(tmp_path: Path) -> None:
    warnings: list[str] = []
    journal = Journal(tmp_path, warn=warnings.append, writer="here 1")
    journal.append(NAME, "create", AT)
    other = NodeName("p", "us-central2-b", "eval")
    (tmp_path / "p/us-central2-b/eval.jsonl").mkdir()

    with pytest.raises(JournalError, match=r"eval\.jsonl: Is a directory"):
        journal.append(other, "delete", AT)

    assert (journal.entries(other), len(journal.entries(NAME))) == ([], 1)
    assert warnings == [f"cannot read the journal: {tmp_path}/p/us-central2-b/eval.jsonl: Is a directory"]


def test_journal_lists_the_nodes_by_full_name(tmp_path: Path) -> None:
    old = NodeName("example.com:old-project", "us-central2-b", "a")
    for name in (NAME, old):
        Journal(tmp_path).append(name, "create", AT)

    assert Journal(tmp_path).names() == [old, NAME]


@pytest.fixture(params=["in-process", "http"])
def storage(request: pytest.FixtureRequest, sandbox: Sandbox, clock: ManualClock) -> Iterator[StorageClient]:
    """Cloud Storage with one bucket, on each face of the sandbox."""
    administration.add_bucket(sandbox.state, "state", location="us-central2")
    if request.param == "in-process":
        yield StorageClient(lambda: SandboxHttp(sandbox.state), clock)
        return
    with open_server(sandbox.state).start() as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        yield StorageClient(factory, clock, endpoint=server.url)
        factory.close()


class Slow(StorageClient):
    """A client of Cloud Storage; another writer is quicker between its read and write, `times` times."""

    def __init__(self, storage: StorageClient, other: Journal, times: int) -> None:
        self.storage, self.other, self.times = storage, other, times

    def read(self, bucket: str, name: str) -> Blob | None:
        return self.storage.read(bucket, name)

    def list(self, bucket: str, prefix: str) -> Iterator[str]:
        return self.storage.list(bucket, prefix)

    def write(self, bucket: str, name: str, content: bytes, *, generation: int | None) -> int:
        if self.times:
            self.times -= 1
            self.other.append(NAME, "note", AT, left=self.times)
        return self.storage.write(bucket, name, content, generation=generation)


def test_two_writers_of_one_object_lose_no_line(storage: StorageClient, clock: ManualClock) -> None:
    place = BucketPath.parse("gs://state/journals")
    other = Journal(BucketJournalStore(storage, place, clock), writer="there 2")
    slow = Journal(BucketJournalStore(Slow(storage, other, 3), place, clock), writer="here 1")

    slow.append(NAME, "state", AT, durable=False, state="READY")
    slow.append(NAME, "delete", AT, spec=SPEC.to_json())

    assert [(entry["by"], entry["event"], entry.get("left")) for entry in slow.entries(NAME)] == [
        ("there 2", "note", 2),
        ("there 2", "note", 1),
        ("there 2", "note", 0),
        ("here 1", "state", None),
        ("here 1", "delete", None),
    ]
    assert other.entries(NAME) == slow.entries(NAME)
    assert (other.past(NAME).spec, other.names()) == (SPEC, [NAME])
    assert list(storage.list("state", "")) == [f"journals/{_FILE}"]


def test_lines_that_are_not_durable_wait_up_to_a_minute(storage: StorageClient, clock: ManualClock) -> None:
    journal = Journal(BucketJournalStore(storage, BucketPath.parse("gs://state"), clock))

    def stored() -> int:
        found = storage.read("state", _FILE)
        return found.content.count(b"\n") if found else 0

    counts = []
    for pause in (0, 59, 1, 30):
        clock.sleep(timedelta(seconds=pause))
        journal.append(NAME, "note", AT, durable=False)
        counts.append((stored(), len(journal.entries(NAME))))
    journal.flush(only_due=True)
    counts.append((stored(), 4))
    journal.flush()
    counts.append((stored(), 4))

    assert counts == [(0, 1), (0, 2), (3, 3), (3, 4), (3, 4), (4, 4)]


def test_long_object_is_shortened_and_keeps_the_last_spec(storage: StorageClient, clock: ManualClock) -> None:
    journal = Journal(BucketJournalStore(storage, BucketPath.parse("gs://state"), clock))
    journal.append(NAME, "create", AT, spec=SPEC.to_json())
    for index in range(3):
        journal.append(NAME, "note", AT, index=index, pad="x" * 400_000)

    assert journal.past(NAME).spec == SPEC
    assert [entry.get("index") for entry in journal.entries(NAME)] == [None, 2]


def test_missing_bucket_raises_before_a_deletion(storage: StorageClient, clock: ManualClock) -> None:
    warnings: list[str] = []
    journal = Journal(BucketJournalStore(storage, BucketPath.parse("gs://elsewhere"), clock, warn=warnings.append))

    journal.append(NAME, "note", AT, durable=False)
    journal.flush()
    with pytest.raises(JournalError) as refused:
        journal.append(NAME, "delete", AT)

    reason = f"gs://elsewhere/{_FILE}: there is no bucket `gs://elsewhere`"
    assert str(refused.value) == f"cannot write the journal: {reason}"
    assert (refused.value.hint or "").startswith("the change was not sent; create it with `gcloud storage buckets")
    assert warnings == [f"cannot write the journal at the moment: {reason}"]


@pytest.mark.parametrize(
    ("environ", "lasts"), [({}, True), ({"CI": "true"}, False), ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False)]
)
def test_local_disk_is_persistent_outside_ci_and_pods(environ: dict[str, str], lasts: bool) -> None:
    assert Journal(Path("/proc/1")).is_lasting(environ) is lasts


_LOCKER = """
import fcntl, sys
from pathlib import Path
file = Path(sys.argv[1]).open("a")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locker(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a process that keeps a file locked until it is terminated."""
    started: list[subprocess.Popen[str]] = []

    def start(file: str) -> subprocess.Popen[str]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-c", _LOCKER, str(tmp_path / file)]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.communicate("")


_LEASE_LOCK = "p/us-central2-b/trainer.lock"
_LEASE = LeaseRecord("ada", "up on ada", "up", timedelta(minutes=2))
_USES: dict[str, tuple[str, Callable[[Path, Callable[[str], None]], object]]] = {
    "journal, written": (_FILE, lambda folder, warn: Journal(folder, warn=warn).append(NAME, "delete", AT)),
    "journal, read": (_FILE, lambda folder, warn: Journal(folder, warn=warn).entries(NAME)),
    "lease": (
        _LEASE_LOCK,
        lambda folder, warn: LocalLeaseStore(folder, SystemClock(), notify=warn).write(NAME, _LEASE, expected=None),
    ),
}


@pytest.mark.parametrize(("file", "use"), _USES.values(), ids=_USES)
def test_file_that_another_process_keeps_locked_is_named_and_then_an_error(
    tmp_path: Path,
    locker: Callable[[str], subprocess.Popen[str]],
    file: str,
    use: Callable[[Path, Callable[[str], None]], object],
) -> None:
    path, said, process = tmp_path / file, list[str](), locker(file)

    with pytest.raises(TpuctlError) as refused, limit_cloud_calls(SystemClock(), timedelta(seconds=1.5)):
        use(tmp_path, said.append)

    assert said == [f"waiting for process {process.pid}, which locks `{path}`"]
    assert f"process {process.pid} keeps `{path}` locked: gave up after " in str(refused.value)
    assert f"`ps -fp {process.pid}` shows that process" in str(refused.value.hint)


def test_lock_that_is_released_is_awaited(tmp_path: Path, locker: Callable[[str], subprocess.Popen[str]]) -> None:
    journal, process = Journal(tmp_path, writer="here 1"), locker(_FILE)
    ending = threading.Timer(0.3, process.terminate)
    ending.start()

    journal.append(NAME, "create", AT)

    ending.join()
    assert [entry["event"] for entry in journal.entries(NAME)] == ["create"]
