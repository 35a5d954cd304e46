"""Runs on worker 0: the folders in which a guard may live, and which files may be run from there.

A guard that runs as root lives in /var/lib/tpuctl/guard: one for the node, whichever login started it. Where root is not
available it lives in `~/.tpuctl/guard` and runs as that user. Paths begin at $TPUCTL_DEVICE_ROOT.
"""

from __future__ import annotations

import os
import sys

from tpuctl.ssh.agent.link import make_folder, own_folder
from tpuctl.ssh.agent.tpu_devices import device_root
from tpuctl.ssh.agent.user_files import is_trusted

# All users may read what the guard of their node does. Only its lock is for root alone.
SHARED_FOLDER_MODE = 0o755


def guard_folders() -> list[str]:
    """Return the folders in which a guard of this node may live, that of root first."""
    return [device_root() + "/var/lib/tpuctl/guard", os.path.expanduser("~/.tpuctl/guard")]


def installed_guard() -> str:
    """Return the folder of the guard that is installed, or of one that could be."""
    folders = guard_folders()
    return next((one for one in folders if os.path.exists(os.path.join(one, "settings"))), folders[-1])


def create_guard_folder() -> str:
    """Create the folder for a new guard: of root if this user may write there, else in the home. Raises `OSError`."""
    shared = guard_folders()[0]
    if os.geteuid() == 0 and not device_root() and not is_safe(sys.executable):
        raise OSError(0, "other users can change it, so root runs no guard with it", sys.executable)
    try:
        make_folder(shared, SHARED_FOLDER_MODE)
        if os.access(shared, os.W_OK) and is_safe(shared):
            return shared
    except OSError:
        pass
    if os.stat(os.path.expanduser("~")).st_uid != os.geteuid():
        raise OSError(0, "it belongs to another user, so no guard is started from there", os.path.expanduser("~"))
    folder = own_folder("guard")
    if not is_safe(folder):
        raise OSError(0, "other users can change it, so no guard is started from there", folder)
    return folder


def is_safe(path: str) -> bool:
    """Return whether only root and this user can have put a file or folder there. What runs as root needs all that is above."""
    path, root, own = os.path.realpath(path), device_root(), os.path.realpath(os.path.expanduser("~/.tpuctl"))
    top = root if root and path.startswith(root + "/") else "/" if os.geteuid() == 0 else own
    return is_trusted(path, {0, os.geteuid()}, top)
