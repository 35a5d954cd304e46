"""What uses a worker: processes that hold its TPU, jobs, ssh sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.ssh.answers import JsonFields, parse_line
from tpuctl.ssh.channel import open_agent
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES

if TYPE_CHECKING:
    from tpuctl.ssh.connection import Target

_TIMEOUT = timedelta(seconds=30)
_MOST_REASONS = 20


def fetch_activity(target: Target) -> tuple[str, ...]:
    """Return what uses a worker, or what cannot be examined there: empty only if the worker is idle.

    Raises `AgentError`, `UnexpectedAnswerError` and `SshProgramMissingError`.
    """
    request = {"devices": [ACCEL_FILES, VFIO_FILES], "lockFile": LOCK_FILE}
    with open_agent(target, "activity", request, as_root=True, connect_within=_TIMEOUT) as channel:
        fields = JsonFields(channel.read(_TIMEOUT), "the answer")
        return fields.each("activity", parse_line, most=_MOST_REASONS, longest=200)
