"""GitHub Actions: annotations, groups, and no workflow command in the text of others."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise

import pytest
import yaml

from tpuctl.errors import TpuctlError
from tpuctl.output.github import CommandFilter, GuardedStream, guard_streams, unguarded
from tpuctl.output.terminal import OutputFormat, StandardStreams, Terminal

GITHUB = {"GITHUB_ACTIONS": "true"}
# What the runner knows (actions/runner: the extensions of `ActionCommandManager`).
COMMANDS = (
    *("add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "remove-matcher"),
    *("save-state", "set-env", "set-output", "stop-commands", "warning"),
)


def commands_in(text: str) -> list[str]:
    """Return the commands that the runner executes: its parser, in a few lines."""
    found = []
    for line in re.split(r"\r\n|\r|\n", text):
        trimmed = line.lstrip()
        info = trimmed[2:].partition("::")[0] if trimmed.startswith("::") and "::" in trimmed[2:] else ""
        old = line.partition("##[")[2].partition("]")[0] if "]" in line.partition("##[")[2] else ""
        found += [name for each in (info, old) if (name := each.partition(" ")[0].lower()) in COMMANDS]
    return found


def terminal(*, quiet: bool = False, environ: dict[str, str] | None = None, is_terminal: bool = False) -> Terminal:
    streams = StandardStreams(
        io.StringIO(), io.StringIO(), io.StringIO(), stdout_is_terminal=is_terminal, stderr_is_terminal=is_terminal
    )
    environ = GITHUB if environ is None else environ
    return Terminal(guard_streams(streams, environ), environ, quiet=quiet)


def written(terminal: Terminal) -> tuple[str, str]:
    """Return what was written to stdout and to stderr."""
    texts = []
    for stream in (terminal.streams.stdout, terminal.streams.stderr):
        plain = unguarded(stream)
        assert isinstance(plain, io.StringIO)
        texts.append(plain.getvalue())
    return texts[0], texts[1]


def filtered(*pieces: str) -> str:
    guard = CommandFilter()
    return "".join(map(guard.feed, pieces)) + guard.finish()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("::set-output name=a::b\n", "\\u003a:set-output name=a::b\n"),
        ("  \t::add-mask::secret", "  \t\\u003a:add-mask::secret"),
        ("x\n::Error::y", "x\n\\u003a:Error::y"),
        ("x\r::error::y", "x\r\\u003a:error::y"),
        ("\u3000\u2028\u00a0::error::y", "\u3000\u2028\u00a0\\u003a:error::y"),
        ("x ##[error]y", "x ##\\u005berror]y"),
        ("####[set-env name=a]b", "####\\u005bset-env name=a]b"),
        ("::error::##[error]", "\\u003a:error::##\\u005berror]"),
        ("\n\n::group::a\n::endgroup::\n", "\n\n\\u003a:group::a\n\\u003a:endgroup::\n"),
    ],
    ids=["first", "space", "case", "return", "unicode-space", "old", "hashes", "both", "lines"],
)
def test_commands_are_escaped(text: str, escaped: str) -> None:
    assert commands_in(text)
    assert (filtered(text), commands_in(escaped)) == (escaped, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a ::error::",
        "f :: Int -> Int\n",
        ":: comment ::\n",
        "::1 localhost\n",
        "std::error::Error\n",
        "#[derive(Debug)]\n## [error]\n",
        "##[a]\n",
        ":",
        "#",
        "##",
        "::err",
        '{"a":"b::c"}\n',
        "\x00\xff" * 100,
    ],
)
def test_other_text_is_kept(text: str) -> None:
    assert (filtered(text), commands_in(text)) == (text, [])


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("form", ["::{} name=x::y\n", "a\r\n ::{}::y\n", "a ##[{}]y\n", "##[{} name=x;]y\n"])
def test_command_in_any_pieces_is_escaped(name: str, form: str) -> None:
    text = f"before\n{form.format(name)}after\n"
    ways = [*((0, at, len(text)) for at in range(len(text))), range(len(text) + 1)]

    results = {filtered(*(text[start:end] for start, end in pairwise(way))) for way in ways}

    (result,) = results
    assert (commands_in(text), commands_in(result)) == ([name], [])
    assert result.replace("\\u003a", ":").replace("\\u005b", "[") == text


def test_text_is_held_back_only_while_it_may_become_a_command() -> None:
    guard = CommandFilter()

    pieces = ["a\n", ":", ":", "warn", "ing::b", "#", "#", "\n", ":"]
    assert [guard.feed(piece) for piece in pieces] == ["a\n", "", "", "\\u003a:warn", "ing::b", "", "", "##\n", ""]
    assert guard.finish() == ":"


def test_bytes_and_text_of_a_stream_are_filtered_together() -> None:
    raw = io.BytesIO()
    stream = GuardedStream(io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    stream.write("é\n:")
    stream.buffer.write(b":error::x\n\xff\x00")
    stream.buffer.flush()
    stream.write("##")
    stream.finish()

    assert raw.getvalue() == b"\xc3\xa9\n\\u003a:error::x\n\xff\x00##"


@pytest.mark.parametrize("form", [OutputFormat.JSON, OutputFormat.YAML])
@pytest.mark.parametrize(
    "value",
    ["##[set-output name=a]b", "::error::x", "a\n::error::x\n##[error]", "word " * 30 + "::error:: ##[error]"],
    ids=["old", "new", "lines", "folded"],
)
def test_data_is_the_same_and_has_no_command(form: OutputFormat, value: str) -> None:
    there = terminal()
    there.data({"description": value, value: 1}, form)

    out, err = written(there)
    assert (commands_in(out), err) == ([], "")
    assert (json.loads if form is OutputFormat.JSON else yaml.safe_load)(out) == {"description": value, value: 1}


def test_error_is_an_annotation_with_its_hint() -> None:
    there = terminal()
    there.error(TpuctlError("100% full\n::error::x", hint="run `a`\nor `b`", error_id="quota-zero"))

    advice = "%0A  hint: run `a`%0A  hint: or `b`%0A  more: tpuctl explain quota-zero"
    assert written(there) == ("", f"::error title=tpuctl%3A failure::100%25 full\\n::error::x{advice}\n")


def test_warning_is_an_annotation_on_its_own_line() -> None:
    there = terminal(quiet=True)
    there.streams.stderr.write("50 %")
    there.warn("first\r", "second")
    there.note("hidden")

    assert written(there) == ("", "50 %\n::warning title=tpuctl::first\\r%0Asecond\n")


def test_long_annotation_is_cut() -> None:
    there = terminal()
    there.warn("x" * 100_000)

    assert written(there)[1] == f"::warning title=tpuctl::{'x' * 16_000}…\n"


def test_group_folds_the_notes_of_a_block_once() -> None:
    there = terminal()
    with there.group("silent"):
        there.warn("careful")
    with there.group("sync"), there.group("inner"):
        there.note("::endgroup::")
        there.note("more")
    there.note("after")

    lines = ["::warning title=tpuctl::careful", "::group::sync", "\\u003a:endgroup::", "more", "::endgroup::", "after"]
    assert written(there) == ("", "".join(line + "\n" for line in lines))


def test_group_is_closed_before_the_error_of_its_block() -> None:
    there = terminal()

    def fail() -> None:
        with there.group("sync"):
            there.note("begun")
            raise TpuctlError("broken", error_id="quota-zero")

    with pytest.raises(TpuctlError) as caught:
        fail()
    there.error(caught.value)

    assert written(there)[1].splitlines()[:3] == ["::group::sync", "begun", "::endgroup::"]


@pytest.mark.parametrize(
    ("environ", "is_terminal"),
    [({}, False), ({"GITHUB_ACTIONS": "false"}, False), ({"CI": "true"}, False), (GITHUB, True)],
    ids=["nowhere", "off", "other-ci", "terminal"],
)
def test_there_are_no_commands_elsewhere(environ: dict[str, str], is_terminal: bool) -> None:
    there = terminal(environ=environ | {"NO_COLOR": "1"}, is_terminal=is_terminal)
    with there.group("sync"):
        there.warn("careful")
    there.write("::error::x")

    assert written(there) == ("::error::x\n", "warning: careful\n")


def test_json_error_is_no_annotation() -> None:
    there = terminal()
    there.error(TpuctlError("broken ##[error]"), form=OutputFormat.JSON)

    _, err = written(there)
    assert (json.loads(err)["error"]["message"], commands_in(err)) == ("broken ##[error]", [])
