"""The measurements: commands compared with those of gcloud, lists of very many nodes, and the sandbox itself."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.stage import GCLOUD, ZONE, Stage, filled, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from benchmarks.measurement import Measurable, Program

MANY = 10_000
OURS, THEIRS = "tpuctl", "gcloud"
_LIST = ("compute", "tpus", "tpu-vm", "list", "--zone=-")
_SPEC = ("--accelerator-type", "v4-8", "--version", "tpu-ubuntu2204-base", "--zone", ZONE)
# 40 zones by name: those with TPUs, which have the nodes, then others without nodes.
_ZONES = (
    "import sys; from tpuctl.sandbox import catalog;print(','.join([*catalog.zone_names(), *catalog._NEIGHBOURS][:40]))"
)


@dataclass(frozen=True, slots=True)
class Case:
    """Programs that are compared. `target` is the aimed share of gcloud's wall time, `limits` are seconds."""

    name: str
    what: str
    programs: Mapping[str, Measurable]
    target: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


class Stages:
    """The sandboxes, created when a case first needs them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._created: dict[str, Stage] = {}

    def listening(self, nodes: int, *, name: str = "") -> Stage:
        """Return a sandbox on a port."""
        key = f"listening-{nodes}{name}"
        if key not in self._created:
            self._created[key] = self._stack.enter_context(listening(self._folder / key, nodes=nodes))
        return self._created[key]

    def filled(self, nodes: int) -> Stage:
        """Return a sandbox that is used in process."""
        key = f"filled-{nodes}"
        if key not in self._created:
            self._created[key] = filled(self._folder / key, nodes=nodes)
        return self._created[key]


def cases(stages: Stages, names: tuple[str, ...]) -> Iterator[Case]:
    """Yield the cases with these names; all if no name is given."""
    for name, make in _CASES.items():
        if not names or name in names:
            yield make(stages)


def _beside(name: str, what: str, ours: Program, theirs: Program, target: float | None = None) -> Case:
    return Case(name, what, {OURS: ours, **({THEIRS: theirs} if GCLOUD else {})}, target)


def _version(stages: Stages) -> Case:
    stage = stages.listening(1)
    what = "`tpuctl --version` / `gcloud --version`"
    return _beside("version", what, stage.tpuctl("--version"), stage.gcloud("--version"), 0.1)


def _help(stages: Stages) -> Case:
    stage = stages.listening(1)
    return _beside("help", "`tpuctl --help` / `gcloud --help`", stage.tpuctl("--help"), stage.gcloud("--help"))


def _completion(stages: Stages) -> Case:
    return _completing("completion", stages.listening(1), "tpuctl st")


def _completion_node(stages: Stages) -> Case:
    return _completing("completion-node", stages.listening(1), "tpuctl stop n")


def _completing(name: str, stage: Stage, line: str) -> Case:
    environ = {"_TPUCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    what = f"completion of `{line}` / `gcloud --version`"
    return _beside(name, what, stage.tpuctl(environ=environ), stage.gcloud("--version"), 0.1)


def _list_1(stages: Stages) -> Case:
    stage = stages.listening(1)
    what = "`tpuctl list` / `gcloud … list --zone=-`, 1 node"
    return _beside("list-1", what, stage.tpuctl("list"), stage.gcloud(*_LIST), 0.25)


def _list_200(stages: Stages) -> Case:
    stage = stages.listening(200)
    what = "`tpuctl list` / `gcloud … list --zone=-`, 200 nodes"
    return _beside("list-200", what, stage.tpuctl("list"), stage.gcloud(*_LIST), 0.25)


def _status(stages: Stages) -> Case:
    stage = stages.listening(200)
    node, zone = "node-00000", ("--zone", ZONE)
    theirs = stage.gcloud("compute", "tpus", "tpu-vm", "describe", node, *zone)
    return _beside("status", "`tpuctl status` / `gcloud … describe`", stage.tpuctl("status", node, *zone), theirs, 0.25)


def _create(stages: Stages) -> Case:
    stage = stages.listening(1, name="-create")
    ours = stage.tpuctl("create", "ours-{run}", *_SPEC, "--no-wait")
    theirs = stage.gcloud("compute", "tpus", "tpu-vm", "create", "theirs-{run}", *_SPEC, "--async")
    return _beside("create", "`tpuctl create --no-wait` / `gcloud … create --async`", ours, theirs, 0.35)


def _many(stages: Stages) -> Case:
    stage = stages.filled(MANY)
    python = stage.tpuctl().command[0].removesuffix("tpuctl") + "python"
    zones = subprocess.run((python, "-c", _ZONES), capture_output=True, text=True, check=True).stdout.strip()
    by_zone = ("list", "--zone", zones)
    programs = {
        "all zones at once, to a pipe": stage.tpuctl("list"),
        "all zones at once, to a terminal": stage.tpuctl("list", on_terminal=True),
        "zone by zone, to a pipe": stage.tpuctl(*by_zone),
        "zone by zone, to a terminal": stage.tpuctl(*by_zone, on_terminal=True),
    }
    return Case("many", f"`tpuctl list`, {MANY:,} nodes, the sandbox in the same process", programs)


def _sandbox_get(stages: Stages) -> Case:
    stage = stages.listening(MANY)
    inside, outside = "a node, in process", "a node, over HTTP"
    programs = {inside: stage.timed("get-in-process", str(stage.state_file)), outside: stage.timed("get", stage.url)}
    limits = {inside: 0.003, outside: 0.008}
    return Case("sandbox-get", f"the sandbox gives one of {MANY:,} nodes", programs, limits=limits)


def _sandbox_list(stages: Stages) -> Case:
    stage = stages.listening(MANY)
    name = f"{MANY:,} nodes over HTTP, page by page"
    return Case("sandbox-list", "the sandbox lists", {name: stage.timed("list", stage.url)}, limits={name: 1.5})


def _sandbox_start(stages: Stages) -> Case:
    stage = stages.filled(MANY)
    serve = stage.tpuctl("sandbox", "serve").command
    name = "`tpuctl sandbox serve`, until its first answer"
    return Case("sandbox-start", "the sandbox starts", {name: stage.timed("start", *serve)}, limits={name: 0.6})


_CASES: dict[str, Callable[[Stages], Case]] = {
    "version": _version,
    "help": _help,
    "completion": _completion,
    "completion-node": _completion_node,
    "list-1": _list_1,
    "list-200": _list_200,
    "status": _status,
    "create": _create,
    "many": _many,
    "sandbox-get": _sandbox_get,
    "sandbox-list": _sandbox_list,
    "sandbox-start": _sandbox_start,
}
NAMES = tuple(_CASES)
