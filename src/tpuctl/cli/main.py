"""The entry point: runs the tree, prints errors, turns them into exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.cli.usage import asked_for_json, show_usage
from tpuctl.errors import ExitCode, TpuctlError
from tpuctl.output.terminal import Format, Streams

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from tpuctl.clock import Clock

# What a shell reports for a process that SIGPIPE ended.
_PIPE_CLOSED = 141


class TerminatedError(BaseException):
    """SIGTERM arrived. Like KeyboardInterrupt it passes every handler of ordinary errors."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a run of the program gets from outside. A clock is given by tests only."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    streams: Streams
    folder: Path
    clock: Clock | None = None


def entry_point() -> None:
    """Run the program and end the process with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    invocation = Invocation(tuple(sys.argv[1:]), os.environ, Streams.of_process(), Path.cwd())
    code = main(invocation)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Skips the teardown of modules, which costs 20 ms with Google's libraries loaded.
    os._exit(code)


def main(invocation: Invocation) -> int:
    """Run one command and return its exit code. A bug keeps its traceback."""
    from tpuctl.cli.app import App  # noqa: PLC0415  # imports nothing heavy itself
    from tpuctl.cli.tree import root  # noqa: PLC0415  # as above

    app = App(invocation)
    try:
        with (
            contextlib.redirect_stdout(invocation.streams.stdout),
            contextlib.redirect_stderr(invocation.streams.stderr),
        ):
            code = root().main(list(invocation.arguments), prog_name="tpuctl", standalone_mode=False, obj=app)
            app.terminal.flush()
        return int(code or ExitCode.OK)
    except click.ClickException as error:
        as_json = asked_for_json(invocation.arguments, invocation.environ)
        show_usage(error, app.terminal, form=Format.JSON if as_json else Format.TABLE)
        return ExitCode.USAGE
    except (click.exceptions.Abort, KeyboardInterrupt):
        app.interrupted("interrupted")
        return ExitCode.INTERRUPTED
    except TerminatedError:
        app.interrupted("terminated")
        return ExitCode.TERMINATED
    except BrokenPipeError:
        _silence(invocation.streams)
        return _PIPE_CLOSED
    except TpuctlError as error:
        app.show_error(error)
        return error.exit_code
    finally:
        app.close()


def _silence(streams: Streams) -> None:
    """Keep the interpreter from complaining about a closed stdout when it exits."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, streams.stdout.fileno())


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise TerminatedError
