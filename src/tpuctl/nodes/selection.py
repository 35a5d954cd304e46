"""Select nodes and queued resources by name, label, age, state, type and owner. Pure: what the API said and the time go in.

Names and globs are alternatives to one another: one of them has to match. Every condition has to hold. What is unknown (an
age, a type, an owner) matches no condition, and an empty selection matches nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final

from tpuctl.durations import format_duration
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import NodeState, QueuedState
from tpuctl.models.spec import check_labels
from tpuctl.names import NodeName, check_project, check_zone, parse_node_reference
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from tpuctl.models.node import Node
    from tpuctl.nodes.resource_group import ResourceGroup

# The states of nodes and of queued resources that `--state` accepts.
STATES: Final = tuple(dict.fromkeys((*map(str, NodeState), *map(str, QueuedState))))
_GLOB = re.compile(r"(?!-)[A-Za-z0-9_.~+%*?\[\]!-]{1,250}")
_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A name or a glob, as the user wrote it. A zone or project of None is any."""

    text: str
    node_id: str
    zone: str | None = None
    project: str | None = None

    @classmethod
    def parse(cls, text: str) -> NamePattern:
        """Parse NODE, ZONE/NODE or a full resource name; zone and node may be globs. Raises `InvalidInputError`."""
        if not is_glob(text):
            reference = parse_node_reference(text, allow_queued=True)
            return cls(text, reference.node_id, reference.zone, reference.project)
        zone, _, node_id = text.rpartition("/")
        if not all(_GLOB.fullmatch(part) for part in (node_id, *([zone] if zone else []))):
            raise InvalidInputError(
                f"`{text}` is not a pattern of node names",
                hint="write it like `'sweep-*'` or `'us-*/sweep-?'`: letters, digits, `-_.~+%`, `*`, `?` and `[…]`",
            )
        if zone and not is_glob(zone):
            check_zone(zone)
        return cls(text, node_id, zone or None)

    @property
    def is_glob(self) -> bool:
        """Return whether it has a wildcard."""
        return is_glob(self.text)

    def matches(self, name: NodeName) -> bool:
        """Return whether it matches a full name."""
        if self.project is not None and self.project != name.project:
            return False
        return (self.zone is None or _matches(name.zone, self.zone)) and _matches(name.node_id, self.node_id)


def is_glob(text: str) -> bool:
    """Return whether a text has a wildcard, which no name has."""
    return not _WILDCARDS.isdisjoint(text)


