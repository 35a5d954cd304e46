"""`tpuctl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, cli_command, yes_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_node, complete_values
from tpuctl.errors import ExitCode

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App


def _rule_ids(_ctx: click.Context) -> tuple[str, ...]:
    from tpuctl.doctor.rule_catalogue import DOCTOR_RULE_IDS  # noqa: PLC0415  # only for completion

    return (*DOCTOR_RULE_IDS, "all")


@cli_command("doctor", asks_trust=False)
@click.argument("nodes", metavar="[NODE]...", nargs=-1, shell_complete=complete_node)
@grouped_option(
    "--skip",
    "skipped",
    group=OptionGroup.CHECKS,
    metavar="ID",
    multiple=True,
    shell_complete=complete_values(_rule_ids),
    help="Ids of findings to accept (TPU911,TPU923), or all.",
)
@grouped_option(
    "--all", "shows_all", group=OptionGroup.OUTPUT, is_flag=True, help="Also name the checks that were run."
)
@grouped_option(
    "--strict", group=OptionGroup.CHECKS, is_flag=True, help="Fail also on warnings and on checks without a result."
)
@grouped_option(
    "--fix", group=OptionGroup.SAFETY, is_flag=True, help="Apply safe fixes, after confirmation. Nothing is removed."
)
@yes_option
@grouped_option(
    "--timeout",
    group=OptionGroup.WAITING,
    type=DurationType(),
    metavar="TIME",
    help="Time limit for all checks, and for each worker. [default: 4s; each worker: 30s]",
)
@route_options
def command(
    app: App,
    nodes: tuple[str, ...],
    *,
    skipped: tuple[str, ...],
    shows_all: bool,
    strict: bool,
    fix: bool,
    yes: bool,
    timeout: timedelta | None,
) -> int:
    """Find problems with this machine, the credentials, the network and the project.

    Checks Python and tpuctl, gcloud, ssh and its key, folders and disk, clock, proxy and host names, credentials, APIs,
    billing and permissions, and the sources of settings. With NODE also the node, like `tpuctl check NODE`, each of its
    workers, and the ports between them, also between the workers of several nodes. Works without a network
    and without an account, and lists what it could not check.

    \b
    Examples:
      tpuctl doctor
      tpuctl doctor trainer
      tpuctl doctor slice-0 slice-1
      tpuctl doctor --fix
    """
    from tpuctl.check.report_rendering import announce_findings  # noqa: PLC0415  # completion and --help do not need it
    from tpuctl.doctor.doctor_run import DoctorRun  # noqa: PLC0415  # completion and --help do not need it

    run = DoctorRun(app, nodes, accepted=skipped, timeout=timeout, shows_all=shows_all, can_fix=not fix)
    fix_code = ExitCode.OK
    if fix:
        from tpuctl.check.fixes import check_and_fix  # noqa: PLC0415  # rarely used

        report, fix_code = check_and_fix(app, run.check, run.show, yes=yes, form=run.format)
    else:
        report = run.check()
        run.show(report)
    announce_findings(app, report)
    if run.failure is not None:
        raise run.failure
    return ExitCode.CHECK_FAILED if report.fails(strict=strict) else fix_code
