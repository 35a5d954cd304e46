"""What it means that a session ended before the command did. ssh has one exit code for all its failures: its words decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.remote.inspection import last_line
from tpuctl.remote.session import SSH_FAILED
from tpuctl.remote.ssh import ProbeOutcome, classify

if TYPE_CHECKING:
    from tpuctl.remote.running.post import Post

_NO_PROGRAM = 127


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session ended, and whether another may do better."""

    why: str
    is_retriable: bool


def failure(post: Post) -> Failure:
    """Return why the session of a worker ended before its command did."""
    if post.code == SSH_FAILED:
        result = classify(SSH_FAILED, post.errors)
        return Failure(result.detail or "ssh ended", result.outcome is ProbeOutcome.UNREACHABLE)
    said = last_line(post.errors)
    if post.may_run:
        return Failure(said or "the session was cut off", is_retriable=True)
    if post.code == _NO_PROGRAM:
        return Failure(said or "there is no `python3` on the worker", is_retriable=False)
    return Failure(said or f"the login shell ended with {post.code}", is_retriable=False)
