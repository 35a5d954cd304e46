"""The body of `tpuctl test`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.models.node import WorkerSet
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.node_test import check_tpu_is_free, run_node_test, show_node_test
from tpuctl.workers.targets import await_key, find_targets

if TYPE_CHECKING:
    from tpuctl.app.app import App


# The shell of the worker expands `~`.
_PATH = re.compile(r"[\w./~+-]+", re.ASCII)


def run_test(
    app: App, *, node: str, worker: str, timeout: timedelta | str, python: str, force: bool, fanout: int
) -> int:
    """Test the chips of all workers: their number, a matrix product on each, an all-reduce over all."""
    if isinstance(timeout, str):
        raise InvalidInputError(
            "`--timeout forever` would wait for a chip that hangs", hint="give a time, such as `10m`"
        )
    if not _PATH.fullmatch(python):
        raise InvalidInputError(
            f"`--python` names a program, and `{python}` is not a path",
            hint="give its path: `--python ~/venv/bin/python3`",
        )
    (found,) = find_nodes(app, [node])
    targets = find_targets(app, [found], WorkerSet.parse(worker))
    await_key(app, targets)
    if not force:
        check_tpu_is_free(targets)
    return show_node_test(app, run_node_test(app, found, targets, python=python, timeout=timeout, fanout=fanout))
