"""`tpuctl explain`: read files, stdin, a message or an id, and the state of the node; show the verdict.

With `--act` run the tpuctl command of the remedy.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import shlex
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, yes_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_file, complete_node
from tpuctl.clock import SystemClock
from tpuctl.command_text import join_command
from tpuctl.durations import format_timestamp
from tpuctl.errors import (
    ConflictError,
    ExitCode,
    InvalidInputError,
    NodeNotFoundError,
    NodeNotInProjectError,
    NotConfirmedError,
    NotFoundError,
    TpuctlError,
    worst_exit_code,
)
from tpuctl.explain.conclusion import (
    Confidence,
    NodeEvidence,
    apply_node_evidence,
    conclude,
    conclude_single_message,
    merge_scans,
)
from tpuctl.explain.explanation_rendering import (
    EXPLANATION_COLUMNS,
    entry_to_json,
    explanation_rows,
    explanation_to_json,
    render_entry,
    render_explanation,
    render_suspects,
    render_topic,
    topic_to_json,
)
from tpuctl.explain.lookup import (
    Topic,
    completion_ids,
    find_topic,
    known_topics,
    look_up_id,
    messages_about,
    similar_ids,
    topic_ids,
)
from tpuctl.explain.messages import Action, MessageRole
from tpuctl.explain.scanner import LogReader
from tpuctl.files import output_path
from tpuctl.models.node import Health
from tpuctl.nodes.snapshots import was_preempted
from tpuctl.output.terminal import Cell, OutputFormat, View, table_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from gzip import GzipFile

    from click.shell_completion import CompletionItem

    from tpuctl.app.app import App
    from tpuctl.explain.conclusion import Conclusion, Explanation
    from tpuctl.explain.log_lines import ScanResult, Sighting
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.output.terminal import Terminal

# The value of `--topic` without a name: list all topics.
_ALL_TOPICS = ""


def _complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    return sorted(topic for topic in topic_ids() if topic.startswith(incomplete))


def _complete_word(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a topic, an id once it was begun, or a file."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only for completion

    found = _complete_topic(ctx, param, incomplete)
    if incomplete:
        found += [id_ for id_ in completion_ids(incomplete) if id_ not in found]
    return [*map(CompletionItem, found), *complete_file(ctx, param, incomplete)]


@cli_command("explain", asks_trust=False)
@click.argument("words", metavar="[FILE|-|TEXT|ID]...", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete_word)
@grouped_option(
    "--node",
    group=OptionGroup.SELECTION,
    metavar="NODE",
    shell_complete=complete_node,
    help="Node that wrote the log; its state is checked first.",
)
@grouped_option(
    "--topic",
    group=OptionGroup.OUTPUT,
    metavar="[NAME]",
    is_flag=False,
    flag_value=_ALL_TOPICS,
    shell_complete=_complete_topic,
    help="Show advice on a topic, such as batch-size; without NAME, list the topics.",
)
@grouped_option(
    "--report",
    metavar="FILE",
    help="File to write: the lines that tpuctl does not know, without secrets, for an issue; - is stdout.",
)
@grouped_option(
    "--act",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Run the tpuctl command of the remedy, after confirmation; needs --node.",
)
@route_options
@yes_option
def command(
    app: App, *, words: tuple[str, ...], node: str | None, topic: str | None, report: str | None, act: bool, yes: bool
) -> int:
    """Explain what is wrong in a log or a message, and what to do about it.

    Reads logs of any size: files (.gz too), or stdin. Shows the cause first, then its symptoms; each with the line that shows
    it, how often it occurred, the worker that logged it first, and a remedy. --node checks the state of the node before
    training code is blamed. Several files, such as one for each worker, count as one log. Exits with 1 if the log has no
    known message; then says with low confidence what the most telling line is about. An ID is printed with tpuctl's own
    errors and findings.

    \b
    Examples:
      tpuctl explain train.log
      tpuctl explain --node trainer < train.log
      tpuctl explain "Unable to enqueue when not opened"
      tpuctl explain capacity-zone
      tpuctl explain --topic batch-size
      tpuctl explain train.log --node trainer --act
    """
    if topic is not None:
        if words or node or act or report:
            raise InvalidInputError(
                "`--topic` cannot be combined with a log, `--node`, `--act` or `--report`",
                hint="`tpuctl explain --topic NAME` shows one topic",
            )
        return show_topic(app, topic) if topic != _ALL_TOPICS else show_topics(app)
    if act and node is None:
        raise InvalidInputError("`--act` needs `--node`", hint="name the node with `--node NODE`")

    if node is not None:
        app.reference(node)  # reject an invalid name before reading a log
    request = parse_request(app, words)
    if request.is_id:
        if act or report:
            option = "--act" if act else "--report"
            raise InvalidInputError(f"`{option}` needs a log or a message, not an id", hint="give the log")
        return show_entry(app, request.text, {"node": node} if node else {})

    if node is not None:
        app.require_trust()
    if report is not None and report != _STDIN and output_path(Path(report), app.invocation.folder).exists():
        raise InvalidInputError(f"`--report {report}`: the file exists", hint="name a new file, or remove it")
    explanation, was_interrupted = explain_request(app, request, node)
    if report is not None:
        return write_report(app, explanation, report)
    exit_code = show_explanation(app, explanation, request)
    if was_interrupted:
        return ExitCode.INTERRUPTED
    if act and node is not None and explanation.conclusions:
        return apply_remedy(app, explanation, node, yes=yes)
    return exit_code


def show_explanation(app: App, explanation: Explanation, request: ExplainRequest) -> ExitCode:
    """Show the verdicts on a log; without any, the lines that look most like an error. Return the exit code."""
    terminal = app.terminal

    def write(terminal: Terminal) -> None:
        terminal.page(render_explanation(explanation, width=terminal.streams.width, colored=terminal.colors_out))

    app.show(
        View(
            value=lambda: explanation_to_json(explanation),
            text=write,
            names=lambda: [one.id for one in explanation.conclusions],
            tsv=lambda terminal: terminal.tsv(EXPLANATION_COLUMNS, explanation_rows(explanation)),
            is_report=True,
        )
    )
    if explanation.is_recognised:
        if explanation.suspicious:
            _show_suspects(app, explanation)
        return ExitCode.OK
    if explanation.harmless and not (explanation.conclusions or explanation.suspicious):
        named = ", ".join(f"`{one.id}`" for one in explanation.harmless)
        terminal.note(f"no failure found: the messages that tpuctl recognized are harmless, or recovered ({named})")
        return ExitCode.OK
    count = "this line" if explanation.lines == 1 else f"these {explanation.lines} lines"
    about = " (not text)" if explanation.is_binary else ""
    terminal.warn(f"no known message in {count}{about}")
    if request.text and not request.text.count(" "):
        terminal.note(f"`{request.text}` is not a file, so tpuctl read it as a message")
    # A guess shows its line.
    if len(explanation.suspicious) > len(explanation.conclusions):
        _show_suspects(app, explanation)
    return ExitCode.FAILURE


def _show_suspects(app: App, explanation: Explanation) -> None:
    if app.format is OutputFormat.TABLE:
        app.terminal.note("the lines that look most like an error:")
        app.terminal.page(render_suspects(explanation, colored=app.terminal.colors_out))


def write_report(app: App, explanation: Explanation, name: str) -> ExitCode:
    """Write the report for an issue. Raises `NotFoundError` if there is no line to report."""
    from tpuctl.explain.report import unrecognised_report  # noqa: PLC0415  # only with --report

    if not explanation.suspicious:
        known = ", ".join(f"`{one.id}`" for one in explanation.conclusions) or "no line looks like an error"
        raise NotFoundError(
            f"nothing to report: {known}", hint="`tpuctl explain` without `--report` shows the verdicts"
        )
    text = unrecognised_report(explanation)
    if name == _STDIN:
        app.terminal.page(text.splitlines())
        return ExitCode.OK
    try:
        with output_path(Path(name), app.invocation.folder).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InvalidInputError(f"cannot write `{name}`: {why}", hint="name a new file in a folder of yours") from error
    app.terminal.note(f"wrote {name}: read it, then attach it to an issue of tpuctl")
    return ExitCode.OK


_STDIN: Final = "-"
_ID: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+|TPU\d{3}")
_UNKNOWN_NODE: Final = NodeEvidence("", None)
_FILE: Final = re.compile(r"\S*(/|\.(log|txt|out|err|json|jsonl|gz))\S*")


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What the words on the command line stand for: files, an id, or a message."""

    files: tuple[str, ...] = ()  # names, `-` for stdin
    text: str = ""  # a message or an id
    is_id: bool = False  # also the name of a topic


