"""Follow a kept job that prints very much: `python -m benchmarks.kept_output [--mib 1024]`; not a measurement against gcloud.

Runs it in the sandbox, through a real sshd, with 8 MiB of output and with very many; prints the peak memory of the supervisor
for both, and what is kept of the output. Returns 1 if memory depends on the output, or if more is kept than the setting allows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.footprint import Footprint, watch
from benchmarks.stage import ZONE, Stage

_FEW = 8
# A buffer here and there may grow: the output is a hundred times as long.
_MOST_GROWTH = 1.25


def main() -> int:
    """Run both jobs and compare them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept_output", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of output")
    parser.add_argument("--kept", type=int, default=1024, help="MiB of it that may be kept: the setting kept_log_mib")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        few, _ = _follow(Path(folder) / "few", _FEW, arguments.kept)
        many, kept = _follow(Path(folder) / "many", arguments.mib, arguments.kept)
    growth = many.own / few.own
    print(f"{_FEW} MiB of output: {few.own:.0f} MiB of memory, {few.wall:.0f} s")
    print(
        f"{arguments.mib} MiB of output: {many.own:.0f} MiB of memory ({growth:.2f} times as much), {many.wall:.0f} s, "
        f"{many.output >> 20} MiB shown, {kept >> 20} MiB kept"
    )
    return 0 if growth <= _MOST_GROWTH and kept <= arguments.kept << 20 else 1


def _follow(folder: Path, size: int, kept: int) -> tuple[Footprint, int]:
    """Return the footprint of a supervisor whose job prints `size` MiB, and the bytes that it kept."""
    folder.mkdir()
    stage = Stage(folder)
    line = f"head -c {size << 20} /dev/zero | tr '\\0' x | fold -w 127"
    node = ("run", "trainer", "--keep", "--name", "train", "--type", "v4-8", "--zone", ZONE, "--no-sync")
    found = watch(stage.tpuctl(*node, "--", line, environ={"TPUCTL_KEPT_LOG_MIB": str(kept)}))
    return found, sum(path.stat().st_size for path in folder.glob("state/**/train.logs/**/*.log"))


if __name__ == "__main__":
    sys.exit(main())
