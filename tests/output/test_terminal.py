"""The terminal: output for people and for pipes, each compared whole; questions, errors, progress."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tpuctl.clock import ManualClock
from tpuctl.errors import InvalidInputError, NodeNotFoundError, TpuctlError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Node
from tpuctl.names import NodeName
from tpuctl.nodes.rendering import NODE_COLUMNS, node_rows
from tpuctl.output.progress import Progress
from tpuctl.output.tables import choose_columns
from tpuctl.output.terminal import OutputFormat, StandardStreams, Terminal, has_colors

NAME = NodeName("p", "us-central2-b", "trainer")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def terminal(
    *,
    is_terminal: bool = False,
    width: int = 100,
    typed: str = "",
    quiet: bool = False,
    environ: dict[str, str] | None = None,
) -> Terminal:
    streams = StandardStreams(
        io.StringIO(typed), io.StringIO(), io.StringIO(), is_terminal, is_terminal, is_terminal, width
    )  # fmt: skip
    return Terminal(streams, environ or {}, quiet=quiet)


def out(written: Terminal) -> str:
    assert isinstance(written.streams.stdout, io.StringIO)
    return written.streams.stdout.getvalue()


def err(written: Terminal) -> str:
    assert isinstance(written.streams.stderr, io.StringIO)
    return written.streams.stderr.getvalue()


def node(node_id: str = "trainer", **fields: Any) -> Node:
    """Return a node; a field that is None is one that the API leaves out."""
    body = {
        "name": f"projects/p/locations/us-central2-b/nodes/{node_id}",
        "state": "READY",
        "health": "HEALTHY",
        "acceleratorType": "v4-16",
        "createTime": "2026-01-01T09:00:00Z",
    }
    return Node.from_api({name: value for name, value in (body | fields).items() if value is not None})


NODES = [
    node(),
    node(
        "eval", state="PREEMPTED", health=None, acceleratorType="v4-8", schedulingConfig={"spot": True}, createTime=None
    ),
]


def test_table_has_a_header_on_a_terminal_only() -> None:
    person, pipe = terminal(is_terminal=True, environ={"NO_COLOR": "1"}), terminal()
    layout = choose_columns(NODE_COLUMNS, None, sort=None, is_wide=False)
    for each in (person, pipe):
        layout.write(each, node_rows(NODES, NOW))

    assert out(person) == (
        "NAME     ZONE           TYPE   STATE      HEALTH   CHIPS  AGE  TIER       NOTE\n"
        "trainer  us-central2-b  v4-16  READY      HEALTHY      8  3h   on-demand\n"
        "eval     us-central2-b  v4-8   PREEMPTED               4       spot       preempted: `up` recreates…\n"
    )
    assert out(pipe) == (
        "trainer\tus-central2-b\tv4-16\tREADY\tHEALTHY\t8\t2026-01-01T09:00:00Z\ton-demand\t\n"
        "eval\tus-central2-b\tv4-8\tPREEMPTED\t\t4\t\tspot\tpreempted: `up` recreates it, `down` frees its quota\n"
    )


def test_ten_thousand_rows_have_one_line_each() -> None:
    written = terminal(is_terminal=True)
    written.table(NODE_COLUMNS, node_rows([node(f"n-{index}") for index in range(10_000)], NOW))

    assert out(written).count("\n") == 10_001


@pytest.mark.parametrize(
    ("form", "is_terminal", "expected"),
    [
        (OutputFormat.JSON, False, '{"a": ["é", null]}\n'),
        (OutputFormat.JSON, True, '{\n  "a": [\n    "é",\n    null\n  ]\n}\n'),
        (OutputFormat.YAML, False, "a:\n- é\n- null\n"),
    ],
)
def test_data_is_written_in_the_chosen_format(form: OutputFormat, is_terminal: bool, expected: str) -> None:
    written = terminal(is_terminal=is_terminal)
    written.data({"a": ["é", None]}, form)

    assert (out(written), err(written)) == (expected, "")


def test_error_is_text_or_one_json_object() -> None:
    error = NodeNotFoundError("trainer", "us-central2-b")
    person, pipe, program = terminal(is_terminal=True), terminal(), terminal()
    person.error(error)
    pipe.error(error)
    program.error(TpuctlError("broken", error_id="quota-zero"), form=OutputFormat.JSON, sandbox=True)

    assert err(person) == (
        "\x1b[1;31merror: \x1b[0mno node `trainer` in us-central2-b\n"
        "\x1b[36m  hint: \x1b[0mrun `tpuctl list` to see the nodes of all zones\n"
        "\x1b[2m  more: \x1b[0mtpuctl explain not-found\n"
    )
    assert err(pipe) == (
        "error: no node `trainer` in us-central2-b\n"
        "  hint: run `tpuctl list` to see the nodes of all zones\n"
        "  more: tpuctl explain not-found\n"
    )
    assert json.loads(err(program)) == {
        "error": {"kind": "failure", "message": "broken", "exit_code": 1, "id": "quota-zero"},
        "sandbox": True,
    }
    assert (out(person), out(pipe), out(program)) == ("", "", "")


def test_control_sequences_of_the_api_are_escaped() -> None:
    written = terminal(is_terminal=True, environ={"TERM": "dumb"})
    written.error(TpuctlError("bad\x1b[2J\rname\nsecond line", hint="a\x07b\nc"))
    written.warn("w\x1b]0;title\x07")
    written.note("n\u202egnp.exe")

    assert err(written) == (
        "error: bad\\x1b[2J\\rname\\nsecond line\n  hint: a\\x07b\n  hint: c\n  more: tpuctl explain failure\n"
        "warning: w\\x1b]0;title\\x07\nn\\u202egnp.exe\n"
    )


def test_quiet_hides_notes_only() -> None:
    """The reference to more about an error is a note, too."""
    written = terminal(quiet=True)
    written.note("by the way")
    written.warn("this matters")
    written.error(TpuctlError("broken", hint="fix it"))
    written.write("data")

    assert (out(written), err(written)) == ("data\n", "warning: this matters\nerror: broken\n  hint: fix it\n")


@pytest.mark.parametrize(
    ("typed", "answer"), [("y\n", True), ("Yes\n", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_confirm_accepts_only_yes(typed: str, answer: bool) -> None:
    written = terminal(is_terminal=True, typed=typed)

    assert (written.confirm("delete it?", yes=False), err(written)) == (answer, "delete it? [y/N] ")


@pytest.mark.parametrize(
    ("is_terminal", "environ", "reason"),
    [
        pytest.param(False, {}, "stdin is not a terminal", id="pipe"),
        pytest.param(True, {"CI": "true"}, "CI is set", id="ci"),
    ],
)
def test_confirm_without_a_terminal_raises_with_the_reason(
    is_terminal: bool, environ: dict[str, str], reason: str
) -> None:
    written = terminal(is_terminal=is_terminal, typed="y\n", environ=environ)

    assert written.confirm("delete it?", yes=True)
    with pytest.raises(InvalidInputError) as refused:
        written.confirm("delete it?", yes=False)
    assert (str(refused.value), refused.value.hint, err(written)) == (
        f"cannot ask for confirmation (delete it?): {reason}",
        "nothing was done; pass `--yes` to confirm (`--quiet` does not)",
        "",
    )


def event(kind: EventKind, text: str, **data: object) -> NodeEvent:
    return NodeEvent(kind, NOW, NAME, text, data)


EVENTS = [
    event(EventKind.ACTION, "creating v4-8", verb="create"),
    event(EventKind.WAIT, "create requested"),
    event(EventKind.WAIT, "create requested"),
    event(EventKind.STATE, "READY", state="READY"),
    event(EventKind.SILENT, "API not answering for 5s"),
    event(EventKind.SILENT, "API not answering for 20s"),
    event(EventKind.REACHED, "ssh after 3m"),
]


def test_progress_without_a_terminal_has_lines_and_json() -> None:
    written, sink = terminal(), io.StringIO()
    with Progress(written, ManualClock(), events=sink) as progress:
        for each in EVENTS:
            progress(each)

    assert err(written) == (
        "trainer: creating v4-8\n"
        "trainer: create requested\n"
        "trainer: READY\n"
        "trainer: API not answering for 5s\n"
        "trainer: the API answers again\n"
        "trainer: ssh after 3m\n"
    )
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [(line["event"], line["text"]) for line in lines] == [(str(each.kind), each.text) for each in EVENTS]
    assert lines[0] == {
        "at": "2026-01-01T12:00:00Z",
        "event": "action",
        "node": "trainer",
        "zone": "us-central2-b",
        "project": "p",
        "text": "creating v4-8",
        "verb": "create",
    }


def test_quiet_progress_still_writes_events() -> None:
    written, sink = terminal(quiet=True), io.StringIO()
    with Progress(written, ManualClock(), events=sink) as progress:
        progress(EVENTS[0])

    assert (err(written), sink.getvalue().count("\n")) == ("", 1)


def test_progress_on_a_terminal_keeps_each_change_with_its_time() -> None:
    written, clock = terminal(is_terminal=True, environ={"NO_COLOR": "1"}), ManualClock()
    with Progress(written, clock) as progress:
        progress(EVENTS[0])
        clock.sleep(timedelta(minutes=3))
        progress(event(EventKind.STATE, "READY \x1b[2J"))

    assert err(written) == "     0s → trainer creating v4-8\n     3m • trainer READY \\x1b[2J\n"


@pytest.mark.parametrize(
    ("environ", "in_pipe", "on_terminal"),
    [
        ({}, False, True),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": "0"}, False, False),
        ({"NO_COLOR": ""}, False, True),
        ({"CLICOLOR": "0"}, False, False),
        ({"CLICOLOR": "1"}, False, True),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"CLICOLOR_FORCE": "0"}, False, True),
        ({"CLICOLOR_FORCE": ""}, False, True),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "true"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "False"}, False, False),
        ({"FORCE_COLOR": ""}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"CLICOLOR_FORCE": "1", "CLICOLOR": "0"}, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, False, False),
        ({"FORCE_COLOR": "0", "CLICOLOR_FORCE": "1"}, False, False),
    ],
    ids=lambda value: ",".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else None,
)
def test_variables_decide_about_colors(environ: dict[str, str], in_pipe: bool, on_terminal: bool) -> None:
    assert (has_colors(environ, is_terminal=False), has_colors(environ, is_terminal=True)) == (in_pipe, on_terminal)


def test_forced_colors_leave_data_alone() -> None:
    forced = terminal(environ={"FORCE_COLOR": "1"})
    forced.table(NODE_COLUMNS, node_rows(NODES, NOW))
    forced.data({"a": 1}, OutputFormat.JSON)
    forced.warn("careful")

    assert "\x1b" not in out(forced)
    assert err(forced) == "\x1b[33mwarning: \x1b[0mcareful\n"