def parse_request(app: App, words: tuple[str, ...]) -> ExplainRequest:
    """Return what the words stand for: existing files, else an id if they look like one, else a message.

    Raises `InvalidInputError` without any input, or if a file is missing.
    """
    if not words:
        if app.invocation.streams.stdin_is_terminal:
            hint = "name a log file, `-` for stdin, a message in quotes, or the id of an error"
            raise InvalidInputError("no input to explain", hint=hint)
        return ExplainRequest(files=(_STDIN,))
    existing: list[str] = []
    for word in words:
        try:
            if word == _STDIN or (word and _path(app, word).exists()):
                existing.append(word)
        except (OSError, ValueError):  # too long for a file name, as messages are
            continue
    missing = [word for word in words if word not in existing]
    if existing and not missing:
        return ExplainRequest(files=words)
    if existing or all(_FILE.fullmatch(word) for word in words):
        raise InvalidInputError(f"file `{missing[0]}` does not exist", hint="name a log file, or `-` for stdin")
    text = " ".join(words)
    if look_up_id(text) or isinstance(find_topic(text), Topic) or _ID.fullmatch(text):
        return ExplainRequest(text=text, is_id=True)
    if not text.strip():
        raise InvalidInputError("the message is empty", hint="give the message in quotes, or name a log file")
    return ExplainRequest(text=text)


