"""The options for the environment of remote commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.errors import InvalidInputError
from tpuctl.userfile import expand, read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.remote.environment import EnvironmentWish

_OPTIONS = (
    click.option(
        "--env",
        "env",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Environment variable of the command; NAME alone takes the local value.",
    ),
    click.option(
        "--env-file",
        metavar="FILE",
        multiple=True,
        help="File of environment variables, NAME=VALUE lines as in docker --env-file.",
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
    click.option("--tpu-stderr-log-level", metavar="LEVEL", help="Lowest severity that libtpu also prints on stderr."),
    click.option(
        "--tpu-max-log-size-mb",
        type=click.IntRange(min=1),
        metavar="N",
        help="Size in MB at which libtpu starts a new log file.",
    ),
)


def environment_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the environment of a remote command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_environment(app: App, options: dict[str, Any]) -> EnvironmentWish:
    """Remove these options from a command's options, and return the environment that they describe.

    `--env` overrides `--env-file`, a later one an earlier one. Raises `InvalidInputError`.
    """
    from tpuctl.remote.environment import (  # noqa: PLC0415  # completion and --help need not wait for it
        EnvironmentWish,
        logging_variables,
        parse_file,
        parse_variable,
    )

    local = app.invocation.environ
    given = logging_variables(
        directory=options.pop("tpu_log_dir"),
        least=options.pop("tpu_min_log_level"),
        least_on_stderr=options.pop("tpu_stderr_log_level"),
        megabytes=options.pop("tpu_max_log_size_mb"),
    )
    for path in options.pop("env_file"):
        text = read_text(app.invocation.folder / expand(Path(path)), what=f"`--env-file {path}`")
        given |= parse_file(text, path, local)
    for number, text in enumerate(options.pop("env"), start=1):
        try:
            name, value = parse_variable(text, local)
        except InvalidInputError as error:
            raise InvalidInputError(f"`--env` number {number}: {error.message}", hint=error.hint) from None
        given[name] = value
    return EnvironmentWish(given, tpu=options.pop("tpu_env"))
