"""The summary of a step of GitHub Actions: what it says, and that it never breaks a command."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, put
from tpuctl.errors import QuotaError, TpuctlError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.names import NodeName
from tpuctl.output.step_summary import MAX_FILE_BYTES, StepSummary, escape_markdown

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEADER = "| node | zone | type | capacity | steps | result | per hour |\n| --- | --- | --- | --- | --- | --- | --- |\n"


def event(kind: EventKind, text: str, *, node: str = "demo", **data: Any) -> NodeEvent:
    return NodeEvent(kind, NOW, NodeName("p", "us-central2-b", node), text, data)


def summary(*events: NodeEvent, path: Path = Path("summary.md")) -> StepSummary:
    made = StepSummary(path, "tpuctl up demo")
    for each in events:
        made(each)
    return made


def rows(made: StepSummary) -> list[str]:
    return made.markdown().partition(HEADER)[2].split("\n\n")[0].splitlines()


@pytest.mark.parametrize(
    ("events", "row"),
    [
        ([event(EventKind.STATE, "READY")], "| demo | us-central2-b |  |  |  | READY |  |"),
        (
            [
                event(EventKind.ACTION, "creating it", verb="create"),
                event(EventKind.STATE, "READY"),
                event(EventKind.REACHED, "usable after 4m"),
            ],
            "| demo | us-central2-b |  |  | create | usable after 4m |  |",
        ),
        (
            [event(EventKind.ACTION, "x", verb=verb) for verb in ("create", "restart", "update", "restart")],
            "| demo | us-central2-b |  |  | create, restart (2 times) |  |  |",
        ),
        (
            [event(EventKind.RECOVERED, text) for text in ("first", "second", "third")],
            "| demo | us-central2-b |  |  |  | second; third |  |",
        ),
    ],
    ids=["state", "created", "steps", "last-results"],
)
def test_node_has_its_steps_and_results(events: list[NodeEvent], row: str) -> None:
    assert rows(summary(*events)) == [row]


def test_summary_has_the_failure_with_its_hints() -> None:
    made = summary()
    made.fail(TpuctlError("broken", details=["badly"], hint="run `a`\nor b"))
    made.is_sandbox = True

    assert made.markdown() == (
        "\n\n### tpuctl up demo\n\nSandbox: nothing here is real, and nothing is billed.\n\n"
        "Failed with exit code 1: broken\n- badly\n- hint: run <code>a</code>\n- hint: or b\n\n"
    )


def test_row_of_a_deleted_node_is_not_usable_and_lists_are_flush() -> None:
    made = summary()
    made.expect(NodeName("p", "us-central2-b", "demo"), "v4-8", "spot")
    made.expect(NodeName("p", "us-central2-b", "other"), "v4-8", "spot")
    made(event(EventKind.ACTION, "creating it", verb="create"))
    made(event(EventKind.REACHED, "usable after 4m"))
    made(event(EventKind.ACTION, "deleting it", verb="delete"))
    made.note("terminated", "  resume: tpuctl up")

    assert rows(made) == ["| demo | us-central2-b | v4-8 | spot | create, delete | being deleted |  |"]
    assert made.markdown().endswith("terminated\n- resume: tpuctl up\n\n")


def test_wait_without_a_change_is_no_summary(tmp_path: Path) -> None:
    made = summary(event(EventKind.WAIT, "it is CREATING", state="CREATING"), path=tmp_path / "summary.md")
    made.write()

    assert (made.markdown(), list(tmp_path.iterdir())) == ("", [])


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a&#124;b"),
        ("<script>alert(1)</script>", "&#60;script&#62;alert(1)&#60;/script&#62;"),
        ("[a](https://x) ![b](y)", "&#91;a&#93;(https://x) &#33;&#91;b&#93;(y)"),
        ("# a\n## b", "&#35; a&#92;n&#35;&#35; b"),
        ("`a` *b* _c_ ~d~", "<code>a</code> &#42;b&#42; &#95;c&#95; &#126;d&#126;"),
        ("`<b>|*x*` `", "<code>&#60;b&#62;&#124;&#42;x&#42;</code> &#96;"),
        ("$e$ @f &lt;", "&#36;e&#36; &#64;f &#38;lt;"),
        ("\x1b[31m\u202e", "&#92;x1b&#91;31m&#92;u202e"),
        ("x" * 501, "x" * 500 + "…"),
    ],
    ids=["cell", "html", "link", "heading", "marks", "code", "signs", "control", "long"],
)
def test_text_has_no_effect_as_markdown(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


def test_summary_is_bounded() -> None:
    made = summary(*(event(EventKind.STATE, "|" * 600, node=f"n-{index}") for index in range(1000)))
    made.table(("a", "b"), [("x" * 600, "y")] * 1000)
    for _ in range(1000):
        made.note("z" * 600, *["z" * 600] * 3)

    text = made.markdown()
    assert (len(rows(made)), text.count("and 900 more"), text.count("and 980 more")) == (100, 2, 1)
    assert len(text.encode()) < MAX_FILE_BYTES / 2


@pytest.mark.parametrize(("there", "fits"), [(MAX_FILE_BYTES - 1000, True), (MAX_FILE_BYTES - 10, False)])
def test_summary_is_appended_if_there_is_room(tmp_path: Path, there: int, fits: bool) -> None:
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * there)
    made = summary(event(EventKind.STATE, "READY"), path=path)

    if fits:
        made.write()
    else:
        with pytest.raises(OSError, match="larger than GitHub shows"):
            made.write()
    assert path.read_text() == "x" * there + (made.markdown() if fits else "")


@pytest.mark.parametrize("kind", ["missing-folder", "folder", "fifo"])
def test_unwritable_summary_is_a_warning(tpuctl: Console, sandbox: Sandbox, tmp_path: Path, kind: str) -> None:
    put(sandbox)
    path = tmp_path / "summary"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = path / "missing"

    out, err, code = tpuctl("wait", "demo", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(path))

    (warning,) = [line for line in err.splitlines() if line.startswith("::warning")]
    assert (out, code) == ("demo\tREADY\n", 0)
    assert warning.startswith(f"::warning title=tpuctl::cannot write the summary of this step to `{path}`: ")


def test_up_and_down_are_summarized(tpuctl: Console, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    up = ("up", "demo", "--type", "v5litepod-8", "--zone", "us-central1-a", "--for", "ready", "-o", "json")

    out, _, code = tpuctl(*up, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(path))
    assert tpuctl("down", "demo", "--yes", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(path))[2] == 0

    assert (code, json.loads(out)["state"]) == (0, "READY")
    created, deleted = [line for line in path.read_text().splitlines() if line.startswith("| demo")]
    assert created.startswith("| demo | us-central1-a | v5litepod-8 | on-demand | create | ready after ")
    assert created.endswith(" | &#36;9.60 |")
    assert deleted.startswith("| demo | us-central1-a |  |  | delete | gone after ")


def test_failure_is_summarized_and_json_stays_json(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    sandbox.fault("quota", count=0)

    out, err, code = tpuctl(*UP, "-o", "json", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(path))

    assert (out, code) == ("", QuotaError.exit_code)
    assert "Failed with exit code 7: " in path.read_text()
    assert "::error" not in err
