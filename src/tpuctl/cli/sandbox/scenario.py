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
    """Plan what a YAML file tells: what goes wrong when, counted from now in the sandbox's time. Nothing needs to keep running.

    Each step has `at:` and one of `fault:`, `preempt:`, `seed:`, `stockout:`, `end-stockouts:`, `remove-fault:`. What is still
    to come is shown by `tpuctl sandbox status`, what has happened by `tpuctl sandbox log`.

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
    for line in lines or ["nothing will happen"]:
        app.terminal.note(line)
