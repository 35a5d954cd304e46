"""Hints that depend on how tpuctl was called: options to repeat in a command, a mistyped zone, a wrong endpoint."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from tpuctl.accelerators import load_accelerators
from tpuctl.cloud.errors import ApiError, GarbledAnswerError, NotSentError, is_connection_refused
from tpuctl.command_text import join_command, quote_word
from tpuctl.config.settings import SourceKind
from tpuctl.errors import AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.escaping import mask_url
from tpuctl.names import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.app.app import App
    from tpuctl.check.findings import CheckReport, Remedy

# Also `us-central1-ai1a`, and what the API names as a location. Other matches, such as names of nodes, are similar to no zone.
_ZONE_LIKE = re.compile(r"\b[a-z]+-[a-z]+\d+-[a-z0-9]+\b|(?<=\blocations/)[a-z0-9-]{1,63}")


# Options that choose the cloud, the identity and the route to workers: a command in a hint needs them too.
_INHERITED_OPTIONS = frozenset(
    {
        "project", "sandbox", "endpoint", "impersonate_service_account", "quota_project", "journal", "lease", "user", "ssh_key",
        "iap", "internal_ip",
    }
)  # fmt: skip
# A command in a hint that has one of these keeps it.
_ROUTE_OPTIONS = frozenset({"iap", "internal_ip"})
# Never repeated: the user must consider again what they confirm, and a deadline may be the one that passed.
_CONSENT_OPTIONS = frozenset({"yes", "replace", "force_lease", "skip_validation", "all_nodes", "remove", "timeout"})
# Commands that make no API calls.
_LOCAL_COMMANDS = frozenset({"explain", "config", "completion", "version", "trust", "sandbox"})
# Options that ask for the same node in another place or way: all others stay.
_SEARCH_OPTIONS = frozenset({"zone", "tier", "queue", "queue_for"})
# They choose the tier, or need one.
_TIER_OPTIONS = frozenset(
    {"spot", "preemptible", "reserved", "on_demand", "tier", "reservation", "calendar", "run_for"}
)
_CREATE_COMMANDS = (["create"], ["up"])
_COMMAND = re.compile(r"`tpuctl ([a-z][^`]*)`")


@dataclass(slots=True)
class _CommandLine:
    """The parts of a command line."""

    path: list[str] = field(default_factory=list)  # the command
    arguments: list[str] = field(default_factory=list)
    options: list[tuple[str, list[str]]] = field(default_factory=list)  # parameter name, words as typed
    accepted: set[str | None] = field(default_factory=set)  # names of all parameters of the command
    remote: list[str] = field(default_factory=list)  # `--`, and the remote command after it

    @property
    def brings_up(self) -> bool:
        """Whether it is `tpuctl run --up`."""
        return self.path == ["run"] and any(name == "up" for name, _ in self.options)


def with_typed_options(
    text: str, typed: Sequence[str], tree: click.Command | None, *, is_complete: bool = False
) -> str:
    """Return a text in which each command in backticks has the options of the typed command line that it needs.

    These are always the options that choose the cloud, the zone if the command names a node that was typed, and all options
    if it is the typed command itself. With `is_complete` only the options that choose the cloud are added.
    """
    if tree is None or not any(word.startswith("-") for word in typed) or not _COMMAND.search(text):
        return text
    given = _parse(typed, tree)
    return _COMMAND.sub(lambda match: f"`tpuctl {_with_options(match[1], given, tree, is_complete=is_complete)}`", text)


def report_with_typed_options(report: CheckReport, typed: Sequence[str], tree: click.Command | None) -> CheckReport:
    """Return findings whose tpuctl commands use the same cloud as the typed command line."""

    def adapted(remedy: Remedy) -> Remedy:
        command = remedy.command
        if command and command.startswith("tpuctl ") and "`" not in command:
            command = with_typed_options(f"`{command}`", typed, tree, is_complete=True).strip("`")
        return replace(remedy, text=with_typed_options(remedy.text, typed, tree, is_complete=True), command=command)

    findings = tuple(
        replace(finding, found=replace(finding.found, remedies=tuple(map(adapted, finding.found.remedies))))
        for finding in report.findings
    )
    return replace(report, findings=findings)


def _with_options(command: str, given: _CommandLine, tree: click.Command, *, is_complete: bool) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    parsed = _parse(words, tree)
    if not parsed.path or parsed.path[0] in _LOCAL_COMMANDS or "--help" in words:
        return command
    present = {name for name, _ in parsed.options}
    is_search = bool(present & _SEARCH_OPTIONS) and present <= _CONSENT_OPTIONS | _SEARCH_OPTIONS
    if given.brings_up and is_search and parsed.path in _CREATE_COMMANDS:
        return _run_elsewhere(parsed, given)
    # With options of its own it is another use of the command.
    names_same = bool(parsed.arguments) and set(parsed.arguments) <= set(given.arguments)
    is_same = parsed.path == given.path and names_same and present <= _CONSENT_OPTIONS
    if is_search:
        is_same = names_same and parsed.path in _CREATE_COMMANDS and given.path in _CREATE_COMMANDS
    present |= _CONSENT_OPTIONS
    if "tier" in present:
        present |= _TIER_OPTIONS
    if present & _ROUTE_OPTIONS:
        present |= _ROUTE_OPTIONS
    extra: list[str] = []
    for name, option in given.options:
        is_own = not is_complete and (
            is_same or (name == "zone" and bool(set(parsed.arguments) & set(given.arguments)))
        )
        # One of several zones has the node: without the option it is found.
        if name == "zone" and not is_same and ("," in option[-1] or option[-1].endswith("any")):
            continue
        if name in parsed.accepted and name not in present and (name in _INHERITED_OPTIONS or is_own):
            extra += option
    before, separator, after = command.partition(" -- ")
    return " ".join([before, *map(quote_word, extra)]) + separator + after


def _run_elsewhere(search: _CommandLine, given: _CommandLine) -> str:
    """Return the typed `run --up` with the options of a search. It needs one zone, and keeps its limits and its `--rm`."""
    has_tier = any(name in _TIER_OPTIONS for name, _ in given.options)
    new = [
        (name, ["--zone", "ZONE"] if option[-1] == "any" else option)
        for name, option in search.options
        # The user chose a capacity type: an unattended job gets no other, more expensive one.
        if not (name == "tier" and has_tier)
    ]
    left_out = {name for name, _ in new} | _CONSENT_OPTIONS - {"timeout"}
    kept = [word for name, option in given.options if name not in left_out for word in option]
    added = [word for _, option in new for word in option]
    return join_command(["run", *given.arguments, *kept, *added, *given.remote])


def _parse(words: Sequence[str], tree: click.Command) -> _CommandLine:
    parsed = _CommandLine()
    command = tree
    known = _options_of(command)
    end = list(words).index("--") if "--" in words else len(words)
    rest, parsed.remote = list(words[:end]), list(words[end:])
    while rest:
        word = rest.pop(0)
        option = known.get(word.partition("=")[0])
        if isinstance(option, click.Option) and option.name:
            option_words = [word]
            if rest and "=" not in word and not option.is_flag and not option.count:
                option_words.append(rest.pop(0))
            if not option.multiple:
                parsed.options = [other for other in parsed.options if other[0] != option.name]
            parsed.options.append((option.name, option_words))
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None:
                break
            command = inner
            parsed.path.append(inner.name or word)
            known |= _options_of(command)
        else:
            parsed.arguments.append(word)
    parsed.accepted = {param.name for param in (*tree.params, *command.params)}
    return parsed


def _options_of(command: click.Command) -> dict[str, click.Parameter]:
    """Return the options of a command by all their names, also the hidden old ones."""
    return {
        name: param
        for param in command.params
        for name in (*param.opts, *param.secondary_opts, getattr(param, "old_name", ""))
    }


def call_hints(app: App, error: TpuctlError) -> Iterator[str]:
    """Yield hints that depend on the settings and on known zones."""
    if isinstance(error, (AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError)):
        for zone in dict.fromkeys(_ZONE_LIKE.findall(error.message)):
            if near := near_zone(zone):
                yield f"tpuctl knows no TPUs in `{zone}`: did you mean `{near}`?"
    if isinstance(error, (AccessError, ServiceUnavailableError)):
        yield from _endpoint_hint(app, error)


def _endpoint_hint(app: App, error: TpuctlError) -> Iterator[str]:
    """Yield a hint if another endpoint may fix the failure: no server was reached, or the server is not the API."""
    try:
        setting = app.settings["endpoint"]
    except TpuctlError:
        return  # the settings themselves are broken
    if setting is None or app.is_sandbox:
        return
    match error.__cause__:
        case ApiError(response=response):
            is_about_endpoint = not response.is_from_api
        case NotSentError() | GarbledAnswerError():
            is_about_endpoint = True
        case _:
            # Without an exchange the credentials are missing. An incomplete list is an answer of the API itself.
            is_about_endpoint = isinstance(error, AccessError)
    if not is_about_endpoint:
        return
    source = setting.source.place if setting.source.kind is not SourceKind.FLAG else "`--endpoint`"
    url = mask_url(str(setting.value))
    if is_connection_refused(error):
        yield f"no server listens at `{url}`, the endpoint set by {source}"
    else:
        yield f"API calls go to the endpoint `{url}` set by {source}; an endpoint looks like `https://HOST`"


# The table of zones is incomplete: only the API knows whether a zone exists.
# Names of Google's regions [Compute Engine documentation, regions and zones].
_REGION = re.compile(
    r"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-(?:central|(?:north|south)?(?:east|west)?)\d+"
)
_ZONE_SIMILARITY = 0.8  # `us-cental2-b` is, `mars-north1-a` is not


def near_zone(zone: str) -> str | None:
    """Return the zone with TPUs that was probably meant; None if the name is such a zone, or similar to none."""
    table = load_accelerators()
    known = {place for sizes in table.zones.values() for places in sizes.values() for place in places}
    known.add(table.research_zone)
    if zone in known:
        return None
    return closest_match(zone, sorted(known), similarity=_ZONE_SIMILARITY)


def may_exist(zone: str) -> bool:
    """Return whether a name has the form of a Google zone: one that is missing in the table may be new."""
    return _REGION.fullmatch(zone.rsplit("-", 1)[0]) is not None
