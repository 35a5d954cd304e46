"""The pager: shows a result that is longer than the screen, as git does. Quitting it early, or Ctrl-C in it, is no error."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

# As git sets them: quit if one screen is enough, show colors, keep the text on the screen.
_DEFAULTS = {"LESS": "FRX", "LV": "-c"}
# The shell could not run the command.
_NOT_RUN = frozenset({126, 127})


def pager_command(environ: Mapping[str, str]) -> str | None:
    """Return `$PAGER`, else `less`. None if it is empty or `cat`, or if the terminal cannot move its cursor."""
    if environ.get("TERM") == "dumb":
        return None
    command = environ.get("PAGER", "less").strip()
    return None if command in {"", "cat"} else command


def show_in_pager(command: str, text: str, environ: Mapping[str, str], stdout: TextIO) -> bool:
    """Show a text, and return when the pager has ended. Return False if it could not be started."""
    import shutil  # noqa: PLC0415  # only for long results
    import subprocess  # noqa: PLC0415  # as above

    if command == "less" and shutil.which("less", path=environ.get("PATH")) is None:
        return False
    stdout.flush()
    process = subprocess.Popen(  # the user's own command
        ["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=stdout.fileno(), env={**_DEFAULTS, **environ}
    )
    in_main_thread = threading.current_thread() is threading.main_thread()
    # Ctrl-C belongs to the pager: less stops searching.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    try:
        with suppress(BrokenPipeError):
            process.communicate(text.encode(stdout.encoding or "utf-8", "backslashreplace"))
    except BaseException:
        process.terminate()
        raise
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)
    return process.returncode not in _NOT_RUN
