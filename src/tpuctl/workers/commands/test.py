"""`tpuctl test`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, cli_command, fanout_option, node_argument, worker_option
from tpuctl.app.route_options import route_options
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import WorkerSet

if TYPE_CHECKING:
    from tpuctl.app.app import App

# The shell of the worker expands `~`.
_PATH = re.compile(r"[\w./~+-]+", re.ASCII)


@cli_command("test")
@node_argument
@worker_option
@grouped_option(
    "--timeout",
    group=OptionGroup.WAITING,
    type=DurationType(),
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Time limit of the whole test: 90s, 10m.",
)
@grouped_option(
    "--python",
    group=OptionGroup.PROGRAM,
    metavar="PATH",
    default="python3",
    show_default=True,
    help="Python on the workers that has JAX or PyTorch/XLA, as ~/venv/bin/python3.",
)
@grouped_option("--force", group=OptionGroup.SAFETY, is_flag=True, help="Test although another process holds the TPU.")
@fanout_option("tests")
@route_options
def command(
    app: App, *, node: str, worker: str, timeout: timedelta | str, python: str, force: bool, fanout: int
) -> int:
    """Test the chips of all workers: their number, a matrix product on each, an all-reduce over all.

    It uses JAX or PyTorch/XLA, whichever the workers have. A chip falls short below 80 % of the median of all chips, or if its
    result is wrong. With --worker each of these workers is tested alone. Exit codes: 0 all is good, 10 a worker falls
    short, 11 the test failed, 5 it did not end in time, 8 another process holds the TPU.

    \b
    Examples:
      tpuctl test trainer
      tpuctl test trainer --worker 3 --python ~/venv/bin/python3
      tpuctl test trainer -o json --timeout 10m
    """
    from tpuctl.workers.commands.node_selection import find_nodes  # noqa: PLC0415  # as above
    from tpuctl.workers.node_test import check_tpu_is_free, run_node_test, show_node_test  # noqa: PLC0415  # not for --help
    from tpuctl.workers.targets import await_key, find_targets  # noqa: PLC0415  # as above

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
    check_tpu_is_free(app, targets, force=force)
    return show_node_test(app, run_node_test(app, found, targets, python=python, timeout=timeout, fanout=fanout))
