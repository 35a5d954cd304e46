"""One run: hands the arguments to the tree, prints errors, turns them into exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.cli.invocation import Invocation
from tpuctl.cli.main import TerminatedError
from tpuctl.cli.signals import undisturbed
from tpuctl.cli.usage import asked_for_json, show_usage
from tpuctl.errors import ExitCode, TpuctlError
from tpuctl.output.terminal import Format, StdoutClosedError, Streams

if TYPE_CHECKING:
    from tpuctl.cli.app import App

# What a shell reports for a process that SIGPIPE ended.
_PIPE_CLOSED = 141
# What makes click complete a command line; `tpuctl completion` prints scripts that set it.
COMPLETION_VARIABLE = "_TPUCTL_COMPLETE"
# Failures of the machine that its user understands. No bug of ours looks like this.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
)


def invocation_of_process() -> Invocation:
    """Return what this process was started with."""
    if "TPUCTL_HOOK_STDIN" in os.environ:
        from tpuctl.hooks import holds_event  # noqa: PLC0415  # only inside hooks

        if holds_event(0, os.environ):
            # The event is for the hook; taken for input of a command it would reach a worker, or be refused.
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # a name of the system
                os.dup2(nothing.fileno(), 0)
    return Invocation(tuple(sys.argv[1:]), os.environ, Streams.of_process(), _working_directory())


def flush(invocation: Invocation) -> None:
    """Write out what is buffered, as far as somebody takes it."""
    for stream in (invocation.streams.stdout, invocation.streams.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def run(invocation: Invocation) -> int:
    """Run one command and return its exit code. A bug keeps its traceback."""
    from tpuctl.cli.app import App  # noqa: PLC0415  # imports nothing heavy itself

    app = App(invocation)
    try:
        with (
            contextlib.redirect_stdout(invocation.streams.stdout),
            contextlib.redirect_stderr(invocation.streams.stderr),
        ):
            return _run(app)
    except click.ClickException as error:
        as_json = asked_for_json(invocation.arguments, invocation.environ)
        show_usage(error, app.terminal, form=Format.JSON if as_json else Format.TABLE)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        with undisturbed():
            app.terminal.end_line()
            app.interrupted("interrupted")
        return ExitCode.INTERRUPTED
    except TerminatedError:
        with undisturbed():
            app.interrupted("terminated")
        return ExitCode.TERMINATED
    except BrokenPipeError:
        _silence(invocation.streams)
        return _PIPE_CLOSED
    except TpuctlError as error:
        return _failed(app, error)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE and not isinstance(error, StdoutClosedError):
            raise
        place = error.filename or "cannot write to stdout"
        notes = "\n".join(getattr(error, "__notes__", ()))
        return _failed(app, TpuctlError(f"{place}: {(error.strerror or str(error)).lower()}", hint=notes or None))
    finally:
        app.close()


def _run(app: App) -> int:
    """Run the command, or complete the line. click's own `main` hides a closed pipe, and ends with 1."""
    from tpuctl.cli.tree import root  # noqa: PLC0415  # only here

    tree, invocation = root(), app.invocation
    if instruction := invocation.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete  # noqa: PLC0415  # only for completion

        return shell_complete(tree, {"obj": app}, "tpuctl", COMPLETION_VARIABLE, instruction)
    try:
        with tree.make_context("tpuctl", list(invocation.arguments), obj=app) as context:
            code = int(tree.invoke(context) or ExitCode.OK)
    except click.exceptions.Exit as ending:
        code = ending.exit_code
    invocation.streams.stdout.flush()
    return code


def _failed(app: App, error: TpuctlError) -> int:
    """Print an error, with what the way in which tpuctl was called may have to do with it."""
    from tpuctl.cli.remedies import remedies  # noqa: PLC0415  # only for failures

    error.hint = "\n".join([*remedies(app, error), *([error.hint] if error.hint else [])]) or None
    app.show_error(error)
    return error.exit_code


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        # With another one the wrong project file would be found: perhaps the cloud instead of the sandbox.
        sys.exit("error: the working directory was removed\n  hint: change to one that is there, and try again")


def _silence(streams: Streams) -> None:
    """Keep the interpreter from complaining about a closed stdout when it exits."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, streams.stdout.fileno())
