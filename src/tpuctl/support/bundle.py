"""One run of `tpuctl bundle`: collect, pack, and report."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from tpuctl import __version__
from tpuctl.check.findings import Level, join_reports
from tpuctl.check.report_rendering import finding_to_json
from tpuctl.clock import SystemClock
from tpuctl.cloud.requests import FEW_RETRIES
from tpuctl.cloud.tpu import OperationsClient, TpuClient
from tpuctl.doctor.doctor_facts import environment_json
from tpuctl.doctor.doctor_run import reports_of_nodes
from tpuctl.doctor.environment_probe import EnvironmentProbe
from tpuctl.doctor.rule_catalogue import evaluate_environment
from tpuctl.durations import format_duration, format_size, format_timestamp
from tpuctl.errors import ConflictError, InvalidInputError, NodeNotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.explain.conclusion import conclude, merge_scans
from tpuctl.explain.explanation_rendering import explanation_to_json, render_explanation
from tpuctl.explain.scanner import LogReader
from tpuctl.fan_out import FanOutTimeoutError, fan_out
from tpuctl.files import output_path
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.conditions import check_login_state
from tpuctl.nodes.lookup import find_node, node_not_found_error, several_nodes_error
from tpuctl.output.github import unguarded
from tpuctl.output.terminal import StatusLine, View
from tpuctl.redaction import AccountAliases
from tpuctl.ssh.channel import AgentError, explain_agent_errors
from tpuctl.ssh.connection import Target, save_host_keys
from tpuctl.support.bundle_contents import (
    BundleContents,
    BundleExistsError,
    BundleNotWrittenError,
    dump_json,
    replace_atomically,
    write_archive,
)
from tpuctl.support.bundle_workers import WorkerCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.doctor.doctor_facts import EnvironmentFacts
    from tpuctl.explain.conclusion import Explanation
    from tpuctl.fan_out import Outcome
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName, NodeReference
    from tpuctl.support.bundle_contents import BundleFile

_STDOUT = "-"
# The API usually answers within a second; a search goes through all zones.
_MAX_API_TIME = timedelta(seconds=20)
_MAX_WARNINGS = 10
_PAGE_WIDTH = 100
_MAX_OPERATIONS = 50
# As long as `tpuctl doctor` waits for each.
_WORKERS_TIMEOUT = timedelta(seconds=30)
_PROBE_TIMEOUT = timedelta(seconds=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """The options of the user."""

    file: str | None  # a file, `-` for stdout, None for the default
    overwrite: bool
    workers: str | None  # a set of workers, None to skip them
    since: timedelta | None
    max_bytes: int
    timeout: timedelta
    redact_accounts: bool


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """The node of a bundle, and when it was written."""

    name: NodeName
    created: datetime
    is_sandbox: bool

    @property
    def folder(self) -> str:
        """The name of the folder in the archive."""
        return f"tpuctl-bundle-{self.name.node_id}-{self.created:%Y%m%dT%H%M%SZ}"


class BundleBuilder:
    """Collects the evidence, packs it and reports what it holds."""

    def __init__(self, app: App, options: BundleOptions) -> None:
        self._app, self._options = app, options
        self._clock = SystemClock()  # a network has no other
        self._deadline = self._clock.monotonic() + options.timeout
        self._api_time = min(_MAX_API_TIME, options.timeout / 4)
        self._ssh_failures: list[AgentError] = []
        # The errors that `doctor` found.
        self._doctor_errors: list[str] = []
        factory, endpoint = app.services.http_access()
        # Users often want a bundle when a service does not answer: wait less than other commands do.
        self._client = TpuClient(factory, app.clock, endpoint=endpoint, policy=FEW_RETRIES)
        self._operations = OperationsClient(factory, app.clock, endpoint=endpoint)

    def run(self, text: str) -> None:
        """Write the bundle of a node.

        Raises `NodeNotFoundError` if nothing is known of it, `BundleExistsError`, `BundleNotWrittenError`, and the errors of a
        search for a node.
        """
        app, options = self._app, self._options
        login, _, reference = text.rpartition("@")
        if login:
            app.log_in_as(login)
        name, found = self._find(app.reference(reference))
        info = BundleInfo(name, app.clock.now(), is_sandbox=app.is_sandbox)
        path = output_path(Path(options.file or f"{info.folder}.tar.gz"), app.invocation.folder)
        self._check_place(path)
        resume = f"tpuctl bundle {name.zone}/{name.node_id}"
        try:
            with (
                app.in_flight("no bundle was written, and the collected files are removed", resume=resume),
                TemporaryDirectory(prefix="tpuctl-bundle-") as folder,
            ):
                accounts = AccountAliases() if options.redact_accounts else None
                contents = BundleContents(Path(folder), max_bytes=options.max_bytes, accounts=accounts)
                self._collect(contents, name, found)
                explanation = add_summary(contents, info)
                if options.file == _STDOUT:
                    stdout = unguarded(app.terminal.streams.stdout)
                    stdout.flush()
                    write_archive(contents.entries, stdout.buffer, folder=info.folder, created=self._clock.now())
                    stdout.buffer.flush()
                else:
                    with replace_atomically(path, overwrite=options.overwrite) as file:
                        write_archive(contents.entries, file, folder=info.folder, created=self._clock.now())
            self._report(contents, path, explanation)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise BundleNotWrittenError(error, gettempdir()) from error

    def _check_place(self, path: Path) -> None:
        """Reject a place that cannot be written before collecting anything."""
        if self._options.file == _STDOUT:
            if self._app.terminal.streams.stdout_is_terminal:
                hint = "redirect stdout, or name a file with `--file`"
                raise InvalidInputError("cannot write a bundle to a terminal", hint=hint)
            return
        if path.is_dir():
            raise InvalidInputError(f"`{path}` is a folder", hint="name a file")
        if path.exists() and not self._options.overwrite:
            raise BundleExistsError(path)
        if not path.parent.is_dir():
            hint = "create it, or name another with `--file`"
            raise InvalidInputError(f"folder `{path.parent}` does not exist", hint=hint)

    def _find(self, reference: NodeReference) -> tuple[NodeName, Outcome[str, Node | None]]:
        """Find a node; the journal and its operations still know a deleted one. Return its name, and the answer of the API.

        Raises `ConflictError` if there are several, and what the API answered if the journal does not know the node either.
        """
        app, place = self._app, self._app.place
        found = self._ask({"node": lambda: find_node(self._client, place, reference)}, within=self._api_time)["node"]
        if found.value is not None:
            return found.value.name, found
        if isinstance(found.error, ConflictError):
            raise found.error
        if name := place.name(reference):
            return name, found
        known: Sequence[NodeName] = ()
        with suppress(TpuctlError):
            known = app.services.journal.namesakes(place.project_of(reference), reference.node_id)
        if len(known) > 1:
            raise several_nodes_error(reference.node_id, known)
        if not known:
            raise found.error or node_not_found_error(place, reference)
        return known[0], found

    def _ask(self, queries: Mapping[str, Callable[[], Any]], *, within: timedelta) -> dict[str, Outcome[str, Any]]:
        """Return the outcome of each query, by its name. They run one after the other; `within` is the time for all."""
        limit = max(timedelta(), min(within, self._deadline - self._clock.monotonic()))
        deadline = self._clock.monotonic() + limit
        outcomes = fan_out(lambda name: queries[name](), queries, limit=1, deadline=deadline)
        late = ServiceUnavailableError(f"no answer within {format_duration(limit)}")
        return {
            one.item: replace(one, error=late) if isinstance(one.error, FanOutTimeoutError) else one for one in outcomes
        }

    def _add_documents(
        self, contents: BundleContents, queries: Mapping[str, Callable[[], Any]], *, within: timedelta, home: str = ""
    ) -> int:
        """Add what queries return under their names, except empty values. Return how many were added."""
        found = 0
        for path, outcome in self._ask(queries, within=within).items():
            if outcome.error is not None:
                contents.add_missing(path, outcome.error.message)
            elif outcome.value:
                contents.add_json(path, outcome.value, home=home)
                found += 1
        return found

    def _collect(self, contents: BundleContents, name: NodeName, found: Outcome[str, Node | None]) -> None:
        """Collect everything available; the workers send their files while this machine is examined."""
        node = found.value
        count = self._add_documents(contents, self._node_documents(name, node), within=self._api_time)
        if node is None:
            if not count:
                raise found.error or NodeNotFoundError(name.node_id, name.zone)
            contents.add_missing("node.json", found.error.message if found.error else "the API knows no such node")
        targets = self._targets(contents, node)
        # The name of the user's home folder is private.
        home = self._app.invocation.environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  # a text is wanted
        machine = self._machine_documents(name if targets else None)
        collector = WorkerCollector(contents, self._clock, deadline=self._deadline, since=self._options.since)
        with StatusLine(self._app.terminal, self._clock) as line:
            collector.run(
                targets, line, lambda: self._add_documents(contents, machine, within=self._options.timeout, home=home)
            )
        self._ssh_failures = [error for error in collector.incomplete if error.ssh_stderr]

    def _targets(self, contents: BundleContents, node: Node | None) -> list[Target]:
        """Return the workers to visit, with their connections; record why one cannot be visited."""
        if self._options.workers is None or node is None:
            why = "skipped: `--no-workers`" if self._options.workers is None else "without the node they are unknown"
            contents.add_missing("workers", why)
            return []
        workers = WorkerSet.parse(self._options.workers).of(node.name.node_id, node.workers)
        try:
            check_login_state(node)  # the bundle shows what it warns of
        except TpuctlError as error:
            contents.add_missing("workers", error.message)
            return []
        # Host keys may need a request to the API.
        outcome = self._ask({"": lambda: self._connect(contents, node, workers)}, within=self._api_time)[""]
        if outcome.error is not None:
            contents.add_missing("workers", outcome.error.message)
        targets: list[Target] = outcome.value or []
        save_host_keys([target.connection for target in targets])
        return targets

    def _connect(self, contents: BundleContents, node: Node, workers: Sequence[int]) -> list[Target]:
        connector, targets = self._app.services.workers, []
        if obstacle := connector.obstacle(node):
            contents.add_missing("workers", obstacle)
            return []
        connector.learn_host_keys(node)
        for worker in workers:
            try:
                # A bundle does not change the node: our key must be there already.
                connection = connector.connection(node, worker, makes_key=False)
                targets.append(Target(node, worker, connection, str(worker)))
            except TpuctlError as error:
                contents.add_missing(f"workers/{worker}", error.message)
        return targets

    def _node_documents(self, name: NodeName, node: Node | None) -> dict[str, Callable[[], Any]]:
        """Return the queries about the node, by the names of their documents."""

        @cache
        def requests() -> list[QueuedResource]:
            if node is not None and node.queued_resource:
                return [self._client.get_queued_resource(node.queued_resource)]
            listing = self._client.list_queued_resources(name.project, (name.zone,))
            return [one for one in listing.queued_resources if one.owns(name.node_id)]

        def operations() -> Any:  # JSON
            owners: list[QueuedResource] = []
            with suppress(TpuctlError):  # that is missing already
                owners = requests()
            targets = {str(name), *(one.name for one in owners)}
            return self._operations.operations(name.project, name.zone, targets, limit=_MAX_OPERATIONS)

        return {
            # Local: slow queries must not use up its time.
            "journal.json": lambda: self._app.services.journal.entries(name),
            "node.json": lambda: dict(node.raw) if node else None,
            "queued-resource.json": lambda: [one.raw for one in requests()],
            "operations.json": operations,
            "guest-attributes.json": lambda: (
                hide_guest_attributes(self._client.guest_attributes(name)) if node else None
            ),
        }

    def _machine_documents(self, visited: NodeName | None) -> dict[str, Callable[[], Any]]:
        """Return the queries about this machine, and about the node whose workers are visited."""
        app = self._app

        @cache
        def environment() -> EnvironmentFacts:
            return EnvironmentProbe(app, timeout=_PROBE_TIMEOUT).gather()

        def settings() -> Any:  # JSON
            """Return each setting with a value, and its source; secret values are hidden."""
            return [
                {"key": spec.key, "value": "[hidden]" if spec.secret else setting.value, "source": str(setting.source)}
                for spec, setting in app.settings
                if setting is not None
            ]

        def doctor() -> Any:  # JSON
            reports = [evaluate_environment(environment())]
            if visited is not None:
                # A worker that does not answer must not cost the findings about all else.
                limit = (self._deadline - self._clock.monotonic()) / 2
                reports += reports_of_nodes(app, [str(visited)], timeout=min(limit, _WORKERS_TIMEOUT))
            report = join_reports(*reports)
            self._doctor_errors += [finding.found.text for finding in report.of(Level.ERROR)]
            return {
                "summary": {str(level): len(report.of(level)) for level in Level},
                "findings": [finding_to_json(finding) for finding in report.findings],
            }

        def versions() -> Any:  # JSON
            known = {key: value for key, value in environment_json(environment()).items() if key != "settings"}
            return {"system": platform.platform(), **known}

        return {"settings.json": settings, "doctor.json": doctor, "versions.json": versions}

    def _report(self, contents: BundleContents, path: Path, explanation: Explanation) -> None:
        """Print the path of the bundle, what is missing, and the first verdict."""
        app, missing = self._app, contents.missing
        count, removed = len(contents.entries), contents.redactions
        is_file = self._options.file != _STDOUT
        if is_file:
            app.show(
                View(
                    value=lambda: {
                        "path": os.fspath(path),
                        "size": path.stat().st_size,
                        "files": count,
                        "bytes": contents.size,
                        "redactions": removed,
                        "missing": [item._asdict() for item in missing],
                        "verdicts": explanation_to_json(explanation)["verdicts"],
                    },
                    text=lambda terminal: terminal.write(self._options.file or path.name),
                )
            )
        packed = f", {format_size(path.stat().st_size)}" if is_file else ""
        secrets = sum(removed.values())
        app.terminal.note(f"{count} files{packed}; {secrets} secret{'' if secrets == 1 else 's'} removed")
        # Workers that the user skipped need no warning.
        skipped = set() if self._options.workers is not None else {"workers"}
        whole = [one for one in missing if "/" not in one.path.removeprefix("workers/") and one.path not in skipped]
        for item in whole[:_MAX_WARNINGS]:
            app.terminal.warn(f"missing: {item.path}: {item.why}")
        if rest := len(missing) - len(whole[:_MAX_WARNINGS]):
            more = f"{rest} more item{' is' if rest == 1 else 's are'} missing"
            app.terminal.note(f"{more}: see README.txt in the bundle")
        # Why ssh failed: each cause once, and its remedy.
        for error in explain_agent_errors(self._ssh_failures):
            app.terminal.note(error.message, *(f"  {line}" for line in (error.hint or "").splitlines()[:1]))
        if errors := self._doctor_errors:
            more = "" if len(errors) == 1 else f", and {len(errors) - 1} more: see doctor.json in the bundle"
            found = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
            app.terminal.warn(f"doctor found {found}: {errors[0]}{more}")
        app.terminal.note(first_verdict(explanation))
        if explanation.conclusions and explanation.conclusions[0].remedy:
            app.terminal.note(f"  {explanation.conclusions[0].remedy[0]}")


# Guest attributes without secrets [Compute Engine documentation of guest attributes].
_HARMLESS_NAMESPACES = ("hostkeys/", "guestinventory/", "guest-agent/", "diagnostics/")


def hide_guest_attributes(workers: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the guest attributes of each worker, without the values of namespaces that may hold secrets."""
    return {
        str(worker): {
            key: text if key.lower().startswith(_HARMLESS_NAMESPACES) else f"[hidden: {len(text)} characters]"
            for key, text in attributes.items()
        }
        for worker, attributes in enumerate(workers)
    }


