"""The manual pages: complete, free of warnings, and the same words as `--help`."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from tpuctl.app.option_help import is_shared
from tpuctl.cli.help_topics import topic_names
from tpuctl.cli.tree import command_tree

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "docs" / "man"
PAGES = sorted(MANUAL.glob("man?/*"))
REFERENCE = re.compile(r"^\.BR \\%(?P<name>\S+) \((?P<section>\d)\)", re.MULTILINE)
# Neither has a date, which would change the pages without another text; lines are as long as the words in them.
ACCEPTED = ("missing date", "input text line longer than 80 bytes")


@pytest.fixture(scope="module")
def manual() -> ModuleType:
    """Return the module that makes the pages."""
    spec = importlib.util.spec_from_file_location("manual", ROOT / "docs" / "reference" / "manual.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from _commands(below, f"{path}-{name}")


def test_each_command_and_topic_has_a_page_with_all_its_options() -> None:
    shown = {path: command for path, command in _commands(command_tree(), "tpuctl") if not command.hidden}

    missing = []
    for path, command in shown.items():
        page = (MANUAL / "man1" / f"{path}.1").read_text("ascii").replace(r"\-", "-")
        terms = " ".join(re.findall(r"^\.TP\n(.*)", page, re.MULTILINE)).replace(r"\fR", " ")
        options = [param for param in command.params if isinstance(param, click.Option) and not is_shared(param)]
        missing += [(path, each.opts[0]) for each in options if (f"\\fB{each.opts[0]} " in terms) is each.hidden]
    names = {path.name for path in PAGES}
    assert missing == []
    assert names == {f"{path}.1" for path in shown} | {f"tpuctl-{name}.7" for name in topic_names()}


def test_references_lead_to_pages() -> None:
    found = {
        f"man{match['section']}/{match['name']}.{match['section']}".replace(r"\-", "-")
        for page in PAGES
        for match in REFERENCE.finditer(page.read_text("ascii"))
    }

    assert len(found) > 20
    assert found <= {str(page.relative_to(MANUAL)) for page in PAGES}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("groff", "-ww", "-man", "-Tutf8", "-z"), id="groff"),
        pytest.param(("mandoc", "-Tlint"), id="mandoc"),
    ],
)
def test_pages_have_no_warning(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")

    done = subprocess.run([*command, *PAGES], capture_output=True, text=True, check=False)

    warnings = (done.stdout + done.stderr).splitlines()
    assert [line for line in warnings if not any(text in line for text in ACCEPTED)] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize(("path", "page"), [("up", "tpuctl-up.1"), ("sandbox fault", "tpuctl-sandbox-fault.1")])
def test_page_has_the_words_of_help(path: str, page: str) -> None:
    """What is read in a terminal: nothing of the text is lost, and no sign of roff is left."""
    command: click.Command = command_tree()
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name) or pytest.fail(name)

    done = subprocess.run(
        ["groff", "-man", "-rHY=0", "-Tascii", "-P-bcou", MANUAL / "man1" / page],
        capture_output=True,
        text=True,
        check=True,
    )

    # The headings of a manual are others.
    signs = re.compile(r"[^\w-]+")
    help_ = command.get_help(command.context_class(command, info_name=f"tpuctl {path}"))
    words = set(signs.split(help_)) - {"Usage", "Examples", "Options"}
    assert words - set(signs.split(done.stdout)) == set()
    assert "\\" not in done.stdout.replace(help_, "")


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        pytest.param("plain text", ["plain text"], id="plain"),
        pytest.param(".hidden", [r"\&.hidden"], id="leading-dot"),
        pytest.param("'sweep' and \"it\"", [r"\(aqsweep\(aq and \(dqit\(dq"], id="quotes"),
        pytest.param(r"a\b ~ ^", [r"a\(rsb \(ti \(ha"], id="backslash"),
        pytest.param("see --zone", [r"see \%\-\-zone"], id="hyphens"),
        pytest.param("run `tpuctl up` now", [r"run \fBtpuctl up\fR now"], id="code"),
        pytest.param("20 \u2264 n", [r"20 \[u2264] n"], id="not-ascii"),
        pytest.param(f"{'x' * 77} .y", ["x" * 77, r"\&.y"], id="dot-after-a-break"),
        pytest.param("", [], id="empty"),
    ],
)
def test_prose_has_no_meaning_in_roff(text: str, roff: list[str], manual: ModuleType) -> None:
    assert manual._prose(text) == roff


@pytest.mark.parametrize(
    ("term", "roff"),
    [
        pytest.param("-y, --yes", r"\fB\-y\fR, \fB\-\-yes\fR", id="flag"),
        pytest.param("--type TYPE", r"\fB\-\-type\fR \fITYPE\fR", id="value"),
        pytest.param("--for [ready|ssh]", r"\fB\-\-for\fR [ready|ssh]", id="choice"),
        pytest.param("-n N", r"\fB\-n\fR \fIN\fR", id="short-value"),
        pytest.param("[NODE...]", r"[\fINODE\fR...]", id="argument"),
    ],
)
def test_term_marks_names_and_values(term: str, roff: str, manual: ModuleType) -> None:
    assert manual._term(term) == roff
