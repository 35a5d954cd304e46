"""`tpuctl version`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl import __version__
from tpuctl.app.options import CLOUD_OPTIONS, cli_command
from tpuctl.installation import Installation, read_installation
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.app.app import App
    from tpuctl.output.terminal import Terminal


@cli_command(
    "version",
    asks_trust=False,
    without=CLOUD_OPTIONS,
    shows={"verbose": "Print also Python, the place of the installation, and the versions of the dependencies."},
)
def command(app: App) -> None:
    """Print the version of tpuctl; with -v or -o json also its Python, where it is installed, and its dependencies.

    \b
    Examples:
      tpuctl version
      tpuctl version -v
      tpuctl version -o json
    """

    def write(terminal: Terminal) -> None:
        terminal.write(f"tpuctl {__version__}")
        for line in _details(read_installation()) if app.is_verbose else ():
            terminal.write(line)

    app.show(View(value=lambda: _to_json(read_installation()), text=write, names=lambda: [__version__]))


def _to_json(found: Installation) -> dict[str, Any]:
    """Return the installation as JSON. The dependencies are keys too, as in the first release."""
    versions = {each.name: each.version for each in found.dependencies}
    return {
        "tpuctl": found.version,
        "python": ".".join(map(str, found.python)),
        **versions,
        "implementation": found.implementation,
        "platform": found.system,
        "executable": found.executable,
        "prefix": found.prefix,
        "package": found.package,
        "editable": found.is_editable,
        "installedBy": found.installer,
        "dependencies": versions,
    }


def _details(found: Installation) -> Iterator[str]:
    by = f", by {found.installer}" if found.installer else ""
    rows = {
        "python": f"{found.implementation} {'.'.join(map(str, found.python))}, {found.executable}",
        "platform": found.system,
        "installed": f"{found.package}{', editable' if found.is_editable else ''}{by}",
        **{each.name: each.version or "unknown" for each in found.dependencies},
    }
    width = max(map(len, rows))
    return (f"{name:<{width}}  {text}" for name, text in rows.items())