def _matches(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern) if is_glob(pattern) else text == pattern


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """A condition on one label: `KEY`, `KEY=VALUE` or `KEY!=VALUE`. A value of None is any value."""

    key: str
    value: str | None = None
    is_negated: bool = False

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it. `KEY!=VALUE` holds without the label too."""
        if self.value is None:
            return self.key in labels
        return (labels.get(self.key) == self.value) is not self.is_negated

    def __str__(self) -> str:
        return self.key if self.value is None else f"{self.key}{'!' if self.is_negated else ''}={self.value}"


def parse_label_conditions(texts: Sequence[str]) -> tuple[LabelCondition, ...]:
    """Parse the values of `-l`, each one or several conditions with commas. Raises `InvalidInputError` for an empty one."""
    found = []
    for text in texts:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            # Without a condition everything would match.
            raise InvalidInputError("`-l` names no label", hint="write `-l KEY=VALUE`")
        found += [_label_condition(part) for part in parts]
    return tuple(found)


def _label_condition(text: str) -> LabelCondition:
    key, sign, value = text.partition("=")
    is_negated = bool(sign) and key.endswith("!")
    key = key.removesuffix("!") if is_negated else key
    if not key:
        raise InvalidInputError(f"`-l {text}` names no label", hint="write `-l KEY=VALUE`")
    if is_negated and not value:
        # Of an unset variable: nearly everything would match.
        raise InvalidInputError(f"`-l {text}` has no value", hint="write `-l KEY!=VALUE`")
    # An invalid key is on no node: with `!=` everything would match.
    check_labels({key: value})
    return LabelCondition(key, value if sign else None, is_negated)


def parse_states(texts: Sequence[str]) -> frozenset[str]:
    """Parse the values of `--state`, with commas and in any case. Raises `InvalidInputError` for an unknown or no state."""
    found = [part.strip().upper() for text in texts for part in text.split(",") if part.strip()]
    if texts and not found:
        raise InvalidInputError("`--state` names no state", hint="write it like `--state READY,STOPPED`")
    for state in found:
        if state not in STATES:
            near = closest_match(state, STATES)
            raise InvalidInputError(
                f"`{state}` is not a state of nodes or queued resources",
                hint=f"did you mean `{near}`?" if near else f"choose from {', '.join(STATES)}",
            )
    return frozenset(found)


def parse_type_patterns(texts: Sequence[str]) -> tuple[str, ...]:
    """Parse the values of `--type`: accelerator types or globs, with commas. Raises `InvalidInputError`."""
    found = [part.strip().lower() for text in texts for part in text.split(",") if part.strip()]
    if texts and not found:
        raise InvalidInputError("`--type` names no type", hint="write it like `--type 'v4-*'`")
    for pattern in found:
        if not _GLOB.fullmatch(pattern):
            raise InvalidInputError(
                f"`{pattern}` is not a pattern of accelerator types", hint="write it like `--type 'v4-*'`"
            )
    return tuple(found)


class GroupMatch(Enum):
    """How much of what would be deleted together a selection matches."""

    NONE = auto()
    SOME = auto()
    ALL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a command works on: one of the names, or any if there are none, and all conditions."""

    names: tuple[NamePattern, ...] = ()
    labels: tuple[LabelCondition, ...] = ()
    older_than: timedelta | None = None
    states: frozenset[str] = frozenset()
    types: tuple[str, ...] = ()
    # Only what the user created with tpuctl, by the label of the owner.
    is_mine: bool = False
    # The user asked for all nodes.
    is_all: bool = False

    @property
    def has_conditions(self) -> bool:
        """Return whether there is a condition besides names."""
        return bool(self.labels or self.older_than is not None or self.states or self.types or self.is_mine)

    @property
    def is_empty(self) -> bool:
        """Return whether the user named nothing at all."""
        return not (self.names or self.is_all or self.has_conditions)

    @property
    def is_by_name(self) -> bool:
        """Return whether it only names nodes, each of which is meant and must be found."""
        return bool(self.names) and not self.has_conditions and not any(name.is_glob for name in self.names)

    def leaves_kept(self, nodes: Iterable[Node], names: Iterable[NodeName]) -> bool:
        """Return whether a destructive command leaves nodes alone: one is kept, and none of their `names` was given exactly."""
        if not any(node.is_kept for node in nodes):
            return False
        exact = [pattern for pattern in self.names if not pattern.is_glob]
        return not any(pattern.matches(name) for name in names for pattern in exact)

    def matches(self, node: Node, now: datetime, owner: str | None) -> bool:
        """Return whether it matches a node. `owner` is the label of the user, None if that is unknown."""
        return self._accepts(node, node.state, node.created, now=now, owner=owner)

    def matches_group(self, group: ResourceGroup, now: datetime, owner: str | None) -> GroupMatch:
        """Return whether it matches every node of a group, existing or requested, only some of them, or none."""
        request, there = group.request, {node.name for node in group.nodes}
        names = [NodeName(group.project, request.zone, name) for name in request.own_names] if request else []
        accepts = partial(self._accepts, now=now, owner=owner, request_names=names)
        found = {accepts(node, node.state, node.created) for node in group.nodes}
        if request is not None:
            # A glob matches the names of a request only while it has no node.
            found |= {
                accepts(node, request.state, request.created, globs=not there)
                for node in request.all_requested_nodes(group.project)
                if node.name not in there
            }
        return GroupMatch.SOME if len(found) > 1 else GroupMatch.ALL if True in found else GroupMatch.NONE

    def unmatched_names(self, names: Sequence[NodeName]) -> tuple[NamePattern, ...]:
        """Return the names and globs that match none of some full names."""
        return tuple(pattern for pattern in self.names if not any(map(pattern.matches, names)))

    def _accepts(
        self,
        node: Node,
        state: NodeState | QueuedState,
        created: datetime | None,
        *,
        now: datetime,
        owner: str | None,
        request_names: Sequence[NodeName] = (),
        globs: bool = False,
    ) -> bool:
        """Return whether it matches a node, existing or requested, or the names of its request; with `globs` also by these."""
        named = any(
            pattern.matches(node.name) or ((globs or not pattern.is_glob) and any(map(pattern.matches, request_names)))
            for pattern in self.names
        )
        if self.is_empty or (self.names and not named):
            return False
        age = None if created is None else now - created
        kind = node.accelerator_type
        return (
            all(condition.holds(node.labels) for condition in self.labels)
            and (self.older_than is None or (age is not None and age >= self.older_than))
            and (not self.states or str(state) in self.states)
            and (not self.types or (bool(kind) and any(_matches(kind, pattern) for pattern in self.types)))
            and (not self.is_mine or (bool(owner) and node.owner == owner))
        )

    def __str__(self) -> str:
        """Return it as the user writes it, the names in backticks."""
        parts = [", ".join(f"`{pattern.text}`" for pattern in self.names)] if self.names else []
        parts += [f"-l {condition}" for condition in self.labels]
        parts += [f"--older-than {format_duration(self.older_than)}"] if self.older_than is not None else []
        parts += [f"--state {','.join(sorted(self.states))}"] if self.states else []
        parts += [f"--type {','.join(self.types)}"] if self.types else []
        parts += ["--mine"] if self.is_mine else []
        return " ".join(parts) or "--all"


def check_selection_project(selection: Selection, project: str) -> None:
    """Raise `InvalidInputError` for a full name of another project beside globs or conditions."""
    for pattern in selection.names:
        if pattern.project is not None and check_project(pattern.project) != project:
            raise InvalidInputError(
                f"`{pattern.text}` is in another project than {project}, in which the others are selected",
                hint=f"run the command for each project: `--project {pattern.project}`",
            )
