"""The workers and the job that `jobs`, `logs`, `attach` and `kill` act on."""

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
    """The workers to ask, the job named by the user, if any, and the nodes as written on a command line."""

    workers: Workers
    job: str | None
    nodes: str


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `NODE... [JOB]`, `-l`, `--worker` and the routes to workers."""
    function = worker_options(function)
    return click.argument("words", metavar="NODE... [JOB]", nargs=-1, shell_complete=complete_node)(function)


def worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-l`, `--worker` and the routes to workers."""
    return selector_option(worker_option(reach_options(function)))


def chosen(app: App, words: Sequence[str], selector: Sequence[str], worker: str) -> Choice:
    """Return the workers and the job: the last of several words is the job, with `-l` also a single one.

    Raises `InvalidInputError`, and the errors of `members`.
    """
    from tpuctl.remote.jobs.values import check_job_name  # noqa: PLC0415  # completion and --help need not wait for it

    has_job = len(words) > (0 if selector else 1)
    nodes, job = (words[:-1], words[-1]) if has_job else (words, None)
    if not nodes and not selector:
        raise InvalidInputError("no node given", hint="name one, or use `-l KEY=VALUE`; a job may follow")
    if job is not None:
        check_job_name(job)
    return ask(app, nodes, selector, worker, job=job)


def ask(app: App, nodes: Sequence[str], selector: Sequence[str], worker: str, *, job: str | None = None) -> Choice:
    """Return the workers of these nodes. Raises the errors of `members`."""
    from tpuctl.cli.keeping import keeping  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above
    from tpuctl.remote.jobs.asking import Workers  # noqa: PLC0415  # as above

    numbers = WorkerSet.parse(worker)
    found = members(app, find_nodes(app, nodes, selector), numbers)
    await_key(app, found)
    return Choice(
        Workers(found, keeping(app), SystemClock()), job, " ".join([*nodes, *(f"-l {one}" for one in selector)])
    )


def tell_errors(app: App, errors: Sequence[TpuctlError]) -> int:
    """Show errors, and return the worst of their exit codes."""
    for error in errors:
        app.show_error(error)
    return worst(error.exit_code for error in errors)
