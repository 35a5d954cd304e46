"""Names of other modules that are imported when they are used: the body of a command, a constant that only completion reads."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def load(place: str) -> Any:  # what has this name
    """Import and return what is at `MODULE:NAME`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def constant_in(place: str) -> Callable[..., Any]:
    """Return a function that returns the constant at `MODULE:NAME`, whatever its arguments."""
    return lambda *_: load(place)


def body_in(place: str) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Let the function at `MODULE:NAME` do what a command declares, so that help and completion do not import it.

    The function gets what the command would get.
    """

    def decorate(declaration: Callable[[], None]) -> Callable[..., Any]:
        @wraps(declaration)
        def call(*arguments: Any, **values: Any) -> Any:  # click's
            return load(place)(*arguments, **values)

        return call

    return decorate
