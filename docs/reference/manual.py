"""Manual pages of the commands and of the topics of `tpuctl help`: what `--help` and `help` print, in the language of man.

click writes a page itself, through a formatter that makes roff. The pages have no date: only another text or another version
changes them. They are ASCII, so that every man reads them, whatever the locale.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from tpuctl import __version__
from tpuctl.app.option_help import group_of, is_shared, write_options
from tpuctl.app.options import shared_options
from tpuctl.cli.help_topics import EXIT_CODES, load_topic, topic_names
from tpuctl.cli.tree import command_tree
from tpuctl.config.settings import SETTINGS

# The name of a page, and its section of the manual.
Reference = tuple[str, int]

_ESCAPES = {"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}
_CODE = re.compile(r"`([^`\n]+)`")
# In a synopsis or the term of an option: names of options, and words that stand for values.
_NAME = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*|\b[A-Z][A-Z_]+\b|\b[NM]\b")
# The begin of a word of roff with a hyphen.
_HYPHENATED = re.compile(r"(?<!\S)(?=\S*\\-)")
_MENTION = re.compile(r"tpuctl ([a-z][a-z-]*(?: [a-z][a-z-]*){0,2})")
# click's mark of a paragraph that it does not wrap.
_AS_IT_IS = "\b\n"
_EXAMPLES = f"{_AS_IT_IS}Examples:\n"
_WIDTH = 78


def manual_pages() -> dict[str, str]:
    """Return all pages, by their paths below `share/man`."""
    contexts = list(walk_commands(command_tree()))
    topics = {_page_name("tpuctl", name): name for name in topic_names()}
    known = {_page_name(context.command_path) for context in contexts}
    pages, titles = {}, {"tpuctl": (contexts[0].command.help or "").partition(".")[0]}
    for context in contexts:
        path, formatter = context.command_path, RoffFormatter()
        context.command.format_help(context, formatter)
        if path == "tpuctl options":
            write_options([(group_of(option), option) for option in shared_options()], context, formatter)
        titles |= {f"{path} {name}": text for name, text in formatter.titles.items()}
        chapters = {
            "SYNOPSIS": formatter.synopsis,
            "DESCRIPTION": formatter.description,
            "COMMANDS": formatter.commands,
            "OPTIONS": formatter.options,
            "ENVIRONMENT": _environment(context),
            "EXIT STATUS": _exit_status(path),
            "EXAMPLES": formatter.examples,
        }
        others: set[Reference] = {("tpuctl", 1), (_page_name(path.rpartition(" ")[0] or "tpuctl"), 1)}
        others |= {(name, 7) for name in topics} if path == "tpuctl" else {("tpuctl-exit-codes", 7)}
        others |= {("tpuctl-options", 1), ("tpuctl-settings", 7), *_mentioned(formatter.said, known)}
        name = _page_name(path)
        pages[f"man1/{name}.1"] = _page((name, 1), titles[path], chapters, others)
    for name, topic in topics.items():
        formatter, text = RoffFormatter(), load_topic(topic)
        replace(text, title="").write(formatter)
        others = {("tpuctl", 1), ("tpuctl-help", 1), *_mentioned(formatter.said, known)}
        pages[f"man7/{name}.7"] = _page((name, 7), text.title, {"DESCRIPTION": formatter.description}, others)
    return pages


def walk_commands(command: click.Command, path: str = "tpuctl", **settings: Any) -> Iterator[click.Context]:
    """Yield the context of a command, then those of all commands below it that are not hidden. `settings` are the contexts'."""
    context = command.context_class(command, info_name=path, **settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from walk_commands(below, f"{path} {name}", **settings)


class RoffFormatter(click.HelpFormatter):
    """Writes the help of a command, or a topic, as chapters of a manual page."""

    def __init__(self) -> None:
        super().__init__(width=10_000)
        self.synopsis: list[str] = []
        self.description: list[str] = []
        self.commands: list[str] = []
        self.options: list[str] = []
        self.examples: list[str] = []
        # The one-line texts of the commands of a group.
        self.titles: dict[str, str] = {}
        # All text but the examples.
        self.said = ""
        self._path, self._chapter, self._heading = "", self.description, ""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002  # click's own signature
        """Write the synopsis."""
        self._path = prog
        self.synopsis.append(f"\\fB{_escape(prog)}\\fR {_term(args)}")

    def write_text(self, text: str) -> None:
        """Write paragraphs; examples go to a chapter of their own."""
        for paragraph in text.split("\n\n"):
            if paragraph.startswith(_EXAMPLES):
                self.examples += _verbatim(paragraph.removeprefix(_EXAMPLES))
            elif paragraph.startswith(_AS_IT_IS):
                self._chapter += _verbatim(paragraph.removeprefix(_AS_IT_IS))
            elif paragraph:
                self._chapter += [".PP", *_prose(paragraph)]
                self.said += f"{paragraph}\n"

    def write(self, string: str) -> None:
        """Write lines as they are."""
        self._chapter += _verbatim(string)

    def write_paragraph(self) -> None:
        """Write nothing: each paragraph brings its own distance."""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write the next list below a heading."""
        self._heading = name
        yield
        self._heading = ""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002  # as above
        """Write terms and their texts: options, the commands of a group, or a list of a topic."""
        found = [(term.strip(), text) for term, text in rows]
        if self._heading:
            are_options = found[0][0].startswith("-")
            self._chapter = self.options if are_options else self.commands
            if self._heading not in {"Commands", "Options"}:
                self._chapter.append(f'.SS "{_escape(self._heading)}"')
            if not are_options:
                self.titles |= dict(found)
                found = [(f"`{_page_name(self._path, name)}`(1)", text) for name, text in found]
        for term, text in found:
            self._chapter += [".TP", *(_prose(term) if "`" in term else [_term(term)]), *_prose(text)]
            self.said += f"{text}\n"


def _page(own: Reference, title: str, chapters: Mapping[str, list[str]], others: set[Reference]) -> str:
    """Return a page."""
    name, section = own
    lines = [
        r".\" made by docs/reference/generate.py",
        f'.TH "{_escape(name.upper())}" {section} "" "tpuctl {__version__}" "tpuctl manual"',
        ".ad l",
        ".SH NAME",
        f"{_escape(name)} \\- {_escape(title.removesuffix('.'))}",
    ]
    for heading, body in chapters.items():
        if body:
            lines += [f".SH {heading}", *body[body[0] == ".PP" :]]
    rest = sorted(others - {own}, key=lambda other: (other[1], other[0]))
    lines += [".SH SEE ALSO", *(f".BR \\%{_escape(name)} ({section})," for name, section in rest)]
    return "\n".join(lines).removesuffix(",") + "\n"


def _environment(context: click.Context) -> list[str]:
    """Return the variables that set the options of a page."""
    if context.command_path in {"tpuctl", "tpuctl options"}:
        shown: Sequence[click.Option] = shared_options()
    else:
        shown = [each for each in context.command.params if isinstance(each, click.Option) and not is_shared(each)]
    found = {}
    for option in shown:
        spec = SETTINGS.get(option.name or "")
        if spec and spec.environment and not option.hidden:
            found[spec.environment] = next(name for name in option.opts if name.startswith("--"))
    if not found:
        return []
    width = max(map(len, found))
    table = "\n".join(f"{name:<{width}}  {flag}" for name, flag in found.items())
    return [
        *_prose("These variables set the defaults of options; `tpuctl-settings`(7) has the keys of files."),
        *_verbatim(table),
    ]


def _exit_status(path: str) -> list[str]:
    if path != "tpuctl":
        return _prose("0 for success; `tpuctl-exit-codes`(7) explains the others.")
    return [line for code, text in EXIT_CODES.items() for line in (".TP", f"\\fB{int(code)}\\fR", *_prose(text))]


def _mentioned(text: str, known: set[str]) -> Iterator[Reference]:
    """Yield the pages of the commands and topics that a text names."""
    for match in _MENTION.finditer(text):
        words = match[1].split()
        if words[0] == "help" and words[-1] in topic_names():
            yield f"tpuctl-{words[-1]}", 7
        # The longest name that is a command: the words after it are prose.
        names = (_page_name("tpuctl", *words[:count]) for count in range(len(words), 0, -1))
        yield from [(name, 1) for name in names if name in known][:1]


def _page_name(*words: str) -> str:
    return "-".join(" ".join(words).split())


def _prose(text: str) -> list[str]:
    """Return the lines of a paragraph. Words in backticks are bold; no name with hyphens is divided at the end of a line."""
    parts = _CODE.split(" ".join(text.split()))
    roff = "".join(f"\\fB{_escape(part)}\\fR" if index % 2 else _escape(part) for index, part in enumerate(parts))
    lines = textwrap.wrap(_HYPHENATED.sub(r"\%", roff), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_no_request(line) for line in lines]


def _verbatim(text: str) -> list[str]:
    """Return lines that man shows as they are."""
    lines = textwrap.dedent(text).strip("\n").split("\n")
    return [".PP", ".RS 4", ".EX", *(_no_request(_escape(line)) for line in lines), ".EE", ".RE"]


def _term(text: str) -> str:
    """Return a term or a synopsis: names of options are bold, words for values italic."""
    parts, end = [], 0
    for match in _NAME.finditer(text):
        font = "B" if match[0].startswith("-") else "I"
        parts += [_escape(text[end : match.start()]), f"\\f{font}{_escape(match[0])}\\fR"]
        end = match.end()
    return _no_request("".join(parts) + _escape(text[end:]))


def _escape(text: str) -> str:
    """Return text without a meaning in roff, in ASCII."""
    return "".join(_ESCAPES.get(char, char if char.isascii() else f"\\[u{ord(char):04X}]") for char in text)


def _no_request(line: str) -> str:
    """Return a line that does not begin as a request of roff."""
    return f"\\&{line}" if line.startswith(".") else line
