"""Opening the sandbox, with a note that nothing in it is real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import SettingError

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.sandbox.world import World


def open_world(app: App) -> World:
    """Return the sandbox, created if there is none; it is closed when the run ends.

    Raises `SettingError` if `TPUCTL_SANDBOX_SPEED` is not a speed.
    """
    from tpuctl.sandbox.world import World  # noqa: PLC0415  # only for the sandbox

    path = app.sandbox_path
    setting = app.settings["sandbox"]
    # The project file may come from another person: say so in every run that relies on it.
    is_from_file = setting is not None and setting.source.kind == "project file" and app.is_sandbox
    if app.terminal.streams.stderr_is_terminal or not path.exists() or is_from_file:
        app.terminal.note("sandbox: nothing here is real, and nothing is billed")
    speed: float | None = None
    if text := app.invocation.environ.get("TPUCTL_SANDBOX_SPEED"):
        try:
            speed = float(text)
        except ValueError:
            speed = 0.0
        if not 0 < speed <= 1e6:
            raise SettingError(
                f"`TPUCTL_SANDBOX_SPEED` is `{text}`",
                hint="set it to a number such as 60: a cloud minute takes a second",
            )
    world = World.open(path, clock=app.invocation.clock, speed=speed)
    app.on_close(world.close)
    return world
