"""Completion of values in a shell: from tpuctl's own data and the journals of past commands, without a request."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.app.app import ANY_ZONE, journal_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import click

    from tpuctl.names import NodeName


# Commands that are also of use for a node that is gone.
_OF_PAST_NODES = frozenset({"history", "up", "create", "bundle"})
# The journals of more nodes are not read while a user waits.
_MOST_JOURNALS = 50


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    """Complete a node's name, or `ZONE/NAME`, from the journals; without the nodes that tpuctl saw gone where it needs one."""
    from tpuctl.nodes.journal import Journal  # noqa: PLC0415  # only for completion
    from tpuctl.nodes.journal_entries import may_have_node  # noqa: PLC0415  # as above

    found = []
    for folder in journal_folders(os.environ):
        journal = Journal(folder)
        for name in journal.names():
            word = f"{name.zone}/{name.node_id}" if "/" in incomplete else name.node_id
            # A name with a newline would become two suggestions.
            if word.startswith(incomplete) and word.isprintable():
                found.append((word, name, journal))
    if ctx.info_name not in _OF_PAST_NODES and len(found) <= _MOST_JOURNALS:
        found = [
            (word, name, journal) for word, name, journal in found if may_have_node(journal.entries(name), name.zone)
        ]
    return sorted({word for word, _, _ in found})


def _complete_last(
    values: Callable[[click.Context], Iterable[str]],
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001  # click's own signature
    incomplete: str,
) -> list[str]:
    """Complete the last of values that commas separate; a value that is already there is not offered again."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{value}" for value in values(ctx) if value.startswith(last) and value not in given]


def _types(ctx: click.Context) -> list[str]:  # noqa: ARG001  # as `_zones`
    from tpuctl.accelerators import load_accelerators  # noqa: PLC0415  # yaml, only for completion

    generations = load_accelerators().generations.values()
    sizes = [(generation, size) for generation in generations for size in generation.sizes]
    names = [generation.type_of(size) for generation, size in sizes]
    # The short names of some generations are accepted too: `v5e-16` is `v5litepod-16`.
    return [*names, *(f"{one.name}-{size}" for one, size in sizes if one.name != one.prefix)]


def _zones(ctx: click.Context) -> list[str]:
    """Return the zones of past nodes, and the documented zones of the type before the cursor, else of all."""
    from tpuctl.accelerators import documented_zones, find_accelerator_type  # noqa: PLC0415  # as above

    kind = find_accelerator_type(ctx.params.get("type"))
    past = {name.zone for name in _journal_names() if name.zone.isprintable()}
    return [*sorted(past | {*documented_zones(kind)}), ANY_ZONE]


def _tiers(ctx: click.Context) -> Iterator[str]:  # noqa: ARG001  # as `_zones`
    from tpuctl.models.node import Tier  # noqa: PLC0415  # only for completion

    return map(str, Tier)


def _versions(ctx: click.Context) -> list[str]:  # noqa: ARG001  # as `_zones`
    """Return the default runtime versions of the generations."""
    from tpuctl.accelerators import load_accelerators  # noqa: PLC0415  # as above

    return sorted({generation.runtime_version for generation in load_accelerators().generations.values()})


def _faults(ctx: click.Context) -> Iterator[str]:  # noqa: ARG001  # as `_zones`
    from tpuctl.sandbox.faults import FaultKind  # noqa: PLC0415  # only for completion

    return map(str, FaultKind)


def _states(ctx: click.Context) -> tuple[str, ...]:  # noqa: ARG001  # as `_zones`
    from tpuctl.nodes.selection import STATES  # noqa: PLC0415  # only for completion

    return STATES


complete_type, complete_zone, complete_tier, complete_state, complete_version, complete_fault = (
    partial(_complete_last, values) for values in (_types, _zones, _tiers, _states, _versions, _faults)
)


def _journal_names() -> Iterator[NodeName]:
    from tpuctl.nodes.journal import Journal  # noqa: PLC0415  # only for completion

    return (name for folder in journal_folders(os.environ) for name in Journal(folder).names())
