"""Two clients that change labels, metadata and tags of one node at the same time, stopped between their requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.cloud.scripted_api import Received, Reply, ScriptedServer
from tests.conftest import Console, Result, Sandbox
from tpuctl.clock import ManualClock
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import TpuctlError
from tpuctl.models.node import Node
from tpuctl.models.node_changes import NodeChange, changed_fields
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.actions import spec_changes
from tpuctl.nodes.expiry import ExpiryChange, expiry_label, extended_expiry
from tpuctl.sandbox.api_calls import Request, Response
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.service import answer_request
from tpuctl.ssh.keys import with_metadata_key

NAME = NodeName("sandbox", "us-central2-b", "a")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
BEFORE = {"team": "vision", "tpuctl-expires": expiry_label(START + 2 * HOUR)}
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"run": "7"}, tags=("web",))


class Turns:
    """Threads that run one at a time: each pauses before its requests until it gets the next turn."""

    def __init__(self, plays: Sequence[Callable[[int], object]]) -> None:
        self.results: list[Any] = [None] * len(plays)
        self._baton = threading.Semaphore(0)
        self._go = [threading.Semaphore(0) for _ in plays]
        self._threads = [
            threading.Thread(target=self._run, args=(actor, play), daemon=True) for actor, play in enumerate(plays)
        ]
        self.ended = [False] * len(plays)
        for actor, thread in enumerate(self._threads):
            thread.start()
            assert self._baton.acquire(timeout=30), actor

    def pause(self, actor: int) -> None:
        """Wait for the next turn of the actor: called in its thread."""
        self._baton.release()
        self._go[actor].acquire()

    def go_on(self, actor: int) -> None:
        """Run the actor until it pauses or ends."""
        if not self.ended[actor]:
            self._go[actor].release()
            assert self._baton.acquire(timeout=30), actor

    def run_to_the_end(self, *actors: int) -> None:
        """Run the actors in turn until all have ended."""
        while not all(self.ended[actor] for actor in actors):
            for actor in actors:
                self.go_on(actor)

    def _run(self, actor: int, play: Callable[[int], object]) -> None:
        self.pause(actor)
        try:
            self.results[actor] = play(actor)
        except BaseException as error:  # noqa: BLE001  # compared in the thread of the test
            self.results[actor] = error
        self.ended[actor] = True
        self._baton.release()


class GatedHttp(SandboxHttp):
    """The sandbox, which answers an actor when it has its turn. Time passes with each request."""

    def __init__(self, sandbox: Sandbox, gate: Callable[[], None]) -> None:
        super().__init__(sandbox.state)
        self._gate, self._clock = gate, sandbox.state.clock

    def request(self, *given: Any, **named: Any) -> Any:
        self._gate()
        self._clock.sleep(timedelta(seconds=1))
        return super().request(*given, **named)


def pairs_of(field: str, **pairs: str) -> Callable[[], NodeChange]:
    return lambda: lambda node: changed_fields(node, {field: {**node.raw.get(field, {}), **pairs}})


def without(key: str) -> Callable[[], NodeChange]:
    return lambda: (
        lambda node: changed_fields(
            node, {"labels": {name: value for name, value in node.labels.items() if name != key}}
        )
    )


def extension(hours: float) -> Callable[[], NodeChange]:
    return lambda: ExpiryChange(lambda node: extended_expiry(node, hours * HOUR, START))


def keys_of(login: str) -> Callable[[], NodeChange]:
    return lambda: partial(with_metadata_key, entry=f"{login}:ssh-ed25519 {login.upper()}")


# The change, and whether a node has it.
CHANGES: dict[str, tuple[Callable[[], NodeChange], Callable[[Node], bool]]] = {
    "extend": (extension(20), lambda node: (node.expires or START) >= START + 22 * HOUR),
    "keep": (pairs_of("labels", **{"tpuctl-keep": "yes"}), lambda node: node.is_kept),
    "remove": (without("team"), lambda node: "team" not in node.labels),
    "metadata": (pairs_of("metadata", key="new"), lambda node: node.metadata.get("key") == "new"),
    "ssh-key": (keys_of("ada"), lambda node: "ADA" in node.metadata.get("ssh-keys", "")),
    "ssh-key-of-other": (keys_of("bob"), lambda node: "BOB" in node.metadata.get("ssh-keys", "")),
    "up": (
        lambda: partial(spec_changes, spec=SPEC),
        lambda node: (node.labels.get("run"), node.raw["tags"]) == ("7", ["web"]),
    ),
    "longer": (extension(30), lambda node: (node.expires or START) >= START + 32 * HOUR),
}
# The requests of each client: it reads, writes, lists the operations and reads.
MORE_PAIRS = [("extend", "remove"), ("extend", "longer"), ("ssh-key", "ssh-key-of-other"), ("ssh-key", "metadata")]


def schedules() -> list[list[int]]:
    """Return the orders of the requests of two clients that differ in what comes before and after a write."""
    found: dict[tuple[int, ...], list[int]] = {}
    for places in combinations(range(8), 4):
        schedule = [int(place in places) for place in range(8)]
        writes = [[place for place, who in enumerate(schedule) if who == actor][1] for actor in (0, 1)]
        key = tuple(sum(who != actor for who in schedule[:place]) for actor, place in enumerate(writes))
        found.setdefault(key, schedule)
    return list(found.values())


def changed_at_once(
    sandbox: Sandbox, clock: ManualClock, changes: Sequence[NodeChange], schedule: Sequence[int]
) -> tuple[Node, list[Any]]:
    """Let each of two clients send a change, with the turns of a schedule. Return the node then, and their results."""

    def play(actor: int) -> Node:
        client = TpuClient(lambda: GatedHttp(sandbox, partial(turns.pause, actor)), clock)
        return client.change_node(NAME, changes[actor])

    sandbox.add_node("a", labels=BEFORE, metadata={"key": "old"})
    with sandbox.state.write() as session:  # those of earlier nodes of the name
        for _, operation in session.operations("sandbox", None, after=0, limit=100):
            session.delete_operation(operation.name)
    turns = Turns([play, play])
    for actor in (0, 1, *schedule):  # first each up to its first request
        turns.go_on(actor)
    turns.run_to_the_end(0, 1)
    return TpuClient(lambda: SandboxHttp(sandbox.state), clock).get_node(NAME), turns.results


@pytest.mark.parametrize(
    "pair", [*combinations(("extend", "keep", "metadata", "up"), 2), *MORE_PAIRS], ids="-and-".join
)
def test_changes_of_two_clients_are_both_there_in_each_order_of_their_requests(
    sandbox: Sandbox, clock: ManualClock, pair: tuple[str, str]
) -> None:
    lost = []
    for schedule in schedules():
        node, results = changed_at_once(sandbox, clock, [CHANGES[name][0]() for name in pair], schedule)
        lost += [
            (schedule, name, result)
            for name, result in zip(pair, results, strict=True)
            if not CHANGES[name][1](node) or not isinstance(result, Node)
        ]

    assert lost == []


def test_later_end_counts_if_one_client_shortens_and_another_extends(sandbox: Sandbox, clock: ManualClock) -> None:
    """The end is the earlier one only if that client read the node after the extension; else it restores the later end."""
    outcomes = set()
    for schedule in schedules():
        changes: list[NodeChange] = [extension(20)(), ExpiryChange(lambda _: START + HOUR)]
        node, (extended, shortened) = changed_at_once(sandbox, clock, changes, schedule)
        assert isinstance(extended, Node)
        is_read_after_the_extension = schedule.index(1) > schedule.index(0, schedule.index(0) + 1)
        end = ((node.expires or START) - START) / HOUR
        said = shortened.message if isinstance(shortened, TpuctlError) else "done"
        outcomes.add((is_read_after_the_extension, end, said))

    another = "another client changed the end of `a` at the same time"
    sequential = {(True, 1, "done"), (True, 22, "done")}
    assert outcomes == sequential | {(False, end, said) for end in (21, 22) for said in ("done", another)}


COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[Node], bool]]] = {
    "extend": (("extend", "a", "20h"), lambda node: node.expires == START + 22 * HOUR),
    "labels": (("update", "a", "--labels", "tpuctl-keep=yes"), lambda node: node.is_kept),
    "metadata": (("update", "a", "--metadata", "key=new"), lambda node: node.metadata["key"] == "new"),
    "up": (
        ("up", "a", "--type", "v4-8", "--labels", "run=7", "--for", "healthy"),
        lambda node: node.labels.get("run") == "7",
    ),
}


@contextmanager
def stopped_at(sandbox: Sandbox, moment: str, meanwhile: Callable[[str], object]) -> Iterator[str]:
    """Serve the sandbox; call `meanwhile` with the URL once, before or after the first change that arrives takes effect."""
    left = [meanwhile]

    def script(received: Received) -> Reply:
        address = urlsplit(received.path)
        content = b"" if received.body is None else json.dumps(received.body).encode()
        request = Request(received.method, address.path, tuple(parse_qsl(address.query)), received.headers, content)
        is_change = received.method == "PATCH" and left
        if is_change and moment == "before":
            left.pop()(server.url)
        answer = answer_request(sandbox.state, request)
        sandbox.advance(seconds=1)
        if is_change and moment == "after":
            left.pop()(server.url)
        assert isinstance(answer, Response)
        return Reply(answer.body, answer.status, dict(answer.headers))

    with ScriptedServer(script) as server:
        yield server.url
    assert left == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("pair", list(permutations(COMMANDS, 2)), ids="-during-".join)
def test_commands_on_two_machines_keep_the_changes_of_each_other(
    tpuctl: Console, sandbox: Sandbox, tmp_path: Path, pair: tuple[str, str], moment: str
) -> None:
    """The first command runs while a request of the second one is on its way, or its answer."""
    second, first = pair
    sandbox.add_node("a", labels=BEFORE, metadata={"key": "old"})
    codes: list[Result] = []

    def run(name: str, url: str, machine: str) -> None:
        where = {"TPUCTL_ENDPOINT": url, "TPUCTL_PROJECT": "sandbox", "TPUCTL_STATE_DIR": str(tmp_path / machine)}
        console = replace(tpuctl, environ={**tpuctl.environ, "TPUCTL_SANDBOX": "", **where})
        codes.append(console(*COMMANDS[name][0], "--yes"))

    with stopped_at(sandbox, moment, lambda url: run(second, url, "other")) as url:
        run(first, url, "state")

    node = TpuClient(lambda: SandboxHttp(sandbox.state), tpuctl.clock).get_node(NAME)
    assert [result[2] for result in codes] == [0, 0], codes
    assert [COMMANDS[name][1](node) for name in (first, second)] == [True, True], node.raw


def test_update_without_the_permission_to_list_operations_succeeds(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("a")
    sandbox.fault("http-error", method="*.operations.list", status=403, count=0)

    assert tpuctl("update", "a", "--labels", "run=7")[::2] == ("a\tREADY\n", 0)
