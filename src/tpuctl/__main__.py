"""Run the command line with `python -m tpuctl`."""

from tpuctl.cli.main import entry_point

entry_point()
