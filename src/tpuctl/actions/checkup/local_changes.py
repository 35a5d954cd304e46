"""Apply the fixes of `--fix` on this machine: modes of files, a missing key, a key for the agent. No fix removes anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import assert_never

from tpuctl.errors import TpuctlError
from tpuctl.preflight.findings import AddToAgent, LocalChange, MakeSshKey, SetMode


def carry_out_here(change: LocalChange) -> None:
    """Apply one fix. Raises `TpuctlError` with the error of the system."""
    match change:
        case SetMode(path, mode):
            try:
                # Only bits are removed: a file that its owner may not write stays so.
                Path(path).chmod(Path(path).stat().st_mode & mode)
            except OSError as error:
                raise TpuctlError(f"the mode of `{path}` cannot be changed: {error.strerror}") from error
        case MakeSshKey(home):
            from tpuctl.remote.keys import ensure_key, login_name  # noqa: PLC0415  # rarely used

            ensure_key(Path(home), login=login_name(os.environ))
        case AddToAgent(path):
            import subprocess  # noqa: PLC0415  # rarely used

            try:
                # With the terminal, since it asks for the passphrase.
                code = subprocess.run(["ssh-add", path], check=False).returncode
            except OSError as error:
                raise TpuctlError(f"`ssh-add` cannot be started: {error.strerror}") from error
            if code != 0:
                hint = "run it yourself: it asks for the passphrase at a terminal, and needs a running agent"
                raise TpuctlError(f"`ssh-add` failed with exit code {code}", hint=hint)
        case _:
            assert_never(change)
