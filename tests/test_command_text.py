"""The words of printed commands: their quotation marks, and that no command is printed with a value that was not checked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tpuctl
from tpuctl.command_text import as_quotation, command_word, fill_text, quote_word

SOURCE: Final = Path(tpuctl.__file__).parent
# A command that has begun: in backticks, or as the whole text.
BEGUN: Final = re.compile(
    r"`(?:sudo )?(?:tpuctl|gcloud|kubectl|ssh(?:-add|-keygen)?|chmod|chown|kill|rm|mv|ls|grep|docker|pip3?|python3?) [^`]*$"
    r"|^(?:tpuctl|sudo|chmod|rm|mv|kill|gcloud (?:alpha|auth|billing|compute|config|iam|projects|services|storage)) [^`]*$"
)
# What returns quoted words.
QUOTED: Final = {"command_word", "quote_word", "quote", "_with_options", "format_duration", "group_of_slice", "len"}
# What is plain: names of nodes, requests and zones, which are checked where they come in (`names`, `shapes.SEGMENT`), names of
# jobs, and words of tpuctl's own.
PLAIN_NAMES: Final = """
GROUP_LABEL __version__ _ALL_APIS _FILES _UNIT _node_words again begun below_it change count error_id example full full_name
full_names goal group id idle job meant name
names near node node_id nodes offered option place queued_resource_id request_id role short short_name shown slices switch text
tmux together topic type verb version where worker workers zone zones
"""
# Keys and command names of tpuctl's own tables, and a sentence that begins like a command.
OF_OUR_TABLES: Final = [
    "cli/help_command.py: f'{path} ' if path else ''",
    "config/settings.py: spec.key",
    "config/settings.py: spec.gcloud",
    "config/settings.py: spec.gcloud",
]


def holes(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what stands in the commands of the f-strings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    if BEGUN.search(text):
                        yield part.value
                    text += "{}"


def is_checked(value: ast.expr) -> bool:
    """Return whether an expression is quoted, or of names that are plain."""
    match value:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in PLAIN_NAMES.split()
        case ast.Subscript(value=inner):
            return is_checked(inner)
        case ast.BoolOp(values=values):
            return all(map(is_checked, values))
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[argument]):
            return is_checked(argument)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in QUOTED
        case _:
            return False


def test_every_value_of_a_printed_command_is_checked() -> None:
    """In the f-strings of the client: `command_word` or `fill_text` for what is no name that was checked where it came in."""
    unchecked = [
        f"{path.relative_to(SOURCE)}: {ast.unparse(value)}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "sandbox"
        for value in holes(ast.parse(path.read_text()))
        if not is_checked(value)
    ]
    assert unchecked == OF_OUR_TABLES


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("f'run `chmod 600 {path}`'", ["path"]),
        ("f'`tpuctl up {node} --network={spec.network}` creates it'", ["spec.network"]),
        ("f'gcloud projects undelete {project}'", ["project"]),
        ("f'`rm {command_word(1, path)}`, and `{path}` is gone'", []),
    ],
)
def test_unchecked_value_is_found(source: str, found: list[str]) -> None:
    assert [ast.unparse(value) for value in holes(ast.parse(source)) if not is_checked(value)] == found


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("a-b_c.d/e:f=g,h@i%j+k", "a-b_c.d/e:f=g,h@i%j+k"),
        ("", "''"),
        ("a b", "'a b'"),
        ("it's", "'it'\"'\"'s'"),
        ("~root", "'~root'"),
        ("!x", "'!x'"),
        ("a\nb\t\\'", r"$'a\nb\t\\\''"),
        ("\x1b\u202e", r"$'\x1b\xe2\x80\xae'"),
        ("\udcff", r"$'\xff'"),
    ],
)
def test_word_is_quoted(word: str, quoted: str) -> None:
    assert quote_word(word) == quoted


@pytest.mark.parametrize(
    ("kind", "value", "word"),
    [
        ("path", "~/my keys/a", "~/'my keys/a'"),
        ("path", "~/", "'~/'"),
        ("path", "/home/j\u00f6rg/k", "'/home/j\u00f6rg/k'"),
        ("path", Path("/a/b"), "/a/b"),
        ("path", "/a;b", "PATH"),
        ("zone", None, "ZONE"),
        ("bucket_url", "b", "gs://BUCKET"),
        ("pid", 17, "17"),
        ("victim", "x", "VICTIM"),
    ],
)
def test_value_is_a_word_of_its_kind(kind: str, value: object, word: str) -> None:
    assert command_word(kind, value) == word


def test_value_outside_of_commands_is_a_quotation() -> None:
    """It may be anything, but begins no command of its own."""
    text = fill_text(
        "`{image}` is missing: {why}; run `kill {pid}`", {"image": "a`b", "why": "x`; `sh`\ny", "pid": "7"}
    )

    assert text == "`a'b` is missing: x'; 'sh' y; run `kill 7`"
    assert as_quotation(" a\n`b` ") == "a 'b'"
