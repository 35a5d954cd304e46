"""`tpuctl test`."""

from __future__ import annotations

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, cli_command, fanout_option, node_argument, worker_option
from tpuctl.app.route_options import route_options


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
@body_in("tpuctl.workers.commands.tpu_test_run:run_test")
def command() -> None:
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
