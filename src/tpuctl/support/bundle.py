"""One run of `tpuctl bundle`: collect, pack, and report."""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple

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
from tpuctl.durations import format_size, format_timestamp
from tpuctl.errors import InvalidInputError, NodeNotFoundError, TpuctlError
from tpuctl.explain.conclusion import conclude
from tpuctl.explain.explanation_rendering import explanation_to_json, render_explanation
from tpuctl.explain.scanner import LogReader
from tpuctl.files import output_path
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.conditions import check_login_state
from tpuctl.output.github import unguarded
from tpuctl.output.terminal import StatusLine, View
from tpuctl.redaction import AccountAliases
from tpuctl.ssh.channel import AgentError, explain_agent_errors
from tpuctl.ssh.connection import Target, save_host_keys
from tpuctl.support.bundle_contents import (
    BundleContents,
    BundleExistsError,
    BundleNotWrittenError,
    replace_atomically,
    write_archive,
)
from tpuctl.support.bundle_sources import (
    TimedQueries,
    WorkerCollector,
    add_documents,
    find_subject,
    hide_guest_attributes,
    replace_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.doctor.doctor_facts import EnvironmentFacts
    from tpuctl.explain.conclusion import Explanation
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.support.bundle_contents import BundleFile
    from tpuctl.support.bundle_sources import BundleSubject

_STDOUT = "-"
# The API usually answers within a second; a search goes through all zones.
_MAX_QUERY_TIME = timedelta(seconds=20)
_GRACE = timedelta(seconds=2)
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


class BundleBuilder:
    """Collects the evidence, packs it and reports what it holds."""

    def __init__(self, app: App, options: BundleOptions) -> None:
        self._app, self._options = app, options
        self._clock = SystemClock()
        self._deadline = self._clock.monotonic() + options.timeout
        timeout = options.timeout
        self._api_queries = TimedQueries(
            self._clock, self._deadline, each=min(_MAX_QUERY_TIME, timeout / 4), grace=timedelta()
        )
        # `doctor` ends by itself, and then has results.
        self._machine_queries = TimedQueries(self._clock, self._deadline, each=timeout, grace=_GRACE)
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
        app = self._app
        login, _, reference = text.rpartition("@")
        if login:
            app.log_in_as(login)
        known: Sequence[NodeName] = ()
        with suppress(TpuctlError):
            known = self._api_queries.run(app.services.journal.names)
        subject = find_subject(self._client, app.place, app.reference(reference), known, self._api_queries)
        name = subject.name
        info = BundleInfo(name, app.clock.now(), is_sandbox=app.is_sandbox)
        folder_of_user = app.invocation.folder
        path = output_path(Path(self._options.file or f"{info.folder}.tar.gz"), folder_of_user)
        self._check_place(path)
        resume = f"tpuctl bundle {name.zone}/{name.node_id}"
        try:
            with (
                app.in_flight("no bundle was written, and the collected files are removed", resume=resume),
                TemporaryDirectory(prefix="tpuctl-bundle-") as folder,
            ):
                accounts = AccountAliases() if self._options.redact_accounts else None
                contents = BundleContents(Path(folder), max_bytes=self._options.max_bytes, accounts=accounts)
                self._collect(contents, subject)
                logs = add_summary(contents, info)
                if self._options.file == _STDOUT:
                    stdout = unguarded(app.terminal.streams.stdout)
                    stdout.flush()
                    write_archive(contents.entries, stdout.buffer, folder=info.folder, created=self._clock.now())
                    stdout.buffer.flush()
                else:
                    with replace_atomically(path, overwrite=self._options.overwrite) as file:
                        write_archive(contents.entries, file, folder=info.folder, created=self._clock.now())
            self._report(contents, path, logs)
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

    def _collect(self, contents: BundleContents, subject: BundleSubject) -> None:
        """Collect everything available; the workers send their files while the API and this machine are queried."""
        found = add_documents(contents, self._node_documents(subject), self._api_queries)
        if subject.node is None:
            if not found:
                raise subject.error or NodeNotFoundError(subject.name.node_id, subject.name.zone)
            contents.add_missing("node.json", subject.error.message if subject.error else "the API knows no such node")
        targets = self._targets(contents, subject)
        machine = self._machine_documents(subject, with_workers=bool(targets))
        collector = WorkerCollector(contents, targets, self._clock, deadline=self._deadline, since=self._options.since)
        with StatusLine(self._app.terminal, self._clock) as line:
            collector.run(line, meanwhile=lambda: add_documents(contents, machine, self._machine_queries))
        self._ssh_failures = [error for error in collector.incomplete if error.ssh_stderr]

    def _targets(self, contents: BundleContents, subject: BundleSubject) -> list[Target]:
        """Return the workers to visit, with their connections; record why one cannot be visited."""
        if self._options.workers is None:
            contents.add_missing("workers", "skipped: `--no-workers`")
            return []
        if subject.node is None:
            contents.add_missing("workers", "the node, and so its workers, is unknown to the API")
            return []

        node = subject.node
        workers = WorkerSet.parse(self._options.workers).of(node.name.node_id, node.workers)
        try:
            check_login_state(node)  # the bundle shows what it warns of
            # Host keys may need a request to the API.
            targets = self._api_queries.run(lambda: self._connect(contents, node, workers))
        except TpuctlError as error:
            contents.add_missing("workers", error.message)
            return []
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

    def _report(self, contents: BundleContents, path: Path, logs: LogsExplanation) -> None:
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
                        "missing": [{"path": item.path, "why": item.why} for item in missing],
                        "verdicts": explanation_to_json(logs.explanation)["verdicts"],
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
        app.terminal.note(logs.summary)
        if logs.explanation.conclusions and logs.explanation.conclusions[0].remedy:
            app.terminal.note(f"  {logs.explanation.conclusions[0].remedy[0]}")

    def _node_documents(self, subject: BundleSubject) -> dict[str, Callable[[], Any]]:
        """Return the queries about the node, by the names of their documents."""
        name, node = subject.name, subject.node
        requests: list[QueuedResource] = []

        def get_requests() -> Any:  # JSON
            if node is not None and node.queued_resource:
                requests.append(self._client.get_queued_resource(node.queued_resource))
            else:
                found = self._client.list_queued_resources(name.project, (name.zone,)).queued_resources
                requests.extend(one for one in found if one.owns(name.node_id))
            return [one.raw for one in requests]

        def list_operations() -> Any:  # JSON
            targets = {str(name), *(one.name for one in requests)}
            return self._operations.operations(name.project, name.zone, targets, limit=_MAX_OPERATIONS)

        return {
            # Local: slow queries must not use up its time.
            "journal.json": lambda: self._app.services.journal.entries(name),
            "node.json": lambda: dict(node.raw) if node else None,
            "queued-resource.json": get_requests,
            "operations.json": list_operations,
            "guest-attributes.json": lambda: (
                hide_guest_attributes(self._client.guest_attributes(name)) if node else None
            ),
        }

    def _machine_documents(self, subject: BundleSubject, *, with_workers: bool) -> dict[str, Callable[[], Any]]:
        """Return the queries about this machine, which is examined once, for the first document that shows it."""
        app = self._app
        # The name of the user's home folder is private.
        home = app.invocation.environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  # a text is wanted

        @cache
        def environment() -> EnvironmentFacts:
            return EnvironmentProbe(app, timeout=min(_PROBE_TIMEOUT, self._machine_queries.left)).gather()

        def settings() -> Any:  # JSON
            """Return each setting with a value, and its source; secret values are hidden."""
            return [
                {"key": spec.key, "value": "[hidden]" if spec.secret else setting.value, "source": str(setting.source)}
                for spec, setting in app.settings
                if setting is not None
            ]

        def doctor() -> Any:  # JSON
            """Return the findings, also on the workers if they are visited."""
            reports = [evaluate_environment(environment())]
            if subject.node is not None and with_workers:
                limit = min(self._machine_queries.left, _WORKERS_TIMEOUT)
                reports += reports_of_nodes(app, [str(subject.name)], timeout=limit)
            report = join_reports(*reports)
            self._doctor_errors += [finding.found.text for finding in report.of(Level.ERROR)]
            return {
                "summary": {str(level): len(report.of(level)) for level in Level},
                "findings": [finding_to_json(finding) for finding in report.findings],
            }

        def versions() -> Any:  # JSON
            known = {key: value for key, value in environment_json(environment()).items() if key != "settings"}
            return {"system": platform.platform(), **known}

        def without_home(query: Callable[[], Any]) -> Any:  # JSON
            return replace_folder(query(), home)

        queries = {"settings.json": settings, "doctor.json": doctor, "versions.json": versions}
        return {path: partial(without_home, query) for path, query in queries.items()}


# Verdicts whose evidence is located in its file; for the others see `files` in explanation.json.
_MAX_LOCATED = 20


def add_summary(contents: BundleContents, info: BundleInfo) -> LogsExplanation:
    """Add the files that describe a bundle, and return the verdict on its logs."""
    logs = explain_logs(contents.entries, {"node": info.name.node_id})
    parts = [dict(zip(("path", "firstLine", "lines"), part, strict=True)) for part in logs.parts]
    contents.add("explanation.json", _json({**explanation_to_json(logs.explanation), "files": parts}), is_own=True)
    # The page counts the lines of all files as one text.
    places: list[str] = []
    for one in (*logs.explanation.conclusions, *logs.explanation.harmless)[:_MAX_LOCATED]:
        line = one.sighting.first.line
        if place := logs.place(line):
            places.append(f"  line {line}: {place[0]}, line {place[1]}")
    located = ["", "files of these lines:", *dict.fromkeys(places)] if places else []
    page = [*render_explanation(logs.explanation, width=_PAGE_WIDTH, colored=False), *located]
    contents.add("explanation.txt", _text("\n".join(page or [logs.summary])), is_own=True)
    contents.add("README.txt", _text(render_readme(info, contents, verdict=logs.summary)), is_own=True)
    contents.add("manifest.json", _json(build_manifest(info, contents)), is_own=True)
    return logs


def _json(value: Any) -> bytes:
    return _text(json.dumps(value, indent=2, ensure_ascii=False))


def _text(text: str) -> bytes:
    return (text.rstrip("\n") + "\n").encode("utf-8", "replace")


# Version of the JSON. A version may gain fields; no field is removed or changes its meaning.
SCHEMA_VERSION = 1


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
        "missing": [{"path": item.path, "why": item.why} for item in contents.missing],
        **({"sandbox": True} if info.is_sandbox else {}),
    }


