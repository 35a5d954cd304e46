"""The App: everything a command works with, created on first use. The only place that chooses between cloud and sandbox.

The functions below the class build what the App holds: state folders, clients, journal, leases, ssh access, and the identity
of calls and logins.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tpuctl.app.state_paths import journal_folder, sandbox_state_file, state_folder, trusted_folder
from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.command_text import join_command
from tpuctl.errors import CheckFailedError, InvalidInputError, SettingError, TpuctlError
from tpuctl.escaping import contains_mask, mask_command_line, mask_url
from tpuctl.names import BucketPath, check_login, check_project, check_zone, parse_node_reference
from tpuctl.output.github import runs_in_github_actions
from tpuctl.output.terminal import OutputFormat, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from random import Random

    import click

    from tpuctl.check.findings import CheckReport
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.clock import Clock
    from tpuctl.cloud.endpoint import TransportOptions
    from tpuctl.cloud.projects import ComputeClient, OsLoginClient
    from tpuctl.cloud.storage import StorageClient
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.cloud.transport import HttpFactory
    from tpuctl.config.settings import ConfigFile, GcloudProperty, Settings
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.names import NodeReference
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.key_authorization import KeyAuthorizer
    from tpuctl.nodes.lease import LeaseKeeper
    from tpuctl.nodes.lookup import SearchPlace
    from tpuctl.nodes.ssh_workers import SshWorkers
    from tpuctl.output.progress import Progress
    from tpuctl.output.step_summary import StepSummary
    from tpuctl.output.terminal import Cell, StandardStreams, View
    from tpuctl.sandbox.state import SandboxState

# Options whose setting has another name, and options that add to a setting instead of replacing it.
_SETTING_OF_OPTION = {"data_disk": "data_disks", "setup_script": "setup"} | dict.fromkeys(
    ("spot", "preemptible", "reserved", "on_demand"), "tier"
)
# The word for all zones in `--zone`.
ANY_ZONE = "any"
_MERGED_OPTIONS = frozenset({"metadata", "metadata_from_file"})


class App:
    """One run of the program. Everything in it is created on first use: `tpuctl --help` creates nothing."""

    def __init__(self, invocation: Invocation, terminal: Terminal | None = None) -> None:
        self.invocation = invocation
        if terminal is not None:
            self.__dict__["terminal"] = terminal
        self._flags: dict[str, Any] = {}
        self._in_flight: InFlightWork | None = None
        self._named: set[str] = set()
        self._has_chosen_zone = False
        self._chosen_zone: str | None = None
        self._overridden: frozenset[str] = frozenset()
        self._on_close: list[Callable[[], None]] = []
        # The whole command tree: hints copy the options that a command accepts. Set before a command runs.
        self.command_tree: click.Command | None = None
        # If True, stdout has events only, one JSON object on each line.
        self.shows_events = False
        # Since when (monotonic) the API has not answered while nodes were looked up: a deadline counts from then.
        self.silent_since: timedelta | None = None

    def set_options(self, options: dict[str, Any]) -> App:
        """Set the shared options that were given; options after the command override those before it."""
        self._flags |= {name: value for name, value in options.items() if value not in (None, ())}
        self.__dict__.pop("settings", None)
        return self

    @cached_property
    def terminal(self) -> Terminal:
        """The terminal that everything is written to."""
        return Terminal(
            self.invocation.streams,
            self.invocation.environ,
            quiet=bool(self._flags.get("quiet")),
            shows_metadata=bool(self._flags.get("show_metadata")),
            has_header=not self._flags.get("no_header"),
        )

    @cached_property
    def summary(self) -> StepSummary | None:
        """The summary of this step of GitHub Actions, written when the run ends; None elsewhere."""
        path = self.invocation.environ.get("GITHUB_STEP_SUMMARY")
        if not path or not runs_in_github_actions(self.invocation.environ):
            return None
        from tpuctl.files import output_path  # noqa: PLC0415  # as above
        from tpuctl.output.step_summary import StepSummary  # noqa: PLC0415  # only in GitHub Actions

        summary = StepSummary(Path(path), self.command_line())

        def write() -> None:
            with suppress(TpuctlError, ValueError):  # broken settings
                summary.is_sandbox = self.is_sandbox
            try:
                summary.path = output_path(summary.path, self.invocation.folder)
                summary.write()
            except InvalidInputError as error:
                self.terminal.warn(f"no summary of this step: {error.message}")
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                self.terminal.warn(f"cannot write the summary of this step to `{path}`: {reason}")

        self.on_close(write)
        return summary

    @cached_property
    def settings(self) -> Settings:
        """Every setting, with its source. Raises `SettingError` for a file that cannot be parsed."""
        settings = self.settings_with({})
        # Read now: what only the output needs must fail before a change is made, not after it.
        for key in ("output", "timestamps"):
            settings.text(key)
        settings.grants()
        return settings

    def settings_with(self, flags: dict[str, Any]) -> Settings:
        """Return the settings, with a command's own flags included."""
        from tpuctl.config.settings import resolve_settings  # noqa: PLC0415  # not needed by --help

        return resolve_settings(
            {**self._shared, **flags},
            self.invocation.environ,
            self.project_file,
            self._user_file,
            self._gcloud_properties,
            is_trusted=self.trusts_project_file,
        )

    @cached_property
    def project_file(self) -> ConfigFile | None:
        """The project file, read once, so that the trusted content is the content in use. None if there is none."""
        from tpuctl.config import sources  # noqa: PLC0415  # not needed by --help

        path = self.project_path
        return sources.load_project_file(path, self.invocation.environ, any_owner=self._trusts_all) if path else None

    @property
    def project_path(self) -> Path | None:
        """The project file named by the command, else the nearest `tpuctl.yaml` here or above, else None."""
        from tpuctl.config import sources  # noqa: PLC0415  # not needed by --help

        home = self.invocation.environ.get("HOME")
        found: Path | None = self._flags.get("spec_file")
        if found is not None or not self.invocation.searches_project_file:
            return found
        return sources.find_project_file(self.invocation.folder, home=Path(home) if home else None)

    @property
    def names_project_file(self) -> bool:
        """Return whether the command names its project file, so that no `tpuctl.yaml` is searched."""
        return "spec_file" in self._flags

    @cached_property
    def trusts_project_file(self) -> bool:
        """Return whether all keys of the project file apply: none requires trust, or the user trusted its present content."""
        from tpuctl.config.trusted_files import TrustedFiles  # noqa: PLC0415  # most project files need no trust

        file = self.project_file
        if file is None or not file.trusted_keys or self._trusts_all:
            return True
        return TrustedFiles(trusted_folder(self.invocation.environ)).has(file.path, file.digest)

    def require_trust(self) -> None:
        """Ask the user to trust the project file, if it is untrusted and one of its keys would apply.

        A key that a flag or a variable overrides needs no trust. Raises `UntrustedFileError` without a terminal,
        `NotConfirmedError` if the user refuses.
        """
        keys = self.settings.untrusted - self._overridden
        if not keys:
            return
        from tpuctl.app.trust_question import ask_trust  # noqa: PLC0415  # only for untrusted files

        ask_trust(self, keys)
        self.__dict__["trusts_project_file"] = True
        self.__dict__.pop("settings", None)

    def note_overrides(self, options: Mapping[str, Any]) -> None:
        """Note which settings the command's own options override."""
        given = {name for name, value in options.items() if value not in (None, (), False)}
        self._overridden |= {_SETTING_OF_OPTION.get(name, name) for name in given - _MERGED_OPTIONS}

    def is_overridden(self, key: str) -> bool:
        """Return whether an option of the command itself overrides a setting."""
        return key in self._overridden

    @property
    def _trusts_all(self) -> bool:
        """Return whether `trust_project_file` is on in a flag or a variable; a file cannot set it."""
        from tpuctl.config.settings import resolve_settings  # noqa: PLC0415  # not needed by --help

        without_files = resolve_settings(self._shared, self.invocation.environ, None, None, {})
        return without_files.is_on("trust_project_file")

    @cached_property
    def _user_file(self) -> ConfigFile:
        from tpuctl.config.sources import load_config_file, user_config_path  # noqa: PLC0415  # not needed by --help

        return load_config_file(user_config_path(self.invocation.environ))

    @cached_property
    def _gcloud_properties(self) -> Mapping[str, GcloudProperty]:
        from tpuctl.config.sources import read_gcloud_properties  # noqa: PLC0415  # not needed by --help

        return read_gcloud_properties(self.invocation.environ)

    @property
    def _shared(self) -> dict[str, Any]:
        """The shared options, as settings."""
        from tpuctl.config import settings  # noqa: PLC0415  # not needed by --help

        shared = {name: value for name, value in self._flags.items() if name in settings.SETTINGS and name != "zone"}
        shared |= {name: str(value).lower() for name, value in shared.items() if isinstance(value, bool)}
        if self.zone_flags and self.zone_flags[0] != ANY_ZONE:
            shared["zone"] = self.zone_flags[0]
        return shared

    @cached_property
    def is_sandbox(self) -> bool:
        """Return whether the sandbox is used instead of the cloud."""
        return self.settings.is_on("sandbox")

    @cached_property
    def format(self) -> OutputFormat:
        """The output format; `wide` is a table too."""
        form = OutputFormat(self.settings.text("output") or "table")
        return OutputFormat.TABLE if form is OutputFormat.WIDE else form

    @property
    def format_or_guess(self) -> OutputFormat:
        """The output format; if the settings are broken what the command line and the environment say."""
        try:
            return self.format
        except (TpuctlError, ValueError):
            is_json = asked_for_json(self.invocation.arguments, self.invocation.environ)
            return OutputFormat.JSON if is_json else OutputFormat.TABLE

    @property
    def is_wide(self) -> bool:
        """Return whether tables have all columns."""
        return self.settings.text("output") == OutputFormat.WIDE

    @cached_property
    def clock(self) -> Clock:
        """The clock of the cloud in use: the sandbox has its own."""
        if self.is_sandbox:
            return self.sandbox.clock
        return self.invocation.clock or SystemClock()

    def now(self) -> datetime:
        """Return the current time for ages: the server's, if an answer had it, else the clock's."""
        return (None if self.is_sandbox else self.client.server_time) or self.clock.now()

    @property
    def sandbox_path(self) -> Path:
        """The file that holds the state of the sandbox."""
        return sandbox_state_file(self.invocation.environ)

    @cached_property
    def sandbox(self) -> SandboxState:
        """The sandbox, created if there is none."""
        return open_sandbox(self)

    @cached_property
    def client(self) -> TpuClient:
        """The client of the TPU API: of the sandbox in this process, of another endpoint, or of Google."""
        return tpu_client(self)

    @cached_property
    def http(self) -> HttpFactory:
        """The connections to the cloud, for all its APIs. Nothing is sent yet."""
        from tpuctl.cloud.endpoint import ApiEndpoint  # noqa: PLC0415  # not needed by --help
        from tpuctl.cloud.transport import HttpFactory  # noqa: PLC0415  # not needed by --help

        text = self.settings.text("endpoint")
        named = ApiEndpoint.parse(text) if text else None
        factory = HttpFactory(transport_options(self), credentials=lambda: cached_credentials(self), endpoint=named)
        self.on_close(factory.close)
        return factory

    @cached_property
    def storage(self) -> StorageClient:
        """The client of Cloud Storage, which may hold the journal and the leases."""
        return storage_client(self)

    @cached_property
    def journal(self) -> Journal:
        """The journal of states and actions, on this machine or in a bucket."""
        return open_journal(self)

    @cached_property
    def leases(self) -> LeaseKeeper:
        """The leases: which run of tpuctl may change which node."""
        return lease_service(self)

    @cached_property
    def workers(self) -> SshWorkers:
        """The ssh access to workers of nodes."""
        return ssh_workers(self)

    @cached_property
    def project(self) -> str:
        """The project; in the sandbox `sandbox` if none is named."""
        setting = self.settings["project"]
        if self.is_sandbox and (setting is None or setting.source.kind == "gcloud"):
            return "sandbox"
        return check_project(self.settings.required("project"))

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones given by flag, none for `any`; `list` searches only these."""
        return tuple(check_zone(zone) for zone in self.zone_flags if zone != ANY_ZONE)

    @cached_property
    def place(self) -> SearchPlace:
        """The project and zone in which nodes are looked up by name; no zone for `any`.

        Raises `InvalidInputError` for several zones.
        """
        from tpuctl.nodes.lookup import SearchPlace  # noqa: PLC0415  # not needed by --help

        if self._has_chosen_zone:
            return SearchPlace(self.project, self._chosen_zone)
        if self.zone_flags == (ANY_ZONE,):
            return SearchPlace(self.project)
        if len(self.zone_flags) > 1:
            raise InvalidInputError("`--zone` names several zones", hint="this command works in one zone: name one")
        setting = self.settings["zone"]
        zone = check_zone(self.settings.required("zone")) if setting else None
        if setting and setting.source.kind in {"gcloud", "cloudsdk environment"}:
            return SearchPlace(self.project, default_zone=zone)
        return SearchPlace(self.project, zone)

    def missing_zone(self) -> TpuctlError:
        """Return the error of a command that works in one zone, and has none."""
        if ANY_ZONE in self.zone_flags:
            return InvalidInputError(
                "`--zone any` names several zones",
                hint="this command works in one zone: name one; `tpuctl up` tries them all",
            )
        return self.settings.missing("zone")

    def choose_zone(self, zone: str | None) -> None:
        """Work in this zone from now on: the one, of several that the user allows, that has the node. None: look in all."""
        self._has_chosen_zone, self._chosen_zone = True, zone

    def find(self, text: str) -> Node:
        """Return the one node of a name. Raises `NotFoundError` or `ConflictError` if it is not exactly one."""
        from tpuctl.nodes.lookup import get_node  # noqa: PLC0415  # not needed by --help

        return get_node(self.client, self.place, self.reference(text))

    def reference(self, text: str, *, allow_queued: bool = False) -> NodeReference:
        """Parse the reference of a node; with `allow_queued` also that of a queued resource."""
        self._named.add(text)
        return parse_node_reference(text, allow_queued=allow_queued)

    @contextmanager
    def progress(self, *, events: str | None = None, lasting: bool = False) -> Iterator[Progress]:
        """Show events during a block; also append them to the file `events`, or write them to stdout if that is `-`.

        With `lasting` also show that a node was given up, for work that ends without an error about it. Raises
        `InvalidInputError` if the file cannot be written.
        """
        from tpuctl.files import output_path  # noqa: PLC0415  # not needed by --help
        from tpuctl.output.progress import EventFile, Progress  # noqa: PLC0415  # only for long work

        self.shows_events = events == "-"
        stream: TextIO | EventFile | None = sys.stdout if self.shows_events else None
        if events is not None and not self.shows_events:
            try:
                stream = EventFile(output_path(Path(events), self.invocation.folder), events)
            except OSError as error:
                raise InvalidInputError(f"`--events {events}` cannot be written: {error.strerror}") from error
        match self.settings.text("timestamps"):
            case "auto":
                timestamps = not self.terminal.streams.stderr_is_terminal
            case text:
                timestamps = text == "on"
        with Progress(
            self.terminal, self.clock, events=stream, lasting=lasting, timestamps=timestamps, summary=self.summary
        ) as progress:
            yield progress

    @property
    def chosen_by_file(self) -> dict[str, str]:
        """The keys that describe a node and have their value from the project file, not from a flag or variable."""
        from tpuctl.config.settings import SourceKind  # noqa: PLC0415  # not needed by --help
        from tpuctl.models.spec import FIELDS  # noqa: PLC0415  # as above
        from tpuctl.models.spec_fields import TEXT, TIER, setting_key  # noqa: PLC0415  # as above

        compared = {name: row for name, row in FIELDS.items() if row.setting and row.is_compared}
        described = (setting_key(name) for name, row in compared.items() if row.kind in {TEXT, TIER})
        keys = ("project", "zone", *described)
        found = {spec.key: setting for spec, setting in self.settings if setting and spec.key not in self._overridden}
        return {
            key: str(found[key].value)
            for key in keys
            if key in found and found[key].source.kind is SourceKind.PROJECT_FILE
        }

    @property
    def owner_label(self) -> str:
        """The label of the user, which the nodes have that the user creates."""
        from tpuctl.nodes.expiry import owner_label  # noqa: PLC0415  # not needed by --help

        return owner_label(owner_identity(self))

    def context(self, tell: Callable[[NodeEvent], None], *, preflight: PreflightCheck | None = None) -> ActionContext:
        """Return the context of actions; `tell` receives each event, `preflight` checks nodes before they are created."""
        from random import Random  # noqa: PLC0415  # not needed by --help

        from tpuctl.nodes.actuator import ActionContext  # noqa: PLC0415  # not needed by --help

        return ActionContext(
            cloud=self.client,
            clock=self.clock,
            journal=self.journal,
            workers=self.workers,
            leases=self.leases,
            emit=tell,
            server_now=self.now,
            random=self.invocation.random or Random(),  # noqa: S311  # jitter, not a secret
            preflight=preflight,
            project_file=self.project_file.path.name if self.project_file else "",
            chosen_by_file=self.chosen_by_file,
            owner=lambda: self.owner_label,
        )

    @contextmanager
    def in_flight(self, what: str | Callable[[], str], *, resume: str, undo: str | None = None) -> Iterator[None]:
        """Note the work that a block does in the cloud, so that an interruption can report it."""
        before, self._in_flight = self._in_flight, InFlightWork(what, resume, undo)
        yield
        self._in_flight = before

    @property
    def unfinished(self) -> str | None:
        """What continues in the cloud if this run ends now; None if nothing was begun."""
        if self._in_flight is None:
            return None
        return what if isinstance(what := self._in_flight.what, str) else what()

    def interrupted(self, how: str) -> None:
        """Report the work in flight, and the commands that resume and undo it."""
        text = self.unfinished
        if text is None or self._in_flight is None:
            self.terminal.note(how)
            return
        not_undone = "; nothing was undone" if self._in_flight.undo else ""
        lines = [f"{how}: {text}{not_undone}", f"  resume: {self._as_typed(self._in_flight.resume)}"]
        lines += [f"  undo:   {self._as_typed(self._in_flight.undo)}"] if self._in_flight.undo else []
        if contains_mask(self._in_flight.resume):
            lines.append("  hidden values are not repeated here: add them to the command")
        self.terminal.warn(*lines)
        if self.summary:
            self.summary.note(*lines)

    def _as_typed(self, command: str) -> str:
        """Return a command for the user to type next, with the options of this run that it needs."""
        from tpuctl.app.hints import with_typed_options  # noqa: PLC0415  # only for interrupts

        return with_typed_options(self, f"`{command}`").strip("`")

    @property
    def typed_options(self) -> dict[str, tuple[str, ...]]:
        """The words of the typed options that choose the cloud, and of the zone if it is one."""
        flags = self._flags
        words: dict[str, tuple[str, ...]] = {
            name: (f"--{name}", mask_url(flags[name])) for name in ("project", "endpoint") if flags.get(name)
        }
        if "sandbox" in flags:
            words["sandbox"] = ("--sandbox",) if flags["sandbox"] else ("--no-sandbox",)
        if len(self.zone_flags) == 1 and self.zone_flags[0] != ANY_ZONE:
            words["zone"] = ("--zone", self.zone_flags[0])
        return words

    def show(self, view: View) -> None:
        """Write a result in the chosen format; nothing if stdout has events only."""
        from tpuctl.output.terminal import show_view  # noqa: PLC0415  # not needed by --help

        if not self.shows_events:
            show_view(view, self.terminal, self.format, sandbox=self.is_sandbox)

    def show_entry(self, value: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        """Write one of several results that arrive over time: a line of JSON, or of cells with tabs."""
        if self.format in {OutputFormat.JSON, OutputFormat.YAML}:
            self.terminal.record(value)
        else:
            self.terminal.rows([cells])

    def show_error(self, error: TpuctlError) -> None:
        """Print an error in the chosen output format."""
        sandbox = False
        with suppress(SettingError, ValueError):  # broken settings
            sandbox = self.is_sandbox
        self.name_node(error)
        if error.hint:
            from tpuctl.app.hints import with_typed_options  # noqa: PLC0415  # only for failures

            error.hint = with_typed_options(self, error.hint)
        if isinstance(error, CheckFailedError):
            from tpuctl.app.hints import with_typed_options  # noqa: PLC0415  # only for failures

            error.lines = tuple(with_typed_options(self, line) for line in error.lines)
            error.message = "\n".join(error.lines)
        self.terminal.error(error, form=self.format_or_guess, sandbox=sandbox)
        if self.summary:
            self.summary.fail(error)

    def name_node(self, error: TpuctlError) -> None:
        """Let the hint of an error name the node: hints of known messages use the word NODE, as in `tpuctl status NODE`."""
        node = error.node or (next(iter(self._named)) if len(self._named) == 1 else None)
        if error.hint and node:
            error.hint = re.sub(r"(?<=[ `])NODE(?=[` ])", lambda _: node, error.hint)

    def as_typed(self, report: CheckReport) -> CheckReport:
        """Return the findings, whose commands then have the options of this run that they need."""
        from tpuctl.app.hints import report_with_typed_options  # noqa: PLC0415  # only after a check

        return report_with_typed_options(self, report)

    def for_call(self) -> App:
        """Return an app for another piece of work with the files, the trust and the connections of this one.

        All else is its own, also the run that holds leases: pieces of work may be done at the same time. The caller closes it.
        """
        app = App(self.invocation, self.terminal).set_options(self._flags)
        names = ["project_file", "trusts_project_file", "_user_file", "_gcloud_properties"]
        for name in [*names, *([] if self.is_sandbox else ["http"])]:
            app.__dict__[name] = getattr(self, name)
        return app

    def with_options(self, options: dict[str, Any]) -> App:
        """Return another app of the same run, with these shared options too. The caller closes it."""
        app = App(self.invocation).set_options(self._flags | options)
        app.command_tree = self.command_tree
        app.__dict__["summary"] = self.summary
        return app

    def close(self) -> None:
        """Close everything that was opened, the last first."""
        while self._on_close:
            self._on_close.pop()()

    def on_close(self, close: Callable[[], None]) -> None:
        """Call a function when the run ends."""
        self._on_close.append(close)

    def log_in_as(self, login: str) -> None:
        """Use this login name on the workers."""
        self._flags["user"] = login
        self.__dict__.pop("settings", None)

    def use_project_file(self, path: Path) -> None:
        """Read settings from this file instead of `tpuctl.yaml`, and require that the user trusts it."""
        self.read_project_file(path)
        self.require_trust()

    def read_project_file(self, path: Path) -> None:
        """Read settings from this file instead of `tpuctl.yaml`, without a question about trust."""
        self._flags["spec_file"] = path
        for name in ("settings", "project_file", "trusts_project_file"):
            self.__dict__.pop(name, None)

    def command_line(self) -> str:
        """Return the command as typed, ready to be pasted; values that may be secrets are hidden."""
        return self.invocation.command_line()

    @property
    def is_verbose(self) -> bool:
        """Return whether API requests are printed."""
        return bool(self._flags.get("verbose"))

    @property
    def state_folder(self) -> Path:
        """The folder of all state, of the sandbox if that is in use."""
        folder = state_folder(self.invocation.environ)
        return folder / "sandbox" if self.is_sandbox else folder

    @property
    def zone_flags(self) -> tuple[str, ...]:
        """The zones of the flags as given, which may be the word `any`."""
        return tuple(zone for text in self._flags.get("zone", ()) for zone in text.split(",") if zone)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a run of the program is started with. Only tests pass a clock and a source of randomness."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    streams: StandardStreams
    folder: Path  # the working directory
    clock: Clock | None = None
    random: Random | None = None
    searches_project_file: bool = True  # whether a `tpuctl.yaml` there or above applies without being named

    def command_line(self) -> str:
        """Return the command as typed, ready to be pasted; values that may be secrets are hidden."""
        return join_command(("tpuctl", *mask_command_line(self.arguments, self.environ)))


@dataclass(frozen=True, slots=True)
class InFlightWork:
    """Work in the cloud that continues if this process ends now, and the commands for that case."""

    what: str | Callable[[], str]
    resume: str
    undo: str | None = None


def asked_for_json(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the user asked for JSON, for command lines and settings that could not be parsed as a whole."""
    before = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if any(word in {"-ojson", "--output=json"} for word in before):
        return True
    if any(pair in {("-o", "json"), ("--output", "json")} for pair in pairwise(before)):
        return True
    has_option = any(word.startswith(("-o", "--output")) for word in before)
    return not has_option and environ.get("TPUCTL_OUTPUT") == "json"


