"""The App: one run of the program. Settings, terminal, clock and project; its `services` talk to the cloud."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tpuctl.app.state_paths import sandbox_state_file, state_folder
from tpuctl.clock import SystemClock
from tpuctl.command_text import join_command
from tpuctl.errors import CheckFailedError, InvalidInputError, SettingError, TpuctlError
from tpuctl.escaping import contains_mask, mask_command_line, mask_url
from tpuctl.names import check_project, check_zone, parse_node_reference
from tpuctl.output.github import runs_in_github_actions
from tpuctl.output.terminal import OutputFormat, Terminal, show_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from pathlib import Path
    from random import Random

    import click

    from tpuctl.app.config_files import ConfigFiles
    from tpuctl.app.services import Services
    from tpuctl.clock import Clock
    from tpuctl.config.settings import ConfigFile, Settings
    from tpuctl.names import NodeReference
    from tpuctl.nodes.lookup import SearchPlace
    from tpuctl.output.progress import Progress
    from tpuctl.output.step_summary import StepSummary
    from tpuctl.output.terminal import Cell, StandardStreams, View

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
            self.terminal = terminal
        self._flags: dict[str, Any] = {}
        # None: not read, or the flags have changed since.
        self._settings: Settings | None = None
        self._files: ConfigFiles | None = None
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
        self._settings = None
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
        from tpuctl.app.summary import open_summary  # noqa: PLC0415  # only in GitHub Actions

        return open_summary(self, path)

    @property
    def settings(self) -> Settings:
        """Every setting, with its source. Raises `SettingError` for a file that cannot be parsed."""
        if self._settings is None:
            settings = self.settings_with({})
            # Read now: what only the output needs must fail before a change is made, not after it.
            for key in ("output", "timestamps"):
                settings.text(key)
            settings.grants()
            self._settings = settings
        return self._settings

    def settings_with(self, flags: dict[str, Any]) -> Settings:
        """Return the settings, with a command's own flags included."""
        shared = {name: value for name, value in self._flags.items() if name != "zone"}
        if self.zone_flags and self.zone_flags[0] != ANY_ZONE:
            shared["zone"] = self.zone_flags[0]
        return self.files.resolve(shared, flags)

    @property
    def files(self) -> ConfigFiles:
        """The files that settings come from."""
        if self._files is None:
            from tpuctl.app.config_files import ConfigFiles  # noqa: PLC0415  # --help reads no settings

            self._files = ConfigFiles(self.invocation, self._flags)
        return self._files

    @property
    def project_file(self) -> ConfigFile | None:
        """The project file, None if there is none."""
        return self.files.project

    @property
    def names_project_file(self) -> bool:
        """Return whether the command names its project file, so that no `tpuctl.yaml` is searched."""
        return "spec_file" in self._flags

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
        self.files.is_trusted = True
        self._settings = None

    def note_overrides(self, options: Mapping[str, Any]) -> None:
        """Note which settings the command's own options override."""
        given = {name for name, value in options.items() if value not in (None, (), False)}
        self._overridden |= {_SETTING_OF_OPTION.get(name, name) for name in given - _MERGED_OPTIONS}

    def is_overridden(self, key: str) -> bool:
        """Return whether an option of the command itself overrides a setting."""
        return key in self._overridden

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
            return self.services.sandbox.clock
        return self.invocation.clock or SystemClock()

    def now(self) -> datetime:
        """Return the current time for ages: the server's, if an answer had it, else the clock's."""
        return (None if self.is_sandbox else self.services.client.server_now) or self.clock.now()

    @property
    def sandbox_path(self) -> Path:
        """The file that holds the state of the sandbox."""
        return sandbox_state_file(self.invocation.environ)

    @cached_property
    def services(self) -> Services:
        """What the run talks to: client, journal, leases, workers."""
        from tpuctl.app.services import Services  # noqa: PLC0415  # --help and completion talk to nothing

        return Services(self)

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

    def reference(self, text: str, *, allow_queued: bool = False) -> NodeReference:
        """Parse the reference of a node; with `allow_queued` also that of a queued resource."""
        self._named.add(text)
        return parse_node_reference(text, allow_queued=allow_queued)

    def progress(self, *, events: str | None = None, lasting: bool = False) -> AbstractContextManager[Progress]:
        """Show events during a block; also append them to the file `events`, or write them to stdout if that is `-`.

        With `lasting` also show that a node was given up, for work that ends without an error about it. Raises
        `InvalidInputError` if the file cannot be written.
        """
        from tpuctl.app.progress import show_progress  # noqa: PLC0415  # only for long work

        return show_progress(self, events=events, lasting=lasting)

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
        resume, undo = self._in_flight.resume, self._in_flight.undo
        not_undone = "; nothing was undone" if undo else ""
        lines = [f"{how}: {text}{not_undone}", f"  resume: {self._as_typed(resume)}"]
        lines += [f"  undo:   {self._as_typed(undo)}"] if undo else []
        if contains_mask(resume):
            lines.append("  hidden values are not repeated here: add them to the command")
        self.terminal.warn(*lines)
        if self.summary:
            self.summary.note(*lines)

    def _as_typed(self, command: str) -> str:
        """Return a command for the user to type next, with the options of this run that it needs."""
        return self._with_typed_options(f"`{command}`").strip("`")

    def _with_typed_options(self, text: str) -> str:
        """Return a text whose commands have the options of this run that they need."""
        from tpuctl.app.hints import with_typed_options  # noqa: PLC0415  # only for failures

        return with_typed_options(self, text)

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
            error.hint = self._with_typed_options(error.hint)
        if isinstance(error, CheckFailedError):
            error.lines = tuple(map(self._with_typed_options, error.lines))
            error.message = "\n".join(error.lines)
        self.terminal.error(error, form=self.format_or_guess, sandbox=sandbox)
        if self.summary:
            self.summary.fail(error)

    def name_node(self, error: TpuctlError) -> None:
        """Let the hint of an error name the node: hints of known messages use the word NODE, as in `tpuctl status NODE`."""
        node = error.node or (next(iter(self._named)) if len(self._named) == 1 else None)
        if error.hint and node:
            error.hint = re.sub(r"(?<=[ `])NODE(?=[` ])", lambda _: node, error.hint)

    def for_call(self) -> App:
        """Return an app for another piece of work with the files, the trust and the connections of this one.

        All else is its own, also the run that holds leases: pieces of work may be done at the same time. The caller closes it.
        """
        app = App(self.invocation, self.terminal).set_options(self._flags)
        app._files = self.files  # noqa: SLF001  # of the same class
        _ = self.settings  # reads all of them
        if not self.is_sandbox:
            app.services = self.services.with_same_connections(app)
        return app

    def with_options(self, options: dict[str, Any]) -> App:
        """Return another app of the same run, with these shared options too. The caller closes it."""
        app = App(self.invocation).set_options(self._flags | options)
        app.command_tree = self.command_tree
        app.summary = self.summary
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
        self._settings = None

    def use_project_file(self, path: Path) -> None:
        """Read settings from this file instead of `tpuctl.yaml`, and require that the user trusts it."""
        self.read_project_file(path)
        self.require_trust()

    def read_project_file(self, path: Path) -> None:
        """Read settings from this file instead of `tpuctl.yaml`, without a question about trust."""
        self._flags["spec_file"] = path
        self._settings = self._files = None

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
