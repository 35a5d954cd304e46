"""`tpuctl sandbox scenario`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.cli.sandbox.seed import read_source

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("scenario", asks_trust=False, without=(*OF_THE_CLOUD, "output"))
@click.argument("file", metavar="FILE")
def command(app: App, *, file: str) -> None:
    """Plan the events of a YAML file, counted from now in sandbox time. No process needs to keep running.

    Each step has `at:` and one of `fault:`, `preempt:`, `seed:`, `stockout:`, `end-stockouts:`, `remove-fault:`.
    `tpuctl sandbox status` shows planned events, `tpuctl sandbox log` past ones.

    \b
    Examples:
      tpuctl sandbox scenario examples/scenarios/preemption-at-night.yaml
    """
    from tpuctl.sandbox import forecast, scenarios  # noqa: PLC0415  # only for the sandbox

    source, text = read_source(app, file)
    scenario = scenarios.read(text, source)
    begin = scenarios.play(app.world, scenario)
    lines = [scenario.description] if scenario.description else []
    speed = app.world.speed
    lines += [f"{forecast.when(begin + step.at, begin, speed)}: {step.text}" for step in scenario.steps]
    for line in lines or [f"{source} has no steps"]:
        app.terminal.note(line)
