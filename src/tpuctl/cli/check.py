"""`tpuctl check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.check_options import check_options, gate, take_checks
from tpuctl.cli.options import cli_command, complete_node, yes_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.cli.spec import spec_options
from tpuctl.errors import ExitCode, InvalidInputError, ServiceUnavailableError

if TYPE_CHECKING:
    from tpuctl.actions.checking.gate import Gate
    from tpuctl.cli.app import App
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.wanted import Wanted


@cli_command("check", asks_trust=False)
@click.argument("target", metavar="[NODE|TYPE|FILE]", required=False, shell_complete=complete_node)
@check_options
@click.option("--vm", metavar="NAME", help="Name of a virtual machine that works with the node.")
@click.option("--for", "purpose", type=click.Choice(["train", "serve"]), help="Purpose of the node. [default: train]")
@click.option("--where", is_flag=True, help="Rank the zones that offer the type, even if a zone is set.")
@click.option("--all", "shows_all", is_flag=True, help="Also show checks that are ok.")
@click.option("--strict", is_flag=True, help="Also fail on warnings and on values that could not be read.")
@click.option("--fix", is_flag=True, help="Apply safe fixes after confirmation; never touches data.")
@yes_option
@click.option("--ai-platform", metavar="FILE", help="Job file of AI Platform Training to convert to a tpuctl.yaml.")
@click.option("--write", metavar="FILE", help="Output file for --ai-platform. [default: stdout]")
@spec_options
@reach_options
def command(app: App, **options: Any) -> int:  # click's options
    """Check that a TPU works with its buckets, network and quota, before money is spent.

    Checks the location of the buckets and the cost of reading them, IAM access, the zone's offers, quota, network, firewall,
    disks, machines, APIs and policies. Nothing is created. Without a zone, it ranks the zones by their distance to the
    buckets. `tpuctl up` runs the same checks right before it creates a node.

    \b
    Examples:
      tpuctl check v4-8 --zone us-central2-b --bucket gs://my-data
      tpuctl check v6e-8 --bucket gs://my-data          (where could it run?)
      tpuctl check trainer --checkpoint-bucket gs://my-checkpoints --fix
    """
    from tpuctl.preflight.wanted import Purpose  # noqa: PLC0415  # completion and --help need not wait for it

    if options["ai_platform"]:
        from tpuctl.cli.ai_platform import translate  # noqa: PLC0415  # rarely needed

        return translate(
            app, options["ai_platform"], **{name: options[name] for name in ("write", "yes", "strict", "skip_checks")}
        )
    from tpuctl.cli.check_target import Somewhere, find_target, use_file  # noqa: PLC0415  # see above

    purpose = Purpose(options["purpose"]) if options["purpose"] else None
    use_file(app, options)
    checks = gate(app, take_checks(options), purpose=purpose, machine=options["vm"])
    target = find_target(app, checks, options)
    if isinstance(target, Somewhere):
        if options["fix"]:
            raise InvalidInputError("`--fix` needs a zone, as the fixes depend on it", hint="name one with `--zone`")
        from tpuctl.cli.check_zones import show_zones  # noqa: PLC0415  # see above

        return show_zones(app, checks, target)
    report, fix_code = _check(app, checks, target, options)
    if not checks.has_answer:
        hint = "check the network, the proxy and the endpoint"
        raise ServiceUnavailableError("nothing could be checked: the cloud did not answer", hint=hint)
    return ExitCode.CHECK_FAILED if report.fails(strict=options["strict"]) else fix_code


def _check(app: App, checks: Gate, wanted: Wanted, options: dict[str, Any]) -> tuple[Report, ExitCode]:
    """Check, show the report, apply fixes if requested. Return the last report and the exit code of the fixes."""
    from tpuctl.cli.check_waiting import sign_of_life  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.output.findings import show_findings  # noqa: PLC0415  # as above

    real = app.invocation.clock or SystemClock()
    began, runs = real.monotonic(), 0

    def check() -> Report:
        nonlocal began, runs
        if runs:
            # A fix was applied since.
            checks.discard_answers()
            began = real.monotonic()
        runs += 1
        with sign_of_life(app.terminal):
            return checks.report(wanted)

    def show(report: Report) -> None:
        show_findings(
            app.terminal,
            app.as_typed(report),
            app.format,
            wanted=wanted,
            elapsed=real.monotonic() - began,
            verbose=options["shows_all"] or app.is_verbose,
            can_fix=not options["fix"],
            sandbox=app.is_sandbox,
        )

    if options["fix"]:
        from tpuctl.cli.check_fix import look_and_mend  # noqa: PLC0415  # rarely needed

        return look_and_mend(app, check, show, yes=options["yes"], form=app.format)
    report = check()
    show(report)
    return report, ExitCode.OK
