"""Why a session ended before its command did. ssh has one exit code for all its failures: its messages decide."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.remote.failures import HOST_KEY_CHANGED, KEY_REFUSED, telling_line, verdict_of
from tpuctl.remote.failures import is_retriable as passes_soon
from tpuctl.remote.inspection import last_line
from tpuctl.remote.ssh import SSH_FAILED

if TYPE_CHECKING:
    from tpuctl.remote.running.post import Post

_NO_PROGRAM = 127
# How ssh begins messages that `explain` does not know: with its name, or with the function in it that gave up.
_OF_SSH = re.compile(
    r"ssh: |(?:ssh|kex|client|channel|packet|mux|sshpkt)_\w+: |Bad packet length|Corrupted MAC on input"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session ended, and whether a new one may succeed. `ssh_said`: the stderr of ssh if ssh failed.

    For a connection that broke after the command started, `why` is a message of ssh or empty: other lines on its stderr come
    from the login shell.
    """

    why: str
    is_retriable: bool
    ssh_said: str | None = None


def failure(session: Post) -> Failure:
    """Return why the session of a worker ended before its command did."""
    if ended := ended_here(session.code):
        return Failure(ended, is_retriable=True)
    if session.may_run:
        said = words_of_ssh(session.errors)
        if not said and session.tries:
            # While reconnecting: other programs (a ProxyCommand, say) may have printed the reason.
            said = telling_line(session.errors)
        found = verdict_of(session.errors)
        # The worker accepted the key before: only these two say that it will not do so again.
        is_retriable = found is None or found.id not in KEY_REFUSED | HOST_KEY_CHANGED
        return Failure(said, is_retriable=is_retriable, ssh_said=said if said and session.code == SSH_FAILED else None)
    if session.code == SSH_FAILED:
        why = telling_line(session.errors) or "ssh failed without a message"
        is_retriable = may_pass(session.code, session.errors, is_first=session.tries == 1)
        return Failure(why, is_retriable=is_retriable, ssh_said=session.errors)
    said = last_line(session.errors)
    if session.code == _NO_PROGRAM:
        return Failure("`python3` is not installed there" + (f" ({said})" if said else ""), is_retriable=False)
    return Failure(said or f"the login shell exited with {session.code}", is_retriable=False)


def may_pass(code: int | None, errors: str, *, is_first: bool) -> bool:
    """Return whether a new session may succeed where one failed with this exit code (negative: a signal) and stderr of ssh.

    Only for sessions that started nothing, or nothing that does harm when started twice. An unknown message counts as
    permanent.
    """
    if code != SSH_FAILED:
        return ended_here(code) is not None
    if is_first and not words_of_ssh(errors):
        # It may have used a shared connection, whose master process prints nothing when it ends.
        return True
    found = verdict_of(errors)
    # A connection that broke in use: nothing had been started over it.
    return passes_soon(errors) or (found is not None and found.id == "ssh-closed-by-remote")


def ended_here(code: int | None) -> str | None:
    """Return a message if a signal on this machine ended ssh (a negative exit code); None otherwise."""
    if code is None or code >= 0:
        return None
    known = {one.value: one.name.removeprefix("SIG") for one in signal.Signals}
    return f"ssh was terminated on this machine by {known.get(-code, f'signal {-code}')}"


def words_of_ssh(errors: str) -> str:
    """Return the last message of ssh on its stderr, where login shells and their set-up print too; empty if none."""
    lines = [line for line in errors.splitlines() if verdict_of(line) is not None or _OF_SSH.match(line.strip())]
    return telling_line("\n".join(lines))
