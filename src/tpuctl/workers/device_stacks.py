"""`tpuctl stacks --device`: which launch each worker's cores are at, and which worker the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.ssh.tpu_metrics import CoreState, MetricsStream, WorkerState
from tpuctl.workers.execution import label_ranges
from tpuctl.workers.worker_metrics import failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.errors import TpuctlError
    from tpuctl.workers.worker_jobs import JobScope


@dataclass(frozen=True, slots=True)
class DeviceStacks:
    """What the cores of workers run. `silent` are workers with a program but without an answer about it."""

    workers: tuple[WorkerState, ...]
    errors: Sequence[TpuctlError]

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
        """The workers at the lowest launch, for which the others wait; none if all are at one launch."""
        late, others = self._late
        return late[0][1] if others else []

    @property
    def _late(self) -> tuple[list[tuple[CoreState, list[WorkerState]]], list[tuple[CoreState, list[WorkerState]]]]:
        """The groups at the lowest launch, and all others."""
        known = [one for one in self.groups if one[0].launch is not None]
        lowest = min((core.launch or 0 for core, _ in known), default=None)
        return [one for one in known if one[0].launch == lowest], [one for one in known if one[0].launch != lowest]

    @property
    def lines(self) -> Iterator[str]:
        """The lines for people: which worker is behind, and where each is."""
        groups = self.groups
        behind, others = self._late
        if others:
            (core, workers), (usual, _) = behind[0], others[0]
            late = f"{_names(workers)} {'is' if len(workers) == 1 else 'are'} at launch {core.launch}{_in(core)}"
            yield f"{late}; the others wait at {usual.launch}{_in(usual)}"
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
    with MetricsStream(scope.targets, scope.ssh_options, None, with_cores=True) as stream:
        stream.collect()
    return DeviceStacks(tuple(stream.workers), failures(stream.workers))


def _slowest(worker: WorkerState) -> CoreState | None:
    """Return the core of a worker with the lowest launch, which the others wait for; None without cores."""
    cores = worker.report.cores if worker.report else ()
    return min(cores, key=lambda core: (core.launch is None, core.launch or 0), default=None)


def _names(workers: Sequence[WorkerState]) -> str:
    return f"worker {label_ranges([worker.target.label for worker in workers])}"


def _in(core: CoreState) -> str:
    return f" in {core.place}" if core.place else ""
