"""Paths of TPU devices on a worker. They are relative to `$TPUCTL_DEVICE_ROOT`, which is empty on a real worker."""

from __future__ import annotations

# Patterns for the shell, find and fnmatch: up to v4 the first, from v5e on the second (observed). `/dev/vfio/vfio` is left out:
# it is not a chip, and a process that uses a chip has it open too.
ACCEL_FILES = "/dev/accel[0-9]*"
VFIO_FILES = "/dev/vfio/[0-9]*"
# A TPU program locks this file, and fails at once if another process holds the lock or the file is not writable [TensorFlow
# source].
LOCK_FILE = "/tmp/libtpu_lockfile"  # noqa: S108  # the path that libtpu uses
# Where libtpu writes its logs unless `TPU_LOG_DIR` names another folder.
LOG_FOLDER = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
