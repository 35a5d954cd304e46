"""The summary of a step in GitHub Actions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.files import output_path
from tpuctl.output.step_summary import StepSummary

if TYPE_CHECKING:
    from tpuctl.app.app import App


def open_summary(app: App, path: str) -> StepSummary:
    """Return the summary of this step, written to a file when the run ends."""
    summary = StepSummary(Path(path), app.command_line())

    def write() -> None:
        with suppress(TpuctlError, ValueError):  # broken settings
            summary.is_sandbox = app.is_sandbox
        try:
            summary.path = output_path(summary.path, app.invocation.folder)
            summary.write()
        except InvalidInputError as error:
            app.terminal.warn(f"no summary of this step: {error.message}")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            app.terminal.warn(f"cannot write the summary of this step to `{path}`: {reason}")

    app.on_close(write)
    return summary
