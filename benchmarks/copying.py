"""`python -m benchmarks.copying`: 100 MB to the eight workers of a slice, beside `scp` started eight times at once.

All use OpenSSH without compression, and the same way to the sandbox's real sshd; scp once with its own choice of cipher and
once with tpuctl's. They take turns, each beginning as often, so that what else the machine does falls on all.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from getpass import getuser
from pathlib import Path

from tpuctl.remote.copying.link import CIPHERS
from tpuctl.remote.keys import ensure_key, metadata_entry
from tpuctl.remote.ssh import Connection, host_alias, trust_options
from tpuctl.sandbox import admin
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.world import World

_WORKERS = 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copying", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--megabytes", type=int, default=100, help="what is copied (default: 100)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        measured = _measure(Path(folder), asked.runs, asked.megabytes)
    print(f"{asked.megabytes} MB to {_WORKERS} workers, medians of {asked.runs}:")
    ours = measured["tpuctl scp"]
    for name, seconds in measured.items():
        wall, used = statistics.median(wall for wall, _ in seconds), statistics.median(used for _, used in seconds)
        ratio = statistics.median(mine[0] / other[0] for mine, other in zip(ours, seconds, strict=True))
        print(f"{name:40} {wall:6.2f} s  {used:6.2f} s of processor  tpuctl takes {ratio:.2f} of it")


def _measure(folder: Path, runs: int, megabytes: int) -> dict[str, list[tuple[float, float]]]:
    state = folder / "state"
    key = ensure_key(state / "sandbox", key=None, login=getuser())
    with World.open(state / "sandbox" / "world.sqlite3", speed=60) as world:
        metadata = {"ssh-keys": metadata_entry(getuser(), key)}
        node = admin.add_node(world, "t", zone="us-central2-b", acceleratorType="v4-64", metadata=metadata)
        ways = [_way(world, state, node, worker, key.path) for worker in range(_WORKERS)]
    environ = {**os.environ, "HOME": str(folder), "TPUCTL_STATE_DIR": str(state), "TPUCTL_SANDBOX": "1"}
    measured: dict[str, list[tuple[float, float]]] = {}
    for run in range(runs + 1):
        # Another file each time: what is there already would not be sent again.
        file = folder / f"data-{run}"
        file.write_bytes(os.urandom(megabytes * 1_000_000))
        programs = {
            "tpuctl scp": [[sys.executable, "-m", "tpuctl", "scp", str(file), "t:mine"]],
            "scp, started 8 times": [_scp(way, file) for way in ways],
            "scp, started 8 times, tpuctl's cipher": [_scp(way, file, "-o", CIPHERS) for way in ways],
        }
        names = list(programs)
        for name in names[run % len(names) :] + names[: run % len(names)]:
            took = _timed(programs[name], environ)
            if run:  # the first one makes known hosts, folders and byte code
                measured.setdefault(name, []).append(took)
        file.unlink()
    return measured


def _scp(way: Connection, file: Path, *options: str) -> list[str]:
    return ["scp", "-q", *options, *trust_options(way), str(file), f"{way.login}@{way.address}:theirs"]


def _timed(commands: list[list[str]], environ: dict[str, str]) -> tuple[float, float]:
    """Return how long commands take that run at once, and the processor's time of all processes, at both ends."""
    # sshd outlives its ssh: with this (PR_SET_CHILD_SUBREAPER) orphans become ours, and can be counted.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    running = [subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL) for words in commands]
    codes = [process.wait() for process in running]
    wall = time.perf_counter() - started
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(codes):
        raise SystemExit(f"{commands[0]} ended with {codes}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _way(world: World, state: Path, node: dict[str, object], worker: int, identity: Path) -> Connection:
    endpoints = node["networkEndpoints"]
    address = str(endpoints[worker]["accessConfig"]["externalIp"])  # type: ignore[index]  # JSON
    alias = host_alias(str(node["id"]), worker)
    known_hosts = (state / "bench_known_hosts", state / "none")
    return Connection(getuser(), address, alias, known_hosts, identity, proxy_command(world.path, address))


if __name__ == "__main__":
    main()