# Version of the JSON. A version may gain fields; no field is removed or changes its meaning.
SCHEMA_VERSION = 1
_LOG = re.compile(r"workers/\d+/(?:jobs/[^/]+/(?:out|err)|tpu_logs/.+|tpu_log_dir/.+|dmesg\.txt|startup-script\.log)")
# How a job ended: `exit 1 2.0` has the code and the seconds, `signal 9 2.0` the signal.
_JOB_END = re.compile(r"workers/\d+/jobs/[^/]+/exit")
_FAILED_END = re.compile(rb"(?:exit|signal) (?!0\b)\d{1,3}\b")
_BLOCK = 256 * 1024


def add_summary(contents: BundleContents, info: BundleInfo) -> Explanation:
    """Add the files that describe a bundle, and return the verdict on its logs."""
    explanation = explain_logs(contents.entries, {"node": info.name.node_id})
    verdict = first_verdict(explanation)
    page = "\n".join(render_explanation(explanation, width=_PAGE_WIDTH, colored=False)) or verdict
    contents.add("explanation.json", dump_json(explanation_to_json(explanation)), is_own=True)
    contents.add("explanation.txt", f"{page}\n".encode("utf-8", "replace"), is_own=True)
    contents.add("README.txt", render_readme(info, contents, verdict).encode("utf-8", "replace"), is_own=True)
    contents.add("manifest.json", dump_json(build_manifest(info, contents)), is_own=True)
    return explanation