def explain_request(app: App, request: ExplainRequest, node: str | None) -> tuple[Explanation, bool]:
    """Return what is wrong, and whether the user interrupted a stream with Ctrl-C."""
    evidence = _fetch_evidence(app, node) if node else None
    known: Mapping[str, str] = {"node": node} if node else {}
    if evidence is not None:
        # An unknown name appears in no command.
        known = {} if evidence is _UNKNOWN_NODE else evidence.known
    was_interrupted = False
    if request.text:
        scan = read_pieces([request.text.encode("utf-8", "surrogateescape")])
        explanation = conclude_single_message(request.text, scan, known=known)
    else:
        logs: dict[str, ScanResult] = {}
        for name in dict.fromkeys(request.files):
            if name == _STDIN:
                logs["stdin"], was_interrupted = _follow_stdin(app)
            else:
                logs[name] = read_file(_path(app, name), name)
        if not any(scan.size for scan in logs.values()) and not was_interrupted:
            names = ", ".join(f"`{name}`" for name in logs)
            raise InvalidInputError(f"{names} is empty", hint="give a log with content")
        explanation = conclude(next(iter(logs.values())) if len(logs) == 1 else merge_scans(logs), known=known)
    if evidence is not None and evidence is not _UNKNOWN_NODE:
        explanation = apply_node_evidence(explanation, evidence)
    return explanation, was_interrupted


