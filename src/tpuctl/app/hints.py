"""Hints that depend on how tpuctl was called: options to repeat in a command, a mistyped zone, a wrong endpoint."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING

import click

from tpuctl.accelerators import load_accelerators
from tpuctl.cloud.errors import ApiError, GarbledAnswerError, NotSentError, is_connection_refused
from tpuctl.command_text import quote_word
from tpuctl.config.settings import SourceKind
from tpuctl.errors import AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.escaping import mask_url
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from tpuctl.app.app import App
    from tpuctl.check.findings import CheckReport, Remedy

# Also `us-central1-ai1a`, and what the API names as a location. Other matches, such as names of nodes, are similar to no zone.
_ZONE_LIKE = re.compile(r"\b[a-z]+-[a-z]+\d+-[a-z0-9]+\b|(?<=\blocations/)[a-z0-9-]{1,63}")


# Commands that make no API calls.
_LOCAL_COMMANDS = frozenset({"explain", "config", "completion", "version", "trust", "sandbox"})
# Words that create a node, and options that decide what it costs. A suggested `up` repeats these: without `--spot` it could
# create a node that costs more, without a type none.
_CREATE_WORDS = frozenset({"create", "up", "--up"})
_TYPE_OPTIONS = {"--type": "--type", "--accelerator-type": "--type", "--up": "--type", "--tier": "--tier"}
_PURCHASE_FLAGS = frozenset({"--spot", "--preemptible", "--reserved", "--on-demand", "--queue", "--race"})
_COMMAND = re.compile(r"`tpuctl ([a-z][^`]*)`")


def with_typed_options(app: App, text: str) -> str:
    """Return a text in which each command in backticks has the typed options for the cloud, and for the zone of its nodes."""
    options, tree = app.typed_options, app.command_tree
    typed = {word.partition("=")[0] for word in takewhile(lambda word: word != "--", app.invocation.arguments)}
    if tree is None or not any(word.startswith("-") for word in typed):
        return text
    bought = _typed_purchase(app.invocation.arguments) if typed & _CREATE_WORDS else []
    return _COMMAND.sub(lambda match: f"`tpuctl {_with_options(match[1], options, typed, tree, bought)}`", text)


def _typed_purchase(arguments: Sequence[str]) -> list[str]:
    """Return the typed options that decide what a new node costs."""
    words: list[str] = []
    typed = list(takewhile(lambda word: word != "--", arguments))
    for word, following in zip_longest(typed, typed[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if option in _TYPE_OPTIONS:
            words += [_TYPE_OPTIONS[option], quote_word(value if equals else following)]
        elif word in _PURCHASE_FLAGS:
            words.append(word)
    return words


def report_with_typed_options(app: App, report: CheckReport) -> CheckReport:
    """Return findings whose tpuctl commands use the same cloud as the typed command line."""

    def adapted(remedy: Remedy) -> Remedy:
        command = remedy.command
        if command and command.startswith("tpuctl ") and "`" not in command:
            command = with_typed_options(app, f"`{command}`").strip("`")
        return replace(remedy, text=with_typed_options(app, remedy.text), command=command)

    findings = tuple(
        replace(finding, found=replace(finding.found, remedies=tuple(map(adapted, finding.found.remedies))))
        for finding in report.findings
    )
    return replace(report, findings=findings)


def _with_options(
    command: str, options: Mapping[str, Sequence[str]], typed: Set[str], tree: click.Command, bought: Sequence[str]
) -> str:
    own, separator, remote = command.partition(" -- ")
    try:
        words = shlex.split(own)
    except ValueError:
        return command
    if words[0] in _LOCAL_COMMANDS or "--help" in words:
        return command
    found, arguments = tree, words
    while isinstance(found, click.Group) and arguments:
        inner = found.get_command(click.Context(found), arguments[0])
        if inner is None:
            return command
        found, arguments = inner, arguments[1:]
    present = {word.partition("=")[0] for word in arguments}
    names_same = not typed.isdisjoint(word for word in arguments if not word.startswith("-"))
    extra: list[str] = []
    for param in found.params:
        is_missing = param.name in options and present.isdisjoint((*param.opts, *param.secondary_opts))
        if is_missing and (param.name != "zone" or names_same):
            extra += options[param.name or ""]
    added = [*map(quote_word, extra)]
    # One with a type describes the node itself.
    if found.name == "up" and names_same and "--type" not in present:
        added = [*(word for word in bought if word not in present), *added]
    return " ".join([own, *added]) + separator + remote


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
