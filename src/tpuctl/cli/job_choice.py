"""Which workers and which job `logs`, `attach` and `kill` are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import complete_node, selector_option, worker_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import InvalidInputError, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.cli.app import App
    from tpuctl.errors import TpuctlError
    from tpuctl.remote.jobs.asking import Workers


@dataclass(frozen=True, slots=True)
class Choice:
    """The workers that are asked, the job that was named, if one was, and the nodes as a command line has them."""

    workers: Workers
    job: str | None
    nodes: str


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `NODE... [JOB]`, `-l` and `--worker`."""
    function = worker_options(function)
    return click.argument("words", metavar="NODE... [JOB]", nargs=-1, shell_complete=complete_node)(function)


def worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-l`, `--worker` and the ways to workers."""
    return selector_option(worker_option(reach_options(function)))


def chosen(app: App, words: Sequence[str], selector: Sequence[str], worker: str) -> Choice:
    """Return what is meant: of several words the last is the job; with `-l` the only one is.

    Raises `InvalidInputError`, and what `members` raises.
    """
    from tpuctl.remote.jobs.values import check_job_name  # noqa: PLC0415  # completion and --help need not wait for it

    has_job = len(words) > (0 if selector else 1)
    nodes, job = (words[:-1], words[-1]) if has_job else (words, None)
    if not nodes and not selector:
        raise InvalidInputError("which node?", hint="name it, or use `-l KEY=VALUE`; after it may stand a job")
    if job is not None:
        check_job_name(job)
    return ask(app, nodes, selector, worker, job=job)


def ask(app: App, nodes: Sequence[str], selector: Sequence[str], worker: str, *, job: str | None = None) -> Choice:
    """Return the workers of these nodes. Raises what `members` raises."""
    from tpuctl.cli.keeping import keeping  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above
    from tpuctl.remote.jobs.asking import Workers  # noqa: PLC0415  # as above

    meant = WorkerSet.parse(worker)
    found = members(app, find_nodes(app, nodes, selector), meant)
    await_key(app, found)
    return Choice(
        Workers(found, keeping(app), SystemClock()), job, " ".join([*nodes, *(f"-l {one}" for one in selector)])
    )


def tell_errors(app: App, errors: Sequence[TpuctlError]) -> int:
    """Show errors, and return the exit code of the whole."""
    for error in errors:
        app.show_error(error)
    return worst(error.exit_code for error in errors)