def render_readme(info: BundleInfo, contents: BundleContents, *, verdict: str) -> str:
    """Return the page for people: what this is, where to start, what was removed, what is missing."""
    name = info.name
    secrets = ", ".join(f"{kind} ({count})" for kind, count in contents.redactions.items()) or "none found"
    are_hidden = contents.accounts is not None
    addresses = "are replaced by aliases" if are_hidden else "are not removed (`--redact-accounts` hides them)"
    where = ", in the sandbox" if info.is_sandbox else ""
    lines = [
        f"Evidence of the Cloud TPU node {name.node_id} in {name.zone}, project {name.project}.",
        f"Collected {format_timestamp(info.created)} by tpuctl {__version__}{where}.",
        "",
        f"Verdict: {verdict}",
        "",
        "Start with explanation.txt. manifest.json lists every file, and what was truncated or removed.",
        "",
        f"Secrets removed: {secrets}. E-mail and IP addresses {addresses}.",
        "tpuctl cannot find a secret without a known form or name: review the files before you share them.",
        "",
        "Missing:",
        *([f"  {item.path}: {item.why}" for item in contents.missing] or ["  none"]),
    ]
    return "\n".join(lines) + "\n"


_LOG = re.compile(
    r"workers/(?P<worker>\d+)/(?:jobs/[^/]+/(?:out|err)|tpu_logs/.+|tpu_log_dir/.+|dmesg\.txt|startup-script\.log)"
)
# How a job ended: `exit 1 2.0` has the code and the seconds, `signal 9 2.0` the signal.
_JOB_END = re.compile(r"workers/\d+/jobs/[^/]+/exit")
_FAILED_END, _MAX_END = re.compile(rb"(?:exit|signal) (?!0\b)\d{1,3}\b"), 100
_BLOCK = 256 * 1024


