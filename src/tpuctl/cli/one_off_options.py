"""The options of `tpuctl run --up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.check_options import check_options, take_checks
from tpuctl.cli.spec import spec_options, take_spec
from tpuctl.errors import InvalidInputError
from tpuctl.settings import SETTINGS
from tpuctl.userfile import expand

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.cli.one_off import Job
    from tpuctl.model.worker_set import WorkerSet

_OPTIONS = (
    click.option(
        "--up", metavar="SPEC", help="Node to bring up first: an accelerator type, or a file like tpuctl.yaml."
    ),
    click.option("--rm", "remove", is_flag=True, help="Delete the node that --up created, in any case, at the end."),
    click.option("--exclusive", is_flag=True, help="With --up: fail if the node already exists."),
    click.option("--sync", metavar="DIR", help="With --up: folder to sync and run in. [default: this git tree]"),
    click.option("--no-sync", is_flag=True, help="With --up: sync no folder."),
    click.option(
        "--collect", metavar="PATH", multiple=True, help="With --up: path to copy from the workers at the end."
    ),
)
_NAMES = ("up", "remove", "exclusive", "sync", "no_sync", "collect")


def one_off_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `--up`. Those that describe a node are those of `tpuctl up`, and are hidden."""
    before = len(getattr(function, "__click_params__", ()))
    function = check_options(spec_options(function))
    for param in function.__click_params__[before:]:  # type: ignore[attr-defined]  # where click keeps them
        param.hidden = True
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_job(app: App, options: dict[str, Any], workers: WorkerSet) -> Job | None:
    """Remove these options from a command's options; return the job, None without `--up`.

    Raises `InvalidInputError` for options that need `--up`.
    """
    given, checks = take_spec(options), take_checks(options)
    detach = options["detach"]
    taken = {name: options.pop(name) for name in _NAMES}
    if taken["up"] is None:
        for name in ("remove", "exclusive", "sync", "no_sync", "collect"):
            if taken[name]:
                flag = "--rm" if name == "remove" else f"--{name.replace('_', '-')}"
                raise InvalidInputError(f"`{flag}` needs `--up`", hint="add `--up TYPE`, or leave it out")
        if given or checks:
            name, value = next(iter((given | checks).items()))
            of_setting = SETTINGS[name].flag if name in checks else None
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
    from tpuctl.cli.one_off import Job  # noqa: PLC0415  # only for whole jobs

    return Job(
        up=taken["up"],
        given=given,
        checks=checks,
        remove=taken["remove"],
        exclusive=taken["exclusive"],
        sync=_folder(app, taken["sync"], without=taken["no_sync"]),
        collect=taken["collect"],
        workers=workers,
    )


def _folder(app: App, given: str | None, *, without: bool) -> Path | None:
    """Return the folder to sync: `given`, or else the git tree of the current directory; None without one."""
    here = app.invocation.folder
    if given is not None and without:
        raise InvalidInputError("`--sync` and `--no-sync` exclude each other", hint="leave one of them out")
    if given is not None:
        return here / expand(Path(given))
    if without:
        return None
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
