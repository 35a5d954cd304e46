"""The sandbox of this user, opened in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import SettingError
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.state_file import OtherLayoutError

if TYPE_CHECKING:
    from tpuctl.app.app import App


def open_sandbox(app: App) -> SandboxState:
    """Return the sandbox, created if there is none; it is closed when the run ends.

    Raises `SettingError` if `TPUCTL_SANDBOX_SPEED` is not a speed.
    """
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
    try:
        sandbox = SandboxState.open(path, clock=app.invocation.clock, speed=speed)
    except OtherLayoutError as error:
        from tpuctl.sandbox.administration import reset_sandbox  # noqa: PLC0415  # only after an update of tpuctl

        app.terminal.note(f"{error.message}: it is removed, and a new one is made")
        reset_sandbox(path)
        sandbox = SandboxState.open(path, clock=app.invocation.clock, speed=speed)
    app.on_close(sandbox.close)
    return sandbox
