"""The options that add to the environment of remote commands, and the wish that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.errors import InvalidInputError
from tpuctl.userfile import expand, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.remote.environment import EnvironmentWish

_OPTIONS = (
    click.option(
        "--env", "env", metavar="NAME[=VALUE]", multiple=True, help="Set a variable; NAME alone: as it is here."
    ),
    click.option(
        "--env-file", metavar="FILE", multiple=True, help="Set the variables of a file, as docker reads it: NAME=VALUE."
    ),
    click.option(
        "--tpu-env", is_flag=True, help="Set what TensorFlow, JAX and Ray read: TPU_NAME, TPU_WORKER_HOSTNAMES, …"
    ),
    click.option(
        "--tpu-log-dir",
        metavar="DIR|disabled",
        help="Directory of libtpu's log on the workers (those above it must be there), or disabled.",
    ),
    click.option("--tpu-min-log-level", metavar="LEVEL", help="Least severity in libtpu's log: 0 to 3, INFO to FATAL."),
    click.option("--tpu-stderr-log-level", metavar="LEVEL", help="Least severity that libtpu shows on stderr too."),
    click.option(
        "--tpu-max-log-size-mb",
        type=click.IntRange(min=1),
        metavar="N",
        help="Size at which libtpu's log goes on anew.",
    ),
)


def environment_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what a remote command has in its environment."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_environment(app: App, options: dict[str, Any]) -> EnvironmentWish:
    """Take these options out of a command's options, and return what they wish for.

    `--env` wins over `--env-file`, a later one over an earlier one. Raises `InvalidInputError`.
    """
    from tpuctl.remote.environment import (  # noqa: PLC0415  # completion and --help need not wait for it
        EnvironmentWish,
        logging_variables,
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
        given |= _read(app, path)
    for number, text in enumerate(options.pop("env"), start=1):
        try:
            name, value = parse_variable(text, local)
        except InvalidInputError as error:
            raise InvalidInputError(f"`--env` number {number}: {error.message}", hint=error.hint) from None
        given[name] = value
    return EnvironmentWish(given, tpu=options.pop("tpu_env"))


def warn_of_environment(app: App, wish: EnvironmentWish, nodes: Sequence[Node]) -> None:
    """Say once, before commands run on these nodes, what their libraries make of the environment."""
    from tpuctl.remote.environment import caution, variables  # noqa: PLC0415  # as above

    largest = max(nodes, key=lambda node: node.workers)
    if text := caution(variables(wish, largest, 0, largest.workers), largest.workers):
        app.terminal.warn(text)


def _read(app: App, path: str) -> dict[str, str]:
    from tpuctl.remote.environment import parse_file  # noqa: PLC0415  # as above

    text = read_text(app.invocation.folder / expand(Path(path)), what=f"`--env-file {path}`")
    return parse_file(text, path, app.invocation.environ)