def tpu_client(app: App) -> TpuClient:
    """Return the client of the TPU API: of the sandbox, of another endpoint, or of Google. Nothing is sent yet."""
    from tpuctl.cloud.tpu import TpuClient  # noqa: PLC0415  # 40 ms, not needed by --help

    factory, endpoint = http_access(app)
    return TpuClient(factory, app.clock, endpoint=endpoint)


def storage_client(app: App) -> StorageClient:
    """Return the client of Cloud Storage, at the same endpoint as the TPU API. Nothing is sent yet."""
    from tpuctl.cloud.storage import StorageClient  # noqa: PLC0415  # most commands use no bucket

    factory, endpoint = http_access(app)
    return StorageClient(factory, app.clock, endpoint=endpoint)


def lease_service(app: App) -> LeaseKeeper:
    """Return the leases: in Cloud Storage if the setting `lease` names a bucket, else on this machine. Nothing is sent yet."""
    import secrets  # noqa: PLC0415  # most commands change nothing
    import socket  # noqa: PLC0415  # most commands change nothing

    from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LeaseStore  # noqa: PLC0415  # most commands change nothing

    store: LeaseStore
    if text := app.settings.text("lease"):
        from tpuctl.nodes.lease import BucketLeaseStore  # noqa: PLC0415  # most users work on one machine

        store = BucketLeaseStore(app.storage, BucketPath.parse(text))
    else:
        from tpuctl.nodes.lease import LocalLeaseStore  # noqa: PLC0415  # most commands change nothing

        local = LocalLeaseStore(app.state_folder / "leases", app.clock, notify=app.terminal.warn)
        app.on_close(local.close)
        store = local
    leases = LeaseKeeper(store, app.clock, LeaseOwner(socket.gethostname(), os.getpid(), secrets.token_hex(8)))
    app.on_close(leases.close)
    return leases


