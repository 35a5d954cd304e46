"""Every command line in help and docs parses; those of help run as printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir
from datetime import timedelta
from glob import glob
from itertools import chain
from pathlib import Path

import click
import pytest

from tests.cli.test_examples import ROOT, of_shell, parse
from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, put
from tpuctl.cli.tree import command_tree

# They end only when they are stopped, or write binary data, or act only on what is sure; tests of their own run them.
_ELSEWHERE = (
    "sandbox serve",
    "sandbox log --follow",
    "sandbox log -f",
    "bundle trainer --file -",
    "explain train.log --node trainer --act",
)
# What a printed command may end with on a project that has what it names. Never 1 or 2.
_FINE = frozenset({0, 3, 5, 8, 9, 11, 130})
_FILES = (
    "train.log",
    "train.py",
    "config.yaml",
    "job.sh",
    "start-training",
    "team.yaml",
    "data/part-0",
    "src/train.py",
    "logs/worker-0.log",
)
_NODES = ("trainer", "trainer-0", "trainer-1", "private-trainer")


def _help_lines(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield the examples in a command's help, and in those below it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if found := command.get_command(context, name):
                yield from _help_lines(found, (*path, name))
    for line in (command.help or "").splitlines():
        if line.strip().startswith("tpuctl "):
            for words in of_shell(line.split("  (")[0]):
                yield " ".join(path), words


HELP = list(_help_lines(command_tree()))
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "commands")]
_BLOCK = re.compile(r"^(?: {4}.*\n)+", re.MULTILINE)
_STORY = re.compile(r"<!-- story: [^>]+ -->\n(?: {4}.*\n|\n)+")
# What a reader puts in place of it.
_VARIABLE = re.compile(r"\$|\b(?:NODE|ZONE|NAME|JOB|FILE|BUCKET|PREFIX|PROJECT|COMMAND|ID)\b")


def _of_blocks(text: str) -> Iterator[list[str]]:
    """Yield the command lines in the indented blocks of a page; a quotation may span lines."""
    for block in _BLOCK.findall(text):
        waiting = ""
        for line in block.replace("\\\n", " ").splitlines():
            waiting += line.strip() + "\n"
            try:
                found = list(of_shell(waiting))
            except ValueError:  # a quotation that goes on
                continue
            waiting = ""
            yield from found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_line_of_a_page_parses(page: Path) -> None:
    for words in _of_blocks(page.read_text("utf-8")):
        # The stories make the files that they name.
        parse(
            [
                "pyproject.toml"
                if words[:2] in (["sandbox", "seed"], ["sandbox", "scenario"]) and word.endswith(".yaml")
                else word
                for word in words
            ]
        )


def test_command_lines_are_found_in_the_pages() -> None:
    """The search for command lines works."""
    assert sum(len(list(_of_blocks(page.read_text("utf-8")))) for page in PAGES) > 150


def test_every_example_of_help_parses() -> None:
    assert len(HELP) > 100
    for _, words in HELP:
        parse([word if word != "team.yaml" else "pyproject.toml" for word in words])


@pytest.fixture
def project(tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]) -> Console:
    """The program in a folder with the files, and on a project with the nodes, that examples name."""
    for name in _NODES:
        put(sandbox, name, acceleratorType="v4-32", labels={"team": "vision"})
    (tpuctl.folder / "examples").symlink_to(ROOT / "examples")
    tpuctl("ssh-key", "renew", "--yes")
    return tpuctl


def _refused(project: Console, clock: EventfulClock, lines: Iterable[list[str]]) -> dict[str, tuple[int, str]]:
    """Run command lines as printed; return those with an exit code that none may have, and their stderr."""
    found = {}
    for words in lines:
        if shlex.join(words).startswith(_ELSEWHERE) or "--watch" in words:
            continue
        if words[0] == "watch":
            clock.after(timedelta(minutes=10), _interrupt)
        is_read = words[0] == "explain"
        # An earlier line may have written to them.
        for name in _FILES:
            (project.folder / name).parent.mkdir(exist_ok=True)
            (project.folder / name).write_text("Socket closed\n" if name.endswith(".log") else "nodes: []\n")
        with chdir(project.folder):
            expanded = [sorted(glob(word)) or [word] for word in words]  # noqa: PTH207  # as a shell does it
            _, err, code = project(
                *chain.from_iterable(expanded),
                stdin=None if is_read else "y\n" + "\n" * 6,  # `config init` asks more than once
                piped="Socket closed\n" if is_read else "",
                TPUCTL_ZONE=ZONE,
                TPUCTL_TIMEOUT="2m",
                SHELL="/bin/bash",
            )
        if code not in _FINE:
            found[shlex.join(words)] = (code, err)
    return found


@pytest.mark.parametrize("command", sorted({command for command, _ in HELP if command}))
def test_every_example_of_help_runs_as_printed(project: Console, clock: EventfulClock, command: str) -> None:
    if command == "trust":
        (project.folder / "tpuctl.yaml").write_text("setup: make\n")
    # What a hook runs is another example's command, with the hook's variables.
    lines = [words for name, words in HELP if name == command and words[: len(name.split())] == name.split()]

    assert lines
    assert _refused(project, clock, lines) == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_line_of_a_page_runs_as_printed(project: Console, clock: EventfulClock, page: Path) -> None:
    """The lines of stories run in their own tests."""
    (project.folder / "tpuctl.yaml").write_text("type: v4-8\n")
    text = _STORY.sub("", page.read_text("utf-8"))
    lines = [words for words in _of_blocks(text) if not _VARIABLE.search(" ".join(words))]

    assert _refused(project, clock, lines) == {}


def _interrupt() -> None:
    raise KeyboardInterrupt
