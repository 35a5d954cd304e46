"""The input of `tpuctl explain`: files, stdin, a message or an id; and the node that the log belongs to."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuctl.actions.explaining import evidence_of, follow, read_file, read_text
from tpuctl.diagnosis.conclusion import conclude
from tpuctl.diagnosis.lone_message import conclude_message
from tpuctl.diagnosis.messages import Role
from tpuctl.diagnosis.node_evidence import NodeEvidence, with_node
from tpuctl.diagnosis.own_errors import look_up
from tpuctl.diagnosis.several import together
from tpuctl.diagnosis.topics import Topic, find_topic
from tpuctl.errors import InvalidInputError, NotFoundError, TpuctlError

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.diagnosis.explanation import Explanation
    from tpuctl.diagnosis.sightings import Seen

_STDIN: Final = "-"
_ID: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+|TPU\d{3}")
_NOWHERE: Final = NodeEvidence("", None)
_FILE: Final = re.compile(r"\S*(/|\.(log|txt|out|err|json|jsonl|gz))\S*")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the words on the command line stand for."""

    class Kind(StrEnum):
        """Kind of the input; the name of a topic counts as an id."""

        FILES = "files"
        TEXT = "text"
        ID = "id"

    kind: Kind
    text: str = ""  # a message or an id
    files: tuple[str, ...] = ()  # names, `-` for stdin


def is_id(asked: Asked) -> bool:
    """Tell whether the input is an id."""
    return asked.kind is Asked.Kind.ID


def what_was_asked(app: App, words: tuple[str, ...]) -> Asked:
    """Return what the words stand for: existing files, else an id if they look like one, else a message.

    Raises `InvalidInputError` without any input, or if a file is missing.
    """
    if not words:
        if app.invocation.streams.stdin_is_terminal:
            hint = "name a log file, `-` for stdin, a message in quotes, or the id of an error"
            raise InvalidInputError("no input to explain", hint=hint)
        return Asked(Asked.Kind.FILES, files=(_STDIN,))
    existing: list[str] = []
    for word in words:
        try:
            if word == _STDIN or (word and _path(app, word).exists()):
                existing.append(word)
        except (OSError, ValueError):  # too long for a file name, as messages are
            continue
    missing = [word for word in words if word not in existing]
    if existing and not missing:
        return Asked(Asked.Kind.FILES, files=words)
    if existing or all(_FILE.fullmatch(word) for word in words):
        raise InvalidInputError(f"file `{missing[0]}` does not exist", hint="name a log file, or `-` for stdin")
    text = " ".join(words)
    if look_up(text) or isinstance(find_topic(text), Topic) or _ID.fullmatch(text):
        return Asked(Asked.Kind.ID, text)
    if not text.strip():
        raise InvalidInputError("the message is empty", hint="give the message in quotes, or name a log file")
    return Asked(Asked.Kind.TEXT, text)


def explain(app: App, asked: Asked, node: str | None) -> tuple[Explanation, bool]:
    """Return what is wrong, and whether the user interrupted a stream with Ctrl-C."""
    evidence = _fetch_evidence(app, node) if node else None
    # An unknown name appears in no command.
    known = {"node": node} if node and evidence is not _NOWHERE else {}
    was_interrupted = False
    if asked.kind is Asked.Kind.TEXT:
        explanation = conclude_message(asked.text, read_text(asked.text), known=known)
    else:
        logs: dict[str, Seen] = {}
        for name in dict.fromkeys(asked.files):
            if name == _STDIN:
                logs["stdin"], was_interrupted = _follow_stdin(app)
            else:
                logs[name] = read_file(_path(app, name), name)
        if not any(seen.size for seen in logs.values()) and not was_interrupted:
            names = ", ".join(f"`{name}`" for name in logs)
            raise InvalidInputError(f"{names} is empty", hint="give a log with content")
        explanation = conclude(next(iter(logs.values())) if len(logs) == 1 else together(logs), known=known)
    if evidence is not None and evidence is not _NOWHERE:
        explanation = with_node(explanation, evidence)
    return explanation, was_interrupted


def _follow_stdin(app: App) -> tuple[Seen, bool]:
    """Read stdin to its end, or to Ctrl-C; on a terminal print each failure when it is found."""
    printed: set[str] = set()

    def print_new(seen: Seen) -> None:
        for sighting in seen.sightings:
            is_failure = sighting.message.role not in {Role.HARMLESS, Role.RECOVERY} and not sighting.is_quoted
            if sighting.message.id not in printed and is_failure:
                printed.add(sighting.message.id)
                if app.terminal.is_redrawn:
                    app.terminal.note(f"line {sighting.first.line}: {sighting.message.id}")

    streams = app.invocation.streams
    stdin = getattr(streams.stdin, "buffer", None) or io.BytesIO(streams.stdin.read().encode())
    seen, was_interrupted = follow(stdin, print_new)
    if was_interrupted:
        app.terminal.end_line()
    return seen, was_interrupted


def _fetch_evidence(app: App, text: str) -> NodeEvidence | None:
    """Return what the API says of the node, `_NOWHERE` for an unknown name, None if the API does not answer.

    Warns the user of both: a failed request is not a state.
    """
    from tpuctl.actions.locate import requests_to_mention  # noqa: PLC0415  # only with --node

    reference = app.reference(text)
    try:
        node = app.find(text)
    except NotFoundError as error:
        project = reference.project or app.project
        requests = requests_to_mention(app.client, project, app.zones)
        request = next((one for one in requests if reference.node_id in one.node_ids), None)
        if request is None and not any(name.node_id == reference.node_id for name in app.journal.names()):
            app.terminal.warn(f"{error.message}, so its state does not explain the log")
            return _NOWHERE
        return evidence_of(text, None, request)
    except TpuctlError as error:
        app.terminal.warn(f"cannot read the state of `{text}`, so only the log counts: {error.message}")
        return None
    return evidence_of(text, node)


def _path(app: App, name: str) -> Path:
    return app.invocation.folder / name
