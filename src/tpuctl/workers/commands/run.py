"""`tpuctl run`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.options import (
    DurationType,
    cli_command,
    complete_node,
    fanout_option,
    given_options,
    selector_option,
    takes_options,
    worker_option,
)
from tpuctl.app.spec_options import SpecOptions
from tpuctl.app.ssh_options import route_options
from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.config.settings import SETTINGS
from tpuctl.errors import InvalidInputError
from tpuctl.files import expand_user_path, read_user_text
from tpuctl.models.node import WorkerSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App
    from tpuctl.models.node import WorkerSet
    from tpuctl.workers.environment import EnvironmentOptions
    from tpuctl.workers.one_off import OneOffRequest
    from tpuctl.workers.runner import RunRequest

_ENVIRONMENT_OPTIONS = (
    click.option(
        "--env",
        "env",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Environment variable of the command; NAME alone takes the local value. Repeatable.",
    ),
    click.option(
        "--env-file",
        metavar="FILE",
        multiple=True,
        help="File of environment variables, NAME=VALUE lines as in docker --env-file. Repeatable.",
    ),
    click.option(
        "--tpu-env",
        is_flag=True,
        help="Set the variables that TensorFlow, JAX and Ray read: TPU_NAME, TPU_WORKER_HOSTNAMES, …",
    ),
    click.option(
        "--tpu-log-dir",
        metavar="DIR|disabled",
        help="Directory of libtpu's log on the workers (its parent must exist), or disabled.",
    ),
    click.option(
        "--tpu-min-log-level", metavar="LEVEL", help="Lowest severity in libtpu's log: 0 to 3, or INFO to FATAL."
    ),
    click.option(
        "--tpu-stderr-log-level",
        metavar="LEVEL",
        help="Lowest severity that libtpu also prints on stderr: 0 to 3, or INFO to FATAL.",
    ),
    click.option(
        "--tpu-max-log-size-mb",
        type=click.IntRange(min=1),
        metavar="N",
        help="Size in MB at which libtpu starts a new log file. [default: libtpu's]",
    ),
)


def environment_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the environment of a remote command."""
    for option in reversed(_ENVIRONMENT_OPTIONS):
        function = option(function)
    return function


def take_environment(app: App, options: dict[str, Any]) -> EnvironmentOptions:
    """Remove these options from a command's options, and return the environment that they describe.

    `--env` overrides `--env-file`, a later one an earlier one. Raises `InvalidInputError`.
    """
    from tpuctl.workers.environment import EnvironmentOptions, logging_variables, parse_env_file, parse_variable  # noqa: PLC0415  # not needed by --help

    local = app.invocation.environ
    given = logging_variables(
        directory=options.pop("tpu_log_dir"),
        least=options.pop("tpu_min_log_level"),
        least_on_stderr=options.pop("tpu_stderr_log_level"),
        megabytes=options.pop("tpu_max_log_size_mb"),
    )
    for path in options.pop("env_file"):
        text = read_user_text(app.invocation.folder / expand_user_path(Path(path)), what=f"`--env-file {path}`")
        given |= parse_env_file(text, path, local)
    for number, text in enumerate(options.pop("env"), start=1):
        try:
            name, value = parse_variable(text, local)
        except InvalidInputError as error:
            raise InvalidInputError(f"`--env` number {number}: {error.message}", hint=error.hint) from None
        given[name] = value
    return EnvironmentOptions(given, tpu=options.pop("tpu_env"))


_ONE_OFF_OPTIONS = (
    click.option(
        "--up", metavar="SPEC", help="Node to bring up first: an accelerator type, or a file like tpuctl.yaml."
    ),
    click.option(
        "--rm",
        "remove",
        is_flag=True,
        help="With --up: delete the node at the end, also after a failure, if this run created it.",
    ),
    click.option("--exclusive", is_flag=True, help="With --up: fail if the node already exists."),
    click.option(
        "--sync",
        metavar="DIR",
        help="With --up: folder to sync, where the command runs unless --workdir is given. "
        "[default: this git tree, if there is no --workdir]",
    ),
    click.option("--no-sync", is_flag=True, help="With --up: sync no folder."),
    click.option(
        "--collect",
        metavar="PATH",
        multiple=True,
        help="With --up: path to copy from the workers at the end. Repeatable.",
    ),
)
_ONE_OFF_NAMES = ("up", "remove", "exclusive", "sync", "no_sync", "collect")


