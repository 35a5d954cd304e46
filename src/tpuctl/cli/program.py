"""One run of the program: parse the arguments, run the command, print errors, return the exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

import click

from tpuctl.app.app import App, Invocation, asked_for_json
from tpuctl.app.options import show_usage_error
from tpuctl.app.signals import TerminatedError, signals_ignored
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError
from tpuctl.names import escape_undecodable
from tpuctl.output.github import GuardedStream, guard_streams
from tpuctl.output.terminal import OutputFormat, StandardStreams, StdoutClosedError

# The exit status that a shell reports for a process terminated by SIGPIPE.
_PIPE_CLOSED = 141
# A shell completes `COMP_LINE` if this variable is `line`: the scripts of `tpuctl completion` set both.
_COMPLETION_VARIABLE: Final = "_TPUCTL_COMPLETE"
# Failures of the machine that users can fix themselves. No bug of ours raises one of these.
_MACHINE_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
    | {errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
# Variables that tpuctl reads and puts into paths, requests and files.
_READ_VARIABLES = ("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "XDG_", "HOME", "LOGNAME", "TMPDIR", "USER")
# Checks and threads of `up` need about 30 open files and connections; the rest is for ssh.
_MIN_OPEN_FILES = 64
_WANTED_OPEN_FILES = 1024


class TooManyFilesError(TpuctlError):
    """The limit on open files is too low for the command."""

    def __init__(self, text: str) -> None:
        super().__init__(text, hint=f"raise it with `ulimit -n {_WANTED_OPEN_FILES}`")


def invocation_of_process() -> Invocation:
    """Return what this process was started with. Exits with a message if its working directory was removed."""
    if "TPUCTL_HOOK_STDIN" in os.environ:
        from tpuctl.nodes.hooks import holds_event  # noqa: PLC0415  # only inside hooks

        if holds_event(0, os.environ):
            # The event on stdin is for the hook. A command must not take it for its own input or send it to a worker.
            with open(os.devnull, "rb") as devnull:  # noqa: PTH123  # a name of the system
                os.dup2(devnull.fileno(), 0)
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        # Any other directory could have a different project file: the cloud could be used instead of the sandbox.
        sys.exit("error: the working directory was removed\n  hint: change to an existing directory and try again")
    return Invocation(tuple(sys.argv[1:]), os.environ, StandardStreams.of_process(), folder)


def run(invocation: Invocation) -> int:
    """Run one command and return its exit code. A bug keeps its traceback."""
    invocation = replace(invocation, streams=guard_streams(invocation.streams, invocation.environ))
    app = App(invocation)
    try:
        with (
            contextlib.redirect_stdout(invocation.streams.stdout),
            contextlib.redirect_stderr(invocation.streams.stderr),
        ):
            return _run(app)
    except click.ClickException as error:
        as_json = asked_for_json(invocation.arguments, invocation.environ)
        show_usage_error(error, app.terminal, form=OutputFormat.JSON if as_json else OutputFormat.TABLE)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        with signals_ignored():
            app.terminal.end_line()
            app.interrupted("interrupted")
        return ExitCode.INTERRUPTED
    except TerminatedError:
        with signals_ignored():
            app.interrupted("terminated")
        return ExitCode.TERMINATED
    except BrokenPipeError:
        _discard_output(invocation.streams.stdout, invocation.streams.stderr)
        return _PIPE_CLOSED
    except TpuctlError as error:
        return _show_failure(app, error)
    except OSError as error:
        if error.errno not in _MACHINE_ERRNOS and not isinstance(error, StdoutClosedError):
            raise
        return _show_failure(app, _machine_error(error))
    finally:
        app.close()
        for stream in (invocation.streams.stdout, invocation.streams.stderr):
            if isinstance(stream, GuardedStream):
                with contextlib.suppress(OSError, ValueError):  # closed
                    stream.finish()


def _run(app: App) -> int:
    """Run the command, or complete the line. click's own `main` hides a closed pipe and exits with 1."""
    from tpuctl.cli.tree import command_tree  # noqa: PLC0415  # an interruption from here on is reported

    tree, invocation = command_tree(), app.invocation
    app.command_tree = tree
    if instruction := invocation.environ.get(_COMPLETION_VARIABLE):
        from tpuctl.cli.word_completion import answer_shell  # noqa: PLC0415  # only for completion

        line = invocation.environ.get("COMP_LINE")
        if instruction == "line" and line is not None:
            return answer_shell(tree, app, line)
        raise InvalidInputError(
            f"`{_COMPLETION_VARIABLE}` is `{escape_undecodable(instruction)}`, but no shell is completing a command line",
            hint=f"unset it: only the scripts of `tpuctl completion SHELL` set `{_COMPLETION_VARIABLE}`",
        )
    for name, value in invocation.environ.items():
        if name.startswith(_READ_VARIABLES) and not value.isascii() and escape_undecodable(value) != value:
            raise InvalidInputError(
                f"`{name}` is not UTF-8 text: `{escape_undecodable(value)}`",
                hint=f"set `{name}` to UTF-8 text, or unset it",
            )
    _raise_file_limit()
    try:
        with tree.make_context("tpuctl", list(invocation.arguments), obj=app) as context:
            code = int(tree.invoke(context) or ExitCode.OK)
    except click.exceptions.Exit as exit_request:
        code = exit_request.exit_code
    invocation.streams.stdout.flush()
    return code


def _show_failure(app: App, error: TpuctlError) -> int:
    """Print an error, with hints that depend on how tpuctl was called. Return its exit code."""
    from tpuctl.app.hints import call_hints  # noqa: PLC0415  # only for failures

    error.hint = "\n".join([*call_hints(app, error), *([error.hint] if error.hint else [])]) or None
    try:
        app.show_error(error)
    except BrokenPipeError:
        # The failure has a code of its own, although its text has no reader: `tpuctl … 2>&1 | head`.
        streams = app.invocation.streams
        _discard_output(streams.stdout, streams.stderr)
    return error.exit_code


def _discard_output(*streams: TextIO) -> None:
    """Let streams whose reader has gone write nowhere: the interpreter would complain, and change the exit code."""
    for stream in streams:
        try:
            stream.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            pass


def _machine_error(error: OSError) -> TpuctlError:
    """Return a failure of the machine as one of our errors."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyFilesError(f"too many open files: the limit is {_file_limit()} (`ulimit -n`)")
    failed_to_start = error.errno in {errno.EAGAIN, errno.ENOMEM}
    unnamed = "cannot start a process" if failed_to_start else "cannot write to stdout"
    subject = os.fsdecode(error.filename) if error.filename else unnamed
    return TpuctlError(f"{subject}: {(error.strerror or str(error)).lower()}", hint=notes or None)


def _raise_file_limit() -> None:
    """Raise the process's soft limit on open files if it is low. Raises `TooManyFilesError` if it stays too low.

    A run that met the limit halfway would leave a node behind that it cannot follow.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _WANTED_OPEN_FILES:
        return
    wanted = _WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_OPEN_FILES)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    if max(soft, wanted) < _MIN_OPEN_FILES:
        raise TooManyFilesError(
            f"too few open files: the limit is {_file_limit()} (`ulimit -n`), and {_MIN_OPEN_FILES} are needed"
        )


def _file_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
