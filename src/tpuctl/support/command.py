"""`tpuctl bundle`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, cli_command, node_argument, worker_option
from tpuctl.app.route_options import route_options
from tpuctl.config.settings import as_size
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from tpuctl.app.app import App

_TIMEOUT = timedelta(minutes=2)
_DEFAULT_MAX_SIZE = "100M"
_MIN_SIZE = 2_000_000


@cli_command("bundle")
@node_argument
@grouped_option(
    "--file",
    "file",
    group=OptionGroup.FILES,
    metavar="FILE",
    help="File to write; - is stdout. [default: tpuctl-bundle-NODE-TIME.tar.gz in the working directory]",
)
@grouped_option("--force", group=OptionGroup.FILES, is_flag=True, help="Replace an existing FILE.")
@worker_option
@grouped_option(
    "--no-workers",
    group=OptionGroup.WORKERS,
    is_flag=True,
    help="Skip the workers; use only the API, the journal and this machine.",
)
@grouped_option(
    "--since",
    group=OptionGroup.WORKERS,
    type=DurationType(),
    metavar="TIME",
    help="Maximum age of logs on workers, such as 90m or 2h. [default: no limit]",
)
@grouped_option(
    "--max-size",
    group=OptionGroup.FILES,
    metavar="SIZE",
    default=_DEFAULT_MAX_SIZE,
    show_default=True,
    help="Maximum size of all files together, before compression; at least 2M.",
)
@grouped_option(
    "--timeout",
    group=OptionGroup.WAITING,
    type=DurationType(),
    metavar="TIME",
    help="Time limit of the command, such as 5m. [default: 2m]",
)
@grouped_option(
    "--redact-accounts",
    group=OptionGroup.FILES,
    is_flag=True,
    help="Also replace e-mail and IP addresses by aliases, such as account-1.",
)
@grouped_option(
    "--checklist",
    group=OptionGroup.FILES,
    is_flag=True,
    help="Write no bundle: print which steps of the checklist for the real service the journal shows.",
)
@route_options
def command(
    app: App,
    *,
    node: str,
    file: str | None,
    force: bool,
    worker: str,
    no_workers: bool,
    since: timedelta | str | None,
    max_size: str,
    timeout: timedelta | str | None,
    redact_accounts: bool,
    checklist: bool,
) -> None:
    """Collect the evidence that support asks for in one .tar.gz file, and print the verdict on its logs.

    Contains the node, its operations and queued resource, the journal, settings, the findings of `tpuctl doctor`; for each
    worker the logs of libtpu, jobs, processes, kernel, disk and versions. Tokens, keys, passwords and metadata are removed:
    review the file before you share it. Missing parts are listed, and are not a failure. Changes nothing, in the cloud or on
    workers.

    \b
    Examples:
      tpuctl bundle trainer
      tpuctl bundle trainer --worker 3 --since 2h --redact-accounts
      tpuctl bundle trainer --file - | ssh elsewhere 'cat > evidence.tar.gz'
      tpuctl bundle proof --checklist
    """
    if checklist:
        from tpuctl.support.checklist import show_checklist  # noqa: PLC0415  # as below

        show_checklist(app, node)
        return
    from tpuctl.support.bundle import BundleBuilder, BundleOptions  # noqa: PLC0415  # completion and --help need not wait for it

    if isinstance(timeout, str) or isinstance(since, str):
        raise InvalidInputError("a bundle needs a time limit, not `forever`", hint="give a duration, such as `5m`")
    try:
        max_bytes = as_size(max_size)
    except ValueError as error:
        raise InvalidInputError(f"`--max-size {max_size}`: {error}", hint="give a size, such as `200M`") from None
    if max_bytes < _MIN_SIZE:
        raise InvalidInputError("`--max-size` is too small for a bundle", hint="give at least `2M`")
    options = BundleOptions(
        file=file,
        overwrite=force,
        workers=None if no_workers else worker,
        since=since,
        max_bytes=max_bytes,
        timeout=_TIMEOUT if timeout is None else timeout,
        redact_accounts=redact_accounts,
    )
    BundleBuilder(app, options).run(node)
