"""Host entries for nodes in an ssh configuration file of tpuctl, so that plain ssh, rsync and editors can reach the workers.

`entries` builds and parses entries (pure), `taken` finds the host names in the user's configuration, and `files` reads and
writes the file, and adds the line to `~/.ssh/config` that includes it. No other line of the user's files is changed.
"""

from __future__ import annotations

from tpuctl.remote.ssh_config.entries import (
    Entry,
    NameTakenError,
    SshConfigError,
    Text,
    check_clashes,
    check_prefix,
    entry_of,
)
from tpuctl.remote.ssh_config.files import add_include, change, include_line, is_included, read
from tpuctl.remote.ssh_config.taken import TakenNames

__all__ = [
    "Entry",
    "NameTakenError",
    "SshConfigError",
    "TakenNames",
    "Text",
    "add_include",
    "change",
    "check_clashes",
    "check_prefix",
    "entry_of",
    "include_line",
    "is_included",
    "read",
]
