"""A rule of `doctor NODE`: a question about what is known of a node, or of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tpuctl.preflight.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tpuctl.preflight.findings import Found

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeRule(Generic[T]):
    """One rule. `text` says, for the reference, what is looked at and why."""

    id: str
    title: str
    text: str
    judge: Callable[[T], Iterable[Found]]


def rule(id_: str, title: str) -> Callable[[Callable[[T], Iterable[Found]]], NodeRule[T]]:
    """Make a rule of a function; its docstring is the reference's text."""

    def made(judge: Callable[[T], Iterable[Found]]) -> NodeRule[T]:
        return NodeRule(id_, title, " ".join((judge.__doc__ or "").split()), judge)

    return made


def judged(facts: T, rules: Iterable[NodeRule[T]]) -> Iterator[Finding]:
    """Yield what the rules say, in their order."""
    return (Finding(one.id, one.title, found) for one in rules for found in one.judge(facts))
