"""Leases in their real stores: Cloud Storage on both faces of the sandbox, and files shared by real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tpuctl.clock import Clock, ManualClock, SystemClock
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.storage import StorageClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.durations import format_timestamp
from tpuctl.errors import AccessError, ConflictError, NotFoundError
from tpuctl.names import BucketPath, NodeName
from tpuctl.nodes.lease import BucketLeaseStore, Lease, LeaseError, LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.sandbox import administration
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp

PLACE = BucketPath.parse("gs://data/leases")
NAME = NodeName("p", "us-central2-b", "trainer")
ADA, BOB = LeaseOwner("ada", 1, "a"), LeaseOwner("bob", 2, "b")
Maker = Callable[..., LeaseKeeper]


class HangingClock:
    """The clock of a process that hangs while others run: its heartbeat stands still."""

    def __init__(self, clock: Clock) -> None:
        self.now, self.monotonic, self.sleep = clock.now, clock.monotonic, clock.sleep

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002  # a clock's signature
        return lambda: None


def shown(found: Lease | None) -> str:
    return f"{found} for {found.record.purpose}" if found else "free"


@contextmanager
def storage(face: str, sandbox: Sandbox) -> Iterator[StorageClient]:
    administration.add_bucket(sandbox.state, "data")
    administration.add_bucket(sandbox.state, "theirs", denied=("*",))
    if face == "in process":
        yield StorageClient(lambda: SandboxHttp(sandbox.state), sandbox.state.clock)
        return
    with open_server(sandbox.state).start() as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        yield StorageClient(factory, sandbox.state.clock, endpoint=server.url)
        factory.close()


@pytest.fixture(params=["in process", "over http"])
def objects(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[StorageClient]:
    with storage(request.param, sandbox) as client:
        yield client


@pytest.fixture
def shared(objects: StorageClient, clock: ManualClock) -> Maker:
    """The leases of a machine, all of them in one bucket."""

    def make(who: LeaseOwner, *, hangs: bool = False) -> LeaseKeeper:
        return LeaseKeeper(BucketLeaseStore(objects, PLACE), HangingClock(clock) if hangs else clock, who)

    return make


@pytest.fixture
def local(tmp_path: Path, clock: ManualClock) -> Iterator[Maker]:
    """The leases of a process on this machine."""
    with ExitStack() as at_the_end:

        def make(who: LeaseOwner, *, hangs: bool = False) -> LeaseKeeper:
            store = LocalLeaseStore(tmp_path / "leases", clock)
            at_the_end.callback(store.close)
            return LeaseKeeper(store, HangingClock(clock) if hangs else clock, who)

        yield make


@pytest.fixture(params=["in process", "over http", "files"])
def make(request: pytest.FixtureRequest, sandbox: Sandbox, local: Maker) -> Iterator[Maker]:
    """Leases in each kind of store."""
    if request.param == "files":
        yield local
        return
    with storage(request.param, sandbox) as client:

        def make(who: LeaseOwner, *, hangs: bool = False) -> LeaseKeeper:
            clock = sandbox.state.clock
            return LeaseKeeper(BucketLeaseStore(client, PLACE), HangingClock(clock) if hangs else clock, who)

        yield make


def test_second_process_gets_the_name_of_the_holder(make: Maker, clock: ManualClock) -> None:
    ada, bob = make(ADA), make(BOB)

    assert ada.acquire(NAME, "watch") is None
    clock.sleep(timedelta(seconds=30))

    held = "`watch on ada pid 1` holds the lease, renewed 30s ago for watch"
    assert [shown(found) for found in (ada.holder(NAME), bob.holder(NAME), bob.acquire(NAME, "up"))] == [
        "free",
        held,
        held,
    ]
    assert (bob.holds(NAME), bob.begin(NAME, "create")) == (False, False)
    bob.release(NAME)
    assert ada.begin(NAME, "create")

    ada.release(NAME)
    assert (ada.holds(NAME), bob.holder(NAME), bob.acquire(NAME, "up")) == (False, None, None)


def test_holders_are_those_of_the_asked_nodes_that_others_hold(make: Maker, clock: ManualClock) -> None:
    ada, bob = make(ADA), make(BOB)
    names = [replace(NAME, node_id=f"demo-{number}") for number in range(4)]
    assert bob.holders(names) == {}
    for name in names[:3]:
        assert ada.acquire(name, "watch") is None
    ada.end(names[1], "down", notify=print)
    assert bob.acquire(names[3], "up") is None

    assert {name: lease.record.who for name, lease in bob.holders(names[1:]).items()} == {
        names[2]: "watch on ada pid 1"
    }


def test_heartbeat_renews_what_is_held_and_nothing_else(make: Maker, clock: ManualClock) -> None:
    """Of a lease that another has taken it learns; one that was released it does not write again."""
    ada, bob = make(ADA), make(BOB)
    names = [replace(NAME, node_id=f"demo-{number}") for number in range(4)]
    for name in names:
        ada.acquire(name, "watch")
    ada.begin(names[1], "create")
    assert bob.acquire(names[2], "watch", force_lease=True) is None
    ada.release(names[3])

    clock.sleep(timedelta(minutes=7, seconds=30))

    assert [shown(bob.holder(name)) for name in names] == [
        "`watch on ada pid 1` holds the lease, renewed 10s ago for watch",
        "`watch on ada pid 1` holds the lease, about to create, renewed 10s ago for watch",
        "free",
        "free",
    ]
    assert ([ada.holds(name) for name in names], ada.begin(names[1], "create")) == ([True, True, False, False], True)
    ada.close()
    assert [shown(bob.holder(name)) for name in names] == ["free"] * 4


def test_lease_in_a_bucket_expires_exactly_after_its_ttl(shared: Maker, clock: ManualClock) -> None:
    ada, bob = shared(ADA, hangs=True), shared(BOB)
    ada.acquire(NAME, "watch")
    ada.begin(NAME, "create")

    clock.sleep(timedelta(seconds=119))
    held = "`watch on ada pid 1` holds the lease, about to create, renewed 1m59s ago for watch"
    assert shown(bob.acquire(NAME, "watch")) == held
    clock.sleep(timedelta(seconds=1))
    assert bob.acquire(NAME, "watch") is None
    assert (ada.begin(NAME, "create"), ada.holds(NAME)) == (False, False)


def test_expired_lease_without_a_new_holder_is_renewed(shared: Maker, clock: ManualClock) -> None:
    ada = shared(ADA, hangs=True)
    ada.acquire(NAME, "watch")
    clock.sleep(timedelta(hours=1))

    assert (ada.begin(NAME, "create"), shared(BOB).acquire(NAME, "watch") is None) == (True, False)


def test_force_lease_waits_for_a_change_in_flight(make: Maker, clock: ManualClock) -> None:
    ada, bob = make(ADA, hangs=True), make(BOB)
    ada.acquire(NAME, "watch")
    ada.begin(NAME, "recreate")
    began = clock.now()

    assert bob.acquire(NAME, "watch", force_lease=True) is None
    assert clock.now() - began == timedelta(minutes=2)
    assert ada.begin(NAME, "create") is False

    assert ada.acquire(NAME, "up", force_lease=True) is None
    assert clock.now() - began == timedelta(minutes=2)


def test_tombstone_of_down_is_removed_only_on_user_request(make: Maker, clock: ManualClock) -> None:
    ada, bob = make(ADA), make(BOB)
    ada.acquire(NAME, "watch")
    at = clock.now()

    bob.end(NAME, "down", notify=lambda _: None)

    ended = "`down` ended it 0s ago (down on bob pid 2) for down"
    refused = ada.begin(NAME, "create")
    found = ada.acquire(NAME, "watch")
    assert (refused, shown(found), shown(ada.holder(NAME))) == (False, ended, ended)
    assert found is not None
    assert found.record.ended == format_timestamp(at)
    clock.sleep(timedelta(days=1))
    assert ada.acquire(NAME, "watch") is not None
    assert ada.acquire(NAME, "up") is None
    bob.end(NAME, "stop", notify=lambda _: None)
    assert ada.acquire(NAME, "watch", force_lease=True) is None


def test_down_times_out_if_a_change_never_ends(make: Maker, clock: ManualClock) -> None:
    """A holder that renews is alive, and may be changing the node at this moment."""
    ada, bob = make(ADA), make(BOB)
    ada.acquire(NAME, "watch")
    ada.begin(NAME, "reboot")
    began, messages = clock.now(), list[str]()

    with pytest.raises(ConflictError, match="`trainer`: `watch on ada pid 1` holds the lease, about to reboot"):
        bob.end(NAME, "down", notify=messages.append)

    assert messages == ["waiting for `watch on ada pid 1`, which is about to reboot `trainer`"]
    assert timedelta(seconds=150) <= clock.now() - began <= timedelta(seconds=155)
    assert ada.begin(NAME, "reboot")


def test_unusable_bucket_is_never_a_free_lease(objects: StorageClient, clock: ManualClock) -> None:
    for bucket, error in {"missing": NotFoundError, "theirs": AccessError}.items():
        leases = LeaseKeeper(BucketLeaseStore(objects, BucketPath(bucket)), clock, ADA)
        with pytest.raises(error, match=bucket):
            leases.holder(NAME)
        with pytest.raises(error, match=bucket):
            leases.acquire(NAME, "up", force_lease=True)
        with pytest.raises(error, match=bucket):
            leases.end(NAME, "down", notify=lambda _: None)


def test_invalid_record_is_never_a_free_lease(objects: StorageClient, shared: Maker) -> None:
    objects.write("data", "leases/p/us-central2-b/trainer.json", b"{}", generation=0)

    with pytest.raises(LeaseError, match=r"cannot read `.*trainer\.json`: not a lease of this version"):
        shared(ADA).acquire(NAME, "up", force_lease=True)


def test_lease_files_are_private_and_an_unwritable_folder_is_an_error(tmp_path: Path, local: Maker) -> None:
    local(ADA).acquire(NAME, "watch")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "leases").rglob("*") if path.is_file()}
    assert modes == {0o600}

    (tmp_path / "file").write_text("")
    with pytest.raises(LeaseError, match=": Not a directory; the change was not sent"):
        LeaseKeeper(LocalLeaseStore(tmp_path / "file", ManualClock()), ManualClock(), ADA).acquire(NAME, "up")


HOLD = """
import os, sys
from pathlib import Path
from tpuctl.clock import SystemClock
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.names import NodeName
clock = SystemClock()
leases = LeaseKeeper(LocalLeaseStore(Path(sys.argv[1]), clock), clock, LeaseOwner("ada", os.getpid(), "a"))
name = NodeName("p", "us-central2-b", "trainer")
print(leases.acquire(name, "watch"), leases.begin(name, "create"), flush=True)
sys.stdin.read()
"""


def test_killed_process_frees_the_node_at_once(tmp_path: Path, local: Maker, clock: ManualClock) -> None:
    """On one machine the kernel knows which processes live: neither a clock jump nor a kill during a change blocks others."""
    bob = local(BOB)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "leases")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ada:
        assert ada.stdout
        assert ada.stdout.readline() == "None True\n"
        clock.sleep(timedelta(days=10_000))
        found = bob.acquire(NAME, "up")
        ada.kill()

    assert found is not None
    assert (found.record.who, found.record.acting) == (f"watch on ada pid {ada.pid}", "create")
    assert bob.acquire(NAME, "up") is None
    assert len([*(tmp_path / "leases" / ".processes").iterdir()]) == 1


BEAT = """
import os, sys
from datetime import timedelta
from pathlib import Path
from tpuctl.clock import SystemClock
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LeasePolicy, LocalLeaseStore
from tpuctl.names import NodeName
clock, policy = SystemClock(), LeasePolicy(ttl=timedelta(seconds=0.6))
leases = LeaseKeeper(LocalLeaseStore(Path(sys.argv[1]), clock), clock, LeaseOwner("ada", 1, "a"), policy)
print(leases.acquire(NodeName("p", "us-central2-b", "trainer"), "up"), flush=True)
sys.stdin.read()
"""


def test_heartbeat_is_a_thread_that_keeps_no_process_alive(tmp_path: Path) -> None:
    store, versions = LocalLeaseStore(tmp_path / "leases", SystemClock()), set[str]()
    with subprocess.Popen(
        [sys.executable, "-c", BEAT, str(tmp_path / "leases")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ada:
        assert (ada.stdout and ada.stdout.readline()) == "None\n"
        while len(versions) < 4 and ada.poll() is None:
            found = store.read(NAME)
            versions |= {found.version} if found else set()
            time.sleep(0.02)
        ada.communicate("", timeout=20)

    assert (len(versions), ada.returncode) == (4, 0)
