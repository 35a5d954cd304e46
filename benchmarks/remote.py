"""Commands and files on many workers, compared with gcloud, ssh and scp, on real sshds (`benchmarks.loopback`)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.footprint import watch
from benchmarks.loopback import make_slices, workers
from benchmarks.measurement import compare
from benchmarks.stage import GCLOUD, Stage, served
from benchmarks.waiting import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.loopback import Loopback
    from benchmarks.measurement import Cost, Program

_SIZES = (1, 8, 64)
_RUNS, _FEW = 5, 3
# Aims: shares of gcloud's wall time, seconds over ssh alone, MiB.
_SHARES, _OVER_SSH, _MEMORY = {1: 0.6, 8: 0.5}, 0.4, 120.0
_FILE = 100 << 20  # bytes
_PRINTED = 10 << 20  # bytes
_FANOUTS = (8, 16, 32, 64, 128)
# A handshake with a worker on another continent: its round trips, and the CPU of OpenSSH 9's client.
_MANY, _HANDSHAKE, _CLIENT_CPU = 512, 0.6, 0.07
_KEPT, _OURS, _THEIRS, _BARE = "tpuctl, kept", "tpuctl", "gcloud", "ssh"


def tables(folder: Path, names: tuple[str, ...]) -> Iterator[Table]:
    """Yield the tables with these names; all if no name is given."""
    for name, make in _TABLES.items():
        if not names or name in names or "remote" in names:
            yield make(folder / name)


def _commands(folder: Path) -> Table:
    rows = []
    with _workers(folder, _SIZES) as loopback:
        for count, each in loopback.slices.items():
            run = ("run", each.name, "--", "true")
            programs = {
                _BARE: loopback.at_once([loopback.ssh_line(address, "true") for address in each.addresses]),
                _OURS: loopback.tpuctl(*run),
                _KEPT: loopback.tpuctl(*run, keep="10m"),
            }
            if GCLOUD:
                programs[_THEIRS] = loopback.gcloud("ssh", each.name, "--worker=all", "--command=true")
            costs = compare(programs, runs=_RUNS, report_progress=_ignore)
            rows.append((str(count), *_beside(costs, _SHARES.get(count)), *_over(costs)))
    header = (
        "workers",
        "tpuctl / gcloud",
        "target",
        "ssh / gcloud",
        "tpuctl minus ssh",
        "tpuctl again",
        "again / ssh",
    )
    return Table("A command on all workers", _COMMANDS_TEXT, header, rows)


def _beside(costs: Mapping[str, Cost], target: float | None) -> tuple[str, str, str]:
    if _THEIRS not in costs:
        return "", "", ""
    theirs = costs[_THEIRS].wall
    share = costs[_OURS].wall / theirs
    missed = _missed(target is not None and share > target)
    return f"{share:.2f}{missed}", f"{target:g}" if target else "", f"{costs[_BARE].wall / theirs:.2f}"


def _over(costs: Mapping[str, Cost]) -> tuple[str, str, str]:
    over, repeated = costs[_OURS].wall - costs[_BARE].wall, costs[_KEPT].wall
    return f"{over:+.2f} s{_missed(over > _OVER_SSH)}", f"{repeated:.2f} s", f"{repeated / costs[_BARE].wall:.2f}"


def _copies(folder: Path) -> Table:
    with _workers(folder, (8,)) as loopback:
        (each,) = loopback.slices.values()
        file = folder / "data"
        file.write_bytes(bytes(range(256)) * (_FILE // 256))
        programs = {
            "`scp`, 8 at once": loopback.at_once([loopback.scp_line(file, one, "bare") for one in each.addresses]),
            "`tpuctl scp`": loopback.tpuctl("scp", str(file), f"{each.name}:ours-{{run}}"),
        }
        if GCLOUD:
            programs["`gcloud … scp`"] = loopback.gcloud("scp", str(file), f"{each.name}:theirs", "--worker=all")
        costs = compare(programs, runs=_FEW, report_progress=_ignore)
    bare = next(iter(costs.values())).wall
    rows = [(name, f"{cost.wall:.2f} s", f"{cost.wall / bare:.2f}") for name, cost in costs.items()]
    return Table("Copy 100 MB to 8 workers", _COPIES_TEXT, ("", "time", "share"), rows)


def _output(folder: Path) -> Table:
    lines = {
        "lines of 64 bytes": f"yes {'x' * 63} | head -c {_PRINTED}",
        "one line": f"head -c {_PRINTED} /dev/zero | tr '\\0' x",
    }
    rows = []
    with _workers(folder, (64,)) as loopback:
        (each,) = loopback.slices.values()
        for name, line in lines.items():
            seen = watch(loopback.tpuctl("run", each.name, "--", line))
            own = f"{seen.own:.0f} MiB{_missed(seen.own > _MEMORY)}"
            rate = f"{seen.output / seen.wall / (1 << 20):.0f} MiB/s"
            rows.append((name, own, f"{seen.others:.0f} MiB", f"{seen.output / (1 << 20):.0f} MiB", rate))
    header = ("10 MiB from each as", "tpuctl", "all its ssh", "output", "rate")
    return Table("Memory while 64 workers print", _OUTPUT_TEXT, header, rows)


def _fanout(folder: Path) -> Table:
    with _workers(folder / "near", (64,)) as loopback:
        near = _by_fanout(lambda *words: loopback.tpuctl("run", "slice-64", *words), runs=_FEW)
    with served(_distant(folder / "far")) as stage:
        path = f"{folder / 'far' / 'programs'}:{stage.tpuctl().environ['PATH']}"
        own = {"TPUCTL_STATE_DIR": str(folder / "client"), "TPUCTL_SSH_KEEP": "0", "PATH": path}
        far = _by_fanout(lambda *words: stage.tpuctl("run", f"slice-{_MANY}", *words, environ=own), runs=1)
    rows = [(str(fanout), f"{near[fanout]:.1f} s", f"{far[fanout]:.1f} s") for fanout in _FANOUTS]
    return Table(
        "Simultaneous handshakes", _FANOUT_TEXT, ("fanout", "64 near workers", f"{_MANY} distant workers"), rows
    )


def _by_fanout(run: Callable[..., Program], *, runs: int) -> dict[int, float]:
    programs = {str(fanout): run("--fanout", str(fanout), "--", "true") for fanout in _FANOUTS}
    return {int(name): cost.wall for name, cost in compare(programs, runs=runs, report_progress=_ignore).items()}


def _distant(folder: Path) -> Stage:
    """Return a sandbox with a very large slice, and an `ssh` that replaces the connection to its workers."""
    programs = folder / "programs"
    programs.mkdir(parents=True)
    stage = Stage(folder)
    make_slices(stage, (_MANY,))
    distant = shlex.join((sys.executable, "-ISs", str(Path(__file__).with_name("distant_ssh.py"))))
    (programs / "ssh").write_text(f"#!/bin/sh\nexec {distant} {_HANDSHAKE} {_CLIENT_CPU}\n")
    (programs / "ssh").chmod(0o755)
    return stage


@contextmanager
def _workers(folder: Path, sizes: Sequence[int]) -> Iterator[Loopback]:
    """Yield workers; end the kept connections to them afterwards."""
    with workers(folder, sizes) as loopback:
        try:
            yield loopback
        finally:
            for path in folder.glob("client/ssh-*/*"):
                subprocess.run(("ssh", "-O", "exit", "-S", str(path), "any"), capture_output=True, check=False)


def _missed(is_missed: bool) -> str:  # noqa: FBT001  # reads as a sentence
    return " (missed)" if is_missed else ""


def _ignore(_: str) -> None:
    pass


_COMMANDS_TEXT = f"""`tpuctl run NODE -- true`, `gcloud compute tpus tpu-vm ssh NODE --worker=all --command=true`, and the
same number of plain `ssh … true` started at once, which is the minimum for both. Real sshds on addresses of the loopback
network, the same key, the API from the same sandbox; medians of {_RUNS}, taking turns. *Again* is `tpuctl run` over the
connections that the previous run kept open. Everything runs on this machine: 64 handshakes cost CPU at both ends, as does
the program that supervises the command on each worker.
Target: the shares in the table, and {_OVER_SSH:g} s more than ssh."""
_COPIES_TEXT = f"""A file of 100 MiB, to a separate home on each of 8 workers; medians of {_FEW}, taking turns.
Target: no slower than `scp` started 8 times at once."""
_OUTPUT_TEXT = f"""`tpuctl run` on 64 workers that print 10 MiB each, into a pipe that is read at full speed. Peak memory of
tpuctl, and of all its ssh processes together (shared pages are counted once).
Target: {_MEMORY:g} MiB."""
_FANOUT_TEXT = f"""`tpuctl run --fanout N NODE -- true` on 64 workers on loopback, whose sshds share this machine's cores,
and on {_MANY} simulated distant ones: a program replaces ssh, waits {_HANDSHAKE:g} s, uses the CPU that OpenSSH's client
needs for a handshake here ({_CLIENT_CPU * 1000:g} ms), and then answers. Near: medians of {_FEW}."""

_TABLES: dict[str, Callable[[Path], Table]] = {
    "remote-commands": _commands,
    "remote-copies": _copies,
    "remote-output": _output,
    "remote-fanout": _fanout,
}
NAMES = (*_TABLES, "remote")
