"""A session with one worker: the argv of ssh, tmux, and the explanation of a failed login."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError, RemoteCommandError
from tpuctl.remote import tmux
from tpuctl.remote.ssh import SSH_FAILED, argv, knock, plain_argv, probe

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.cli.ssh_flags import SshFlags
    from tpuctl.remote.foreground import Ran
    from tpuctl.remote.member import Member

_LOGIN_TIMEOUT = timedelta(seconds=15)
# An interactive session must notice a dead connection within seconds. The user's own options override this.
_QUICK_KEEPALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class Session:
    """The ssh session to start. `node` is what the user typed; `tmux` is the name of a tmux session, or None."""

    node: str
    member: Member
    words: tuple[str, ...]
    flags: SshFlags
    tty: bool
    plain: bool
    tmux: str | None

    def argv(self, more: tuple[str, ...] = ()) -> list[str]:
        """Return the whole argv of ssh, with `more` options after those of the user."""
        words = (tmux.attach_line(self.tmux, self.words),) if self.tmux is not None else self.words
        build = plain_argv if self.plain else argv
        options = (*self.flags.for_connection(self.member.way), *more)
        return build(self.member.way, words, tty=self.tty, options=options)


def check_wish(app: App, node: str, words: tuple[str, ...], *, flags: SshFlags, options: dict[str, Any]) -> None:
    """Raise `InvalidInputError` for options that exclude each other, before any request."""  # click's options
    name = options["tmux"]
    if flags.no_command and (words or name is not None):
        raise InvalidInputError("`-N` runs no command", hint="remove `-N`, or the command and `--tmux`")
    if name is None:
        return
    tmux.attach_line(name)
    if not app.terminal.streams.stdin_is_terminal and not options["dry_run"]:
        hint = f"start a job without a terminal: `tpuctl run {node} --detach -- COMMAND`"
        raise InvalidInputError("`--tmux` needs a terminal", hint=hint)


def session_with(
    app: App, node: str, member: Member, words: tuple[str, ...], *, flags: SshFlags, options: dict[str, Any]
) -> Session:  # click's options
    """Build the session with one worker. Without a command and a terminal on stdin, forwards stay open until terminated."""
    name, has_terminal = options["tmux"], app.terminal.streams.stdin_is_terminal
    only_forwards = flags.no_command or bool(flags.forwards and not words and name is None and not has_terminal)
    is_shell = not words and not only_forwards
    tty = flags.tty or (has_terminal and (is_shell or name is not None))
    return Session(node, member, words, replace(flags, no_command=only_forwards), tty, options["plain"], name)


def attach(app: App, session: Session) -> int:
    """Attach to the tmux session until the user leaves it, and reconnect after lost connections. Return the exit code.

    Raises `RemoteCommandError` if the worker has no tmux, refuses the login, or no longer exists.
    """
    from tpuctl.actions.attachment import stay_attached  # noqa: PLC0415  # only with --tmux
    from tpuctl.remote.foreground import run  # noqa: PLC0415  # as above

    member, terminal = session.member, app.terminal
    name = member.node.name.node_id
    resume = f"tpuctl ssh {session.node} --worker {member.worker} --tmux={session.tmux}"

    def enter() -> Ran:
        ran = run(lambda options: session.argv((*_QUICK_KEEPALIVE, *options)), has_terminal=True)
        if ran.was_lost and terminal.streams.stdout_is_terminal:
            terminal.send(tmux.RESTORE)
        return ran

    def check_node() -> None:
        """Raise if the node is deleted, recreated, or in a state without ssh."""
        from tpuctl.remote.gate import check_state  # noqa: PLC0415  # only for long outages

        node = app.client.find_node(member.node.name)
        if node is None or node.id != member.node.id:
            what = "no longer exists" if node is None else "was recreated"
            raise RemoteCommandError(f"`{name}` {what}, so the session is lost", hint=f"see `tpuctl history {name}`")
        check_state(node)

    with app.going_on(
        f"the session `{session.tmux}` on worker {member.worker} of `{name}` keeps running", resume=resume
    ):
        ran = stay_attached(
            enter,
            knock=lambda: probe(member.way, _LOGIN_TIMEOUT),
            check=check_node,
            clock=app.clock,
            tell=terminal.warn,
        )
    match ran.code:
        case tmux.GOES_ON:
            terminal.note(f"the session keeps running; attach again with `{resume}`")
            return 0
        case tmux.NO_TMUX:
            install = f"tpuctl ssh {session.node} --worker {member.worker} -- sudo apt-get install -y tmux"
            raise RemoteCommandError(
                f"worker {member.worker} of `{name}` has no `tmux`", hint=f"install it: `{install}`"
            )
        case code:
            if ran.was_lost:
                explain(app, session)
            return code


def explain(app: App, session: Session) -> None:
    """Log in once more to find out why ssh failed, and show the reason. Show nothing if this login succeeds."""
    from tpuctl.remote.failures import explain_failure, look_around  # noqa: PLC0415  # only for failures

    if session.plain:
        return
    code, stderr = knock(session.member.way, _LOGIN_TIMEOUT)
    if code in {None, SSH_FAILED}:
        waited = _LOGIN_TIMEOUT if code is None else None
        app.show_error(explain_failure(stderr, session.member, look_around(session.member, waited=waited)))


def warn_without_terminals(app: App, member: Member) -> None:
    """Warn if the sandbox's sshd cannot open terminals: it ends such a session without a message."""
    from tpuctl.sandbox.sshd.terminals import terminal_obstacle  # noqa: PLC0415  # only for the sandbox

    if obstacle := terminal_obstacle():
        name = member.node.name.node_id
        app.terminal.warn(obstacle, f"  run a command without a terminal: tpuctl ssh {name} -- COMMAND")
