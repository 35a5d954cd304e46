"""One run of `tpuctl bundle`: collect, pack, and report."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from tpuctl.app.app import http_access
from tpuctl.check.findings import Level, build_report
from tpuctl.check.report_rendering import finding_to_json
from tpuctl.clock import SystemClock
from tpuctl.cloud.requests import SHORT_PATIENCE
from tpuctl.cloud.tpu import OperationsClient, TpuClient
from tpuctl.doctor.cloud_probes import EnvironmentProbe
from tpuctl.doctor.doctor_facts import environment_json
from tpuctl.doctor.doctor_run import build_probe_context, findings_of_node
from tpuctl.doctor.rule_catalogue import evaluate_environment
from tpuctl.errors import InvalidInputError, NodeNotFoundError, TpuctlError
from tpuctl.explain.explanation_rendering import explanation_to_json, render_explanation
from tpuctl.files import expand_user_path
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.conditions import check_login_state
from tpuctl.output.status_line import GatherLine, format_size
from tpuctl.output.terminal import OutputFormat
from tpuctl.ssh.connection import Target, save_host_keys
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failures
from tpuctl.support.bundle_contents import (
    BundleContents,
    BundleExistsError,
    BundleNotWrittenError,
    replace_atomically,
    write_archive,
)
from tpuctl.support.bundle_manifest import BundleInfo, add_summary, count_redactions, summarize
from tpuctl.support.bundle_sources import (
    EvidenceRequest,
    TimedQueries,
    WorkerCollector,
    add_documents,
    find_subject,
    hide_guest_attributes,
    replace_folder,
)
from tpuctl.support.redaction import AccountAliases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.doctor.doctor_facts import EnvironmentFacts
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.ssh.connection import Target
    from tpuctl.support.bundle_manifest import LogsExplanation
    from tpuctl.support.bundle_sources import BundleSubject

_STDOUT = "-"
# The API usually answers within a second; a search goes through all zones.
_LONGEST = timedelta(seconds=20)
_GRACE = timedelta(seconds=2)
_NAMED = 10
_PAGE_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """The options of the user."""

    place: str | None  # a file, `-` for stdout, None for the default
    replaces: bool
    workers: str | None  # a set of workers, None to skip them
    since: timedelta | None
    room: int  # bytes
    patience: timedelta
    hides_accounts: bool


class BundleBuilder:
    """Collects, packs and reports."""

    def __init__(self, app: App, choice: BundleOptions) -> None:
        self._app, self._choice = app, choice
        self._real = SystemClock()
        self._until = self._real.monotonic() + choice.patience
        self._created = app.clock.now()
        patience = choice.patience
        self._of_api = TimedQueries(self._real, self._until, each=min(_LONGEST, patience / 4), grace=timedelta())
        # A checkup ends by itself, and then has results.
        self._of_machine = TimedQueries(self._real, self._until, each=patience, grace=_GRACE)
        # The workers that refused ssh, and the stderr of ssh.
        self._shut_out: list[tuple[Target, str]] = []
        # The errors that `doctor` found.
        self._errors: tuple[str, ...] = ()
        factory, endpoint = http_access(app)
        # Users often want a bundle when a service does not answer: wait less than other commands do.
        self._client = TpuClient(factory, app.clock, endpoint=endpoint, policy=SHORT_PATIENCE)
        self._operations = OperationsClient(factory, app.clock, endpoint=endpoint)

    def run(self, text: str) -> None:
        """Write the bundle of a node.

        Raises `NodeNotFoundError` if nothing is known of it, `FileExistsAlreadyError`, `NotWrittenError`, and the errors of a
        search for a node.
        """
        app = self._app
        login, _, reference = text.rpartition("@")
        if login:
            app.log_in_as(login)
        known: Sequence[NodeName] = ()
        with suppress(TpuctlError):
            known = self._of_api.ask(app.journal.names)
        subject = find_subject(self._client, app.place, app.reference(reference), known, self._of_api)
        name = subject.name
        self._check_place(name)
        resume = f"tpuctl bundle {name.zone}/{name.node_id}"
        try:
            with (
                app.in_flight("no bundle was written, and the collected files are removed", resume=resume),
                TemporaryDirectory(prefix="tpuctl-bundle-") as folder,
            ):
                accounts = AccountAliases() if self._choice.hides_accounts else None
                contents = BundleContents(Path(folder), room=self._choice.room, accounts=accounts)
                self._collect(contents, subject)
                about = BundleInfo(name, self._created, is_sandbox=app.is_sandbox, hides_accounts=accounts is not None)
                page = partial(render_explanation, width=_PAGE_WIDTH, colored=False)
                read = add_summary(contents, about, to_json=explanation_to_json, page=page)
                inside = _folder_name(name, self._created)
                if self._choice.place == _STDOUT:
                    stdout = app.terminal.streams.stdout
                    stdout.flush()
                    write_archive(contents.entries, stdout.buffer, folder=inside, created=self._real.now())
                    stdout.buffer.flush()
                else:
                    with replace_atomically(self._path(name), replaces=self._choice.replaces) as file:
                        write_archive(contents.entries, file, folder=inside, created=self._real.now())
            self._report(contents, name, read)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise BundleNotWrittenError(error, gettempdir()) from error

    def _check_place(self, name: NodeName) -> None:
        """Reject a place that cannot be written before collecting anything."""
        if self._choice.place != _STDOUT:
            path = self._path(name)
            if path.is_dir():
                raise InvalidInputError(f"`{path}` is a folder", hint="name a file")
            if path.exists() and not self._choice.replaces:
                raise BundleExistsError(path)
            if not path.parent.is_dir():
                raise InvalidInputError(
                    f"folder `{path.parent}` does not exist", hint="create it, or name another with `--file`"
                )
        elif self._app.terminal.streams.stdout_is_terminal:
            raise InvalidInputError(
                "cannot write a bundle to a terminal", hint="redirect stdout, or name a file with `--file`"
            )

    def _collect(self, contents: BundleContents, subject: BundleSubject) -> None:
        """Collect everything available; the workers send their files while the API and this machine are queried."""
        found = add_documents(
            contents, node_documents(self._app, self._client, self._operations, subject), self._of_api
        )
        if subject.node is None:
            if not found:
                raise subject.error or NodeNotFoundError(subject.name.node_id, subject.name.zone)
            contents.lacks_of("node.json", subject.error.message if subject.error else "the API knows no such node")
        members = self._members(contents, subject)
        wish = EvidenceRequest(self._choice.since, self._until)
        machine = MachineDocuments(
            self._app, subject, asks_workers=bool(members), patience=lambda: self._of_machine.left
        )
        with GatherLine(self._app.terminal, self._real) as line:
            gathering = WorkerCollector(contents, members, wish, self._real, progress=line)
            with gathering.under_way():
                add_documents(contents, machine.all(), self._of_machine)
        self._errors = machine.errors
        self._shut_out = [(member, one.ssh_said) for member, one in gathering.silent if one.ssh_said]

    def _members(self, contents: BundleContents, subject: BundleSubject) -> list[Target]:
        """Return the workers to visit, with their connections; record why one cannot be visited."""
        if self._choice.workers is None:
            contents.lacks_of("workers", "skipped: `--no-workers`")
            return []
        if subject.node is None:
            contents.lacks_of("workers", "the node, and so its workers, is unknown to the API")
            return []

        node = subject.node
        workers = WorkerSet.parse(self._choice.workers).of(node.name.node_id, node.workers)
        try:
            check_login_state(node)  # the bundle shows what it warns of
            # Host keys may need a request to the API.
            members = self._of_api.ask(lambda: self._connect(contents, node, workers))
        except TpuctlError as error:
            contents.lacks_of("workers", error.message)
            return []
        save_host_keys([member.way for member in members])
        return members

    def _connect(self, contents: BundleContents, node: Node, workers: Sequence[int]) -> list[Target]:

        connector, members = self._app.workers, []
        if obstacle := connector.obstacle(node):
            contents.lacks_of("workers", obstacle)
            return []
        connector.learn_host_keys(node)
        for worker in workers:
            try:
                # A bundle does not change the node: our key must be there already.
                connection = connector.connection(node, worker, makes_key=False)
                members.append(Target(node, worker, connection, str(worker)))
            except TpuctlError as error:
                contents.lacks_of(f"workers/{worker}", error.message)
        return members

    def _path(self, name: NodeName) -> Path:
        folder = self._app.invocation.folder
        return folder / expand_user_path(Path(self._choice.place or f"{_folder_name(name, self._created)}.tar.gz"))

    def _report(self, contents: BundleContents, name: NodeName, read: LogsExplanation) -> None:
        """Print the path of the bundle, what is missing, and the first verdict."""
        app, entries, lacks = self._app, contents.entries, contents.lacks
        is_file = self._choice.place != _STDOUT
        path = self._path(name)
        if is_file and app.format in {OutputFormat.JSON, OutputFormat.YAML}:
            app.terminal.data(self._to_json(contents, path, read), app.format)
        elif is_file:
            app.terminal.write(self._choice.place or path.name)
        packed = f", {format_size(path.stat().st_size)}" if is_file else ""
        secrets = sum(count_redactions(entries).values())
        app.terminal.note(f"{len(entries)} files{packed}; {secrets} secret{'' if secrets == 1 else 's'} removed")
        # Workers that the user skipped need no warning.
        is_wanted = self._choice.workers is not None
        whole = [
            lack
            for lack in lacks
            if "/" not in lack.path.removeprefix("workers/") and (is_wanted or lack.path != "workers")
        ]
        for lack in whole[:_NAMED]:
            app.terminal.warn(f"missing: {lack.path}: {lack.why}")
        if rest := len(lacks) - len(whole[:_NAMED]):
            app.terminal.note(
                f"{rest} more item{' is' if rest == 1 else 's are'} missing: see README.txt in the bundle"
            )
        if self._shut_out:
            # Why ssh failed: each cause once, and its remedy.
            for error in explain_ssh_failures(self._shut_out, collect_failure_context(self._shut_out[0][0])):
                app.terminal.note(error.message, *(f"  {line}" for line in (error.hint or "").splitlines()[:1]))
        if count := len(self._errors):
            more = "" if count == 1 else f", and {count - 1} more: see doctor.json in the bundle"
            app.terminal.warn(f"doctor found {count} error{'' if count == 1 else 's'}: {self._errors[0]}{more}")
        app.terminal.note(summarize(read))
        if read.explanation.conclusions and read.explanation.conclusions[0].remedy:
            app.terminal.note(f"  {read.explanation.conclusions[0].remedy[0]}")

    def _to_json(self, contents: BundleContents, path: Path, read: LogsExplanation) -> dict[str, Any]:
        return {
            "path": os.fspath(path),
            "size": path.stat().st_size,
            "files": len(contents.entries),
            "bytes": sum(entry.size for entry in contents.entries),
            "redactions": count_redactions(contents.entries),
            "missing": [{"path": lack.path, "why": lack.why} for lack in contents.lacks],
            "verdicts": explanation_to_json(read.explanation)["verdicts"],
            **({"sandbox": True} if self._app.is_sandbox else {}),
        }


def _folder_name(name: NodeName, created: datetime) -> str:
    return f"tpuctl-bundle-{name.node_id}-{created:%Y%m%dT%H%M%SZ}"


# The documents of a bundle: about the node, from the API and the journal; about this machine, from settings and `doctor`.


_OPERATIONS = 50
# As long as `tpuctl doctor` waits for each.
_OF_WORKERS = timedelta(seconds=30)
_PATIENCE = timedelta(seconds=4)


def node_documents(
    app: App, client: TpuClient, operations: OperationsClient, subject: BundleSubject
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
        "guest-attributes.json": lambda: hide_guest_attributes(client.guest_attributes(name)) if node else None,
    }


class MachineDocuments:
    """The queries about this machine, which is checked once, for the first document."""

    def __init__(
        self, app: App, subject: BundleSubject, *, asks_workers: bool, patience: Callable[[], timedelta]
    ) -> None:
        self._app, self._subject, self._asks_workers, self._patience = app, subject, asks_workers, patience
        self.errors: tuple[str, ...] = ()

    def all(self) -> dict[str, Callable[[], Any]]:
        """Return the queries by the names of their documents. `doctor` checks the workers too if they are visited."""
        return {"settings.json": self._settings, "doctor.json": self._doctor, "versions.json": self._versions}

    @cached_property
    def _surroundings(self) -> EnvironmentFacts:

        given = build_probe_context(self._app, timeout=min(_PATIENCE, self._patience()))
        return EnvironmentProbe(given).gather(given.cloud_clock.now())

    @property
    def _home(self) -> str:
        """The home folder of the user, whose name is private."""
        return self._app.invocation.environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  # a text is wanted

    def _settings(self) -> Any:  # JSON
        """Return each setting with a value, and its source; secret values are hidden."""
        found = [(spec, setting) for spec, setting in self._app.settings if setting is not None]
        return replace_folder([
            {"key": spec.key, "value": "[hidden]" if spec.secret else setting.value, "source": str(setting.source)}
            for spec, setting in found
        ], self._home)  # fmt: skip

    def _doctor(self) -> Any:  # JSON

        findings = evaluate_environment(self._surroundings)
        if self._subject.node is not None and self._asks_workers:
            findings = (
                *findings,
                *findings_of_node(self._app, str(self._subject.name), {"timeout": min(self._patience(), _OF_WORKERS)}),
            )
        report = build_report(findings, accepted=frozenset())
        self.errors = tuple(finding.found.text for finding in report.of(Level.ERROR))
        return replace_folder({
            "summary": {str(level): len(report.of(level)) for level in Level},
            "findings": [finding_to_json(finding) for finding in report.findings],
        }, self._home)  # fmt: skip

    def _versions(self) -> Any:  # JSON

        versions = {key: value for key, value in environment_json(self._surroundings).items() if key != "settings"}
        return replace_folder({"system": platform.platform(), **versions}, self._home)
