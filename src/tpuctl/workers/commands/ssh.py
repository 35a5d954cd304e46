"""`tpuctl ssh`: a session on a worker, or a command on several. With tmux a session survives a lost connection."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.options import cli_command, node_argument
from tpuctl.app.ssh_options import route_options
from tpuctl.errors import InvalidInputError, RemoteCommandError, ServiceUnavailableError
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.conditions import check_login_state
from tpuctl.ssh import interactive
from tpuctl.ssh.connection import SSH_FAILED, ProbeOutcome, plain_ssh_argv, probe_ssh, run_ssh_command, ssh_argv
from tpuctl.ssh.interactive import (
    DEFAULT_TMUX_SESSION,
    RESET_TERMINAL,
    PortForward,
    check_ssh_options,
    choose_local_ports,
    exec_ssh,
    misplaced_option_error,
    run_in_foreground,
    tmux_attach_command,
)
from tpuctl.workers.targets import await_key, find_nodes, find_targets

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App
    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import Connection, ProbeResult, Target
    from tpuctl.ssh.interactive import ForegroundResult

_DELAYS = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8, 15))
# After so many probes without an answer the node itself is checked: it may be gone.
_CHECK_NODE_EVERY = 3
_REFUSALS = frozenset({ProbeOutcome.KEY_REFUSED, ProbeOutcome.HOST_KEY_CHANGED})


def stay_attached(
    enter: Callable[[], ForegroundResult],
    *,
    probe: Callable[[], ProbeResult],
    check: Callable[[], None],
    clock: Clock,
    note: Callable[[str], None],
) -> ForegroundResult:
    """Enter a session, reconnect after each lost connection, and return how it ended in the end.

    `enter` attaches to the session, `probe` probes the connection, `check` raises if the node has changed. Waits for the worker
    without a time limit. Raises what `check` raises, and `RemoteCommandError` if the worker no longer accepts the key.
    """
    ran = enter()
    if not ran.has_connected:
        return ran
    while ran.was_lost:
        note("connection lost; the session continues: reconnecting as soon as the worker answers")
        for silent in count():
            clock.sleep(_DELAYS[min(silent, len(_DELAYS) - 1)])
            result = probe()
            if result.outcome in _REFUSALS:
                raise RemoteCommandError(f"the worker no longer accepts ssh: {result.detail}")
            if result.outcome is not ProbeOutcome.UNREACHABLE:
                break
            if (silent + 1) % _CHECK_NODE_EVERY == 0:
                # Offline, this machine cannot know the state of the node.
                with suppress(ServiceUnavailableError):
                    check()
        ran = enter()
    return ran


_OPTIONS = (
    click.option("-o", "keys", metavar="KEY=VALUE", multiple=True, help="An ssh option, as in ssh -o. Repeatable."),
    click.option("-L", "local", metavar="FORWARD", multiple=True, help="Forward a local port (ssh -L)."),
    click.option("-R", "remote", metavar="FORWARD", multiple=True, help="Forward a port of the worker (ssh -R)."),
    click.option("-D", "dynamic", metavar="[ADDRESS:]PORT", multiple=True, help="Open a SOCKS proxy (ssh -D)."),
    click.option(
        "-A", "agent", is_flag=True, help="Forward the ssh agent (ssh -A); only for workers whose users you trust."
    ),
    click.option("-N", "no_command", is_flag=True, help="Run no command: only forward ports, until Ctrl-C."),
    click.option("-t", "tty", is_flag=True, help="Allocate a terminal for the command (ssh -t)."),
    click.option(
        "--ssh-flag",
        "flags",
        metavar="OPTION",
        multiple=True,
        help="Other argument of ssh: --ssh-flag=-vv. Repeatable.",
    ),
    click.option(
        "--forward",
        "forwards",
        metavar="PORT",
        multiple=True,
        help="Port of the worker to forward to this machine: tensorboard (6006), jupyter (8888), PORT or LOCAL:PORT; "
        "without LOCAL, a free local port is used. Repeatable.",
    ),
)


class BatchSize(click.ParamType[int | None]):
    """A number of workers, or `all` as in gcloud, which means no limit."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number. None for `all`."""
        if value == "all" or isinstance(value, int):
            return value if isinstance(value, int) else None
        if not re.fullmatch(r"[1-9]\d{0,8}", str(value), re.ASCII):
            self.fail(f"'{value}' is neither a number of workers nor 'all'", param, ctx)
        return int(value)