def _follow_stdin(app: App) -> tuple[ScanResult, bool]:
    """Read stdin to its end, or to Ctrl-C; on a terminal print each failure when it is found."""
    printed: set[str] = set()

    def print_new(scan: ScanResult) -> None:
        for sighting in scan.sightings:
            is_harmless = sighting.message.role in {MessageRole.HARMLESS, MessageRole.RECOVERY}
            if sighting.message.id not in printed and not is_harmless and not sighting.is_quoted:
                printed.add(sighting.message.id)
                app.terminal.note(f"line {sighting.first.line}: {sighting.message.id}")

    streams, reader = app.invocation.streams, LogReader()
    stdin = getattr(streams.stdin, "buffer", None) or io.BytesIO(streams.stdin.read().encode())
    try:
        for piece in available_pieces(stdin):
            reader.feed(piece)
            if app.terminal.is_redrawn:
                print_new(reader.so_far())
    except KeyboardInterrupt:
        app.terminal.end_line()
        return reader.so_far(), True
    return reader.so_far(), False


def _fetch_evidence(app: App, text: str) -> NodeEvidence | None:
    """Return what the API says of the node, `_UNKNOWN_NODE` for an unknown name, None if the API does not answer.

    Warns the user of both: a failed request is not a state.
    """
    from tpuctl.nodes.lookup import queued_resources_or_none  # noqa: PLC0415  # only with --node

    reference = app.reference(text)
    request: QueuedResource | None = None
    try:
        node: Node | None = app.services.find(text)
    except NotFoundError as error:
        requests = queued_resources_or_none(app.services.client, reference.project or app.project, app.zones)
        node, request = None, next((one for one in requests if reference.node_id in one.node_ids), None)
        if request is None and not any(name.node_id == reference.node_id for name in app.services.journal.names()):
            app.terminal.warn(f"{error.message}, so its state does not explain the log")
            return _UNKNOWN_NODE
    except TpuctlError as error:
        app.terminal.warn(f"cannot read the state of `{text}`, so only the log counts: {error.message}")
        return None
    created, account = (node.created, node.service_account) if node else (None, None)
    if was_preempted(node, request):
        return NodeEvidence(text, "PREEMPTED", created=created, service_account=account)  # however the API shows that
    if node is None:
        return NodeEvidence(text, None)
    health = None if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
    return NodeEvidence(text, str(node.state), health, created, account)


def _path(app: App, name: str) -> Path:
    return app.invocation.folder / name


# Bytes read at once; a pipe gives fewer.
_PIECE_SIZE: Final = 256 * 1024


