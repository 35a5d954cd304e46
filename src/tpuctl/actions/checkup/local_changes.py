"""Doing what mends a finding on this machine: modes of files, a missing key, an agent. Nothing is removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import assert_never

from tpuctl.errors import TpuctlError
from tpuctl.preflight.findings import AddToAgent, LocalChange, MakeSshKey, SetMode


def carry_out_here(change: LocalChange) -> None:
    """Make one change. Raises `TpuctlError` with what the machine says."""
    match change:
        case SetMode(path, mode):
            try:
                # Never more than there is: a file that its owner may not write stays so.
                Path(path).chmod(Path(path).stat().st_mode & mode)
            except OSError as error:
                raise TpuctlError(f"the mode of `{path}` cannot be changed: {error.strerror}") from error
        case MakeSshKey(home):
            from tpuctl.remote.keys import ensure_key, login_name  # noqa: PLC0415  # rarely asked for

            ensure_key(Path(home), login=login_name(os.environ))
        case AddToAgent(path):
            _add(path)
        case _:
            assert_never(change)


def _add(path: str) -> None:
    import subprocess  # noqa: PLC0415  # rarely asked for

    try:
        # With the terminal, since it asks for the passphrase.
        code = subprocess.run(["ssh-add", path], check=False).returncode
    except OSError as error:
        raise TpuctlError(f"`ssh-add` cannot be started: {error.strerror}") from error
    if code != 0:
        hint = "type it yourself: the passphrase is asked for at a terminal, and an agent must run"
        raise TpuctlError(f"`ssh-add` has ended with {code}", hint=hint)
