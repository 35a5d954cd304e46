"""What it means that a session ended before the command did. ssh has one exit code for all its failures: its words decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.remote.failures import HOST_KEY_CHANGED, KEY_REFUSED, is_retriable, telling_line, verdict_of
from tpuctl.remote.inspection import last_line
from tpuctl.remote.session import SSH_FAILED

if TYPE_CHECKING:
    from tpuctl.remote.running.post import Post

_NO_PROGRAM = 127


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session ended, and whether another may do better. `ssh_said` is ssh's stderr, where ssh is what failed."""

    why: str
    is_retriable: bool
    ssh_said: str | None = None


def failure(post: Post) -> Failure:
    """Return why the session of a worker ended before its command did."""
    if post.code == SSH_FAILED:
        # The first try may have used a connection that was kept, and whose process says nothing of its end.
        speechless = not post.errors.strip() and post.tries == 1
        return Failure(
            telling_line(post.errors) or "ssh ended without a word",
            is_retriable=speechless or _may_pass(post),
            ssh_said=post.errors,
        )
    said = last_line(post.errors)
    if post.may_run:
        return Failure(said or "the session was cut off", is_retriable=True)
    if post.code == _NO_PROGRAM:
        return Failure("there is no `python3` there" + (f" ({said})" if said else ""), is_retriable=False)
    return Failure(said or f"the login shell ended with {post.code}", is_retriable=False)


def _may_pass(post: Post) -> bool:
    """Tell whether another connection may do better."""
    found = verdict_of(post.errors)
    if post.may_run:
        # It has let us in before: only where it does not do so any more there is no use in trying.
        return found is None or found.id not in KEY_REFUSED | HOST_KEY_CHANGED
    # A link that broke while it was in use: nothing was started over it yet.
    return is_retriable(post.errors) or (found is not None and found.id == "ssh-link-lost")
