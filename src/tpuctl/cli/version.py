"""`tpuctl version`."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING

from tpuctl import __version__
from tpuctl.app.options import CLOUD_OPTIONS, cli_command
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("version", asks_trust=False, without=CLOUD_OPTIONS)
def command(app: App) -> None:
    """Print the version of tpuctl; with -o json also those of its main dependencies.

    \b
    Examples:
      tpuctl version -o json
    """

    def versions() -> dict[str, str]:
        parts = ("google-api-python-client", "google-auth", "click", "rich", "pyyaml")
        return {"tpuctl": __version__, "python": platform.python_version(), **{part: version(part) for part in parts}}

    app.show(
        View(
            value=versions,
            text=lambda terminal: terminal.write(f"tpuctl {__version__}"),
            names=lambda: [__version__],
        )
    )
