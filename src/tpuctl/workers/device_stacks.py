"""`tpuctl stacks --device`: which launch each worker's cores are at, and which worker the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.ssh.tpu_metrics import CoreState, MetricsStream, WorkerState
from tpuctl.workers.execution import label_ranges
from tpuctl.workers.worker_metrics import failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.errors import TpuctlError
    from tpuctl.workers.worker_jobs import JobScope


@dataclass(frozen=True, slots=True)
class DeviceStacks:
    """What the cores of workers run. `late` are the labels of those that were behind others in each look."""

    workers: tuple[WorkerState, ...]
    errors: Sequence[TpuctlError]
    late: frozenset[str]

    @property
    def groups(self) -> list[tuple[CoreState, list[WorkerState]]]:
        """The workers whose slowest cores are at the same place of the same launch, the largest group first."""
        found: dict[tuple[object, ...], tuple[CoreState, list[WorkerState]]] = {}
        for worker in self.workers:
            if (core := _slowest(worker)) is not None:
                key = core.launch, core.program, core.place, core.error
                found.setdefault(key, (core, []))[1].append(worker)
        return sorted(found.values(), key=lambda group: (-len(group[1]), group[0].launch or 0))

    @property
    def behind(self) -> list[WorkerState]:
        """The workers that the others wait for."""
        return [worker for worker in self.workers if worker.target.label in self.late]

    @property
    def lines(self) -> Iterator[str]:
        """The lines for people: which worker is behind, and where each is."""
        groups = self.groups
        late = self.behind
        others = [core for core, workers in groups if any(worker not in late for worker in workers)]
        if late and others and (core := _slowest(late[0])) is not None:
            where = f"{_names(late)} {'is' if len(late) == 1 else 'are'} at launch {core.launch}{_in(core)}"
            yield f"{where}; the others wait at {others[0].launch}{_in(others[0])}"
        for core, workers in groups:
            launch = "no launch" if core.launch is None else f"launch {core.launch}"
            queued = f", {core.queued} programs queued" if core.queued else ""
            error = f": {core.error}" if core.error else ""
            program = f", program {core.program}" if core.program else ""
            yield f"{_names(workers)} ({len(workers)} of {len(self.workers)}): {launch}{_in(core)}{program}{queued}{error}"
        for worker in self.workers:
            if worker.report is not None and worker.report.programs and not worker.report.cores:
                why = worker.report.problem or "its libtpu does not say what the cores run"
                yield f"worker {worker.target.label}: {why}"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the groups for scripts."""
        return [
            {
                "workers": [
                    {
                        "nodeId": worker.target.node.name.node_id,
                        "zone": worker.target.node.name.zone,
                        "worker": worker.target.worker,
                    }
                    for worker in workers
                ],
                "launch": core.launch,
                "program": core.program,
                "place": core.place,
                "queued": core.queued,
                "error": core.error or None,
            }
            for core, workers in self.groups
        ]


def list_device_stacks(scope: JobScope) -> DeviceStacks:
    """Ask all workers what their cores run. Raises `SshProgramMissingError`."""
    looks = []
    for _ in range(2):
        with MetricsStream(scope.targets, scope.ssh_options, None, with_cores=True) as stream:
            stream.collect()
        looks.append(
            {
                worker.target.label: core
                for worker in stream.workers
                if (core := _slowest(worker)) and core.launch is not None
            }
        )
    return DeviceStacks(tuple(stream.workers), failures(stream.workers), find_late(*looks))


def find_late(first: Mapping[str, CoreState], second: Mapping[str, CoreState]) -> frozenset[str]:
    """Return the workers that the others wait for, by their slowest cores in two looks; empty if none is sure.

    The workers of a look answer one after the other, while a program that runs well goes on. Workers are late that were behind
    in both looks, and have not come in the second to where the others were in the first, or else are never at the one place at
    which all others are.
    """
    late = _behind(first) & _behind(second)
    others = (first.keys() & second.keys()) - late
    if not late or not others:
        return frozenset()
    reached = max(second[label].launch or 0 for label in late)
    places = {look[label].place for look in (first, second) for label in others}
    own = {look[label].place for look in (first, second) for label in late}
    has_stopped = reached < min(first[label].launch or 0 for label in others)
    return late if has_stopped or (len(places) == 1 and not places & own) else frozenset()


def _behind(cores: Mapping[str, CoreState]) -> frozenset[str]:
    """Return the workers at the lowest launch, unless all are at the same."""
    lowest = min((core.launch or 0 for core in cores.values()), default=0)
    late = frozenset(label for label, core in cores.items() if core.launch == lowest)
    return late if len(late) < len(cores) else frozenset()


def _slowest(worker: WorkerState) -> CoreState | None:
    """Return the core of a worker with the lowest launch, which the others wait for; None without cores."""
    cores = worker.report.cores if worker.report else ()
    return min(cores, key=lambda core: (core.launch is None, core.launch or 0), default=None)


def _names(workers: Sequence[WorkerState]) -> str:
    return f"worker {label_ranges([worker.target.label for worker in workers])}"


def _in(core: CoreState) -> str:
    return f" in {core.place}" if core.place else ""
