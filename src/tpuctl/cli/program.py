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
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError
from tpuctl.names import printable
from tpuctl.output.terminal import Format, StdoutClosedError, Streams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.cli.app import App

# What a shell reports for a process that SIGPIPE ended.
_PIPE_CLOSED = 141
# What makes click complete a command line; `tpuctl completion` prints scripts that set it.
COMPLETION_VARIABLE = "_TPUCTL_COMPLETE"
# Failures of the machine that its user understands. No bug of ours looks like this.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
    | {errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
# What tpuctl reads of the environment, and puts into paths, requests and files.
_READ_VARIABLES = ("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "XDG_", "HOME", "LOGNAME", "TMPDIR", "USER")
# Checks and threads of `up` hold some 30 files and connections at once; the rest is for ssh.
_LEAST_FILES = 64
_USUAL_FILES = 1024


class TooManyFilesError(TpuctlError):
    """The process may not open as many files as the command needs."""

    def __init__(self, text: str) -> None:
        super().__init__(text, hint=f"raise it with `ulimit -n {_USUAL_FILES}`")


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
        return _failed(app, _in_words(error))
    finally:
        app.close()


def _run(app: App) -> int:
    """Run the command, or complete the line. click's own `main` hides a closed pipe, and ends with 1."""
    from tpuctl.cli.tree import root  # noqa: PLC0415  # only here

    tree, invocation = root(), app.invocation
    if instruction := invocation.environ.get(COMPLETION_VARIABLE):
        return _complete(tree, app, instruction)
    _check_environment(invocation.environ)
    _check_open_files()
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


def _complete(tree: click.Command, app: App, instruction: str) -> int:
    """Complete a command line, as the script of a shell asks. Raises `InvalidInputError` where a person does."""
    from click.shell_completion import get_completion_class, shell_complete  # noqa: PLC0415  # only for completion

    shell, _, what = instruction.partition("_")
    words, number = os.environ.get("COMP_WORDS"), os.environ.get("COMP_CWORD", "")
    is_whole = what == "source" or (
        what == "complete" and words is not None and (number.isdecimal() or shell == "fish")
    )
    if get_completion_class(shell) is None or not is_whole:
        raise InvalidInputError(
            f"`{COMPLETION_VARIABLE}` is `{printable(instruction)}`, and no shell is being completed",
            hint=f"unset it: only the scripts of `tpuctl completion SHELL` set `{COMPLETION_VARIABLE}`",
        )
    return shell_complete(tree, {"obj": app}, "tpuctl", COMPLETION_VARIABLE, instruction)


def _check_environment(environ: Mapping[str, str]) -> None:
    """Raise `InvalidInputError` for a variable that is read here and is not UTF-8 text."""
    for name, value in environ.items():
        if name.startswith(_READ_VARIABLES) and not value.isascii() and printable(value) != value:
            raise InvalidInputError(
                f"`{name}` is not UTF-8 text: `{printable(value)}`", hint=f"set `{name}` to UTF-8 text, or unset it"
            )


def _in_words(error: OSError) -> TpuctlError:
    """Return an error of the machine in the words of all others."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyFilesError(f"too many open files: the limit is {_limit_of_files()} (`ulimit -n`)")
    starts = error.errno in {errno.EAGAIN, errno.ENOMEM}
    place = error.filename or ("a process cannot be started" if starts else "cannot write to stdout")
    return TpuctlError(f"{place}: {(error.strerror or str(error)).lower()}", hint=notes or None)


def _check_open_files() -> None:
    """Raise the process's own limit where it is low, as far as the machine lets it; refuse to begin with too few.

    A run that meets the limit halfway would leave a node behind that it cannot follow.
    """
    import resource  # noqa: PLC0415  # not needed by completion

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _USUAL_FILES:
        return
    wanted = _USUAL_FILES if hard == resource.RLIM_INFINITY else min(hard, _USUAL_FILES)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    if max(soft, wanted) < _LEAST_FILES:
        text = f"too few open files: the limit is {_limit_of_files()} (`ulimit -n`), and {_LEAST_FILES} are needed"
        raise TooManyFilesError(text)


def _limit_of_files() -> int:
    import resource  # noqa: PLC0415  # as above

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


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
