"""Paths of TPU devices on a worker. They begin at $TPUCTL_DEVICE_ROOT, which is empty on a real worker. Python 3.8."""

from __future__ import annotations

import glob
import os

# Patterns for the shell, find and fnmatch: up to v4 the first, from v5e on the second (observed). `/dev/vfio/vfio` is left out:
# it is not a chip, and a process that uses a chip has it open too.
ACCEL_FILES = "/dev/accel[0-9]*"
VFIO_FILES = "/dev/vfio/[0-9]*"
DEVICE_FILES = (ACCEL_FILES, VFIO_FILES)
# A TPU program locks this file, and fails at once if another process holds the lock or the file is not writable [TensorFlow
# source].
LOCK_FILE = "/tmp/libtpu_lockfile"  # noqa: S108  # the path that libtpu uses
# Where libtpu writes its logs unless `TPU_LOG_DIR` names another folder.
LOG_FOLDER = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice


def device_root() -> str:
    """Return the folder that stands for `/` on a sandbox worker, empty on others."""
    named = os.environ.get("TPUCTL_DEVICE_ROOT")
    return os.path.realpath(named) if named else ""


def device_files(root: str) -> list[str]:
    """Return the device files of the chips below a root."""
    return sorted(path for pattern in DEVICE_FILES for path in glob.glob(glob.escape(root) + pattern))
