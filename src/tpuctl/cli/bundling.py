"""One run of `tpuctl bundle`: collect, pack, and report."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from tpuctl.actions.bundling import archive, documents
from tpuctl.actions.bundling.contents import Contents
from tpuctl.actions.bundling.making import finish, verdict
from tpuctl.actions.bundling.manifest import About, redactions
from tpuctl.actions.bundling.questions import Questions
from tpuctl.actions.bundling.subject import find_subject
from tpuctl.actions.bundling.workers import Gathering, Wish
from tpuctl.api.operation_list import OperationsClient
from tpuctl.api.retry import SHORT_PATIENCE
from tpuctl.api.tpu import TpuClient
from tpuctl.cli.bundle_documents import MachineDocuments, of_node
from tpuctl.cli.connect import http_access
from tpuctl.clock import SystemClock
from tpuctl.diagnosis.redaction.accounts import Accounts
from tpuctl.errors import InvalidInputError, NodeNotFoundError, TpuctlError
from tpuctl.output import explanations
from tpuctl.output.gathered import GatheredLine
from tpuctl.output.sizes import format_size
from tpuctl.output.terminal import Format
from tpuctl.userfile import expand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.actions.bundling.subject import Subject
    from tpuctl.actions.bundling.verdict import Read
    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.names import NodeName
    from tpuctl.remote.member import Member

_STDOUT = "-"
# The API usually answers within a second; a search goes through all zones.
_LONGEST = timedelta(seconds=20)
_GRACE = timedelta(seconds=2)
_NAMED = 10
_PAGE_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options of the user."""

    place: str | None  # a file, `-` for stdout, None for the default
    replaces: bool
    workers: str | None  # a set of workers, None to skip them
    since: timedelta | None
    room: int  # bytes
    patience: timedelta
    hides_accounts: bool


