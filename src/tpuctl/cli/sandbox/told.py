"""Report a change of the sandbox: a sentence for a person, or an object in the requested format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App


def tell(app: App, sentence: str, /, **values: Any) -> None:  # JSON
    """Report a change: on stderr as a sentence, or on stdout as one object in the requested format."""
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data(values, app.format)
    else:
        app.terminal.note(sentence)
