"""The first use of a `setup` that somebody else may have written: it is shown, and on a terminal asked about.

A project file may come from a cloned repository, and what it says here runs on the user's TPU.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from tpuctl.errors import NotConfirmedError
from tpuctl.private import make_private
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.settings import Source

_FILE_NAME = "seen-setups"


def show_first_use(app: App, setup: str | None, source: Source | None = None, *, yes: bool = False) -> None:
    """Show a setup that a project file gives and that was not used on this machine before; ask on a terminal.

    Call it when the setup is about to be used, not for a plan. Without a source it is looked up whether a project file gives
    this text. `yes` shows it and does not ask; so does a run without a terminal. Raises `NotConfirmedError` for a no.
    """
    source = source or _project_file_of(app, setup)
    if setup is None or source is None or source.kind is not SourceKind.PROJECT_FILE:
        return
    path, mark = app.state_folder / _FILE_NAME, hashlib.sha256(setup.encode("utf-8", "surrogatepass")).hexdigest()
    if mark in _seen(path):
        return
    lines = "\n".join(f"    {line}" for line in setup.expandtabs(4).splitlines())
    place = f"{source.path.parent}/{source.place}" if source.path else source.place
    # Not a note: `--quiet` must not hide it.
    app.terminal.warn(f"{place} has a `setup` that was not used here before; every worker of a new node runs:\n{lines}")
    if not yes and _somebody_can_be_asked(app) and not app.terminal.confirm("may the workers run that?", yes=False):
        raise NotConfirmedError("nothing was done", hint="leave it out with `--setup true`, or change the file")
    _remember(path, mark)


def _project_file_of(app: App, setup: str | None) -> Source | None:
    """Return the project file as a source where it is what gives this text."""
    setting = app.settings["setup"]
    return setting.source if setting and setting.value == setup else None


def _somebody_can_be_asked(app: App) -> bool:
    return app.invocation.streams.stdin_is_terminal and not app.invocation.environ.get("CI")


def _seen(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text("ascii", errors="replace").split())
    except OSError:
        return frozenset()


def _remember(path: Path, mark: str) -> None:
    """Add a mark. Where that cannot be written the text is shown again the next time, which does no harm."""
    with suppress(OSError):
        make_private(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{mark}\n".encode())
        finally:
            os.close(handle)
