"""What a command works with, made when it is first asked for. The only place that chooses the real cloud or the sandbox."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.cli.invocation import InFlight
from tpuctl.cli.places import sandbox_world, state_folder, trusted_folder
from tpuctl.cli.usage import asked_for_json
from tpuctl.clock import SystemClock
from tpuctl.errors import CheckFailedError, InvalidInputError, SettingError, TpuctlError
from tpuctl.masking import is_hidden, without_secret_values
from tpuctl.names import check_project, check_zone, parse_reference
from tpuctl.output.terminal import Format, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from tpuctl.actions.cloud import Context, Preflight
    from tpuctl.actions.locate import Place
    from tpuctl.api.storage import StorageClient
    from tpuctl.api.tpu import TpuClient
    from tpuctl.cli.invocation import Invocation
    from tpuctl.clock import Clock
    from tpuctl.events import Event
    from tpuctl.journal import Journal
    from tpuctl.leases import Leases
    from tpuctl.model import Node
    from tpuctl.names import NodeReference
    from tpuctl.output.progress import Progress
    from tpuctl.preflight.evaluation import Report
    from tpuctl.remote.workers import SshWorkers
    from tpuctl.sandbox.world import World
    from tpuctl.settings import ConfigFile, Settings

# Options of commands whose setting has another name, and those that add to what a file says.
_OPTIONS_OF_SETTINGS = {"data_disk": "data_disks", "setup_script": "setup"} | dict.fromkeys(
    ("spot", "preemptible", "reserved", "on_demand"), "tier"
)
_ADDING_OPTIONS = frozenset({"metadata", "metadata_from_file"})


class App:
    """One run of the program. Everything in it is made lazily: `tpuctl --help` makes nothing."""

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self._flags: dict[str, Any] = {}
        self._in_flight: InFlight | None = None
        self._named: set[str] = set()
        self._replaced: frozenset[str] = frozenset()
        # Then stdout holds events, one JSON object on each line, and nothing else.
        self.shows_events = False
        self._at_the_end: list[Callable[[], None]] = []
        # Since when the API did not answer while nodes were looked up, by the clock: a deadline counts from then.
        self.silent_since: timedelta | None = None

    def take(self, options: dict[str, Any]) -> App:
        """Take the shared options that were given; those of the command win over those before it."""
        self._flags |= {name: value for name, value in options.items() if value not in (None, ())}
        self.__dict__.pop("settings", None)
        return self

    @cached_property
    def terminal(self) -> Terminal:
        """Where everything is written."""
        return Terminal(
            self.invocation.streams,
            self.invocation.environ,
            quiet=bool(self._flags.get("quiet")),
            shows_metadata=bool(self._flags.get("show_metadata")),
        )

    @cached_property
    def settings(self) -> Settings:
        """Every setting, with its source. Raises `SettingError` for a broken file."""
        settings = self.settings_with({})
        # Read now: a format that nobody knows must not come to light after a change was made.
        settings.text("output")
        return settings

    def settings_with(self, flags: dict[str, Any]) -> Settings:
        """Return the settings where a command's own flags count too."""
        from tpuctl import gcloud, settings  # noqa: PLC0415  # not needed by --help

        environ = self.invocation.environ
        return settings.resolve(
            {**self._shared, **flags},
            environ,
            self.project_file,
            self._user_file,
            gcloud.properties(environ),
            is_trusted=self.trusts_project_file,
        )

    @cached_property
    def project_file(self) -> ConfigFile | None:
        """The project file, read once: what was trusted is what is used. None where there is none here or above."""
        from tpuctl import configfile  # noqa: PLC0415  # not needed by --help

        path = self.project_path
        return configfile.load_project_file(path, self.invocation.environ, any_owner=self._trusts_all) if path else None

    @property
    def project_path(self) -> Path | None:
        """Where the project file is: the one that was named, else the nearest `tpuctl.yaml`; None where there is none."""
        from tpuctl import configfile  # noqa: PLC0415  # not needed by --help

        home = self.invocation.environ.get("HOME")
        found = self._flags.get("spec_file")
        return found or configfile.find_project_file(self.invocation.folder, home=Path(home) if home else None)

    @property
    def names_project_file(self) -> bool:
        """Tell whether the command names its project file, so that no `tpuctl.yaml` was looked for."""
        return "spec_file" in self._flags

    @cached_property
    def trusts_project_file(self) -> bool:
        """Tell whether all keys of the project file count: it has none that take trust, or was trusted as it is."""
        from tpuctl.trusted_files import TrustedFiles  # noqa: PLC0415  # most files need it not

        file = self.project_file
        if file is None or not file.trusted_keys or self._trusts_all:
            return True
        return TrustedFiles(trusted_folder(self.invocation.environ)).has(file.digest)

    def require_trust(self) -> None:
        """Ask whether the project file is trusted, where it is not and what it says would count.

        What a flag of the command or a variable says in its place needs no trust. Raises `UntrustedFileError` without a
        terminal, `NotConfirmedError` for a no.
        """
        keys = self.settings.untrusted - self._replaced
        if not keys:
            return
        from tpuctl.cli.trust import ask_trust  # noqa: PLC0415  # only for files that are not trusted

        ask_trust(self, keys)
        self.__dict__["trusts_project_file"] = True
        self.__dict__.pop("settings", None)

    def take_replaced(self, options: Mapping[str, Any]) -> None:
        """Note which settings the command's own options replace."""
        given = {name for name, value in options.items() if value not in (None, (), False)}
        self._replaced |= {_OPTIONS_OF_SETTINGS.get(name, name) for name in given - _ADDING_OPTIONS}

    @property
    def _trusts_all(self) -> bool:
        from tpuctl import settings  # noqa: PLC0415  # not needed by --help

        own = settings.resolve(self._shared, self.invocation.environ, None, None, {})
        return own.is_on("trust_project_file")

    @cached_property
    def _user_file(self) -> ConfigFile:
        from tpuctl import configfile  # noqa: PLC0415  # not needed by --help

        return configfile.load(configfile.user_file(self.invocation.environ))

    @property
    def _shared(self) -> dict[str, Any]:
        """The options that every command takes, as settings."""
        from tpuctl import settings  # noqa: PLC0415  # not needed by --help

        shared = {name: value for name, value in self._flags.items() if name in settings.SETTINGS and name != "zone"}
        shared |= {name: str(value).lower() for name, value in shared.items() if isinstance(value, bool)}
        if zones := self._zone_flags():
            shared["zone"] = zones[0]
        return shared

    @cached_property
    def is_sandbox(self) -> bool:
        """Tell whether the cloud is the embedded sandbox."""
        return self.settings.is_on("sandbox")

    @cached_property
    def format(self) -> Format:
        """The format of what is shown."""
        return Format(self.settings.text("output") or "table")

    @cached_property
    def clock(self) -> Clock:
        """The clock of the cloud that is talked to: the sandbox has its own."""
        if self.is_sandbox:
            return self.world.clock
        return self.invocation.clock or SystemClock()

    def now(self) -> datetime:
        """Return the time that ages are counted to: the server's, where it told us."""
        return (None if self.is_sandbox else self.client.server_time) or self.clock.now()

    @property
    def sandbox_path(self) -> Path:
        """The file that holds the sandbox's world."""
        return sandbox_world(self.invocation.environ)

    @cached_property
    def world(self) -> World:
        """The sandbox's world, made when there is none."""
        from tpuctl.cli.worlds import open_world  # noqa: PLC0415  # only for the sandbox

        return open_world(self)

    @cached_property
    def client(self) -> TpuClient:
        """The client of the cloud: the sandbox in process, another endpoint, or Google's."""
        from tpuctl.cli.connect import connect  # noqa: PLC0415  # imports the client

        return connect(self)

    @cached_property
    def storage(self) -> StorageClient:
        """The client of Cloud Storage, where the journal and the leases may lie."""
        from tpuctl.cli.connect import storage  # noqa: PLC0415  # most commands keep nothing in a bucket

        return storage(self)

    @cached_property
    def journal(self) -> Journal:
        """What was done to nodes: on this machine, or in a bucket."""
        from tpuctl.cli.journals import journal  # noqa: PLC0415  # not needed by --help

        return journal(self)

    @cached_property
    def leases(self) -> Leases:
        """Who may repair which node now."""
        from tpuctl.cli.connect import leases  # noqa: PLC0415  # most commands change nothing

        return leases(self)

    @cached_property
    def workers(self) -> SshWorkers:
        """The workers of nodes, by ssh."""
        from tpuctl.cli.connect import workers  # noqa: PLC0415  # imports the ssh side

        return workers(self)

    @cached_property
    def project(self) -> str:
        """The project; `sandbox` in the sandbox when none is named."""
        setting = self.settings["project"]
        if self.is_sandbox and (setting is None or setting.source.kind == "gcloud"):
            return "sandbox"
        return check_project(self.settings.required("project"))

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that were given by flag; `list` looks only there."""
        return tuple(check_zone(zone) for zone in self._zone_flags())

    @cached_property
    def place(self) -> Place:
        """Where nodes are looked for by name."""
        from tpuctl.actions.locate import Place  # noqa: PLC0415  # not needed by --help

        if len(self._zone_flags()) > 1:
            raise InvalidInputError(
                "several zones were given", hint="this command works in one zone: give one `--zone`"
            )
        setting = self.settings["zone"]
        zone = check_zone(self.settings.required("zone")) if setting else None
        if setting and setting.source.kind in {"gcloud", "cloudsdk environment"}:
            return Place(self.project, default_zone=zone)
        return Place(self.project, zone)

    def find(self, text: str) -> Node:
        """Return the one node that a name stands for."""
        from tpuctl.actions.locate import locate  # noqa: PLC0415  # not needed by --help

        return locate(self.client, self.place, self.reference(text))

    def reference(self, text: str, *, allow_queued: bool = False) -> NodeReference:
        """Return what the user's words for a node say; with `allow_queued` also those for a queued resource."""
        self._named.add(text)
        return parse_reference(text, allow_queued=allow_queued)

    @contextmanager
    def progress(self, *, events: str | None = None, endings: bool = False) -> Iterator[Progress]:
        """Show events while something goes on; with `endings` also that a node was given up, where no error will say so."""
        from tpuctl.cli.showing import showing  # noqa: PLC0415  # only for long work

        with showing(self, events=events, endings=endings) as progress:
            yield progress

    def context(self, tell: Callable[[Event], None], *, preflight: Preflight | None = None) -> Context:
        """Return what actions work with; `tell` gets each event, `preflight` checks what is to be created."""
        from random import Random  # noqa: PLC0415  # only for long work

        from tpuctl.actions.cloud import Context  # noqa: PLC0415  # as above

        return Context(
            cloud=self.client,
            clock=self.clock,
            journal=self.journal,
            workers=self.workers,
            leases=self.leases,
            tell=tell,
            server_now=self.now,
            random=self.invocation.random or Random(),  # noqa: S311  # spreads requests, keeps no secret
            preflight=preflight,
            project_file=self.project_file.path.name if self.project_file else "",
            chosen_by_file=self._chosen_by_file(),
        )

    def _chosen_by_file(self) -> dict[str, str]:
        """Return what the project file says, and no flag or variable, of where a node is made and what it is."""
        from tpuctl.settings import SourceKind  # noqa: PLC0415  # not needed by --help

        found = {spec.key: setting for spec, setting in self.settings if setting and spec.key not in self._replaced}
        keys = ("project", "zone", "type", "version", "tier", "network", "subnetwork", "service_account")
        return {
            key: str(found[key].value)
            for key in keys
            if key in found and found[key].source.kind is SourceKind.PROJECT_FILE
        }

    @contextmanager
    def going_on(self, what: str | Callable[[], str], *, resume: str, undo: str | None = None) -> Iterator[None]:
        """Remember what goes on in the cloud, to say so when we are interrupted."""
        before, self._in_flight = self._in_flight, InFlight(what, resume, undo)
        yield
        self._in_flight = before

    def interrupted(self, how: str) -> None:
        """Say what goes on in the cloud, and how to go on or undo."""
        if self._in_flight is None:
            self.terminal.note(how)
            return
        text = what if isinstance(what := self._in_flight.what, str) else what()
        undone = "; nothing was undone" if self._in_flight.undo else ""
        lines = [f"{how}: {text}{undone}", f"  go on: {self._as_typed(self._in_flight.resume)}"]
        lines += [f"  undo:  {self._as_typed(self._in_flight.undo)}"] if self._in_flight.undo else []
        if is_hidden(self._in_flight.resume):
            lines.append("  give the hidden values again: they are not repeated here")
        self.terminal.warn(*lines)

    def _as_typed(self, command: str) -> str:
        """Return a command to be typed next, with the options of this run that it needs."""
        from tpuctl.cli.remedies import with_typed_options  # noqa: PLC0415  # only for interrupts

        return with_typed_options(f"`{command}`", self._shown_arguments).strip("`")

    @property
    def _shown_arguments(self) -> Sequence[str]:
        return without_secret_values(self.invocation.arguments, self.invocation.environ)

    def show_error(self, error: TpuctlError) -> None:
        """Print an error in the format that was asked for."""
        try:
            form, sandbox = self.format, self.is_sandbox
        except (SettingError, ValueError):
            # The settings are what is wrong: the flag alone tells.
            is_json = asked_for_json(self.invocation.arguments, self.invocation.environ)
            form, sandbox = Format.JSON if is_json else Format.TABLE, False
        node = error.node or (next(iter(self._named)) if len(self._named) == 1 else None)
        if error.hint and node:
            # What is known of a message speaks of `tpuctl status NODE`; here it is known which one.
            error.hint = re.sub(r"(?<=[ `])NODE(?=[` ])", lambda _: node, error.hint)
        if error.hint:
            from tpuctl.cli.remedies import with_typed_options  # noqa: PLC0415  # only for failures

            error.hint = with_typed_options(error.hint, self._shown_arguments)
        if isinstance(error, CheckFailedError):
            from tpuctl.cli.remedies import with_typed_options  # noqa: PLC0415  # as above

            typed = self._shown_arguments
            error.lines = tuple(with_typed_options(line, typed, is_complete=True) for line in error.lines)
            error.message = "\n".join(error.lines)
        self.terminal.error(error, form=form, sandbox=sandbox)

    def as_typed(self, report: Report) -> Report:
        """Return findings whose commands carry the options of this run that they need."""
        from tpuctl.cli.remedies import report_as_typed  # noqa: PLC0415  # only where something was checked

        return report_as_typed(report, self._shown_arguments)

    def again(self, options: dict[str, Any]) -> App:
        """Return an app for the same run in which these shared options count too. Close it."""
        return App(self.invocation).take(self._flags | options)

    def close(self) -> None:
        """Let go of what was opened."""
        while self._at_the_end:
            self._at_the_end.pop()()

    def at_the_end(self, close: Callable[[], None]) -> None:
        """Have something closed when the run ends."""
        self._at_the_end.append(close)

    def log_in_as(self, login: str) -> None:
        """Use another login name on the workers."""
        self._flags["user"] = login
        self.__dict__.pop("settings", None)

    def use_project_file(self, path: Path) -> None:
        """Read settings from a file instead of the `tpuctl.yaml` that is found; it may say as much, and no more.

        Asks whether it is trusted, as `require_trust` does.
        """
        self.read_project_file(path)
        self.require_trust()

    def read_project_file(self, path: Path) -> None:
        """Read settings from a file instead of the `tpuctl.yaml` that is found. Does not ask whether it is trusted."""
        self._flags["spec_file"] = path
        for name in ("settings", "project_file", "trusts_project_file"):
            self.__dict__.pop(name, None)

    def command_line(self) -> str:
        """Return the command as it was typed, to be typed again."""
        return self.invocation.command_line()

    @property
    def is_verbose(self) -> bool:
        """Tell whether each request is shown."""
        return bool(self._flags.get("verbose"))

    @property
    def state_folder(self) -> Path:
        """The folder of everything that is remembered."""
        folder = state_folder(self.invocation.environ)
        return folder / "sandbox" if self.is_sandbox else folder

    def _zone_flags(self) -> tuple[str, ...]:
        return tuple(zone for text in self._flags.get("zone", ()) for zone in text.split(",") if zone)
