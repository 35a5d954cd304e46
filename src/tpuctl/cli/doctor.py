"""`tpuctl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import Duration, cli_command, complete_node, yes_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import ExitCode

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.cli.doctor_looking import Visit
    from tpuctl.preflight.evaluation import Report


@cli_command("doctor", asks_trust=False)
@click.argument("node", metavar="[NODE]", required=False, shell_complete=complete_node)
@click.option(
    "--skip", "skipped", metavar="ID", multiple=True, help="Findings that are known, like TPU911,TPU923, or all."
)
@click.option("--all", "shows_all", is_flag=True, help="Show also what is ok.")
@click.option("--strict", is_flag=True, help="Fail also by warnings, and by what could not be looked at.")
@click.option("--fix", is_flag=True, help="Do what is safe to do, after showing it; removes nothing.")
@yes_option
@click.option("--timeout", type=Duration(), metavar="TIME", help="How long it may take to be answered. [default: 4s]")
@reach_options
def command(app: App, **options: Any) -> int:  # click's options
    """Look for what is wrong: on this machine, with the account, on the way to the cloud, and in the project.

    Python and tpuctl, gcloud, ssh and its key, folders and disk, clock, proxy and names, credentials, APIs, billing and
    permissions, settings and where they come from. With a NODE also the node and each of its workers. It needs neither a
    network nor an account, and says what it could not look at.

    \b
    Examples:
      tpuctl doctor
      tpuctl doctor trainer
      tpuctl doctor --fix
    """
    from tpuctl.cli.doctor_looking import Visit  # noqa: PLC0415  # completion and --help need not wait for it

    visit = Visit(app, options)
    report, mended = _visit(app, visit, options)
    if visit.failure is not None:
        raise visit.failure
    return ExitCode.CHECK_FAILED if report.fails(strict=options["strict"]) else mended


def _visit(app: App, visit: Visit, options: dict[str, Any]) -> tuple[Report, ExitCode]:
    if options["fix"]:
        from tpuctl.cli.check_fix import look_and_mend  # noqa: PLC0415  # rarely asked for

        return look_and_mend(app, visit.look, visit.show, yes=options["yes"], form=visit.form)
    report = visit.look()
    visit.show(report)
    return report, ExitCode.OK
