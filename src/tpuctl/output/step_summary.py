"""The summary of a step of GitHub Actions: what a command did to nodes, and why it failed, as Markdown.

The runner shows the file that `GITHUB_STEP_SUMMARY` names on the page of the run. All texts are escaped: they may come from
workers and from the API.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpuctl.escaping import escape_unprintable
from tpuctl.models.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tpuctl.errors import TpuctlError
    from tpuctl.models.events import NodeEvent
    from tpuctl.names import NodeName

# GitHub shows no summary of a step that is larger [documentation].
MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_ROWS: Final = 100
_MAX_NOTES: Final = 20
_LONGEST_TEXT: Final = 500
_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>#|~&$@!]")
_CODE: Final = re.compile("&#96;(.+?)&#96;")
_OUTCOMES: Final = frozenset(
    {EventKind.REACHED, EventKind.RECOVERED, EventKind.PREEMPTED, EventKind.EXPIRED, EventKind.GAVE_UP}
)
_NODE_HEADER: Final = ("node", "zone", "type", "capacity", "steps", "result", "per hour")
# Steps that are part of others, and change neither the node's existence nor its state.
_MINOR_STEPS: Final = frozenset({"update"})


@dataclass(slots=True)
class _NodeSummary:
    """What happened to one node."""

    steps: Counter[str] = field(default_factory=Counter)
    outcomes: list[str] = field(default_factory=list)
    state: str = ""
    facts: tuple[str, str, str] = ("", "", "")  # type, capacity type, price


class StepSummary:
    """Collects what a command did, and appends it to the file. A listener for events."""

    def __init__(self, path: Path, command: str) -> None:
        self.path = path
        self._command = command
        self.is_sandbox = False
        self._nodes: dict[NodeName, _NodeSummary] = {}
        self._expected: dict[NodeName, tuple[str, str, str]] = {}
        self._tables: list[tuple[Sequence[str], list[Sequence[str]]]] = []
        self._notes: list[str] = []

    def __call__(self, event: NodeEvent) -> None:
        """Note what happened to a node; waits do not count."""
        step = str(event.data.get("verb") or "")
        if event.kind is EventKind.ACTION and step and step not in _MINOR_STEPS:
            self._node(event.node).steps[step] += 1
            if step == "delete":
                # It was usable, and is not any more.
                self._node(event.node).outcomes = []
                self._node(event.node).state = "being deleted"
        elif event.kind is EventKind.STATE:
            self._node(event.node).state = event.text
        elif event.kind in _OUTCOMES:
            self._node(event.node).outcomes.append(event.text)

    def expect(self, name: NodeName, accelerator_type: str, capacity: str) -> None:
        """Note the node that was asked for. It has no row unless something happens to it."""
        self._expected[name] = accelerator_type, capacity, ""

    def describe(self, name: NodeName, accelerator_type: str, capacity: str, price: str) -> None:
        """Note what a node is, and what it costs."""
        self._node(name).facts = accelerator_type, capacity, price

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table."""
        if found := list(rows):
            self._tables.append((header, found))

    def note(self, *lines: str) -> None:
        """Add a paragraph, with further lines as a list."""
        first, *others = map(str.strip, lines)
        self._notes.append("\n".join([escape_markdown(first), *(f"- {escape_markdown(line)}" for line in others)]))

    def fail(self, error: TpuctlError) -> None:
        """Add an error with its hints."""
        about = f"{error.node}: " if error.node and f"`{error.node}`" not in error.message else ""
        hints = [f"hint: {line}" for line in (error.hint or "").splitlines() if line]
        self.note(f"Failed with exit code {int(error.exit_code)}: {about}{error.lines[0]}", *error.lines[1:], *hints)

    def markdown(self) -> str:
        """Return the summary; empty if there is nothing to say."""
        parts = list(self._parts())
        if not parts:
            return ""
        sandbox = ["Sandbox: nothing here is real, and nothing is billed."] if self.is_sandbox else []
        return "\n\n".join(["", f"### {escape_markdown(self._command)}", *sandbox, *parts, ""])

    def write(self) -> None:
        """Append the summary to the file. Raises `OSError` if that is not possible."""
        content = self.markdown().encode("utf-8", "replace")
        if not content:
            return
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            there = os.fstat(file)
            if not stat.S_ISREG(there.st_mode):
                raise OSError(errno.EINVAL, "it is not a file")
            if there.st_size + len(content) > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, "it would be larger than GitHub shows")
            while content:
                content = content[os.write(file, content) :]
        finally:
            os.close(file)

    def _node(self, name: NodeName) -> _NodeSummary:
        return self._nodes.setdefault(name, _NodeSummary(facts=self._expected.get(name, ("", "", ""))))

    def _parts(self) -> Iterator[str]:
        if self._nodes:
            yield _table(_NODE_HEADER, [_node_row(name, node) for name, node in self._nodes.items()])
        for header, rows in self._tables:
            yield _table(header, rows)
        yield from self._notes[:_MAX_NOTES]
        if len(self._notes) > _MAX_NOTES:
            yield f"and {len(self._notes) - _MAX_NOTES} more"


def _node_row(name: NodeName, node: _NodeSummary) -> tuple[str, ...]:
    steps = ", ".join(f"{step} ({count} times)" if count > 1 else step for step, count in node.steps.items())
    kind, capacity, price = node.facts
    # A watch has many results: the last ones count.
    return name.node_id, name.zone, kind, capacity, steps, "; ".join(node.outcomes[-2:]) or node.state, price


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([escape_markdown(cell) for cell in row] for row in rows[:_MAX_ROWS])]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text if len(rows) <= _MAX_ROWS else f"{text}\n\nand {len(rows) - _MAX_ROWS} more"


def escape_markdown(text: str) -> str:
    """Return the text on one line, without effect as Markdown or HTML, and cut if it is long.

    What stands in backticks is shown as code.
    """
    shown = escape_unprintable(text)
    if len(shown) > _LONGEST_TEXT:
        shown = shown[:_LONGEST_TEXT] + "…"
    # Entities stay entities in the element for code, not in Markdown's own backticks.
    return _CODE.sub(r"<code>\1</code>", _MARKUP.sub(lambda found: f"&#{ord(found[0])};", shown))
