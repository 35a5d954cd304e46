"""The topics of `tpuctl help`: texts in `data/help`, one file each, with lists that are made from the code.

The first line of a file is the title. Then come paragraphs; commands, indented by four spaces; and lists, whose lines are
indented by two spaces and have a term, two spaces and its text. A line `@NAME` stands for a list of `_LISTS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuctl.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_FOLDER = Path(__file__).parents[1] / "data" / "help"
# Longer terms stand on a line of their own.
_TERM_WIDTH: Final = 26

EXIT_CODES: Final = {
    ExitCode.OK: "success",
    ExitCode.FAILURE: "any other failure, such as an API that does not answer; a bug prints its traceback",
    ExitCode.USAGE: "usage: an unknown flag, an invalid value or setting, a confirmation without a terminal, "
    "a request that the service rejects as invalid",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.NOT_ALLOWED: "not allowed: no credentials, scopes, IAM, API disabled, billing",
    ExitCode.TIMED_OUT: "timed out; the message says what is still in progress in the cloud and which command continues; "
    "for `run --timeout`: the command was terminated",
    ExitCode.NO_CAPACITY: "no capacity: the zone, or each of several, has no free TPU of this type",
    ExitCode.QUOTA: "quota used up, or zero",
    ExitCode.CONFLICT: "conflict: the node differs, or is in a state that forbids this, or another run holds its lease",
    ExitCode.CHECK_FAILED: "a check failed",
    ExitCode.BROKEN: "the node failed, not the command: it is broken, and repair is used up or impossible; or the service "
    "preempted it while a command ran there (kind `preempted`)",
    ExitCode.REMOTE_FAILED: "a failure on a worker: of a command, a copy or the connection (`tpuctl ssh NODE -- COMMAND` on "
    "one worker exits with the command's own code)",
    ExitCode.INTERRUPTED: "Ctrl-C; the message says what is still in progress in the cloud, and nothing is undone (but `run` "
    "terminates its command, and with `--rm` deletes its node)",
    ExitCode.TERMINATED: "SIGTERM; otherwise like 130",
}


@dataclass(frozen=True, slots=True)
class Definitions:
    """Terms with their texts."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines, printed as they are."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HelpTopic:
    """One topic; a text among `blocks` is a paragraph."""

    name: str
    title: str
    blocks: tuple[str | Definitions | Commands, ...]

    def write(self, formatter: click.HelpFormatter) -> None:
        """Write the topic for a terminal."""
        formatter.write_text(self.title)
        for block in self.blocks:
            formatter.write_paragraph()
            match block:
                case str():
                    formatter.write_text(block)
                case Commands(lines):
                    formatter.write("".join(f"  {line}\n" for line in lines))
                case Definitions(rows):
                    formatter.indent()
                    formatter.write_dl(rows, col_max=_TERM_WIDTH)
                    formatter.dedent()


def topic_names() -> list[str]:
    """Return the names of the topics."""
    return sorted(path.stem for path in _FOLDER.glob("*.txt"))


def load_topic(name: str) -> HelpTopic:
    """Return a topic."""
    title, _, body = (_FOLDER / f"{name}.txt").read_text("utf-8").partition("\n")
    return HelpTopic(name, title, tuple(map(_parse_block, body.strip("\n").split("\n\n"))))


def _parse_block(text: str) -> str | Definitions | Commands:
    if text.startswith("@"):
        return Definitions(tuple(_LISTS[text[1:]]()))
    if text.startswith("    "):
        return Commands(tuple(line[4:] for line in text.split("\n")))
    if text.startswith("  "):
        # A line that is indented further continues the one before.
        rows = re.sub(r"\n {4,}", "  ", text).split("\n")
        return Definitions(
            tuple((term, said.strip()) for term, _, said in (row.strip().partition("  ") for row in rows))
        )
    return text


def _exit_codes() -> Iterator[tuple[str, str]]:
    return ((str(int(code)), EXIT_CODES[code]) for code in ExitCode)


def _settings(keys: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield settings with their defaults, all without `keys`."""
    from tpuctl.config.settings import SETTINGS  # noqa: PLC0415  # the list of topics needs none

    for spec in [SETTINGS[key] for key in keys] or SETTINGS.values():
        yield spec.key, spec.description + (f" [default: {spec.default}]" if spec.default else "")


def _budgets() -> Iterator[tuple[str, str]]:
    from tpuctl.nodes.commands.policy_options import RepairOptions  # noqa: PLC0415  # as above

    return _settings(field.name for field in fields(RepairOptions) if field.name.startswith("max_"))


def _thresholds() -> Iterator[tuple[str, str]]:
    from tpuctl.nodes.policies import THRESHOLD_SETTINGS  # noqa: PLC0415  # as above

    return _settings(THRESHOLD_SETTINGS.values())


_LISTS: Final[dict[str, Callable[[], Iterator[tuple[str, str]]]]] = {
    "exit_codes": _exit_codes,
    "settings": _settings,
    "budgets": _budgets,
    "thresholds": _thresholds,
}