def one_off_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `--up`. Those that describe a node are those of `tpuctl up`, and are hidden."""
    function = takes_options(SpecOptions, "described", hidden=True)(function)
    function = takes_options(CheckOptions, "checks", hidden=True)(function)
    for option in reversed(_ONE_OFF_OPTIONS):
        function = option(function)
    return function


def take_one_off(app: App, options: dict[str, Any], workers: WorkerSet) -> OneOffRequest | None:
    """Remove these options from a command's options; return the job, None without `--up`.

    Raises `InvalidInputError` for options that need `--up`.
    """
    described: SpecOptions = options.pop("described")
    checks: CheckOptions = options.pop("checks")
    detach = options["detach"]
    taken = {name: options.pop(name) for name in _ONE_OFF_NAMES}
    if taken["up"] is None:
        for name in ("remove", "exclusive", "sync", "no_sync", "collect"):
            if taken[name]:
                flag = "--rm" if name == "remove" else f"--{name.replace('_', '-')}"
                raise InvalidInputError(f"`{flag}` needs `--up`", hint="add `--up TYPE`, or leave it out")
        if given := described.given | given_options(checks):
            name, value = next(iter(given.items()))
            of_setting = SETTINGS[name].flag if hasattr(checks, name) else None
            flag = f"--{value}" if name == "tier" else of_setting or f"--{name.replace('_', '-')}"
            raise InvalidInputError(f"`{flag}` describes a node, and needs `--up`", hint="add `--up TYPE`")
        return None
    for name, why in (
        ("remove", "would delete the node under it"),
        ("collect", "would copy before the command has ended"),
    ):
        if detach and taken[name]:
            flag = "--rm" if name == "remove" else f"--{name}"
            raise InvalidInputError(
                f"`--detach` leaves the command running, and `{flag}` {why}", hint="leave one of them out"
            )
    from tpuctl.workers.one_off import OneOffRequest  # noqa: PLC0415  # only for whole jobs

    return OneOffRequest(
        up=taken["up"],
        described=described,
        checks=checks,
        remove=taken["remove"],
        exclusive=taken["exclusive"],
        sync=_sync_folder(app, taken["sync"], without=taken["no_sync"], workdir=options["workdir"]),
        collect=taken["collect"],
        workers=workers,
    )


def _sync_folder(app: App, given: str | None, *, without: bool, workdir: str | None) -> Path | None:
    """Return the folder to sync: `given`; without it and without a `workdir` the git tree of the current directory, if any."""
    here = app.invocation.folder
    if given is not None and without:
        raise InvalidInputError("`--sync` and `--no-sync` exclude each other", hint="leave one of them out")
    if given is not None:
        return here / expand_user_path(Path(given))
    if without or workdir:
        return None
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)


@cli_command("run", takes_command=True, asks_trust=False)
@click.argument("nodes", metavar="NODE...", nargs=-1, shell_complete=complete_node)
@worker_option
@selector_option
@click.option("--command", "line", metavar="LINE", help="Command, as one shell line.")
@click.option("--workdir", "-w", metavar="DIR", help="Working directory on the workers. [default: the home directory]")
@environment_options
@click.option("--detach", "-d", is_flag=True, help="Start the command, print the job's name, and leave it running.")
@click.option("--name", "job", metavar="JOB", help="Name of the job. [default: from the time]")
@click.option("--log-dir", metavar="DIR", help="Local directory for a file with each worker's output.")
@click.option(
    "--allow-unreachable",
    is_flag=True,
    help="Run on the reachable workers if some cannot be reached; otherwise it runs on none.",
)
@click.option("--partial", is_flag=True, hidden=True, help="Old name of --allow-unreachable.")
@click.option("--fail-fast", is_flag=True, help="Terminate the command everywhere when it fails on one worker.")
@click.option(
    "--timeout", type=DurationType(), metavar="TIME", help="Time limit of the command: 90s, 30m. [default: none]"
)
@click.option(
    "--batch",
    "--batch-size",
    "batch",
    type=click.IntRange(1),
    metavar="N",
    help="Number of workers that run it at a time. [default: all]",
)
@fanout_option("commands")
@click.option(
    "--connect-timeout",
    type=DurationType(),
    metavar="TIME",
    help="Time limit for connecting to a worker. [default: 45s]",
)
@click.option("--no-stdin", "-n", is_flag=True, help="Do not pass stdin to the command on a single worker.")
@one_off_options
@route_options
def command(app: App, *, nodes: tuple[str, ...], worker: str, selector: tuple[str, ...], **options: Any) -> int:
    """Run a command on all workers of nodes; exit with 0 only if it exits with 0 on all.

    The command starts on all workers or, if one cannot be reached, on none; and at most once on each. When a connection
    breaks, the command continues and tpuctl reconnects to its output. Ctrl-C sends INT to it, a second time QUIT, a third time
    KILL. The command is also terminated when its output is no longer read, as with | head.
    One word after -- is a line for the remote shell; several are an argument vector, passed unchanged.

    \b
    Examples:
      tpuctl run trainer -- python3 train.py --steps 1000
      tpuctl run trainer --worker 0 -- 'ls -l $HOME'
      tpuctl run trainer --detach --tpu-log-dir /tmp/logs -- ./job.sh
      tpuctl run -l team=vision --fail-fast -- nproc
      tpuctl run --up v5litepod-16 --spot --rm -- ./train.sh
    """
    from tpuctl.workers.execution import run_and_show  # noqa: PLC0415  # as above
    from tpuctl.workers.targets import await_key, find_nodes, find_targets  # noqa: PLC0415  # completion and --help need not wait for it

    workers = WorkerSet.parse(worker)
    job = take_one_off(app, options, workers)
    request = _parse_request(app, options)
    if job is None or not job.names_file:
        app.require_trust()
    if job is not None:
        from tpuctl.workers.one_off import run_one_off  # noqa: PLC0415  # as above

        if len(nodes) > 1 or selector:
            raise InvalidInputError("`--up` takes one node", hint="name one, or none to generate a name")
        return run_one_off(app, nodes[0] if nodes else None, job, request)
    found = find_targets(app, find_nodes(app, nodes, selector), workers)
    await_key(app, found)
    return run_and_show(app, found, request)


def _parse_request(app: App, options: dict[str, Any]) -> RunRequest:
    """Return the request that the options describe. Raises `InvalidInputError`."""
    from tpuctl.workers.execution import check_detached, shell_line  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.workers.runner import RunRequest  # noqa: PLC0415  # as above
    from tpuctl.workers.worker_jobs import check_job_name  # noqa: PLC0415  # as above

    words: tuple[str, ...] = options["remote_command"]
    if options["line"] is not None and words:
        raise InvalidInputError("two commands given", hint="give `--command LINE` or `-- COMMAND…`, not both")
    if options["line"] is None and not words:
        raise InvalidInputError("no command given", hint="put it after `--`: `tpuctl run NODE -- hostname`")
    if options["detach"]:
        check_detached(app, options)
    environment = take_environment(app, options)
    return RunRequest(
        line=options["line"] if options["line"] is not None else shell_line(words),
        environment=environment,
        job=check_job_name(options["job"]) if options["job"] is not None else None,
        folder=options["workdir"],
        log_folder=app.invocation.folder / expand_user_path(Path(options["log_dir"])) if options["log_dir"] else None,
        detach=options["detach"],
        takes_stdin=not options["no_stdin"],
        fanout=options["fanout"],
        batch=options["batch"],
        allow_unreachable=options["allow_unreachable"] or options["partial"],
        fail_fast=options["fail_fast"],
        timeout=_time_limit(options["timeout"]),
        connect_within=_time_limit(options["connect_timeout"]) or RunRequest().connect_within,
    )


def _time_limit(value: timedelta | str | None) -> timedelta | None:
    return value if isinstance(value, timedelta) else None