def http_access(app: App) -> tuple[Callable[[], Any], str | None]:
    """Return a factory of http objects, and the endpoint; None for Google's own."""
    from tpuctl.config.settings import SourceKind  # noqa: PLC0415  # not needed by --help

    # Most commands required trust when they began. Others need it only for a call.
    app.require_trust()
    if app.is_sandbox:
        endpoint = app.settings["endpoint"]
        if endpoint and endpoint.source.kind is SourceKind.FLAG:
            raise InvalidInputError("cannot use `--endpoint` with the sandbox", hint="remove one of them")
        from tpuctl.sandbox.in_process import SandboxHttp  # noqa: PLC0415  # only for the sandbox

        sandbox = app.sandbox
        return _with_tracing(app, lambda: SandboxHttp(sandbox)), None
    return _with_tracing(app, app.http), app.settings.text("endpoint")


def ssh_workers(app: App) -> SshWorkers:
    """Return the ssh access to workers. The sandbox has its own key, so that `~/.ssh` stays unchanged."""
    from tpuctl.app.ssh_options import build_router  # noqa: PLC0415  # most commands reach no worker
    from tpuctl.nodes.ssh_workers import SshWorkers  # noqa: PLC0415  # most commands reach no worker

    served, router = served_sandbox_proxy(app), build_router(app)
    if app.is_sandbox or served:
        # A tunnel to a sandbox worker uses the same connection as direct ssh.
        router = replace(router, gcloud=lambda: "gcloud", here=lambda: None)
    proxy: Callable[[Node, int], str | None] = served or (lambda node, worker: None)  # noqa: ARG005  # a direct connection
    if app.is_sandbox:
        from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

        sandbox = app.sandbox

        def proxy(node: Node, worker: int) -> str | None:
            return proxy_command(sandbox.path, node.endpoints[worker].address or "")

    return SshWorkers(
        login=metadata_login(app),
        home=key_folder(app),
        key_file=app.settings.path("ssh_key"),
        known_hosts=app.state_folder / "known_hosts",
        guest_attributes=app.client.guest_attributes,
        proxy_command=proxy,
        missing=_no_sshd if app.is_sandbox or served else lambda: None,
        router=router,
        authorizer=key_authorization(app),
    )


