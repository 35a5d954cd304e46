"""What a command that changes the sandbox tells: a sentence for a person, an object where one was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App


def tell(app: App, sentence: str, /, **values: Any) -> None:  # JSON
    """Tell what was done: on stderr in words, or on stdout as one object in the format that was asked for."""
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data(values, app.format)
    else:
        app.terminal.note(sentence)