def explain_logs(entries: Sequence[BundleFile], known: Mapping[str, str]) -> Explanation:
    """Return what is wrong in the logs among the files. If a job failed, no failure is taken to be over.

    `known` are facts for the remedies, such as the node's name.
    """
    logs, has_failed = {}, False
    for entry in entries:
        with entry.file.open("rb") as file:
            if _JOB_END.fullmatch(entry.path):
                has_failed |= _FAILED_END.match(file.read(_BLOCK)) is not None
            elif entry.size and _LOG.fullmatch(entry.path):
                reader = LogReader(name=entry.path)
                while piece := file.read(_BLOCK):
                    reader.feed(piece)
                logs[entry.path] = reader.so_far()
    return conclude(merge_scans(logs), known=known, has_failed=has_failed)


def first_verdict(explanation: Explanation) -> str:
    """Return the first verdict in one line, with the place of its evidence."""
    if not explanation.conclusions:
        return "the logs have no known failure" if explanation.size else "the bundle has no logs"
    first = explanation.conclusions[0]
    place = first.sighting.first
    return f"{first.id}: {first.meaning} ({place.source}, line {place.line})"


def build_manifest(info: BundleInfo, contents: BundleContents) -> dict[str, Any]:
    """Return the manifest: every file except the manifest, the number of removed secrets, and what is missing and why."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "created": format_timestamp(info.created),
        "tpuctl": __version__,
        "project": info.name.project,
        "zone": info.name.zone,
        "node": info.name.node_id,
        "accountsHidden": contents.accounts is not None,
        "bytes": contents.size,
        "redactions": contents.redactions,
        "files": [
            {
                "path": entry.path,
                "size": entry.size,
                "originalSize": entry.original_size,
                "truncated": entry.is_truncated,
                "redactions": dict(sorted(entry.redactions.items())),
                "sha256": entry.sha256,
                "source": entry.source or None,
                "modified": format_timestamp(entry.modified) if entry.modified else None,
            }
            for entry in contents.entries
        ],
        "missing": [item._asdict() for item in contents.missing],
        **({"sandbox": True} if info.is_sandbox else {}),
    }


def render_readme(info: BundleInfo, contents: BundleContents, verdict: str) -> str:
    """Return the page for people: what this is, where to start, what was removed, what is missing."""
    name = info.name
    secrets = ", ".join(f"{kind} ({count})" for kind, count in contents.redactions.items()) or "none found"
    are_hidden = contents.accounts is not None
    addresses = "are replaced by aliases" if are_hidden else "are not removed (`--redact-accounts` hides them)"
    where = ", in the sandbox" if info.is_sandbox else ""
    missing = "\n".join(f"  {item.path}: {item.why}" for item in contents.missing) or "  none"
    return f"""\
Evidence of the Cloud TPU node {name.node_id} in {name.zone}, project {name.project}.
Collected {format_timestamp(info.created)} by tpuctl {__version__}{where}.

Verdict: {verdict}

Start with explanation.txt. manifest.json lists every file, and what was truncated or removed.

Secrets removed: {secrets}. E-mail and IP addresses {addresses}.
tpuctl cannot find a secret without a known form or name: review the files before you share them.

Missing:
{missing}
"""