def _no_sshd() -> str | None:
    """Return why ssh cannot reach the sandbox's workers, None if it can."""
    from tpuctl.sandbox.sshd.daemon import SshdUnavailableError, find_sshd  # noqa: PLC0415  # only for the sandbox

    try:
        find_sshd()
    except SshdUnavailableError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def transport_options(app: App) -> TransportOptions:
    """Return proxy, CA file and quota project from the settings. Raises `SettingError` for an unsupported kind of proxy."""
    from tpuctl.cloud.endpoint import HttpProxy, TransportOptions  # noqa: PLC0415  # not needed by --help

    settings, proxy = app.settings, HttpProxy.from_environment(app.invocation.environ)
    if proxy is None and (host := settings.text("proxy_address")) is not None:
        # The proxy of gcloud's configuration.
        kind = settings.text("proxy_type") or "http"
        if not kind.startswith("http"):
            raise SettingError(
                f"gcloud's proxy type `{kind}` is not supported",
                hint="set `HTTPS_PROXY=http://HOST:PORT` instead",
            )
        port = settings.number("proxy_port") if settings["proxy_port"] else 8080
        proxy = HttpProxy(host, port, settings.text("proxy_username"), settings.text("proxy_password"))
    return TransportOptions(proxy=proxy, ca_file=settings.path("ca_certs"), quota_project=_quota_project(app))