def ssh_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for ssh."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class SshOptions:
    """The options for ssh. `words` are validated, and do not contain those of `--forward`."""

    words: tuple[str, ...]
    forwards: tuple[PortForward, ...]
    tty: bool
    no_command: bool
    keys: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def are_for_one_worker(self) -> bool:
        """Tell whether they are possible for one worker only."""
        return bool(self.words or self.forwards or self.tty or self.no_command)

    def for_connection(self, connection: Connection) -> tuple[str, ...]:
        """Return the arguments of ssh for one worker. Raises `InvalidInputError` for a second proxy."""
        check_ssh_options(self.keys, self.flags, has_proxy=connection.proxy_command is not None, is_plain=True)
        words = [*self.words, *(["-N"] if self.no_command else [])]
        for forward in self.forwards:
            words += forward.options
        # ssh must fail if a port is in use by now, or the worker refuses to forward it.
        return (*words, *(("-o", "ExitOnForwardFailure=yes") if self.forwards else ()))


def parse_ssh_options(options: dict[str, Any]) -> SshOptions:
    """Remove the ssh options from a command's options, and return them.

    Raises `InvalidInputError` for an option that is not allowed, `ConflictError` for a local port that is in use.
    """
    keys, flags = options.pop("keys"), options.pop("flags")
    words = list(check_ssh_options(keys, flags, has_proxy=False, is_plain=options["plain"]))
    for name, letter in (("local", "-L"), ("remote", "-R"), ("dynamic", "-D")):
        words += [word for value in options.pop(name) for word in (letter, value)]
    words += ["-A"] if options.pop("agent") else []
    forwards = tuple(choose_local_ports([PortForward.parse(text) for text in options.pop("forwards")]))
    return SshOptions(tuple(words), forwards, options.pop("tty"), options.pop("no_command"), keys, flags)


def remote_command_words(words: tuple[str, ...], line: str | None, node: str) -> tuple[str, ...]:
    """Return the command after `--`, or that of `--command`. Raises `InvalidInputError` for both, or an option of ssh."""
    if line is None:
        if words and words[0].startswith("-"):
            raise misplaced_option_error(words[0], node, words[1:])
        return words
    if words:
        raise InvalidInputError("the command is given twice", hint="use `--command LINE` or `-- COMMAND…`, not both")
    return (line,)


def announce_forwards(app: App, forwards: tuple[PortForward, ...], label: str) -> None:
    """Print the local URLs of the forwarded ports."""
    for forward in forwards:
        app.terminal.note(f"http://localhost:{forward.local}/ forwards to port {forward.remote} of {label}")


