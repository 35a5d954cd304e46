"""The body of `tpuctl ssh`."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError, RemoteCommandError, ServiceUnavailableError
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.conditions import check_login_state
from tpuctl.sandbox.sshd.daemon import terminal_obstacle
from tpuctl.ssh import interactive
from tpuctl.ssh.connection import SSH_FAILED, ProbeOutcome, plain_ssh_argv, probe_ssh, run_ssh_command, ssh_argv
from tpuctl.ssh.interactive import (
    RESET_TERMINAL,
    PortForward,
    choose_local_ports,
    exec_ssh,
    misplaced_option_error,
    run_in_foreground,
    tmux_attach_command,
)
from tpuctl.workers.targets import await_key, find_node, find_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.app.app import App
    from tpuctl.clock import Clock
    from tpuctl.ssh.connection import ProbeResult, Target
    from tpuctl.ssh.interactive import ForegroundResult
    from tpuctl.workers.commands.ssh import SshFlags


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


def remote_command_words(words: tuple[str, ...], line: str | None, node: str) -> tuple[str, ...]:
    """Return the command after `--`, or that of `--command`. Raises `InvalidInputError` for both, or an option of ssh."""
    if line is None:
        if words and words[0].startswith("-"):
            raise misplaced_option_error(words[0], node, words[1:])
        return words
    if words:
        raise InvalidInputError("the command is given twice", hint="use `--command LINE` or `-- COMMAND…`, not both")
    return (line,)


def run_ssh(
    app: App,
    *,
    node: str,
    remote_command: tuple[str, ...],
    flags: SshFlags,
    plain: bool,
    batch_size: int | None,
    dry_run: bool,
) -> int:
    """Open a shell on a worker, or run a command on it and exit with its exit code."""
    words = remote_command_words(remote_command, flags.line, node)
    flags.words(plain=plain)  # invalid ones are an error before any request
    forwards = choose_local_ports([PortForward.parse(text) for text in flags.forwards])
    workers, has_terminal = WorkerSet.parse(flags.worker), app.terminal.streams.stdin_is_terminal
    check_combinations(node, words, flags, may_attach=has_terminal or dry_run)
    nodes = [find_node(app, node)]
    if len(workers.of(nodes[0].name.node_id, nodes[0].workers)) > 1:
        one = f"choose a worker from 0 to {nodes[0].workers - 1} with `--worker`"
        if not words:
            raise InvalidInputError("a shell needs a single worker", hint=f"{one}, or add a command: `-- COMMAND`")
        if flags.are_for_one_worker or plain:
            raise InvalidInputError("options of ssh, `--tmux` and `--plain` need a single worker", hint=one)
    is_read_only = dry_run or plain
    found = find_targets(app, nodes, workers, read_only=is_read_only)
    if not is_read_only:
        await_key(app, found)
    if len(found) > 1 and not dry_run:
        from tpuctl.workers.execution import run_and_show, shell_line  # noqa: PLC0415  # most sessions are with one worker
        from tpuctl.workers.runner import RunRequest  # noqa: PLC0415  # as above

        return run_and_show(app, found, RunRequest(line=shell_line(words), batch=batch_size))
    sessions = [
        SshSession(node, target, words, flags, forwards, plain=plain, has_terminal=has_terminal) for target in found
    ]
    if dry_run:
        app.terminal.names(shlex.join(session.argv()) for session in sessions)
        return 0
    session, streams = sessions[0], app.terminal.streams
    for forward in forwards:
        label = f"worker {session.target.worker} of `{session.target.node.name.node_id}`"
        app.terminal.note(f"http://localhost:{forward.local}/ forwards to port {forward.remote} of {label}")
    app.terminal.flush()
    if flags.tmux is not None:
        return attach_tmux(app, session)
    if app.is_sandbox and session.tty:
        warn_without_terminals(app, session.target)
    if not words and streams.stdin is sys.stdin:
        app.close()
        exec_ssh(session.argv())
    ran = run_in_foreground(session.argv, has_terminal=session.tty and has_terminal)
    if ran.was_lost and not ran.has_connected:
        explain_failed_login(app, session)
    return ran.code


_LOGIN_TIMEOUT = timedelta(seconds=15)


# An interactive session must notice a dead connection within seconds. The user's own options override this.
_QUICK_KEEPALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class SshSession:
    """The ssh session with one worker. `node` is what the user typed, `words` the command."""

    node: str
    target: Target
    words: tuple[str, ...]
    flags: SshFlags
    forwards: Sequence[PortForward]
    _: KW_ONLY
    plain: bool
    has_terminal: bool  # whether stdin is one

    @property
    def only_forwards(self) -> bool:
        """Whether it runs nothing. Without a command and a terminal, forwards stay open until terminated."""
        is_idle = not (self.words or self.flags.tmux is not None or self.has_terminal)
        return self.flags.no_command or (bool(self.forwards) and is_idle)

    @property
    def tty(self) -> bool:
        """Whether the worker allocates a terminal."""
        is_shell = not self.words and not self.only_forwards
        return self.flags.tty or (self.has_terminal and (is_shell or self.flags.tmux is not None))

    def argv(self, more: tuple[str, ...] = ()) -> list[str]:
        """Return the whole argv of ssh, with `more` options after those of the user. Raises `InvalidInputError`."""
        connection, tmux = self.target.connection, self.flags.tmux
        options = self.flags.words(plain=self.plain)
        options += ["-N"] if self.only_forwards else []
        for forward in self.forwards:
            options += forward.options
        # ssh must fail if a port is in use by now, or the worker refuses to forward it.
        options += ["-o", "ExitOnForwardFailure=yes"] if self.forwards else []
        words = self.words if tmux is None else (tmux_attach_command(tmux, self.words),)
        build = plain_ssh_argv if self.plain else ssh_argv
        return build(connection, words, tty=self.tty, options=(*options, *more))


def check_combinations(node: str, words: tuple[str, ...], flags: SshFlags, *, may_attach: bool) -> None:
    """Raise `InvalidInputError` for options that exclude each other, before any request."""
    if flags.no_command and (words or flags.tmux is not None):
        raise InvalidInputError("`-N` runs no command", hint="remove `-N`, or the command and `--tmux`")
    if flags.tmux is None:
        return
    tmux_attach_command(flags.tmux)
    if not may_attach:
        hint = f"start a job without a terminal: `tpuctl run {node} --detach -- COMMAND`"
        raise InvalidInputError("`--tmux` needs a terminal", hint=hint)


def attach_tmux(app: App, session: SshSession) -> int:
    """Attach to the tmux session until the user leaves it, and reconnect after lost connections. Return the exit code.

    Raises `RemoteCommandError` if the worker has no tmux, refuses the login, or no longer exists.
    """
    target, terminal = session.target, app.terminal
    name = target.node.name.node_id
    resume = f"tpuctl ssh {session.node} --worker {target.worker} --tmux={session.flags.tmux}"

    def enter() -> ForegroundResult:
        ran = run_in_foreground(lambda options: session.argv((*_QUICK_KEEPALIVE, *options)), has_terminal=True)
        if ran.was_lost and terminal.streams.stdout_is_terminal:
            terminal.send(RESET_TERMINAL)
        return ran

    def check_node() -> None:
        """Raise if the node is deleted, recreated, or in a state without ssh."""
        node = app.services.client.find_node(target.node.name)
        if node is None or node.id != target.node.id:
            what = "no longer exists" if node is None else "was recreated"
            raise RemoteCommandError(f"`{name}` {what}, so the session is lost", hint=f"see `tpuctl history {name}`")
        check_login_state(node)

    with app.in_flight(
        f"the session `{session.flags.tmux}` on worker {target.worker} of `{name}` keeps running", resume=resume
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
    if session.plain:
        return
    login = run_ssh_command(session.target.connection, "true", timeout=_LOGIN_TIMEOUT)
    if login.code in {None, SSH_FAILED}:
        waited = _LOGIN_TIMEOUT if login.code is None else None
        from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failure  # noqa: PLC0415  # only for failures

        context = collect_failure_context(session.target, waited=waited)
        app.show_error(explain_ssh_failure(login.errors, session.target, context))


def warn_without_terminals(app: App, target: Target) -> None:
    """Warn if the sandbox's sshd cannot open terminals: it ends such a session without a message."""
    if obstacle := terminal_obstacle():
        name = target.node.name.node_id
        app.terminal.warn(obstacle, f"  run a command without a terminal: tpuctl ssh {name} -- COMMAND")