def _quota_project(app: App) -> str | None:
    """Return the quota project. Raises `InvalidInputError` unless it has the form of a project: it becomes a header."""
    text = app.settings.text("quota_project")
    return None if text is None else check_project(text)


def load_credentials(app: App, *, gcloud_token: Callable[[], str] | None = None) -> Any:  # google-auth's credentials
    """Return the credentials of all calls; `gcloud_token` replaces the call of gcloud for a token."""
    from tpuctl.cloud import credentials  # noqa: PLC0415  # google-auth costs 40 ms
    from tpuctl.cloud.transport import AuthRequest  # noqa: PLC0415  # not needed by --help
    from tpuctl.config import sources  # noqa: PLC0415  # not needed by --help

    environ = app.invocation.environ
    return credentials.load_credentials(
        environ,
        adc=sources.adc_path(environ),
        gcloud_token=gcloud_token or (lambda: credentials.gcloud_access_token(environ)),
        impersonate=app.settings.text("impersonate_service_account"),
        quota_project=_quota_project(app),
        request=AuthRequest(transport_options(app)),
    )


def cached_credentials(app: App) -> Any:  # google-auth's credentials, or what stands in for them
    """Return the credentials of all calls, which use the token that an earlier command has cached."""
    from tpuctl.cloud.token_cache import CachedCredentials  # noqa: PLC0415  # not needed by --help
    from tpuctl.config import sources  # noqa: PLC0415  # not needed by --help

    environ = app.invocation.environ
    source = sources.adc_path(environ)
    # Without a file of credentials, gcloud and the metadata server cache the token.
    if app.settings.text("impersonate_service_account") or not app.settings.is_on("token_cache") or not source.exists():
        return load_credentials(app)
    return CachedCredentials(source, state_folder(environ) / "tokens", lambda: load_credentials(app))


