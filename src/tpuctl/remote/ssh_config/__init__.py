"""Entries of ssh's configuration for nodes, in a file of tpuctl's own: then plain ssh, rsync and editors reach the workers.

`entries` says what an entry is (pure), `taken` which names the user's own configuration has, `files` writes, and adds the one
line by which `~/.ssh/config` includes the file. Nothing else of what the user wrote is ever changed.
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