class LogPart(NamedTuple):
    """A log file, and its range of lines in the whole."""

    path: str
    first_line: int
    lines: int


@dataclass(frozen=True, slots=True)
class LogsExplanation:
    """The verdict on the logs, and the range of lines of each."""

    explanation: Explanation
    parts: tuple[LogPart, ...]

    @property
    def summary(self) -> str:
        """The first verdict in one line, with the place of its evidence."""
        if not self.explanation.conclusions:
            return "the logs have no known failure" if self.parts else "the bundle has no logs"
        first = self.explanation.conclusions[0]
        place = self.place(first.sighting.first.line)
        where = f" ({place[0]}, line {place[1]})" if place else ""
        return f"{first.id}: {first.meaning}{where}"

    def place(self, line: int) -> tuple[str, int] | None:
        """Return the file, and the line in it, of a line of the whole."""
        for part in self.parts:
            if part.first_line <= line < part.first_line + part.lines:
                return part.path, line - part.first_line + 1
        return None


def explain_logs(entries: Sequence[BundleFile], known: Mapping[str, str]) -> LogsExplanation:
    """Read the logs among the files as one log, each line marked with its worker.

    `known` are facts for the remedies, such as the node's name. If a job failed, no failure is taken to be over.
    """
    reader, parts, line, has_failed = LogReader(), [], 1, False
    for entry in entries:
        has_failed |= _JOB_END.fullmatch(entry.path) is not None and _tells_failure(entry)
        match = _LOG.fullmatch(entry.path)
        if match is None or not entry.size:
            continue
        lines = 0
        for piece in _mark_lines(entry, b"[%s] " % match["worker"].encode()):
            lines += piece.count(b"\n")
            reader.feed(piece)
        parts.append(LogPart(entry.path, line, lines))
        line += lines
    return LogsExplanation(conclude(reader.so_far(), known=known, has_failed=has_failed), tuple(parts))


def _tells_failure(entry: BundleFile) -> bool:
    """Return whether the end of a job is a signal or a code other than 0; what cannot be read is no failure."""
    with entry.file.open("rb") as file:
        match = _FAILED_END.match(file.read(_MAX_END))
    return match is not None


def _mark_lines(entry: BundleFile, mark: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file with a mark before each line, and a line end after the last one."""
    is_begin = True
    with entry.file.open("rb") as file:
        while block := file.read(_BLOCK):
            ends = block.endswith(b"\n")
            body = block[:-1] if ends else block
            yield (mark if is_begin else b"") + body.replace(b"\n", b"\n" + mark) + (b"\n" if ends else b"")
            is_begin = ends
    if not is_begin:
        yield b"\n"
