"""`dataclass` of `value_types`: the same behaviour as that of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from tpuctl import value_types
from tpuctl.names import NodeReference

T = TypeVar("T")
Decorator = Callable[..., Any]


def define(dataclass: Decorator) -> dict[str, Any]:
    """Return one class for each feature that tpuctl uses."""

    @dataclass(frozen=True, slots=True)
    class Plain:
        """Has defaults, methods and properties."""

        name: str
        count: int = 3
        labels: dict[str, str] = field(default_factory=dict)

        @property
        def double(self) -> int:
            return self.count * 2

        @classmethod
        def parse(cls, text: str) -> Any:
            return cls(text)

        def __str__(self) -> str:
            return f"<{self.name}>"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Keywords:
        count: int = 3
        name: str

    @dataclass(frozen=True, slots=True)
    class Mixed:
        name: str
        count: int = field(default=3, kw_only=True)
        secret: str = field(default="s", repr=False, compare=False)
        made: list[int] = field(default_factory=list, init=False)

    @dataclass(frozen=True, slots=True)
    class Checked:
        name: str

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("empty")

    @dataclass(frozen=True, slots=True)
    class OwnEquality:  # noqa: PLW1641  # the decorator adds it
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnEquality)

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True, slots=True)
    class Empty:
        """Has no fields."""

    @dataclass(frozen=True, slots=True)
    class Typed(Generic[T]):
        name: T

    @dataclass(frozen=True, slots=True)
    class WithConstant:
        name: str
        limit: ClassVar[int] = 7

    @dataclass(slots=True)
    class Mutable:
        name: str

    @dataclass(frozen=True, slots=True)
    class Derived(Plain):
        more: int = 1

    return {name: kind for name, kind in locals().items() if isinstance(kind, type)}


OURS, THEIRS = define(value_types.dataclass), define(dataclasses.dataclass)


def outcome(act: Callable[[], Any]) -> Any:
    """Return what a call returns, or class and text of what it raises."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001  # compared
        return type(error), str(error)


ACTS: dict[str, Callable[[Any], Any]] = {
    "positional": lambda kind: repr(kind("a")),
    "keyword": lambda kind: repr(kind(name="a")),
    "all": lambda kind: repr(kind("a", 5)),
    "none": lambda kind: repr(kind()),
    "unknown": lambda kind: repr(kind(name="a", other=1)),
    "empty text": lambda kind: repr(kind(name="")),
    "equal": lambda kind: (kind(name="a") == kind(name="a"), kind(name="a") == kind(name="b"), kind(name="a") == "a"),
    "hash": lambda kind: hash(kind(name="a")) == hash(kind(name="a")),
    "secret": lambda kind: kind(name="a") == kind(name="a", secret="t"),
    "set": lambda kind: setattr(kind(name="a"), "name", "b"),
    "delete": lambda kind: delattr(kind(name="a"), "name"),
    "replace": lambda kind: repr(replace(kind(name="a"), name="b")),
    "asdict": lambda kind: asdict(kind(name="a")),
    "copy": lambda kind: copy.deepcopy(kind(name="a")) == kind(name="a"),
    "text": lambda kind: str(kind(name="a")),
    "fields": lambda kind: [(one.name, one.type, one.init, one.repr, one.compare, one.kw_only) for one in fields(kind)],
    "match": lambda kind: kind.__match_args__,
    "slots": lambda kind: kind.__slots__,
    "dict": lambda kind: hasattr(kind(name="a"), "__dict__"),
    "is": lambda kind: (is_dataclass(kind), kind.__name__, kind.__qualname__, kind.__module__),
    "members": lambda kind: (kind.parse("x").double, kind("a").labels is kind("a").labels),
    "constant": lambda kind: kind.limit,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("name", OURS)
def test_class_behaves_as_that_of_the_standard_library(name: str, act: Callable[[Any], Any]) -> None:
    ours, theirs = (outcome(partial(act, kind)) for kind in (OURS[name], THEIRS[name]))
    assert ours == theirs


@value_types.dataclass(frozen=True, slots=True)
class Pickled:
    name: str
    values: tuple[int, ...] = ()


def test_value_survives_pickling_and_a_frozen_error_is_a_usual_one() -> None:
    value = Pickled("a", (1, 2))

    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301  # its own
    with pytest.raises(FrozenInstanceError):
        value.name = "b"  # type: ignore[misc]  # frozen
    match value:
        case Pickled(name, (1, second)):
            assert (name, second) == ("a", 2)
        case _:
            pytest.fail("no match")


def test_attribute_that_is_no_field_cannot_be_set() -> None:
    with pytest.raises(FrozenInstanceError):
        Pickled("a").another = 1  # type: ignore[attr-defined]  # there is none


def test_frozen_class_of_the_program_is_built_here_and_another_form_by_the_standard_library() -> None:
    assert NodeReference.__repr__.__code__.co_filename == value_types.__file__
    assert OURS["Mutable"].__repr__.__code__.co_filename != value_types.__file__