@cli_command("ssh", without=("output",))
@node_argument
@click.argument("remote_command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--worker",
    metavar="SET",
    default="0",
    show_default=True,
    help="Worker number; with a command also a set: all, or 1,3-5.",
)
@click.option("--command", "line", metavar="LINE", help="Command, as one shell line.")
@click.option(
    "--tmux",
    metavar="[NAME]",
    is_flag=False,
    flag_value=DEFAULT_TMUX_SESSION,
    help="Attach to a tmux session, which survives lost connections.",
)
@ssh_options
@route_options
@click.option("--plain", is_flag=True, help="Use the keys and host keys of your own ssh configuration.")
@click.option(
    "--batch-size", type=BatchSize(), metavar="N", help="Maximum number of workers at the same time. [default: all]"
)
@click.option("--dry-run", is_flag=True, help="Print the ssh command line, and change nothing.")
def command(
    app: App, *, node: str, remote_command: tuple[str, ...], worker: str, line: str | None, **options: Any
) -> int:  # click's options
    """Open a shell on a worker, or run a command on it and exit with its exit code.

    A single word after -- is a line for the remote shell; several words are passed unchanged as arguments. On several workers
    a command runs as with `tpuctl run`. A tmux session survives a lost connection: tpuctl attaches to it again as soon as the
    worker answers.

    \b
    Examples:
      tpuctl ssh trainer
      tpuctl ssh trainer --worker 3 -- 'ls -l $HOME'
      tpuctl ssh ada@trainer --forward tensorboard
      tpuctl ssh trainer --tmux
      tpuctl ssh private-trainer --iap
    """
    words = remote_command_words(remote_command, line, node)
    flags, workers = parse_ssh_options(options), WorkerSet.parse(worker)
    is_read_only = options["dry_run"] or options["plain"]
    check_combinations(app, node, words, flags=flags, options=options)
    nodes = find_nodes(app, [node])
    numbers = workers.of(nodes[0].name.node_id, nodes[0].workers)
    if len(numbers) > 1:
        one = f"choose a worker from 0 to {nodes[0].workers - 1} with `--worker`"
        if not words:
            raise InvalidInputError("a shell needs a single worker", hint=f"{one}, or add a command: `-- COMMAND`")
        if flags.are_for_one_worker or options["tmux"] is not None or options["plain"]:
            raise InvalidInputError("options of ssh, `--tmux` and `--plain` need a single worker", hint=one)
    found = find_targets(app, nodes, workers, read_only=is_read_only)
    if not is_read_only:
        await_key(app, found)
    if len(found) > 1 and not options["dry_run"]:
        from tpuctl.workers.execution import run_and_show, shell_line  # noqa: PLC0415  # most sessions are with one worker
        from tpuctl.workers.runner import RunRequest  # noqa: PLC0415  # as above

        return run_and_show(app, found, RunRequest(line=shell_line(words), batch=options["batch_size"]))
    sessions = [build_session(app, node, target, words, flags=flags, options=options) for target in found]
    if options["dry_run"]:
        app.terminal.names(shlex.join(session.argv()) for session in sessions)
        return 0
    announce_forwards(app, flags.forwards, f"worker {found[0].worker} of `{found[0].node.name.node_id}`")
    app.terminal.flush()
    session, streams = sessions[0], app.terminal.streams
    if session.tmux is not None:
        return attach_tmux(app, session)
    if app.is_sandbox and session.tty:
        warn_without_terminals(app, session.target)
    if not session.words and streams.stdin is sys.stdin:
        app.close()
        exec_ssh(session.argv())
    ran = run_in_foreground(session.argv, has_terminal=session.tty and streams.stdin_is_terminal)
    if ran.was_lost and not ran.has_connected:
        explain_failed_login(app, session)
    return ran.code


_LOGIN_TIMEOUT = timedelta(seconds=15)
# An interactive session must notice a dead connection within seconds. The user's own options override this.
_QUICK_KEEPALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class SshSession:
    """The ssh session to start. `node` is what the user typed; `tmux` is the name of a tmux session, or None."""

    node: str
    target: Target
    words: tuple[str, ...]
    flags: SshOptions
    tty: bool
    plain: bool
    tmux: str | None

    def argv(self, more: tuple[str, ...] = ()) -> list[str]:
        """Return the whole argv of ssh, with `more` options after those of the user."""
        words = (tmux_attach_command(self.tmux, self.words),) if self.tmux is not None else self.words
        build = plain_ssh_argv if self.plain else ssh_argv
        options = (*self.flags.for_connection(self.target.connection), *more)
        return build(self.target.connection, words, tty=self.tty, options=options)


def check_combinations(
    app: App, node: str, words: tuple[str, ...], *, flags: SshOptions, options: dict[str, Any]
) -> None:
    """Raise `InvalidInputError` for options that exclude each other, before any request."""  # click's options
    name = options["tmux"]
    if flags.no_command and (words or name is not None):
        raise InvalidInputError("`-N` runs no command", hint="remove `-N`, or the command and `--tmux`")
    if name is None:
        return
    tmux_attach_command(name)
    if not app.terminal.streams.stdin_is_terminal and not options["dry_run"]:
        hint = f"start a job without a terminal: `tpuctl run {node} --detach -- COMMAND`"
        raise InvalidInputError("`--tmux` needs a terminal", hint=hint)