class Bundling:
    """Collects, packs and reports."""

    def __init__(self, app: App, choice: Choice) -> None:
        self._app, self._choice = app, choice
        self._real = SystemClock()
        self._until = self._real.monotonic() + choice.patience
        self._created = app.clock.now()
        patience = choice.patience
        self._of_api = Questions(self._real, self._until, each=min(_LONGEST, patience / 4), grace=timedelta())
        # A checkup ends by itself, and then has results.
        self._of_machine = Questions(self._real, self._until, each=patience, grace=_GRACE)
        # The workers that refused ssh, and the stderr of ssh.
        self._shut_out: list[tuple[Member, str]] = []
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
                app.going_on("no bundle was written, and the collected files are removed", resume=resume),
                TemporaryDirectory(prefix="tpuctl-bundle-") as folder,
            ):
                accounts = Accounts() if self._choice.hides_accounts else None
                contents = Contents(Path(folder), room=self._choice.room, accounts=accounts)
                self._collect(contents, subject)
                about = About(name, self._created, is_sandbox=app.is_sandbox, hides_accounts=accounts is not None)
                page = partial(explanations.page, width=_PAGE_WIDTH, colored=False)
                read = finish(contents, about, to_json=explanations.to_json, page=page)
                inside = _folder_name(name, self._created)
                if self._choice.place == _STDOUT:
                    stdout = app.terminal.streams.stdout
                    stdout.flush()
                    archive.pack(contents.entries, stdout.buffer, folder=inside, created=self._real.now())
                    stdout.buffer.flush()
                else:
                    with archive.written(self._path(name), replaces=self._choice.replaces) as file:
                        archive.pack(contents.entries, file, folder=inside, created=self._real.now())
            self._report(contents, name, read)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise archive.NotWrittenError(error, gettempdir()) from error

    def _check_place(self, name: NodeName) -> None:
        """Reject a place that cannot be written before collecting anything."""
        if self._choice.place != _STDOUT:
            path = self._path(name)
            if path.is_dir():
                raise InvalidInputError(f"`{path}` is a folder", hint="name a file")
            if path.exists() and not self._choice.replaces:
                raise archive.FileExistsAlreadyError(path)
            if not path.parent.is_dir():
                raise InvalidInputError(
                    f"folder `{path.parent}` does not exist", hint="create it, or name another with `--file`"
                )
        elif self._app.terminal.streams.stdout_is_terminal:
            raise InvalidInputError(
                "cannot write a bundle to a terminal", hint="redirect stdout, or name a file with `--file`"
            )

    def _collect(self, contents: Contents, subject: Subject) -> None:
        """Collect everything available; the workers send their files while the API and this machine are queried."""
        found = documents.put(contents, of_node(self._app, self._client, self._operations, subject), self._of_api)
        if subject.node is None:
            if not found:
                raise subject.error or NodeNotFoundError(subject.name.node_id, subject.name.zone)
            contents.lacks_of("node.json", subject.error.message if subject.error else "the API knows no such node")
        members = self._members(contents, subject)
        wish = Wish(self._choice.since, self._until)
        machine = MachineDocuments(
            self._app, subject, asks_workers=bool(members), patience=lambda: self._of_machine.left
        )
        with GatheredLine(self._app.terminal, self._real) as line:
            gathering = Gathering(contents, members, wish, self._real, progress=line)
            with gathering.under_way():
                documents.put(contents, machine.all(), self._of_machine)
        self._errors = machine.errors
        self._shut_out = [(member, one.ssh_said) for member, one in gathering.silent if one.ssh_said]

    def _members(self, contents: Contents, subject: Subject) -> list[Member]:
        """Return the workers to visit, with their connections; record why one cannot be visited."""
        if self._choice.workers is None:
            contents.lacks_of("workers", "skipped: `--no-workers`")
            return []
        if subject.node is None:
            contents.lacks_of("workers", "the node, and so its workers, is unknown to the API")
            return []
        from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # not needed without workers
        from tpuctl.remote.gate import check_state  # noqa: PLC0415  # as above
        from tpuctl.remote.known_hosts import remember_host_keys  # noqa: PLC0415  # as above

        node = subject.node
        workers = WorkerSet.parse(self._choice.workers).of(node.name.node_id, node.workers)
        try:
            check_state(node)  # the bundle shows what it warns of
            # Host keys may need a request to the API.
            members = self._of_api.ask(lambda: self._connect(contents, node, workers))
        except TpuctlError as error:
            contents.lacks_of("workers", error.message)
            return []
        remember_host_keys([member.way for member in members])
        return members

    def _connect(self, contents: Contents, node: Node, workers: Sequence[int]) -> list[Member]:
        from tpuctl.remote.member import Member  # noqa: PLC0415  # not needed without workers

        connector, members = self._app.workers, []
        if obstacle := connector.obstacle(node):
            contents.lacks_of("workers", obstacle)
            return []
        connector.learn_host_keys(node)
        for worker in workers:
            try:
                # A bundle does not change the node: our key must be there already.
                connection = connector.connection(node, worker, makes_key=False)
                members.append(Member(node, worker, connection, str(worker)))
            except TpuctlError as error:
                contents.lacks_of(f"workers/{worker}", error.message)
        return members

    def _path(self, name: NodeName) -> Path:
        folder = self._app.invocation.folder
        return folder / expand(Path(self._choice.place or f"{_folder_name(name, self._created)}.tar.gz"))

    def _report(self, contents: Contents, name: NodeName, read: Read) -> None:
        """Print the path of the bundle, what is missing, and the first verdict."""
        app, entries, lacks = self._app, contents.entries, contents.lacks
        is_file = self._choice.place != _STDOUT
        path = self._path(name)
        if is_file and app.format in {Format.JSON, Format.YAML}:
            app.terminal.data(self._to_json(contents, path, read), app.format)
        elif is_file:
            app.terminal.write(self._choice.place or path.name)
        packed = f", {format_size(path.stat().st_size)}" if is_file else ""
        secrets = sum(redactions(entries).values())
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
            from tpuctl.remote.failures import explain_failures, look_around  # noqa: PLC0415  # only for failures

            # Why ssh failed: each cause once, and its remedy.
            for error in explain_failures(self._shut_out, look_around(self._shut_out[0][0])):
                app.terminal.note(error.message, *(f"  {line}" for line in (error.hint or "").splitlines()[:1]))
        if count := len(self._errors):
            more = "" if count == 1 else f", and {count - 1} more: see doctor.json in the bundle"
            app.terminal.warn(f"doctor found {count} error{'' if count == 1 else 's'}: {self._errors[0]}{more}")
        app.terminal.note(verdict(read))
        if read.explanation.conclusions and read.explanation.conclusions[0].remedy:
            app.terminal.note(f"  {read.explanation.conclusions[0].remedy[0]}")

    def _to_json(self, contents: Contents, path: Path, read: Read) -> dict[str, Any]:
        return {
            "path": os.fspath(path),
            "size": path.stat().st_size,
            "files": len(contents.entries),
            "bytes": sum(entry.size for entry in contents.entries),
            "redactions": redactions(contents.entries),
            "missing": [{"path": lack.path, "why": lack.why} for lack in contents.lacks],
            "verdicts": explanations.to_json(read.explanation)["verdicts"],
            **({"sandbox": True} if self._app.is_sandbox else {}),
        }


def _folder_name(name: NodeName, created: datetime) -> str:
    return f"tpuctl-bundle-{name.node_id}-{created:%Y%m%dT%H%M%SZ}"
