"""The options that every command has that changes nodes: how it asks, waits and shows what it does."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

from tpuctl.app.options import dry_run_option, events_option, timeout_option, yes_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """The options as given; a command without one of them has its default."""

    dry_run: bool = False
    yes: bool = False
    timeout: timedelta | str | None = None
    wait: bool = True
    events: str | None = None
    skip_validation: bool = False
    force_lease: bool = False
    all_nodes: bool = False
    if_idle: bool = False


def change_options(*own: Decorator, asks: Decorator | None = yes_option) -> Decorator:
    """Add `--timeout`, `--events`, `--dry-run`, `--yes` and `own` options. The command gets them as one value, `options`.

    `asks` is the option `--yes`; None for a command that never asks.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:  # click's
            given = {each.name: values.pop(each.name) for each in fields(ChangeOptions) if each.name in values}
            return function(*arguments, **values, options=ChangeOptions(**given))

        added: tuple[Decorator, ...] = (timeout_option, *own, events_option, dry_run_option, *([asks] if asks else []))
        decorated: Callable[..., Any] = call
        for add in reversed(added):
            decorated = add(decorated)
        return decorated

    return decorate
