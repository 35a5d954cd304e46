"""What a selection matches: a row for each rule and boundary, and an oracle that was written without looking."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Node
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.garbage import GarbageFacts, group_resources
from tpuctl.nodes.selection import (
    GroupMatch,
    LabelCondition,
    NamePattern,
    Selection,
    parse_label_conditions,
    parse_states,
    parse_type_patterns,
)

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ZONE = "us-central2-b"
DAY = timedelta(days=1)


def made_node(name: str = "sweep-1", zone: str = ZONE, *, age: timedelta | None = DAY, **fields: Any) -> Node:
    body = {"name": f"projects/p/locations/{zone}/nodes/{name}", "acceleratorType": "v4-8", "state": "READY", **fields}
    if age is not None:
        body["createTime"] = (NOW - age).isoformat().replace("+00:00", "Z")
    return Node.from_api(body)


def made_request(name: str = "q", *ids: str, state: str = "WAITING_FOR_RESOURCES", **node: Any) -> QueuedResource:
    body = {"acceleratorType": "v4-8", "runtimeVersion": "x", **node}
    return QueuedResource.from_api(
        {
            "name": f"projects/p/locations/{ZONE}/queuedResources/{name}",
            "createTime": (NOW - DAY).isoformat().replace("+00:00", "Z"),
            "state": {"state": state},
            "tpu": {"nodeSpec": [{"nodeId": node_id, "node": body} for node_id in ids or (name,)]},
        }
    )


def named(*texts: str) -> tuple[NamePattern, ...]:
    return tuple(map(NamePattern.parse, texts))


def labelled(*texts: str) -> tuple[LabelCondition, ...]:
    return parse_label_conditions(texts)


TEAM: dict[str, Any] = {"labels": {"team": "vision", "empty": ""}}
MINE: dict[str, Any] = {"labels": {"tpuctl-owner": "ann"}}


@pytest.mark.parametrize(
    ("selection", "node", "is_selected"),
    [
        pytest.param(Selection(), made_node(), False, id="empty-never-matches"),
        pytest.param(Selection(is_all=True), made_node(), True, id="all"),
        pytest.param(Selection(is_all=True, states=frozenset({"STOPPED"})), made_node(), False, id="all-narrowed"),
        pytest.param(Selection(names=named("sweep-1")), made_node(), True, id="name"),
        pytest.param(Selection(names=named("sweep")), made_node(), False, id="name-is-no-prefix"),
        pytest.param(Selection(names=named("sweep-*")), made_node(), True, id="glob"),
        pytest.param(Selection(names=named("sweep-?")), made_node("sweep-10"), False, id="question-mark-is-one"),
        pytest.param(Selection(names=named("sweep-[12]")), made_node(), True, id="class"),
        pytest.param(Selection(names=named("sweep-[!12]")), made_node(), False, id="negated-class"),
        pytest.param(Selection(names=named("weep-*")), made_node(), False, id="glob-from-the-beginning"),
        pytest.param(Selection(names=named("x", "sweep-*")), made_node(), True, id="one-of-several-names"),
        pytest.param(Selection(names=named(f"{ZONE}/sweep-*")), made_node(), True, id="zone"),
        pytest.param(Selection(names=named("us-east5-a/sweep-*")), made_node(), False, id="other-zone"),
        pytest.param(Selection(names=named("us-*/sweep-1")), made_node(), True, id="zone-glob"),
        pytest.param(
            Selection(names=named(f"projects/p/locations/{ZONE}/nodes/sweep-1")), made_node(), True, id="full-name"
        ),
        pytest.param(
            Selection(names=named(f"projects/o/locations/{ZONE}/nodes/sweep-1")), made_node(), False, id="other-project"
        ),
        pytest.param(Selection(labels=labelled("team=vision")), made_node(**TEAM), True, id="label"),
        pytest.param(Selection(labels=labelled("team=nlp")), made_node(**TEAM), False, id="other-value"),
        pytest.param(Selection(labels=labelled("team")), made_node(**TEAM), True, id="key"),
        pytest.param(Selection(labels=labelled("empty")), made_node(**TEAM), True, id="key-with-empty-value"),
        pytest.param(Selection(labels=labelled("empty=")), made_node(**TEAM), True, id="empty-value"),
        pytest.param(Selection(labels=labelled("run=")), made_node(**TEAM), False, id="empty-value-without-the-label"),
        pytest.param(Selection(labels=labelled("run")), made_node(**TEAM), False, id="missing-key"),
        pytest.param(Selection(labels=labelled("team!=nlp")), made_node(**TEAM), True, id="not-that-value"),
        pytest.param(Selection(labels=labelled("team!=vision")), made_node(**TEAM), False, id="just-that-value"),
        pytest.param(
            Selection(labels=labelled("run!=7")), made_node(**TEAM), True, id="not-that-value-without-the-label"
        ),
        pytest.param(Selection(labels=labelled("team=vision,run")), made_node(**TEAM), False, id="labels-are-and"),
        pytest.param(Selection(older_than=DAY), made_node(age=DAY), True, id="just-as-old"),
        pytest.param(
            Selection(older_than=DAY), made_node(age=DAY - timedelta(seconds=1)), False, id="a-second-younger"
        ),
        pytest.param(Selection(older_than=DAY), made_node(age=None), False, id="unknown-age-is-not-old"),
        pytest.param(Selection(older_than=DAY), made_node(age=-DAY), False, id="created-in-the-future"),
        pytest.param(Selection(states=frozenset({"READY", "STOPPED"})), made_node(state="STOPPED"), True, id="state"),
        pytest.param(Selection(states=frozenset({"READY"})), made_node(state="STOPPING"), False, id="other-state"),
        pytest.param(Selection(states=frozenset({"READY"})), made_node(state=""), False, id="no-state"),
        pytest.param(Selection(types=("v4-*",)), made_node(), True, id="type-glob"),
        pytest.param(Selection(types=("v4",)), made_node(), False, id="type-is-no-prefix"),
        pytest.param(Selection(types=("v6e-8", "v4-8")), made_node(), True, id="one-of-several-types"),
        pytest.param(Selection(types=("*",)), made_node(acceleratorType=""), False, id="unknown-type"),
        pytest.param(Selection(is_mine=True), made_node(**MINE), True, id="mine"),
        pytest.param(Selection(is_mine=True), made_node(**TEAM), False, id="without-owner"),
        pytest.param(Selection(is_mine=True), made_node(labels={"tpuctl-owner": "bob"}), False, id="of-another"),
        pytest.param(
            Selection(names=named("sweep-*"), older_than=2 * DAY), made_node(), False, id="name-and-condition"
        ),
        pytest.param(Selection(names=named("x"), older_than=DAY), made_node(), False, id="condition-and-other-name"),
    ],
)
def test_selection_of_a_node(selection: Selection, node: Node, *, is_selected: bool) -> None:
    assert selection.matches(node, NOW, "ann") is is_selected


def test_mine_without_a_known_identity_matches_no_node() -> None:
    for owner in (None, ""):
        assert not Selection(is_mine=True).matches(made_node(labels={"tpuctl-owner": ""}), NOW, owner)


OF_Q: dict[str, Any] = {"queuedResource": f"projects/p/locations/{ZONE}/queuedResources/q"}


@pytest.mark.parametrize(
    ("selection", "nodes", "request_", "expected"),
    [
        pytest.param(Selection(names=named("q*")), (), made_request("q"), GroupMatch.ALL, id="waiting-by-its-own-name"),
        pytest.param(
            Selection(names=named("a*")), (), made_request("q", "a"), GroupMatch.ALL, id="waiting-by-its-node"
        ),
        pytest.param(
            Selection(names=named("b*")), (), made_request("q", "a"), GroupMatch.NONE, id="waiting-other-name"
        ),
        pytest.param(
            Selection(names=named("a*")), (), made_request("q", "a", "b"), GroupMatch.SOME, id="waiting-in-part"
        ),
        pytest.param(
            Selection(states=frozenset({"WAITING_FOR_RESOURCES"})),
            (),
            made_request(),
            GroupMatch.ALL,
            id="state-of-request",
        ),
        pytest.param(Selection(older_than=DAY), (), made_request(), GroupMatch.ALL, id="age-of-request"),
        pytest.param(Selection(older_than=2 * DAY), (), made_request(), GroupMatch.NONE, id="age-of-young-request"),
        pytest.param(Selection(is_mine=True), (), made_request(**MINE), GroupMatch.ALL, id="my-request"),
        pytest.param(Selection(is_mine=True), (), made_request(), GroupMatch.NONE, id="request-of-others"),
        pytest.param(Selection(types=("v4-*",)), (), made_request(), GroupMatch.ALL, id="type-of-request"),
        pytest.param(
            Selection(names=named("q*")),
            (made_node("a", **OF_Q),),
            made_request("q", "a", state="ACTIVE"),
            GroupMatch.NONE,
            id="glob-of-the-request-is-not-its-node",
        ),
        pytest.param(
            Selection(names=named("q")),
            (made_node("a", **OF_Q),),
            made_request("q", "a", state="ACTIVE"),
            GroupMatch.ALL,
            id="name-of-the-request-is-its-node",
        ),
        pytest.param(
            Selection(states=frozenset({"ACTIVE"})),
            (made_node("a", **OF_Q),),
            made_request("q", "a", state="ACTIVE"),
            GroupMatch.NONE,
            id="state-is-that-of-the-node",
        ),
        pytest.param(
            Selection(states=frozenset({"READY"})),
            (made_node("a", **OF_Q), made_node("b", state="STOPPED", **OF_Q)),
            made_request("q", "a", "b", state="ACTIVE"),
            GroupMatch.SOME,
            id="one-of-two-nodes",
        ),
        pytest.param(
            Selection(names=named("a")),
            (made_node("a", **OF_Q), made_node("b", **OF_Q)),
            made_request("q", "a", "b", state="ACTIVE"),
            GroupMatch.SOME,
            id="name-of-one-of-two-nodes",
        ),
    ],
)
def test_selection_of_what_is_deleted_together(
    selection: Selection, nodes: tuple[Node, ...], request_: QueuedResource, expected: GroupMatch
) -> None:
    (group,) = group_resources(GarbageFacts(project="p", nodes=nodes, requests=(request_,)))

    assert selection.matches_group(group, NOW, "ann") is expected


@pytest.mark.parametrize(
    ("parse", "message"),
    [
        pytest.param(lambda: parse_label_conditions([","]), "`-l` names no label", id="no-label"),
        pytest.param(lambda: parse_label_conditions(["=x"]), "`-l =x` names no label", id="no-key"),
        pytest.param(
            lambda: parse_label_conditions(["Team!=x"]), "`Team=x` is not a valid label", id="key-no-node-has"
        ),
        pytest.param(lambda: parse_label_conditions(["a==b"]), "`a==b` is not a valid label", id="two-signs"),
        pytest.param(lambda: parse_label_conditions(["a!="]), "`-l a!=` has no value", id="unset-variable"),
        pytest.param(lambda: parse_label_conditions(["a\x1b[31m"]), "is not a valid label", id="control-character"),
        pytest.param(lambda: parse_states(["READY,REDY"]), "`REDY` is not a state of nodes", id="state"),
        pytest.param(lambda: parse_states([" ,"]), "`--state` names no state", id="no-state"),
        pytest.param(lambda: parse_type_patterns([","]), "`--type` names no type", id="no-type"),
        pytest.param(lambda: parse_type_patterns(["v4 8"]), "`v4 8` is not a pattern of accelerator types", id="type"),
        pytest.param(lambda: NamePattern.parse("a b*"), "`a b*` is not a pattern of node names", id="space"),
        pytest.param(
            lambda: NamePattern.parse("a/b/c-*"), "`a/b/c-*` is not a pattern of node names", id="two-slashes"
        ),
        pytest.param(lambda: NamePattern.parse("us-east5-a/"), "`` is not a node name", id="zone-without-a-name"),
        pytest.param(lambda: NamePattern.parse("*/"), "`*/` is not a pattern of node names", id="glob-without-a-name"),
        pytest.param(lambda: NamePattern.parse("us_x/a*"), "`us_x` is not a zone", id="bad-zone"),
        pytest.param(lambda: NamePattern.parse("us-east5/a*"), "`us-east5` is a region, not a zone", id="region"),
        pytest.param(lambda: NamePattern.parse(""), "`` is not a node name", id="empty-name"),
    ],
)
def test_invalid_part_of_a_selection_is_refused(parse: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse()

    assert message in refused.value.message


def test_selection_is_shown_as_it_is_written() -> None:
    selection = Selection(
        names=named("sweep-*", "a"),
        labels=labelled("team=x", "run", "b!=c"),
        older_than=2 * DAY,
        states=frozenset({"STOPPED", "READY"}),
        types=("v4-*",),
        is_mine=True,
    )

    assert str(selection) == (
        "`sweep-*`, `a` -l team=x -l run -l b!=c --older-than 2d --state READY,STOPPED --type v4-* --mine"
    )
    assert str(Selection(is_all=True)) == "--all"


@dataclass(frozen=True)
class Wish:
    """A selection as a user describes it."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    days: int | None
    states: tuple[str, ...]
    types: tuple[str, ...]
    mine: bool
    everything: bool

    def selection(self) -> Selection:
        return Selection(
            names=named(*self.names),
            labels=labelled(*self.labels),
            older_than=None if self.days is None else self.days * DAY,
            states=parse_states(self.states),
            types=parse_type_patterns(self.types),
            is_mine=self.mine,
            is_all=self.everything,
        )

    def wants(self, node: Node) -> bool:
        """Return what the documentation promises, by regular expressions and plain loops."""
        reasons = [bool(self.names), bool(self.labels), self.days is not None, bool(self.states), bool(self.types)]
        if not any([*reasons, self.mine, self.everything]):
            return False
        full = f"{node.name.zone}/{node.name.node_id}"
        if self.names and not any(
            re.fullmatch(_regex(name if "/" in name else f"*/{name}"), full) for name in self.names
        ):
            return False
        for text in self.labels:
            key, value = re.split("!?=", text) if "=" in text else (text, None)
            present = node.labels.get(key)
            if "!=" in text:
                if present == value:
                    return False
            elif present is None or (value is not None and present != value):
                return False
        if self.days is not None and (node.created is None or node.created > NOW - self.days * DAY):
            return False
        if self.states and node.raw["state"] not in self.states:
            return False
        kind = node.raw["acceleratorType"]
        if self.types and not (kind and any(re.fullmatch(_regex(text), kind) for text in self.types)):
            return False
        return not self.mine or node.labels.get("tpuctl-owner") == "ann"


