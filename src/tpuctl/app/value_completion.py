"""Completion of values in a shell: from tpuctl's own data, and the nodes, jobs and labels of past commands. Sends no request.

A completer is a click `shell_complete`. A value that goes on ends with `=`, `/`, `:` or `,`: the shell adds no space then.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.app.app import ANY_ZONE, App
from tpuctl.app.lazy_import import constant_in
from tpuctl.app.state_paths import journal_folders
from tpuctl.names import is_node_name
from tpuctl.output.tables import ALL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    import click
    from click.shell_completion import CompletionItem

    from tpuctl.names import NodeName
    from tpuctl.nodes.journal import Journal
    from tpuctl.output.column_widths import Column


# Commands that are also of use for a node that is gone.
_OF_PAST_NODES = frozenset({"history", "up", "create", "bundle"})
# The journals of more nodes are not read while a user waits.
_MOST_JOURNALS = 50


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001  # click's own signature
    """Complete a node's name, or `ZONE/NAME`, from the journals; without those that are given, or that tpuctl saw gone."""
    given = {*_given_words(ctx)}
    found = []
    for name, journal in _journals(ctx):
        word = f"{name.zone}/{name.node_id}" if "/" in incomplete else name.node_id
        is_given = not given.isdisjoint((name.node_id, f"{name.zone}/{name.node_id}"))
        if word.startswith(incomplete) and not is_given and is_node_name(name):
            found.append((word, name, journal))
    if ctx.info_name not in _OF_PAST_NODES and len(found) <= _MOST_JOURNALS:
        found = [(word, name, journal) for word, name, journal in found if journal.past(name).may_have_node]
    zones: dict[str, set[str]] = {}
    for word, name, _ in found:
        zones.setdefault(word, set()).add(name.zone)
    return [completion_item(word, help=f"node in {', '.join(sorted(zones[word]))}") for word in sorted(zones)]


def completion_item(word: str, *, kind: str = "plain", help: str | None = None) -> CompletionItem:  # noqa: A002  # click's
    """Return an item of a completer: a word with its `help`, or what the shell completes itself: a `file`, a `dir`."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only for completion

    return CompletionItem(word, kind, help)


def _given_words(ctx: click.Context) -> tuple[str, ...]:
    """Return the nodes and jobs before the cursor."""
    return tuple(ctx.params.get("words") or ctx.params.get("nodes") or ())


def complete_node_and_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `NODE... [JOB]`: first a node; then a job of the nodes that were given, else another node."""
    jobs = complete_job(ctx, param, incomplete) if ctx.params.get("words") else []
    return jobs or complete_node(ctx, param, incomplete)


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001  # click's own signature
    """Complete a job that this machine has started or listed: of the nodes that were given, else of all."""
    from tpuctl.app.seen_jobs import seen_jobs  # noqa: PLC0415  # only for completion

    given = _given_words(ctx)
    # click does not parse the nodes before an option that has no value yet: `jobs NODE --remove `.
    jobs = seen_jobs(_environ(ctx), given or None)
    text = f"job of {' '.join(given)}" if given else "job"
    return [completion_item(job, help=text) for job in jobs if job.startswith(incomplete) and job not in given]


def complete_label(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    """Complete `KEY=VALUE` with the labels that past commands gave to nodes: first the key, then the value."""
    before, comma, last = incomplete.rpartition(",")
    labels: dict[str, None] = {}
    for name, journal in list(_journals(ctx))[:_MOST_JOURNALS]:
        spec = journal.past(name).spec
        for key, value in sorted((spec.labels or {}).items()) if spec else ():
            labels[f"{key}={value}" if "=" in last else f"{key}="] = None
    return [f"{before}{comma}{label}" for label in labels if label.startswith(last)]


def complete_project(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    """Complete the projects of past nodes."""
    return sorted({name.project for name, _ in _journals(ctx) if name.project.startswith(incomplete)})


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001  # click's own signature
    """Let the shell complete a local file."""
    return [completion_item(incomplete, kind="file")]


def complete_folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001  # click's own signature
    """Let the shell complete a local folder."""
    return [completion_item(incomplete, kind="dir")]


def complete_type_or_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an accelerator type, or the file that describes a node."""
    types = (completion_item(word) for word in _types(ctx) if word.startswith(incomplete))
    return [*types, *complete_file(ctx, param, incomplete)]


def complete_values(
    values: Callable[[click.Context], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completer of these values, also of several that commas separate."""
    return partial(_complete_last, values)


def complete_columns(
    columns: Callable[[], Iterable[Column]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completer of the columns of a table, for `--columns` and `--sort`."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        every = [ALL_COLUMNS] if param.name == "columns" else []
        return _complete_last(lambda _: [*(column.name for column in columns()), *every], ctx, param, incomplete)

    return complete


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


def _accelerators() -> ModuleType:
    from tpuctl import accelerators  # noqa: PLC0415  # only for completion

    return accelerators


def _types(ctx: click.Context) -> list[str]:  # noqa: ARG001  # as `_zones`
    generations = _accelerators().load_accelerators().generations.values()
    sizes = [(generation, size) for generation in generations for size in generation.sizes]
    names = [generation.type_of(size) for generation, size in sizes]
    # The short names of some generations are accepted too: `v5e-16` is `v5litepod-16`.
    return [*names, *(f"{one.name}-{size}" for one, size in sizes if one.name != one.prefix)]


def _zones(ctx: click.Context) -> list[str]:
    """Return the zones of past nodes, and the documented zones of the type before the cursor, else of all."""
    kind = _accelerators().find_accelerator_type(ctx.params.get("type"))
    past = {name.zone for name, _ in _journals(ctx)}
    return [*sorted(past | {*_accelerators().documented_zones(kind)}), ANY_ZONE]


def _versions(ctx: click.Context) -> list[str]:  # noqa: ARG001  # as `_zones`
    """Return the default runtime versions of the generations."""
    return sorted({each.runtime_version for each in _accelerators().load_accelerators().generations.values()})


complete_type, complete_zone, complete_version = map(complete_values, (_types, _zones, _versions))
complete_tier = complete_values(constant_in("tpuctl.models.node:Tier"))
complete_state = complete_values(constant_in("tpuctl.nodes.selection:STATES"))


def _environ(ctx: click.Context) -> Mapping[str, str]:
    app = ctx.find_object(App)
    return app.invocation.environ if app else os.environ


def _journals(ctx: click.Context) -> Iterator[tuple[NodeName, Journal]]:
    """Yield the nodes of past commands, in the cloud and in the sandbox, with the journals that have them."""
    from tpuctl.nodes.journal import Journal  # noqa: PLC0415  # only for completion

    for folder in journal_folders(_environ(ctx)):
        journal = Journal(folder)
        for name in journal.names():
            yield name, journal
