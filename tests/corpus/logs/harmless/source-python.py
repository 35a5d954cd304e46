"""Recreate a node when it is gone."""

import subprocess

DEAD = {"PREEMPTED", "TERMINATED"}


def is_dead(state: str) -> bool:
    """Tell whether a node in this state will not come back."""
    return state in DEAD


def restart(name: str, *, timeout: int = 600) -> None:
    try:
        subprocess.run(["tpuctl", "up", name], check=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: no answer in {timeout} s") from error
