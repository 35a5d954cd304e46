"""What a failure has to do with how tpuctl was called: a mistyped zone, an endpoint that is not the one that was meant."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from tpuctl.errors import AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.masking import public_url
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.cli.app import App
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.findings import Remedy

# Also `us-central1-ai1a`, and what the service names as a place. What it finds beyond zones (names of nodes, say) is near to
# no zone.
_ZONE_LIKE = re.compile(r"\b[a-z]+-[a-z]+\d+-[a-z0-9]+\b|(?<=\blocations/)[a-z0-9-]{1,63}")


# Options that say which cloud a command works with, as whom, and how it reaches workers: a command in a hint needs them too.
_CARRIED = frozenset(
    {
        "project", "sandbox", "endpoint", "impersonate_service_account", "quota_project", "journal", "lease", "user", "ssh_key",
        "iap", "internal_ip",
    }
)  # fmt: skip
# A command goes one way to the workers, and says which where it is about that.
_WAYS = frozenset({"iap", "internal_ip"})
# Never repeated without having been considered again: consent, and a deadline that may be what has passed.
_CONSENT = frozenset({"yes", "replace", "steal", "anyway", "all_nodes", "remove", "timeout"})
# Commands that make no calls.
_LOCAL = frozenset({"explain", "config", "completion", "version", "trust", "sandbox"})
_COMMAND = re.compile(r"`tpuctl ([a-z][^`]*)`")


@dataclass(slots=True)
class _CommandLine:
    """A command line in its parts: the command's path, its arguments, and its options as they were typed, by parameter name."""

    path: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    options: list[tuple[str, list[str]]] = field(default_factory=list)
    accepted: set[str | None] = field(default_factory=set)


def with_typed_options(text: str, typed: Sequence[str], *, is_complete: bool = False) -> str:
    """Return a text in which each command in backticks carries the options of the typed command line that it needs.

    Those that say which cloud is meant always, the zone where the command names a node that was typed, and all where it is
    the typed command itself; the first of these alone where the command says all else by itself (`is_complete`).
    """
    if not any(word.startswith("-") for word in typed) or not _COMMAND.search(text):
        return text
    given = _read(typed)
    return _COMMAND.sub(lambda match: f"`tpuctl {_completed(match[1], given, is_complete=is_complete)}`", text)


def report_as_typed(report: Report, typed: Sequence[str]) -> Report:
    """Return findings whose tpuctl commands work with the same cloud as the typed command line."""

    def adapted(remedy: Remedy) -> Remedy:
        command = remedy.command
        if command and command.startswith("tpuctl ") and "`" not in command:
            command = with_typed_options(f"`{command}`", typed, is_complete=True).strip("`")
        return replace(remedy, text=with_typed_options(remedy.text, typed, is_complete=True), command=command)

    findings = tuple(
        replace(finding, found=replace(finding.found, remedies=tuple(map(adapted, finding.found.remedies))))
        for finding in report.findings
    )
    return replace(report, findings=findings)


def _completed(command: str, given: _CommandLine, *, is_complete: bool) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    found = _read(words)
    if not found.path or found.path[0] in _LOCAL or "--help" in words:
        return command
    present = {name for name, _ in found.options}
    # With options of its own it is another use of the command.
    names_same = bool(found.arguments) and set(found.arguments) <= set(given.arguments)
    is_same = found.path == given.path and names_same and present <= _CONSENT
    present |= _CONSENT
    if present & _WAYS:
        present |= _WAYS
    extra: list[str] = []
    for name, option in given.options:
        is_own = not is_complete and (is_same or (name == "zone" and bool(set(found.arguments) & set(given.arguments))))
        if name in found.accepted and name not in present and (name in _CARRIED or is_own):
            extra += option
    before, separator, after = command.partition(" -- ")
    return " ".join([before, *map(shlex.quote, extra)]) + separator + after


def _read(words: Sequence[str]) -> _CommandLine:
    from tpuctl.cli.tree import root  # noqa: PLC0415  # only for failures

    found = _CommandLine()
    command: click.Command = root()
    known = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    rest = list(words[: list(words).index("--")] if "--" in words else words)
    while rest:
        word = rest.pop(0)
        option = known.get(word.partition("=")[0])
        if isinstance(option, click.Option) and option.name:
            taken = [word]
            if rest and "=" not in word and not option.is_flag and not option.count:
                taken.append(rest.pop(0))
            if not option.multiple:
                found.options = [one for one in found.options if one[0] != option.name]
            found.options.append((option.name, taken))
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None:
                break
            command = inner
            found.path.append(inner.name or word)
            known |= {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
        else:
            found.arguments.append(word)
    found.accepted = {param.name for param in (*root().params, *command.params)}
    return found


def remedies(app: App, error: TpuctlError) -> Iterator[str]:
    """Return hints that the place which raised the error could not give."""
    if isinstance(error, (AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError)):
        yield from _zones(error)
    if isinstance(error, (AccessError, ServiceUnavailableError)):
        yield from _endpoint(app, error)


def nothing_listens(error: BaseException) -> bool:
    """Tell whether a connection was refused: that does not pass by itself as a lost network or a busy service does."""
    origin = error
    while origin.__cause__ is not None:
        origin = origin.__cause__
    return isinstance(origin, ConnectionRefusedError)


def _zones(error: TpuctlError) -> Iterator[str]:
    from tpuctl.cli.zones import near_zone  # noqa: PLC0415  # only for failures that name a zone

    for zone in dict.fromkeys(_ZONE_LIKE.findall(error.message)):
        if near := near_zone(zone):
            yield f"tpuctl knows no TPUs in `{zone}`: did you mean `{near}`?"


def _endpoint(app: App, error: TpuctlError) -> Iterator[str]:
    try:
        setting = app.settings["endpoint"]
    except TpuctlError:
        return  # the settings are what is wrong
    if setting is None or app.is_sandbox or not _is_about_the_endpoint(error):
        return
    source = setting.source.place if setting.source.kind is not SourceKind.FLAG else "`--endpoint`"
    if nothing_listens(error):
        yield f"nothing listens at `{public_url(str(setting.value))}`, the endpoint that {source} names"
    else:
        yield f"calls go to the endpoint `{public_url(str(setting.value))}`, which {source} names; one looks like `https://HOST`"


def _is_about_the_endpoint(error: TpuctlError) -> bool:
    """Tell whether another endpoint may be what is missing: nothing was reached, or what answered is not the API."""
    from tpuctl.api.failures import GarbledAnswerError, NotSentError, RefusedError  # noqa: PLC0415  # only for failures

    match error.__cause__:
        case RefusedError(refusal=refusal):
            return not refusal.is_from_api
        case NotSentError() | GarbledAnswerError():
            return True
        case _:
            # Without an exchange it is the credentials that are missing; an incomplete list is the API's own word.
            return isinstance(error, AccessError)
