"""Which world a command uses of the embedded sandbox, and saying that nothing in it is real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import SettingError
from tpuctl.sandbox.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.cli.app import App


def open_world(app: App) -> World:
    """Return the sandbox's world, made when there is none; it is closed when the run ends.

    Raises `SettingError` for a speed that is none.
    """
    path = app.sandbox_path
    _say_that_nothing_is_real(app, is_new=not path.exists())
    world = World.open(path, clock=app.invocation.clock, speed=_speed(app.invocation.environ))
    app.at_the_end(world.close)
    return world


def _speed(environ: Mapping[str, str]) -> float | None:
    text = environ.get("TPUCTL_SANDBOX_SPEED")
    if not text:
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1e6:
        raise SettingError(
            f"`TPUCTL_SANDBOX_SPEED` is `{text}`", hint="it is a number such as 60: a cloud minute takes a second"
        )
    return speed


def _say_that_nothing_is_real(app: App, *, is_new: bool) -> None:
    # A project file may be somebody else's: whoever relies on it is told every time.
    setting = app.settings["sandbox"]
    is_from_file = setting is not None and setting.source.kind == "project file" and app.is_sandbox
    if app.terminal.streams.stderr_is_terminal or is_new or is_from_file:
        app.terminal.note("sandbox: nothing here is real, and nothing is billed")
