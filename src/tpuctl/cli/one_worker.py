"""One session with one worker: what ssh is started with, a session of tmux, and why ssh failed."""

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

_KNOCK = timedelta(seconds=15)
# A session that waits for its user must notice within seconds that the link is dead. The user's own options win.
_WATCHFUL = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class Session:
    """What is to be started with a worker. `node` is as the user named it; `tmux` the name of a session there."""

    node: str
    member: Member
    words: tuple[str, ...]
    flags: SshFlags
    tty: bool
    plain: bool
    tmux: str | None

    def argv(self, further: tuple[str, ...] = ()) -> list[str]:
        """Return the whole argv of ssh, with further options after the user's."""
        words = (tmux.attach_line(self.tmux, self.words),) if self.tmux is not None else self.words
        build = plain_argv if self.plain else argv
        options = (*self.flags.for_way(self.member.way), *further)
        return build(self.member.way, words, tty=self.tty, options=options)


def check_wish(app: App, node: str, words: tuple[str, ...], *, flags: SshFlags, options: dict[str, Any]) -> None:
    """Raise `InvalidInputError` for what does not go together, before anything is sent."""  # click's options
    name = options["tmux"]
    if flags.no_command and (words or name is not None):
        raise InvalidInputError("`-N` runs nothing", hint="leave out `-N`, or the command and `--tmux`")
    if name is None:
        return
    tmux.attach_line(name)
    if not app.terminal.streams.stdin_is_terminal and not options["dry_run"]:
        hint = f"jobs that need none go on by themselves: `tpuctl run {node} --detach -- COMMAND`"
        raise InvalidInputError("`--tmux` needs a terminal", hint=hint)


def session_with(
    app: App, node: str, member: Member, words: tuple[str, ...], *, flags: SshFlags, options: dict[str, Any]
) -> Session:  # click's options
    """Return what is to be started with one worker. Forwards alone, where nobody types, stay until they are ended."""
    name, is_typed_into = options["tmux"], app.terminal.streams.stdin_is_terminal
    only_forwards = flags.no_command or bool(flags.forwards and not words and name is None and not is_typed_into)
    is_shell = not words and not only_forwards
    tty = flags.tty or (is_typed_into and (is_shell or name is not None))
    return Session(node, member, words, replace(flags, no_command=only_forwards), tty, options["plain"], name)


def attach(app: App, session: Session) -> int:
    """Attach to the session of tmux until the user leaves it, across lost connections; return the exit code.

    Raises `RemoteCommandError` where the worker has no tmux, lets us in no more, or is gone.
    """
    from tpuctl.actions.attachment import stay_attached  # noqa: PLC0415  # only with --tmux
    from tpuctl.remote.foreground import run  # noqa: PLC0415  # as above

    member, terminal = session.member, app.terminal
    name = member.node.name.node_id
    back = f"tpuctl ssh {session.node} --worker {member.worker} --tmux={session.tmux}"

    def enter() -> Ran:
        ran = run(lambda options: session.argv((*_WATCHFUL, *options)), has_terminal=True)
        if ran.was_lost and terminal.streams.stdout_is_terminal:
            terminal.send(tmux.RESTORE)
        return ran

    with app.going_on(f"the session `{session.tmux}` on worker {member.worker} of `{name}` goes on", resume=back):
        ran = stay_attached(
            enter,
            knock=lambda: probe(member.way, _KNOCK),
            check=lambda: _check(app, session),
            clock=app.clock,
            tell=terminal.warn,
        )
    match ran.code:
        case tmux.GOES_ON:
            terminal.note(f"the session goes on; come back with `{back}`")
            return 0
        case tmux.NO_TMUX:
            install = f"tpuctl ssh {session.node} --worker {member.worker} -- sudo apt-get install -y tmux"
            raise RemoteCommandError(
                f"there is no `tmux` on worker {member.worker} of `{name}`", hint=f"install it: `{install}`"
            )
        case code:
            if ran.was_lost:
                explain(app, session)
            return code


def explain(app: App, session: Session) -> None:
    """Say why ssh was not let in, which one more try tells; nothing where that one succeeds."""
    from tpuctl.remote.failures import explain_failure, look_around  # noqa: PLC0415  # only for failures

    if session.plain:
        return
    code, stderr = knock(session.member.way, _KNOCK)
    if code in {None, SSH_FAILED}:
        waited = _KNOCK if code is None else None
        app.show_error(explain_failure(stderr, session.member, look_around(session.member, waited=waited)))


def _check(app: App, session: Session) -> None:
    """Raise where the node is gone, is another, or is in a state without ssh."""
    from tpuctl.remote.gate import check_state  # noqa: PLC0415  # only where a worker is away for long

    before = session.member.node
    node = app.client.find_node(before.name)
    name = before.name.node_id
    if node is None or node.id != before.id:
        what = "is gone" if node is None else "was made anew"
        raise RemoteCommandError(f"`{name}` {what}, and the session with it", hint=f"see `tpuctl history {name}`")
    check_state(node)


def warn_without_terminals(app: App, member: Member) -> None:
    """Say beforehand why the sandbox's sshd will end the session: it does not tell itself."""
    from tpuctl.sandbox.sshd.terminals import terminal_obstacle  # noqa: PLC0415  # only for the sandbox

    if obstacle := terminal_obstacle():
        name = member.node.name.node_id
        app.terminal.warn(obstacle, f"  run commands without one: tpuctl ssh {name} -- COMMAND")
