"""The ssh key that tpuctl shares with gcloud, and where it is registered for workers.

`pair` manages the key pair on this machine, `metadata` edits the value `ssh-keys` of nodes and projects, `os_login` has the
rules of OS Login, and `renewal` replaces a key that workers refuse.
"""

from tpuctl.remote.keys.login import login_name
from tpuctl.remote.keys.metadata import holds_key, metadata_entry, with_key
from tpuctl.remote.keys.pair import (
    SshKey,
    SshKeyError,
    SshProgramMissingError,
    ensure_key,
    run_program,
)

__all__ = [
    "SshKey",
    "SshKeyError",
    "SshProgramMissingError",
    "ensure_key",
    "holds_key",
    "login_name",
    "metadata_entry",
    "run_program",
    "with_key",
]