def read_file(path: Path, name: str) -> ScanResult:
    """Return the content of a log file; `.gz` is decompressed. `name` is the user's name for it.

    Raises `InvalidInputError` if it cannot be read.
    """
    try:
        _reject_endless_device(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return read_pieces(available_pieces(stream), name)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = f"name the files in it, such as `{name}/*`" if path.is_dir() else "name a log file, or `-` for stdin"
        raise InvalidInputError(f"cannot read `{name}`: {why.lower()}", hint=hint) from error


def _reject_endless_device(path: Path) -> None:
    """Raise `OSError` for a device such as `/dev/zero`; a terminal and `/dev/null` have an end."""
    if path.is_char_device() and not path.samefile(os.devnull):
        with path.open("rb") as stream:
            if stream.isatty():
                return
        raise OSError(errno.EINVAL, "it is a device")


def read_pieces(pieces: Iterable[bytes], name: str = "") -> ScanResult:
    """Return the content of a log."""
    reader = LogReader(name=name)
    for piece in pieces:
        reader.feed(piece)
    return reader.so_far()


def available_pieces(stream: IO[bytes] | GzipFile) -> Iterator[bytes]:
    """Yield the bytes of a stream as they arrive, without waiting for a full piece."""
    read_available = getattr(stream, "read1", stream.read)
    while piece := read_available(_PIECE_SIZE):
        yield piece


def show_entry(app: App, id_: str, known: Mapping[str, str]) -> int:
    """Show what an id, or a topic, means; `known` fills in names, such as that of the node.

    Raises `NotFoundError` for an unknown id.
    """
    entry = look_up_id(id_, known)
    if entry is None and isinstance(topic := find_topic(id_), Topic):
        return show_topic(app, topic.id)
    if entry is None:
        likely = ", ".join(f"`{one}`" for one in similar_ids(id_))
        hint = f"did you mean {likely}?" if likely else "put a message into quotes: `tpuctl explain 'MESSAGE'`"
        raise NotFoundError(f"no error, message or finding has the id `{id_}`", hint=hint)
    _show_page(app, entry.id, entry_to_json(entry), lambda **form: render_entry(entry, **form))
    return ExitCode.OK


def show_topic(app: App, name: str) -> int:
    """Show the advice on a topic. Raises `NotFoundError` if there is no such topic."""
    topic = find_topic(name)
    if not isinstance(topic, Topic):
        likely = ", ".join(f"`{one}`" for one in topic)
        hint = f"did you mean {likely}?" if likely else "`tpuctl explain --topic` lists them"
        raise NotFoundError(f"no topic `{name}`", hint=hint)
    about = messages_about(topic)
    _show_page(app, topic.id, topic_to_json(topic, about), lambda **form: render_topic(topic, about, **form))
    return ExitCode.OK


def _show_page(app: App, name: str, value: Any, page: Callable[..., Iterator[str]]) -> None:  # JSON; what a page needs
    def write(terminal: Terminal) -> None:
        terminal.page(page(width=terminal.streams.width, colored=terminal.colors_out))

    app.show(View(value=lambda: value, text=write, names=lambda: [name], is_marked=False))


def show_topics(app: App) -> int:
    """List the topics."""
    topics = known_topics()
    app.show(
        table_view(
            ("TOPIC", "ABOUT"),
            [(Cell(topic.id), Cell(topic.title)) for topic in topics],
            value=lambda: [topic_to_json(topic, messages_about(topic)) for topic in topics],
            names=lambda: [topic.id for topic in topics],
            is_marked=False,
        )
    )
    return ExitCode.OK


# The commands allowed for each kind of remedy; the first if the text of the remedy names none of them.
_COMMANDS: Final[Mapping[Action, tuple[str, ...]]] = {
    Action.WAIT: ("wait",),
    Action.RESTART_NODE: ("reset", "start"),
    Action.RECREATE_NODE: ("up",),
    Action.KILL_STALE_PROCESS: ("unstick",),
}
_TPUCTL_COMMAND: Final = re.compile(r"`tpuctl (?P<words>[^`]{1,200})`")
# These ask for confirmation themselves, and show what they will do.
_ASK_THEMSELVES: Final = frozenset({"reset", "unstick"})
_ACCEPT_YES: Final = frozenset({"reset", "unstick", "up"})


def apply_remedy(app: App, explanation: Explanation, node: str, *, yes: bool) -> int:
    """Run the remedy of the first cause for which tpuctl has a command. Raises `TpuctlError` if there is none.

    Acts only on certain verdicts. Recreates a node only if a new read shows that it is dead; a living node is left alone.
    """
    conclusion = _first_actionable(explanation)
    name, *others = _remedy_command(conclusion, node)
    choices = _choose_processes(conclusion.sighting) if name == "unstick" else [[]]
    commands = [[name, *others, *options] for options in choices]
    for words in commands:
        app.terminal.note(f"for `{conclusion.id}`: `{join_command(['tpuctl', *words])}`")
    _check_unchanged(app, node, conclusion, must_be_dead=name == "up")
    tree = click.get_current_context().find_root().command
    codes = []
    for words in commands:
        line = join_command(["tpuctl", *words])
        if name not in _ASK_THEMSELVES and not app.terminal.confirm(f"run `{line}`?", yes=yes):
            raise NotConfirmedError
        arguments = [*words, *(["--yes"] if yes and name in _ACCEPT_YES else [])]
        try:
            with tree.make_context("tpuctl", arguments, obj=app) as context:
                codes.append(ExitCode(int(tree.invoke(context) or ExitCode.OK)))
        except TpuctlError as error:
            if len(commands) == 1:
                raise
            app.show_error(error)
            codes.append(error.exit_code)
    return worst_exit_code(codes)


def _first_actionable(explanation: Explanation) -> Conclusion:
    for conclusion in explanation.conclusions:
        is_certain = conclusion.confidence is Confidence.HIGH and conclusion.symptom_of is None
        if is_certain and conclusion.action in _COMMANDS and conclusion.recovered is None:
            return conclusion
    first = explanation.conclusions[0]
    message = first.sighting.message
    is_uncertain = message.action in _COMMANDS or message.role is MessageRole.SYMPTOM
    why = f"`{first.id}` is not certain enough" if is_uncertain else f"tpuctl has no command that fixes `{first.id}`"
    raise TpuctlError(
        f"`--act` does nothing: {why}",
        hint="\n".join(filter(None, (first.why, *first.remedy))) or "no action is needed",
    )


def _remedy_command(conclusion: Conclusion, node: str) -> list[str]:
    """Return the command as the remedy shows it, so that tpuctl runs what the user has read."""
    verbs = _COMMANDS[conclusion.sighting.message.action]
    for line in conclusion.remedy:
        for quoted in _TPUCTL_COMMAND.finditer(line):
            verb, *others = shlex.split(quoted["words"])
            if verb in verbs and others[:1] == [node] and "recreate" not in others:
                return [verb, *others]
    return [verbs[0], node]


def _choose_processes(sighting: Sighting) -> list[list[str]]:
    """Return the options of `unstick` for each worker that logged the message: another process may hold the TPU by now.

    A process that started after the message is another one, also with the same pid. A time without a zone is read as UTC, as
    TPU VMs have it; if that is wrong, the command refuses. Raises `TpuctlError` if the log does not name the workers.
    """
    places = dict(sighting.workers) or {"": sighting.first}
    if len(places) > 1 and not all(worker.isdigit() for worker in places):
        raise TpuctlError(
            "`--act` does nothing: the log does not number the workers that logged the message",
            hint="choose the process on each: `tpuctl unstick NODE --worker 0 --pid PID`",
        )
    read_at, chosen = SystemClock().now(), []
    for worker, place in places.items():
        found = re.search(sighting.message.match, place.text, re.IGNORECASE)
        pid = found["pid"] if found and "pid" in found.groupdict() else None
        pid = pid or (sighting.facts.get("pid") if place == sighting.first else None)
        time = place.time and (place.time if place.time.tzinfo else place.time.replace(tzinfo=UTC))
        options = [("--worker", worker if worker.isdigit() else None), ("--pid", pid)]
        options.append(("--started-before", format_timestamp(min(time or read_at, read_at))))
        chosen.append([word for option, value in options if value for word in (option, value)])
    return chosen


def _check_unchanged(app: App, node: str, conclusion: Conclusion, *, must_be_dead: bool) -> None:
    """Read the node again. Raises `ConflictError` for a living node that would be lost, or one newer than the log."""
    try:
        found = app.services.find(node)
    except (NodeNotFoundError, NodeNotInProjectError):
        if must_be_dead:
            return
        raise
    if must_be_dead and not found.state.is_dead:
        raise ConflictError(
            f"`{node}` is {found.state}, so it is not recreated: the data on its disk would be lost",
            hint=f"to recreate it anyway: `tpuctl reset {node} --mode recreate`",
        )
    time = conclusion.sighting.last.time
    if found.created is not None and time is not None and time.tzinfo is not None and time < found.created:
        raise ConflictError(f"the log is older than `{node}`, which was recreated since", hint="nothing was done")
