"""Runs on worker 0: what is known of the guard of the node (guard.py), from the files in its folder."""

from __future__ import annotations

import json
import os

from tpuctl.ssh.agent.guard_place import installed_guard
from tpuctl.ssh.agent.job_files import is_locked, read

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

GUARD_LOG_TAIL = 16 * 1024
GUARD_LOG_LINES = 40


def guard_report(mode: str | None = None) -> dict[str, Any]:
    """Return how the guard was started, whether it runs, its last status, and the end of its log."""
    folder = installed_guard()
    text = read(os.path.join(folder, "status"))
    try:
        state = json.loads(text) if text else None
    except (ValueError, RecursionError):
        state = None
    log = []
    try:
        with open(os.path.join(folder, "log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - GUARD_LOG_TAIL))
            log = file.read(GUARD_LOG_TAIL).decode("utf-8", "replace").splitlines()[-GUARD_LOG_LINES:]
    except OSError:
        pass
    settings = guard_settings(folder)
    return {
        "mode": mode,
        "isInstalled": os.path.exists(os.path.join(folder, "settings")),
        "isRunning": guard_runs(folder, state),
        "status": state,
        "idle": settings.get("idle"),
        "onIdle": settings.get("onIdle"),
        "log": log,
    }


def guard_runs(folder: str, state: Any) -> bool:
    """Return whether a guard runs. Only root may test the lock of its guard: other users look for its process."""
    try:
        return is_locked(os.path.join(folder, "lock"))
    except PermissionError:
        pid = state.get("pid") if isinstance(state, dict) else None
        words = read("/proc/%d/cmdline" % pid) if isinstance(pid, int) else None
        return words is not None and os.fsencode(os.path.join(folder, "guard.py")) in words.split(b"\0")


def guard_settings(folder: str) -> dict[str, Any]:
    """Return the settings of the guard, empty if there is none or they are damaged."""
    try:
        settings = json.loads(read(os.path.join(folder, "settings")) or b"{}")
    except (ValueError, RecursionError):
        settings = {}
    return settings if isinstance(settings, dict) else {}
