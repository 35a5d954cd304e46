"""What it means that a session ended before the command did. ssh has one exit code for all its failures: its words decide."""

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
# How ssh begins lines that nobody has explained yet: its name, or that of the function in it which gave up.
_OF_SSH = re.compile(
    r"ssh: |(?:ssh|kex|client|channel|packet|mux|sshpkt)_\w+: |Bad packet length|Corrupted MAC on input"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session ended, and whether another may do better. `ssh_said` is ssh's stderr, where ssh is what failed.

    Of a link that broke in the middle `why` has ssh's own words, or is empty: all else there was printed by what logs in.
    """

    why: str
    is_retriable: bool
    ssh_said: str | None = None


def failure(post: Post) -> Failure:
    """Return why the session of a worker ended before its command did."""
    if ended := ended_here(post.code):
        return Failure(ended, is_retriable=True)
    if post.may_run:
        return _lost(post)
    if post.code == SSH_FAILED:
        why = telling_line(post.errors) or "ssh ended without a word"
        is_retriable = may_pass(post.code, post.errors, is_first=post.tries == 1)
        return Failure(why, is_retriable=is_retriable, ssh_said=post.errors)
    said = last_line(post.errors)
    if post.code == _NO_PROGRAM:
        return Failure("there is no `python3` there" + (f" ({said})" if said else ""), is_retriable=False)
    return Failure(said or f"the login shell ended with {post.code}", is_retriable=False)


def may_pass(code: int | None, errors: str, *, is_first: bool) -> bool:
    """Tell whether what kept a session from its end may not keep the next: ssh's exit code (negative: a signal), its words.

    Only ask where nothing was started, or what was started does no harm twice. What is not known counts as lasting.
    """
    if code != SSH_FAILED:
        return ended_here(code) is not None
    if is_first and not words_of_ssh(errors):
        # It may have used a connection that was kept, and whose process says nothing of its end.
        return True
    found = verdict_of(errors)
    # A link that broke while it was in use: nothing was started over it yet.
    return passes_soon(errors) or (found is not None and found.id == "ssh-closed-by-remote")


def ended_here(code: int | None) -> str | None:
    """Return that ssh was ended on this machine by a signal, where its exit code tells so (a negative one)."""
    if code is None or code >= 0:
        return None
    known = {one.value: one.name.removeprefix("SIG") for one in signal.Signals}
    return f"ssh was ended on this machine, by {known.get(-code, f'signal {-code}')}"


def words_of_ssh(errors: str) -> str:
    """Return what ssh said last, among what login shells and their set-up print; nothing where it said nothing."""
    lines = [line for line in errors.splitlines() if verdict_of(line) is not None or _OF_SSH.match(line.strip())]
    return telling_line("\n".join(lines))


def _lost(post: Post) -> Failure:
    """Return why a worker that had let us in, and has our command, is not connected any more."""
    said = words_of_ssh(post.errors)
    if not said and post.tries:
        # It was being connected to again: what stands in the way may have words of its own.
        said = telling_line(post.errors)
    is_of_ssh = post.code == SSH_FAILED
    return Failure(said, is_retriable=_may_be_let_in(post.errors), ssh_said=said if said and is_of_ssh else None)


def _may_be_let_in(errors: str) -> bool:
    """Tell whether a worker that had let us in may do so again."""
    found = verdict_of(errors)
    return found is None or found.id not in KEY_REFUSED | HOST_KEY_CHANGED