def _regex(glob: str) -> str:
    return glob.replace("*", ".*").replace("?", ".")


WISHES = st.builds(
    Wish,
    names=st.lists(st.sampled_from(["a", "b", "a*", "?", "*-1", f"{ZONE}/a", "us-*/a*", "*"]), max_size=2).map(tuple),
    labels=st.lists(st.sampled_from(["k", "k=1", "k!=1", "k=", "l!=2"]), max_size=2).map(tuple),
    days=st.sampled_from([None, None, 1, 2]),
    states=st.lists(st.sampled_from(["READY", "STOPPED", "PREEMPTED"]), max_size=2).map(tuple),
    types=st.lists(st.sampled_from(["v4-8", "v4-*", "v*", "v6e-?"]), max_size=2).map(tuple),
    mine=st.booleans(),
    everything=st.booleans(),
)
NODES = st.builds(
    lambda name, zone, age, labels, state, kind: made_node(
        name, zone, age=age, labels=labels, state=state, acceleratorType=kind
    ),
    st.sampled_from(["a", "b", "a-1", "ab"]),
    st.sampled_from([ZONE, "europe-west4-a"]),
    st.sampled_from([None, timedelta(), DAY, 2 * DAY, 3 * DAY]),
    st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from(["", "1", "2"])).flatmap(
        lambda labels: st.sampled_from(["", "ann", "bob"]).map(
            lambda owner: {**labels, **({"tpuctl-owner": owner} if owner else {})}
        )
    ),
    st.sampled_from(["READY", "STOPPED", "PREEMPTED"]),
    st.sampled_from(["v4-8", "v6e-8", ""]),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(wish=WISHES, nodes=st.lists(NODES, min_size=4, max_size=8))
def test_what_is_selected_is_what_an_independent_oracle_selects(wish: Wish, nodes: list[Node]) -> None:
    selection = wish.selection()

    assert [selection.matches(node, NOW, "ann") for node in nodes] == [wish.wants(node) for node in nodes]