def build_session(
    app: App, node: str, target: Target, words: tuple[str, ...], *, flags: SshOptions, options: dict[str, Any]
) -> SshSession:  # click's options
    """Build the session with one worker. Without a command and a terminal on stdin, forwards stay open until terminated."""
    name, has_terminal = options["tmux"], app.terminal.streams.stdin_is_terminal
    only_forwards = flags.no_command or bool(flags.forwards and not words and name is None and not has_terminal)
    is_shell = not words and not only_forwards
    tty = flags.tty or (has_terminal and (is_shell or name is not None))
    return SshSession(node, target, words, replace(flags, no_command=only_forwards), tty, options["plain"], name)


def attach_tmux(app: App, session: SshSession) -> int:
    """Attach to the tmux session until the user leaves it, and reconnect after lost connections. Return the exit code.

    Raises `RemoteCommandError` if the worker has no tmux, refuses the login, or no longer exists.
    """
    target, terminal = session.target, app.terminal
    name = target.node.name.node_id
    resume = f"tpuctl ssh {session.node} --worker {target.worker} --tmux={session.tmux}"

    def enter() -> ForegroundResult:
        ran = run_in_foreground(lambda options: session.argv((*_QUICK_KEEPALIVE, *options)), has_terminal=True)
        if ran.was_lost and terminal.streams.stdout_is_terminal:
            terminal.send(RESET_TERMINAL)
        return ran

    def check_node() -> None:
        """Raise if the node is deleted, recreated, or in a state without ssh."""
        node = app.client.find_node(target.node.name)
        if node is None or node.id != target.node.id:
            what = "no longer exists" if node is None else "was recreated"
            raise RemoteCommandError(f"`{name}` {what}, so the session is lost", hint=f"see `tpuctl history {name}`")
        check_login_state(node)

    with app.in_flight(
        f"the session `{session.tmux}` on worker {target.worker} of `{name}` keeps running", resume=resume
    ):
        ran = stay_attached(
            enter,
            probe=lambda: probe_ssh(target.connection, _LOGIN_TIMEOUT),
            check=check_node,
            clock=app.clock,
            note=terminal.warn,
        )
    match ran.code:
        case interactive.TMUX_DETACHED:
            terminal.note(f"the session keeps running; attach again with `{resume}`")
            return 0
        case interactive.NO_TMUX:
            install = f"tpuctl ssh {session.node} --worker {target.worker} -- sudo apt-get install -y tmux"
            raise RemoteCommandError(
                f"worker {target.worker} of `{name}` has no `tmux`", hint=f"install it: `{install}`"
            )
        case code:
            if ran.was_lost:
                explain_failed_login(app, session)
            return code


def explain_failed_login(app: App, session: SshSession) -> None:
    """Log in once more to find out why ssh failed, and show the reason. Show nothing if this login succeeds."""
    from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failure  # noqa: PLC0415  # only for failures

    if session.plain:
        return
    login = run_ssh_command(session.target.connection, "true", timeout=_LOGIN_TIMEOUT)
    if login.code in {None, SSH_FAILED}:
        waited = _LOGIN_TIMEOUT if login.code is None else None
        context = collect_failure_context(session.target, waited=waited)
        app.show_error(explain_ssh_failure(login.errors, session.target, context))


def warn_without_terminals(app: App, target: Target) -> None:
    """Warn if the sandbox's sshd cannot open terminals: it ends such a session without a message."""
    from tpuctl.sandbox.sshd.daemon import terminal_obstacle  # noqa: PLC0415  # only for the sandbox

    if obstacle := terminal_obstacle():
        name = target.node.name.node_id
        app.terminal.warn(obstacle, f"  run a command without a terminal: tpuctl ssh {name} -- COMMAND")
