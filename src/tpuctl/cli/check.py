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
    from datetime import timedelta

    from tpuctl.actions.checking.gate import Gate
    from tpuctl.cli.app import App
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.wanted import Wanted


@cli_command("check", asks_trust=False)
@click.argument("target", metavar="[NODE|TYPE|FILE]", required=False, shell_complete=complete_node)
@check_options
@click.option("--vm", metavar="NAME", help="Virtual machine that works beside the node.")
@click.option("--for", "purpose", type=click.Choice(["train", "serve"]), help="What for. [default: train]")
@click.option("--where", is_flag=True, help="Rank the zones that offer the type, even if a zone is set.")
@click.option("--all", "shows_all", is_flag=True, help="Show also what is ok.")
@click.option("--strict", is_flag=True, help="Fail also by warnings, and by what could not be read.")
@click.option("--fix", is_flag=True, help="Do what is safe to do, after showing it; never touches data.")
@yes_option
@click.option("--ai-platform", metavar="FILE", help="Read a job of AI Platform Training, and write its tpuctl.yaml.")
@click.option("--write", metavar="FILE", help="With --ai-platform: where to write it. [default: stdout]")
@spec_options
@reach_options
def command(app: App, **options: Any) -> int:  # click's options
    """Check that a TPU and all that it works with belong together, before money is spent.

    Where the buckets are and what reading them costs, who may read them, whether the zone has such a TPU and the project
    quota for it, network, firewall, disks, machines, APIs and policies. Nothing is created. Without a zone, the zones are
    ranked by how near they are to the buckets. `tpuctl up` does the same right before it creates something.

    \b
    Examples:
      tpuctl check v4-8 --zone us-central2-b --bucket gs://my-data
      tpuctl check v6e-8 --bucket gs://my-data          (where could it run?)
      tpuctl check trainer --checkpoint-bucket gs://my-checkpoints --fix
    """
    from tpuctl.preflight.wanted import Purpose  # noqa: PLC0415  # completion and --help need not wait for it

    if options["ai_platform"]:
        from tpuctl.cli.ai_platform import translate  # noqa: PLC0415  # rarely asked for

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
            raise InvalidInputError("`--fix` needs a zone: what it mends depends on it", hint="name one with `--zone`")
        from tpuctl.cli.check_zones import show_zones  # noqa: PLC0415  # see above

        return show_zones(app, checks, target)
    report, mended = _check(app, checks, target, options)
    if not checks.was_heard:
        hint = "check the network, the proxy and the endpoint"
        raise ServiceUnavailableError("nothing could be checked: the cloud did not answer", hint=hint)
    return ExitCode.CHECK_FAILED if report.fails(strict=options["strict"]) else mended


def _check(app: App, checks: Gate, wanted: Wanted, options: dict[str, Any]) -> tuple[Report, ExitCode]:
    """Check, show what was found, mend it where that was asked for; return what there is then, and how mending went."""
    from tpuctl.cli.check_waiting import sign_of_life  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above

    real = app.invocation.clock or SystemClock()
    began, looks = real.monotonic(), 0

    def look() -> Report:
        nonlocal began, looks
        if looks:
            # Something was mended since.
            checks.forget()
            began = real.monotonic()
        looks += 1
        with sign_of_life(app.terminal):
            return checks.report(wanted)

    def show(report: Report) -> None:
        _show(app, report, wanted, options, elapsed=real.monotonic() - began)

    if options["fix"]:
        from tpuctl.cli.check_fix import look_and_mend  # noqa: PLC0415  # rarely asked for

        return look_and_mend(app, look, show, yes=options["yes"], form=app.format)
    report = look()
    show(report)
    return report, ExitCode.OK


def _show(app: App, report: Report, wanted: Wanted, options: dict[str, Any], *, elapsed: timedelta) -> None:
    from tpuctl.output.findings import show_findings  # noqa: PLC0415  # completion and --help need not wait for it

    show_findings(
        app.terminal,
        app.as_typed(report),
        app.format,
        wanted=wanted,
        elapsed=elapsed,
        verbose=options["shows_all"] or app.is_verbose,
        can_fix=not options["fix"],
        sandbox=app.is_sandbox,
    )
