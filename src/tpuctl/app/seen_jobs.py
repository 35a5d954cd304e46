"""The names of jobs that this machine has started or listed, for completion: the jobs themselves are on the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from tpuctl.app.state_paths import state_folder
from tpuctl.decoding import Text
from tpuctl.files import read_json_cache, write_json_cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tpuctl.names import NodeName

_Jobs = tuple[Annotated[str, Text(pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")], ...]
_MOST_NODES: Final = 100
_MOST_JOBS: Final = 50


def seen_jobs(environ: Mapping[str, str], nodes: Iterable[str] | None = None) -> list[str]:
    """Return the names of jobs on nodes of these names (None: on all), of each node the newest first."""
    wanted = None if nodes is None else {name.rpartition("/")[2] for name in nodes}
    found = read_json_cache(_file(environ), _Jobs)
    of_nodes = (jobs for node, jobs in found.items() if wanted is None or node.rpartition("/")[2] in wanted)
    return list(dict.fromkeys(job for jobs in of_nodes for job in jobs))


def note_seen_jobs(
    environ: Mapping[str, str], nodes: Iterable[NodeName], jobs: Sequence[str], *, replace: bool = False
) -> None:
    """Remember that these nodes have these jobs, the newest first; with `replace` no others."""
    before = read_json_cache(_file(environ), _Jobs)
    found = dict(before)
    for node in map(str, nodes):
        known = found.pop(node, ())
        # The nodes of the last note come last: the first ones are dropped.
        found[node] = tuple(dict.fromkeys([*jobs, *(() if replace else known)]))[:_MOST_JOBS]
    found = dict(list(found.items())[-_MOST_NODES:])
    if found != before:
        write_json_cache(_file(environ), found)


def _file(environ: Mapping[str, str]) -> Path:
    return state_folder(environ) / "seen-jobs.json"
