"""Where a worker's TPU is in its file system. The paths begin at `$TPUCTL_DEVICE_ROOT`, which is empty on a real worker."""

from __future__ import annotations

# Patterns of the shell's, of find's and of fnmatch's: up to v4 the first, from v5e on the second (observed). `/dev/vfio/vfio`
# is not among them: it is no chip, and whoever uses one has that one open too.
ACCEL_FILES = "/dev/accel[0-9]*"
VFIO_FILES = "/dev/vfio/[0-9]*"
# A TPU program takes a lock on it and fails at once where another has it, or where it may not write to it [TensorFlow source].
LOCK_FILE = "/tmp/libtpu_lockfile"  # noqa: S108  # libtpu's choice
