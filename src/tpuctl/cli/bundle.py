"""`tpuctl bundle`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import FORMATS, Duration, cli_command, node_argument, worker_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.cli.usage import WrongWordError
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from tpuctl.cli.app import App

_TIMEOUT = timedelta(minutes=2)
_SIZE = "100M"
_LEAST = 2_000_000
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".gz", ".zip")


class _Format(click.Choice[str]):
    """A format of what is shown. Elsewhere `--output` names a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format; for a file say which option names it."""
        if (
            isinstance(value, str)
            and value not in FORMATS
            and (value.endswith(_ARCHIVES) or "/" in value or value == "-")
        ):
            raise WrongWordError(
                f"`{value}` is a file, and `--output` is the format of what is shown",
                hint=f"write `--file {value}`",
                ctx=ctx or click.get_current_context(),
            )
        return super().convert(value, param, ctx)


@cli_command("bundle")
@node_argument
@click.option(
    "--file",
    "place",
    metavar="FILE",
    help="Where to; - is stdout. [default: tpuctl-bundle-NODE-TIME.tar.gz in the working directory]",
)
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
@worker_option
@click.option("--no-workers", is_flag=True, help="Ask no worker: only what the API, the journal and this machine tell.")
@click.option("--since", type=Duration(), metavar="TIME", help="Of logs only what was written in the last 90m, 2h, …")
@click.option(
    "--max-size",
    metavar="SIZE",
    default=_SIZE,
    show_default=True,
    help="Of all files together, before they are packed.",
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="How long all of it may take. [default: 2m]")
@click.option(
    "--redact-accounts", is_flag=True, help="Hide e-mail and IP addresses too, each by the same word everywhere."
)
@reach_options
def command(
    app: App,
    *,
    node: str,
    place: str | None,
    force: bool,
    worker: str,
    no_workers: bool,
    since: timedelta | str | None,
    max_size: str,
    timeout: timedelta | str | None,
    redact_accounts: bool,
) -> None:
    """Gather what support would ask for into one .tar.gz file, and say what tpuctl makes of it.

    The node, its operations and queued resource, the journal, settings, what `tpuctl doctor` finds; of each worker libtpu's
    logs, jobs, processes, kernel, disk and versions. Tokens, keys, passwords and metadata are taken out: look through it all
    the same before you hand it on. What could not be had is said, and is no failure. Nothing is changed, in the cloud or on
    workers.

    \b
    Examples:
      tpuctl bundle trainer
      tpuctl bundle trainer --worker 3 --since 2h --redact-accounts
      tpuctl bundle trainer --file - | ssh elsewhere 'cat > evidence.tar.gz'
    """
    from tpuctl.cli.bundling import Bundling, Choice  # noqa: PLC0415  # completion and --help need not wait for it

    if isinstance(timeout, str) or isinstance(since, str):
        raise InvalidInputError("`forever` would gather without an end", hint="give a time, like `5m`")
    choice = Choice(
        place=place,
        replaces=force,
        workers=None if no_workers else worker,
        since=since,
        room=_room(max_size),
        patience=_TIMEOUT if timeout is None else timeout,
        hides_accounts=redact_accounts,
    )
    Bundling(app, choice).run(node)


def _room(text: str) -> int:
    """Return how many bytes a bundle may hold. Raises `InvalidInputError`."""
    from tpuctl.settings.values import as_size  # noqa: PLC0415  # completion and --help need not wait for it

    try:
        room = as_size(text)
    except ValueError as error:
        raise InvalidInputError(f"`--max-size {text}`: {error}", hint="such as `200M`") from None
    if room < _LEAST:
        raise InvalidInputError("`--max-size` is too small for a bundle", hint="give at least `2M`")
    return room


for _option in command.params:
    if _option.name == "output":
        _option.type = _Format(FORMATS)