def _with_tracing(app: App, factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return a factory whose http objects print each request on stderr if the run is verbose."""
    if not app.is_verbose:
        return factory
    return lambda: _TracedHttp(factory(), app.terminal.note)


class _TracedHttp:
    """An http object that prints each request: method, URL, status and time. Never headers or bodies: they hold secrets."""

    def __init__(self, http: Any, note: Callable[[str], None]) -> None:  # an httplib2.Http
        self._http, self._note = http, note

    @property
    def timeout(self) -> float | None:
        """The seconds that the next exchange may take."""
        timeout: float | None = self._http.timeout
        return timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._http.timeout = seconds

    def request(self, uri: str, method: str = "GET", **options: Any) -> Any:  # httplib2's signature
        started = time.perf_counter()
        outcome = "no answer"
        try:
            response, content = self._http.request(uri, method=method, **options)
            outcome = str(response.status)
        finally:
            self._note(f"{method} {uri}: {outcome} in {(time.perf_counter() - started) * 1000:.0f} ms")
        return response, content

    def __getattr__(self, name: str) -> Any:  # any other attribute of httplib2.Http
        return getattr(self._http, name)


# Reserved for network tests (RFC 2544): no machine of a real cloud has such an address.
_SANDBOX_NETWORK = "198.18.0.0/15"


def served_sandbox_proxy(app: App) -> Callable[[Node, int], str | None] | None:
    """Return a function that gives ssh's ProxyCommand for a worker; None if the endpoint is not this user's own sandbox."""
    import ipaddress  # noqa: PLC0415  # not needed by --help

    state_file = app.sandbox_path
    if app.is_sandbox or not is_served_sandbox(app.settings.text("endpoint"), state_file):
        return None
    from tpuctl.sandbox.sshd import proxy_command  # noqa: PLC0415  # only for the sandbox

    def proxy(node: Node, worker: int) -> str | None:
        address = node.endpoints[worker].address or ""
        try:
            is_sandbox_worker = ipaddress.ip_address(address) in ipaddress.ip_network(_SANDBOX_NETWORK)
        except ValueError:
            return None
        return proxy_command(state_file, address) if is_sandbox_worker else None

    return proxy


def is_served_sandbox(endpoint: str | None, state_file: Path) -> bool:
    """Return whether the endpoint serves this sandbox: its server writes the address to a file beside the state file."""
    from tpuctl.cloud.endpoint import ApiEndpoint  # noqa: PLC0415  # not needed by --help

    if endpoint is None:
        return False
    from tpuctl.sandbox.shims import read_served_address  # noqa: PLC0415  # only with an endpoint

    try:
        named = ApiEndpoint.parse(endpoint)
        served = ApiEndpoint.parse(read_served_address(state_file)) if named.is_loopback else None
    except TpuctlError:
        return False
    return served is not None and served.port == named.port


def open_sandbox(app: App) -> SandboxState:
    """Return the sandbox, created if there is none; it is closed when the run ends.

    Raises `SettingError` if `TPUCTL_SANDBOX_SPEED` is not a speed.
    """
    from tpuctl.sandbox.state import SandboxState  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.state_file import OtherLayoutError  # noqa: PLC0415  # only for the sandbox

    path = app.sandbox_path
    setting = app.settings["sandbox"]
    # The project file may come from another person: say so in every run that relies on it.
    is_from_file = setting is not None and setting.source.kind == "project file" and app.is_sandbox
    if app.terminal.streams.stderr_is_terminal or not path.exists() or is_from_file:
        app.terminal.note("sandbox: nothing here is real, and nothing is billed")
    speed: float | None = None
    if text := app.invocation.environ.get("TPUCTL_SANDBOX_SPEED"):
        try:
            speed = float(text)
        except ValueError:
            speed = 0.0
        if not 0 < speed <= 1e6:
            raise SettingError(
                f"`TPUCTL_SANDBOX_SPEED` is `{text}`",
                hint="set it to a number such as 60: a cloud minute takes a second",
            )
    try:
        sandbox = SandboxState.open(path, clock=app.invocation.clock, speed=speed)
    except OtherLayoutError as error:
        from tpuctl.sandbox.administration import reset_sandbox  # noqa: PLC0415  # only after an update of tpuctl

        app.terminal.note(f"{error.message}: it is removed, and a new one is made")
        reset_sandbox(path)
        sandbox = SandboxState.open(path, clock=app.invocation.clock, speed=speed)
    app.on_close(sandbox.close)
    return sandbox


# Time limit for writing the remaining lines at the end of a run, which may have been interrupted.
_FLUSH_TIMEOUT = timedelta(seconds=10)


def open_journal(app: App) -> Journal:
    """Return the journal; in a bucket if the setting `journal` names one. Nothing is read or written yet."""
    from tpuctl.nodes.journal import BucketJournalStore, Journal  # noqa: PLC0415  # most commands use no journal

    warn = app.terminal.warn
    place = app.settings.text("journal")
    if place is None:
        return Journal(journal_folder(app.invocation.environ, sandbox=app.is_sandbox), warn=warn)
    # The client is created first, so that it is closed last: after the waiting lines were written.
    store = BucketJournalStore(app.storage, BucketPath.parse(place), app.clock, warn=warn)
    opened = Journal(store, warn=warn)

    def flush() -> None:
        with limit_cloud_calls(SystemClock(), _FLUSH_TIMEOUT):
            opened.flush()

    app.on_close(flush)
    return opened


def key_authorization(app: App) -> KeyAuthorizer:
    """Return what finds out whether a node has our key, and adds it. Nothing is sent yet."""
    from tpuctl.cloud.projects import ComputeClient  # noqa: PLC0415  # most commands reach no worker
    from tpuctl.nodes.key_authorization import KeyAuthorizer  # noqa: PLC0415  # most commands reach no worker
    from tpuctl.ssh.keys import OsLoginCache  # noqa: PLC0415  # most commands reach no worker

    def compute() -> ComputeClient:
        factory, endpoint = http_access(app)
        return ComputeClient(factory, app.clock, endpoint=endpoint)

    setting = app.settings["user"]
    return KeyAuthorizer(
        projects=compute,
        profiles=lambda: _os_login(app),
        caller=lambda: caller_account(app),
        remembered=OsLoginCache(app.state_folder / "os-login.json", app.clock),
        clock=app.clock,
        login=check_login(str(setting.value)) if setting else None,
        expires=lambda: key_expiry(app),
        notify=app.terminal.note,
    )


def key_folder(app: App) -> Path:
    """Return the home folder of the key. The sandbox has its own, so that `~/.ssh` stays unchanged."""
    return app.state_folder if app.is_sandbox else Path(app.invocation.environ.get("HOME") or Path.home())


def metadata_login(app: App) -> str:
    """Return the login name for keys in metadata. The sandbox's sshd accepts only the user who runs it."""
    from tpuctl.ssh.keys import login_name  # noqa: PLC0415  # most commands reach no worker

    if app.is_sandbox or served_sandbox_proxy(app):
        return login_name({})
    given = app.settings.text("user")
    return check_login(given) if given else login_name(app.invocation.environ)


def key_expiry(app: App) -> datetime | None:
    """Return when our key expires if it is added now, None for never. Raises `SettingError` for a lifetime of zero."""
    if app.settings["ssh_key_expire_after"] is None:
        return None
    duration = app.settings.duration("ssh_key_expire_after")
    if not duration:
        raise SettingError(
            "`ssh_key_expire_after` is 0: the key would expire at once", hint="write it like 8h, or remove it"
        )
    return app.clock.now() + duration


def caller_account(app: App) -> str | None:
    """Return the e-mail address of the identity that makes the calls, None if it is unknown.

    A sandbox has one account. Else these are tried in order: the impersonated service account, the credentials, the answer of
    Google about their token, and the account of gcloud's configuration, which may have issued the token.
    """
    from tpuctl.cloud.endpoint import ApiEndpoint  # noqa: PLC0415  # not needed by --help

    if app.is_sandbox or served_sandbox_proxy(app):
        from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT  # noqa: PLC0415  # only for the sandbox

        return OS_LOGIN_ACCOUNT
    gcloud_account = app.settings.text("account")
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    endpoint = app.settings.text("endpoint")
    if endpoint and ApiEndpoint.parse(endpoint).is_loopback:  # no credentials are sent there
        return gcloud_account

    from tpuctl.cloud.credentials import GcloudCredentials, account_of  # noqa: PLC0415  # google-auth costs 40 ms
    from tpuctl.cloud.transport import AuthRequest  # noqa: PLC0415  # not needed by --help

    # The identity is known without another token of gcloud.
    credentials = load_credentials(app, gcloud_token=lambda: "unused")
    if isinstance(credentials, GcloudCredentials):
        return gcloud_account
    return account_of(credentials, AuthRequest(transport_options(app))) or _os_login(app).caller() or gcloud_account


def owner_identity(app: App) -> str:
    """Return who creates nodes, without a request: the account of the calls, else `user@host` of this machine.

    Known are the sandbox's account, an impersonated service account, that of a key file, and gcloud's account.
    """
    import socket  # noqa: PLC0415  # most commands create nothing

    from tpuctl.ssh.keys import login_name  # noqa: PLC0415  # most commands create nothing

    if app.is_sandbox or served_sandbox_proxy(app):
        from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT  # noqa: PLC0415  # only for the sandbox

        return OS_LOGIN_ACCOUNT
    if chain := app.settings.text("impersonate_service_account"):
        return chain.split(",")[-1].strip()
    environ = app.invocation.environ
    account = _account_of_key_file(environ) or app.settings.text("account")
    return account or f"{login_name(environ)}@{socket.gethostname()}"


def _account_of_key_file(environ: Mapping[str, str]) -> str | None:
    """Return the service account of the credentials file in use, None for a file of another kind."""
    from tpuctl.cloud.credentials_file import read_credentials_file  # noqa: PLC0415  # most commands create nothing
    from tpuctl.config.sources import adc_path  # noqa: PLC0415  # as above

    try:
        found, _ = read_credentials_file(adc_path(environ))
    except (OSError, ValueError):
        return None  # calls report what is wrong with it
    return found.get("client_email") or None


def _os_login(app: App) -> OsLoginClient:
    from tpuctl.cloud.projects import OsLoginClient  # noqa: PLC0415  # most commands reach no worker

    factory, endpoint = http_access(app)
    return OsLoginClient(factory, app.clock, endpoint=endpoint)


def authorize_key(app: App, node: Node) -> None:
    """Make a node's workers accept our key: through the OS Login profile if they use OS Login, else in the node's metadata.

    Does nothing if the key is there, or in the project's metadata. Workers read a change within some seconds.
    """
    from tpuctl.ssh.keys import with_metadata_key  # noqa: PLC0415  # only for nodes without our key

    entry = app.workers.key_entry(node)
    if entry is None:
        return
    now = app.clock.now()
    app.terminal.note(f"adding our ssh key to the metadata of `{node.name.node_id}`")
    app.client.change_node(node.name, partial(with_metadata_key, entry=entry, now=now), expected_id=node.id)
    app.workers.note_admission(node)
