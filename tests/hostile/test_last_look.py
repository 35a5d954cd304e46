"""Every way to delete or stop a node, and what another client does to it at the last moment: after the journal was written.

The journal is written before each change, and may be slow: what happens meanwhile must count. A way spares a node that was
recreated, and one that its rule or its selection does not mean any more. What a user named goes whatever its labels are now.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import USER, ZONE, put
from tests.nodes.test_watch_idle import IDLE, answering
from tests.others import somebody
from tpuctl.app.app import App, Invocation
from tpuctl.errors import TpuctlError
from tpuctl.models.node_changes import changed_fields
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.actions import NodeReset, bring_up_nodes, request_reset, stop_node
from tpuctl.nodes.actuator import ActionContext, NoLongerMeantError
from tpuctl.nodes.commands.selected_changes import require_selected, select_groups
from tpuctl.nodes.conditions import Condition, Policy, Repair
from tpuctl.nodes.controller import reconcile_nodes, watch_nodes
from tpuctl.nodes.garbage import GarbageFacts, GarbageRules, Idleness, find_garbage
from tpuctl.nodes.garbage_removal import remove_garbage
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.idle_limit import IdleAction, IdleLimit
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.named_deletion import find_named
from tpuctl.nodes.plan import ResetMode
from tpuctl.nodes.selection import Selection, parse_label_conditions
from tpuctl.nodes.tear_down import delete_expired_node, end_idle_node, tear_down
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox.administration import add_node

NAME = NodeName("sandbox", ZONE, "demo")
PAST, FUTURE = "1767000000", "4102444800"
LABELS = {"tpuctl-owner": USER, "tpuctl-expires": PAST, "team": "research"}
DAY = timedelta(days=1)
RESEARCH = Selection(labels=parse_label_conditions(["team=research"]))
READY = Policy(goal=Condition.READY)


class SlowJournal(Journal):
    """A journal in which something happens to a node once, after the entry of its deletion or stop was written."""

    def __init__(self, journal: Journal, happens: dict[NodeName, Callable[[], object]]) -> None:
        self.__dict__.update(journal.__dict__)
        self._happens = happens

    def append(self, name: NodeName, event: str, at: datetime, *, durable: bool = True, **data: Any) -> None:
        super().append(name, event, at, durable=durable, **data)
        if event in {"delete", "stop", "restart"}:
            self._happens.pop(name, lambda: None)()


Way = Callable[[App, ActionContext], object]


def collect(**typed: Any) -> Way:
    """Return `gc` with these rules."""

    def run(app: App, context: ActionContext) -> None:
        client, asleep = app.services.client, {NAME: Idleness(DAY, "")}
        nodes, requests = client.list_nodes("sandbox").nodes, client.list_queued_resources("sandbox").queued_resources
        facts, rules = (
            GarbageFacts(project="sandbox", nodes=nodes, requests=requests, idleness=asleep),
            GarbageRules(owner=USER, **typed),
        )
        items = [item for item in find_garbage(facts, rules, app.now()) if item.is_deleted]
        assert len(items) == 1
        remove_garbage(context, items, rules, examine=lambda _: asleep, timeout=None)

    return run


def down(app: App, context: ActionContext) -> None:
    targets, _ = find_named(app, context, [NodeReference("demo", ZONE, "sandbox")])
    tear_down(context, targets, by="down", timeout=None)


def down_by_label(app: App, context: ActionContext) -> None:
    found = select_groups(app, context, RESEARCH)
    tear_down(
        context,
        found.targets,
        by="down",
        timeout=None,
        still_meant=lambda current: found.require_selected(app, current),
    )


def expire(app: App, context: ActionContext) -> None:
    delete_expired_node(context, NAME, app.services.client.get_node(NAME), by="watch")


def end_idle(action: IdleAction) -> Way:
    limit = IdleLimit(DAY, action, owner=USER)
    return lambda app, context: end_idle_node(context, app.services.client.get_node(NAME), limit, by="watch")


def reset(mode: ResetMode, selection: Selection | None = None) -> Way:
    def run(app: App, context: ActionContext) -> None:
        def judge(node: Any, current: Any) -> None:
            if selection is not None:
                require_selected(app, selection, node, current, leaves_kept=True)

        with suppress(TpuctlError):
            reset = NodeReset(app.services.client.get_node(NAME), mode, READY)
            reconcile_nodes(context, [request_reset(context, reset, judge)])

    return run


def stop(app: App, context: ActionContext) -> None:
    stop_node(context, app.services.client.get_node(NAME))


def up(_: App, context: ActionContext) -> None:
    policy = replace(READY, may_create=True, may_start=True)
    bring_up_nodes(context, [Goal(name=NAME, policy=policy, purpose="up")])


@dataclass(frozen=True)
class Row:
    """A way to end a node, and what at the last moment spares it."""

    way: Way
    spared: frozenset[str]
    # Whether it also ends a node through its queued resource.
    takes_requests: bool = True
    state: str = "READY"


ALWAYS = frozenset({"recreate"})
ROWS = {
    "gc --expired": Row(collect(expired=True), ALWAYS | {"extend", "keep", "stop"}),
    "gc --idle": Row(collect(idle=timedelta(hours=1)), ALWAYS | {"keep", "stop"}),
    "gc --older-than": Row(collect(older_than=timedelta(minutes=30)), ALWAYS | {"keep", "stop"}),
    "gc -l": Row(
        collect(expired=True, labels=parse_label_conditions(["team=research"])),
        ALWAYS | {"extend", "keep", "stop", "relabel"},
    ),
    "gc": Row(collect(), ALWAYS | {"keep"}, state="PREEMPTED"),
    "down": Row(down, ALWAYS),
    "down -l": Row(down_by_label, ALWAYS | {"keep", "relabel"}),
    "expiry": Row(expire, ALWAYS | {"extend", "keep"}),
    "idle delete": Row(end_idle(IdleAction.DELETE), ALWAYS | {"keep", "stop"}),
    "idle stop": Row(end_idle(IdleAction.STOP), ALWAYS | {"keep", "stop"}, takes_requests=False),
    "stop": Row(stop, ALWAYS | {"stop"}, takes_requests=False),
    "reset --mode restart": Row(reset(ResetMode.RESTART), ALWAYS | {"stop"}, takes_requests=False),
    "reset --mode recreate": Row(reset(ResetMode.RECREATE), ALWAYS, takes_requests=False),
    "reset -l": Row(reset(ResetMode.RECREATE, RESEARCH), ALWAYS | {"keep", "relabel"}, takes_requests=False),
    "up": Row(up, ALWAYS, takes_requests=False, state="PREEMPTED"),
}


def put_node(sandbox: Sandbox, state: str, *, is_queued: bool) -> None:
    """Put the node into the sandbox, in the place of one of its name."""
    fields: dict[str, Any] = {"state": state, "labels": LABELS, "schedulingConfig": {"spot": state == "PREEMPTED"}}
    if is_queued:
        body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "labels": LABELS}
        spec = {"parent": f"projects/sandbox/locations/{ZONE}", "nodeId": "demo", "node": body}
        request = sandbox.add_queued_resource(
            "demo", zone=ZONE, state="ACTIVE", node_ids=("demo",), tpu={"nodeSpec": [spec]}
        )
        fields["queued_resource"] = request["name"]
    put(sandbox, **fields)


def relabel(app: App, labels: Mapping[str, str], name: NodeName = NAME) -> None:
    app.services.client.change_node(name, lambda node: changed_fields(node, {"labels": {**LABELS, **labels}}))


# What another client does, and the changes that it requests.
Happening = tuple[Callable[[App, Sandbox, bool], object], list[str]]
HAPPENINGS: dict[str, Happening] = {
    "nothing": (lambda *_: None, []),
    "recreate": (lambda _, sandbox, is_queued: put_node(sandbox, "READY", is_queued=is_queued), []),
    "extend": (lambda app, *_: relabel(app, {"tpuctl-expires": FUTURE}), ["patch"]),
    "keep": (lambda app, *_: relabel(app, {"tpuctl-keep": "yes"}), ["patch"]),
    "relabel": (lambda app, *_: relabel(app, {"team": "vision"}), ["patch"]),
    "stop": (lambda _, sandbox, *__: somebody(sandbox, "stop"), ["stop"]),
}
# A dead node cannot be changed, a queued one cannot be stopped.
CASES = [
    pytest.param(row, name in row.spared, happening, is_queued, id=f"{way}-{name}{'-queued' * is_queued}")
    for way, row in ROWS.items()
    for name, happening in HAPPENINGS.items()
    for is_queued in (False, True)
    if (row.takes_requests or not is_queued)
    and (row.state == "READY" or name in {"nothing", "recreate"})
    and not (is_queued and name == "stop")
]


@pytest.fixture
def app(tpuctl: Console, fake_ssh: Callable[[str], None]) -> Iterator[App]:
    """Yield an app in the place of the program; all workers say that they are idle."""
    fake_ssh(answering(IDLE))
    streams = StandardStreams(io.StringIO(), io.StringIO(), io.StringIO())
    app = App(Invocation(("gc",), tpuctl.environ, streams, tpuctl.folder, tpuctl.clock))
    yield app
    app.close()


@pytest.mark.parametrize(("row", "is_spared", "happening", "is_queued"), CASES)
def test_what_happens_before_the_last_look_counts(
    app: App, sandbox: Sandbox, row: Row, happening: Happening, *, is_spared: bool, is_queued: bool
) -> None:
    put_node(sandbox, row.state, is_queued=is_queued)
    happen, theirs = happening
    journal = SlowJournal(app.services.journal, {NAME: lambda: happen(app, sandbox, is_queued)})

    with suppress(NoLongerMeantError):
        row.way(app, replace(app.services.context(lambda _: None), journal=journal))

    ended = [change for change in sandbox.changes() if change in {"delete", "stop", "patch"}]
    assert ended[: len(theirs)] == theirs
    assert bool(ended[len(theirs) :]) is not is_spared, ended


def test_gc_does_not_say_that_it_deletes_what_it_leaves(app: App, sandbox: Sandbox) -> None:
    put_node(sandbox, "READY", is_queued=False)
    journal = SlowJournal(app.services.journal, {NAME: lambda: relabel(app, {"tpuctl-keep": "yes"})})
    reported: list[str] = []

    collect(expired=True)(
        app, replace(app.services.context(lambda event: reported.append(event.text)), journal=journal)
    )

    assert reported == []


@pytest.mark.parametrize(
    ("limits", "theirs"),
    [
        pytest.param({"max_restarts": 1, "repair": Repair.RESTART}, "stop", id="restart-stopped"),
        pytest.param({"max_restarts": 0, "repair": Repair.RECREATE}, "delete", id="recreate-deleted"),
    ],
)
def test_repair_does_not_take_what_another_client_does_for_its_own(
    app: App, sandbox: Sandbox, limits: dict[str, Any], theirs: str
) -> None:
    """The node is stopped or deleted right before the repair would do that: watch leaves it so."""
    put(sandbox, health="UNHEALTHY_TENSORFLOW", labels=LABELS)
    journal = SlowJournal(app.services.journal, {NAME: lambda: somebody(sandbox, theirs)})
    policy = Policy(
        goal=Condition.HEALTHY, may_create=True, may_start=True, watches=True, ignores_use=True, max_reboots=0, **limits
    )
    reported: list[str] = []

    watch_nodes(
        replace(app.services.context(lambda event: reported.append(event.text)), journal=journal),
        [Goal(name=NAME, policy=replace(policy, timeout=None), purpose="watch")],
        until=timedelta(hours=1),
        each_round=lambda _: None,
    )

    assert "it changed right before the request, which was not sent" in reported
    assert sandbox.changes() == [theirs], reported
    past = app.services.journal.past(NAME)
    assert (past.is_being_recreated, past.stopped) == (False, None)


SLOPPY = ("soon", "0", "-1", "1767000000000", "01767000000")
LAST_MOMENT: dict[str, Callable[[App, Sandbox, NodeName], object]] = {
    "extend": lambda app, _, name: relabel(app, {"tpuctl-expires": FUTURE}, name),
    "keep": lambda app, _, name: relabel(app, {"tpuctl-keep": ""}, name),
    "recreate": lambda _, sandbox, name: put(sandbox, name.node_id, labels={"tpuctl-owner": USER}),
}


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_random_worlds_stay_unless_their_own_label_has_expired_or_they_are_named(
    app: App, sandbox: Sandbox, seed: int
) -> None:
    """`gc --expired`, `watch` and `down` one after the other, while another client changes nodes at the last moment."""
    random = Random(seed)  # noqa: S311  # the same worlds each time
    goes, named = set(), []
    happens: dict[NodeName, Callable[[], object]] = {}
    with sandbox.state.write() as session:
        for number in range(30):
            name = replace(NAME, node_id=f"n{number}")
            expires, happening = random.choice(("", PAST, PAST, PAST, FUTURE, random.choice(SLOPPY))), ""
            owner, is_kept = random.choice((USER, USER, "bob", "")), random.random() < 0.15
            labels = {"tpuctl-owner": owner, "tpuctl-expires": expires, "tpuctl-race": random.choice(("", "ab12"))}
            labels = {key: value for key, value in labels.items() if value}
            labels |= {"tpuctl-keep": random.choice(("", "no"))} if is_kept else {}
            add_node(session, name.node_id, zone=ZONE, age=timedelta(hours=1), labels=labels)
            if random.random() < 0.2:
                named.append(NodeReference(name.node_id, ZONE, "sandbox"))
            elif random.random() < 0.5:
                happening = random.choice([*LAST_MOMENT])
                happens[name] = partial(LAST_MOMENT[happening], app, sandbox, name)
            if named[-1:] == [NodeReference(name.node_id, ZONE, "sandbox")] or (
                expires == PAST and not is_kept and not happening
            ):
                goes.add(name)
    context = replace(app.services.context(lambda _: None), journal=SlowJournal(app.services.journal, happens))
    rules, before = (
        GarbageRules(owner=USER, expired=True),
        {node.name for node in app.services.client.list_nodes("sandbox").nodes},
    )

    facts = GarbageFacts(project="sandbox", nodes=app.services.client.list_nodes("sandbox").nodes, requests=())
    items = [item for item in find_garbage(facts, rules, app.now()) if item.is_deleted]
    remove_garbage(context, items, rules, examine=lambda _: {}, timeout=None)
    for node in app.services.client.list_nodes("sandbox").nodes:
        delete_expired_node(context, node.name, node, by="watch")
    sandbox.advance(minutes=5)
    tear_down(context, find_named(app, context, named)[0], by="down", timeout=None)

    left = {node.name for node in app.services.client.list_nodes("sandbox").nodes}
    assert before - left == goes, seed
