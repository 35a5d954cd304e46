"""The documents of a bundle: about the node, from the API and the journal; about this machine, from settings and `doctor`."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tpuctl.actions.bundling.documents import published, without_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.actions.bundling.subject import Subject
    from tpuctl.api.operation_list import OperationsClient
    from tpuctl.api.tpu import TpuClient
    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.cli.app import App
    from tpuctl.model import QueuedResource

_OPERATIONS = 50
# As long as `tpuctl doctor` waits for each.
_OF_WORKERS = timedelta(seconds=30)
_PATIENCE = timedelta(seconds=4)


def of_node(
    app: App, client: TpuClient, operations: OperationsClient, subject: Subject
) -> dict[str, Callable[[], Any]]:
    """Return the queries about the node, by the names of their documents."""
    name, node = subject.name, subject.node
    requests: list[QueuedResource] = []

    def get_requests() -> Any:  # JSON
        if node is not None and node.queued_resource:
            requests.append(client.get_queued_resource(node.queued_resource))
        else:
            found = client.list_queued_resources(name.project, (name.zone,)).queued_resources
            requests.extend(one for one in found if one.owns(name.node_id))
        return [one.raw for one in requests]

    def list_operations() -> Any:  # JSON
        targets = {str(name), *(one.name for one in requests)}
        return operations.operations(name.project, name.zone, targets, limit=_OPERATIONS)

    return {
        # Local: slow queries must not use up its time.
        "journal.json": lambda: app.journal.entries(name),
        "node.json": lambda: dict(node.raw) if node else None,
        "queued-resource.json": get_requests,
        "operations.json": list_operations,
        "guest-attributes.json": lambda: published(client.guest_attributes(name)) if node else None,
    }


class MachineDocuments:
    """The queries about this machine, which is checked once, for the first document."""

    def __init__(self, app: App, subject: Subject, *, asks_workers: bool, patience: Callable[[], timedelta]) -> None:
        self._app, self._subject, self._asks_workers, self._patience = app, subject, asks_workers, patience
        self.errors: tuple[str, ...] = ()

    def all(self) -> dict[str, Callable[[], Any]]:
        """Return the queries by the names of their documents. `doctor` checks the workers too if they are visited."""
        return {"settings.json": self._settings, "doctor.json": self._doctor, "versions.json": self._versions}

    @cached_property
    def _surroundings(self) -> Surroundings:
        from tpuctl.actions.checkup.gathering import Looking  # noqa: PLC0415  # only here
        from tpuctl.cli.doctor_ways import ways  # noqa: PLC0415  # as above

        given = ways(self._app, timeout=min(_PATIENCE, self._patience()))
        return Looking(given).gather(given.cloud_clock.now())

    @property
    def _home(self) -> str:
        """The home folder of the user, whose name is private."""
        return self._app.invocation.environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  # a text is wanted

    def _settings(self) -> Any:  # JSON
        """Return each setting with a value, and its source; secret values are hidden."""
        found = [(spec, setting) for spec, setting in self._app.settings if setting is not None]
        return without_folder([
            {"key": spec.key, "value": "[hidden]" if spec.secret else setting.value, "source": str(setting.source)}
            for spec, setting in found
        ], self._home)  # fmt: skip

    def _doctor(self) -> Any:  # JSON
        from tpuctl.checkup.catalogue import judge  # noqa: PLC0415  # only here
        from tpuctl.cli.doctor_node import findings_of_node  # noqa: PLC0415  # as above
        from tpuctl.output.findings import finding_to_json  # noqa: PLC0415  # as above
        from tpuctl.preflight.evaluation import as_report  # noqa: PLC0415  # as above
        from tpuctl.preflight.findings import Level  # noqa: PLC0415  # as above

        findings = judge(self._surroundings)
        if self._subject.node is not None and self._asks_workers:
            findings = (
                *findings,
                *findings_of_node(self._app, str(self._subject.name), {"timeout": min(self._patience(), _OF_WORKERS)}),
            )
        report = as_report(findings, accepted=frozenset())
        self.errors = tuple(finding.found.text for finding in report.of(Level.ERROR))
        return without_folder({
            "summary": {str(level): len(report.of(level)) for level in Level},
            "findings": [finding_to_json(finding) for finding in report.findings],
        }, self._home)  # fmt: skip

    def _versions(self) -> Any:  # JSON
        import platform  # noqa: PLC0415  # only here

        from tpuctl.checkup.surroundings.telling import to_json  # noqa: PLC0415  # as above

        versions = {key: value for key, value in to_json(self._surroundings).items() if key != "settings"}
        return without_folder({"system": platform.platform(), **versions}, self._home)
