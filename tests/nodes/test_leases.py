"""Leases in their real stores: Cloud Storage on both faces of the sandbox, and files shared by real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tpuctl.clock import ManualClock
from tpuctl.cloud.endpoint import ApiEndpoint, HttpFactory, TransportOptions
from tpuctl.cloud.storage import StorageClient
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
Maker = Callable[[LeaseOwner], LeaseKeeper]


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
    return lambda who: LeaseKeeper(BucketLeaseStore(objects, PLACE), clock, who)


@pytest.fixture
def local(tmp_path: Path, clock: ManualClock) -> Iterator[Maker]:
    """The leases of a process on this machine."""
    with ExitStack() as at_the_end:

        def make(who: LeaseOwner) -> LeaseKeeper:
            store = LocalLeaseStore(tmp_path / "leases", clock)
            at_the_end.callback(store.close)
            return LeaseKeeper(store, clock, who)

        yield make


@pytest.fixture(params=["in process", "over http", "files"])
def make(request: pytest.FixtureRequest, sandbox: Sandbox, local: Maker) -> Iterator[Maker]:
    """Leases in each kind of store."""
    if request.param == "files":
        yield local
        return
    with storage(request.param, sandbox) as client:
        yield lambda who: LeaseKeeper(BucketLeaseStore(client, PLACE), sandbox.state.clock, who)


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
    assert (bob.renew(NAME), bob.begin(NAME, "create")) == (False, False)
    bob.release(NAME)
    assert ada.begin(NAME, "create")

    ada.release(NAME)
    assert (ada.renew(NAME), bob.holder(NAME), bob.acquire(NAME, "up")) == (False, None, None)


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


def test_renewed_lease_stays_with_its_holder(make: Maker, clock: ManualClock) -> None:
    ada, bob = make(ADA), make(BOB)
    ada.acquire(NAME, "watch")

    for _ in range(10):
        clock.sleep(timedelta(seconds=45))
        assert ada.renew(NAME)

    assert shown(bob.acquire(NAME, "watch")) == "`watch on ada pid 1` holds the lease, renewed 0s ago for watch"


def test_lease_in_a_bucket_expires_exactly_after_its_ttl(shared: Maker, clock: ManualClock) -> None:
    ada, bob = shared(ADA), shared(BOB)
    ada.acquire(NAME, "watch")
    ada.begin(NAME, "create")

    clock.sleep(timedelta(seconds=119))
    held = "`watch on ada pid 1` holds the lease, about to create, renewed 1m59s ago for watch"
    assert shown(bob.acquire(NAME, "watch")) == held
    clock.sleep(timedelta(seconds=1))
    assert bob.acquire(NAME, "watch") is None
    assert (ada.begin(NAME, "create"), ada.renew(NAME)) == (False, False)


def test_expired_lease_without_a_new_holder_is_renewed(shared: Maker, clock: ManualClock) -> None:
    ada = shared(ADA)
    ada.acquire(NAME, "watch")
    clock.sleep(timedelta(hours=1))

    assert (ada.renew(NAME), shared(BOB).acquire(NAME, "watch") is None) == (True, False)


def test_force_lease_waits_for_a_change_in_flight(make: Maker, clock: ManualClock) -> None:
    ada, bob = make(ADA), make(BOB)
    ada.acquire(NAME, "watch")
    ada.begin(NAME, "recreate")
    began, messages = clock.now(), list[str]()

    assert bob.acquire(NAME, "watch", force_lease=True, notify=messages.append) is None
    assert messages == ["waiting for `watch on ada pid 1`, which is about to recreate `trainer`"]
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

    def go_on(_: str) -> None:
        clock.sleep(timedelta(seconds=50))
        ada.renew(NAME)

    with pytest.raises(ConflictError, match="`trainer`: `watch on ada pid 1` holds the lease, about to reboot"):
        bob.end(NAME, "down", notify=go_on)
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
