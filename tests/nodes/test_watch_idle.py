"""`watch --idle`: idle nodes are deleted or stopped; what is used, or cannot be examined, is not idle."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tpuctl.models.node import Node
from tpuctl.nodes.idle_limit import IdleAction, IdleLimit

# Answers only the program that examines the worker; all probes succeed.
FAKE_SSH = """\
program=$(grep -m1 -o 'run_agent(serve_[a-z_]*')
case "$program" in
    *worker_use) printf '\\n\\0tpuctl-agent\\nx\\0\\0\\0\\%03o%s' {size} '{answer}' ;;
    ?*) echo "no such program" >&2; exit 1 ;;
esac
exit 0
"""
IDLE = '{"inUse":[],"unknown":[],"uses":[],"age":9000,"last":"it booted"}'
OWNED = {"tpuctl-owner": "you_example-com"}
OF_ADA = {"tpuctl-owner": "ada"}


def answering(answer: str) -> str:
    return FAKE_SSH.replace("\\%03o", f"\\{len(answer):03o}").replace("{size} ", "").replace("{answer}", answer)


# what the workers answer, labels of the node, its type, options; changes requested, the end of the watch in words
_WATCHES: dict[str, tuple[str, dict[str, str], str, tuple[str, ...], list[str], str]] = {
    "created-by-tpuctl": (IDLE, OWNED, "v4-8", (), ["delete"], "it was idle for 12m: it is being deleted"),
    "of-others": (IDLE, {}, "v4-8", ("--yes",), ["stop"], "it was idle for 12m: it is being stopped"),
    "stop": (IDLE, OWNED, "v4-8", ("--on-idle", "stop"), ["stop"], "it was idle for 12m: it is being stopped"),
    "slice": (IDLE, OWNED, "v4-16", (), ["delete"], "it was idle for 12m: it is being deleted"),
    "of-others-unconfirmed": (IDLE, {}, "v4-8", (), [], "no idle limit is applied, because this run did not create"),
    "of-another-user": (IDLE, OF_ADA, "v4-8", (), [], "no idle limit is applied, because this run did not create"),
    "slice-of-others": (IDLE, {}, "v4-16", ("--yes",), [], "an idle node is not stopped: it is a slice of 2 workers"),
    "kept": (
        IDLE,
        {**OWNED, "tpuctl-keep": ""},
        "v4-8",
        (),
        [],
        "an idle node is not ended: it has the label tpuctl-keep",
    ),
    "used-between-two-looks": (
        IDLE.replace("9000", "40").replace("it booted", "a job ended"),
        OWNED,
        "v4-8",
        (),
        [],
        "",
    ),
    "used-before": (
        IDLE.replace("9000", "90"),
        OWNED,
        "v4-8",
        (),
        ["delete"],
        "it was idle for 12m: it is being deleted",
    ),
    "in-use": (IDLE.replace("[]", '["a job runs"]', 1), OWNED, "v4-8", (), [], ""),
    "partly-unknown": (IDLE.replace('wn":[]', 'wn":["no /proc"]'), OWNED, "v4-8", (), [], ""),
    "garbled": ('{"inUse":7}', OWNED, "v4-8", (), [], ""),
}


@pytest.mark.parametrize("row", _WATCHES.values(), ids=_WATCHES.keys())
def test_watch_ends_what_was_idle_for_the_time_of_its_limit(
    tpuctl: Console,
    sandbox: Sandbox,
    fake_ssh: Callable[[str], None],
    row: tuple[str, dict[str, str], str, tuple[str, ...], list[str], str],
) -> None:
    answer, labels, type_, options, changes, text = row
    fake_ssh(answering(answer))
    sandbox.add_node("trainer", acceleratorType=type_, labels=labels, age=timedelta(days=1))

    _, err, code = tpuctl("watch", "trainer", "--idle", "12m", *options, "--until", "16m", TPUCTL_RECHECK_AFTER="1m")

    assert ([one for one in sandbox.changes() if one != "patch"], code) == (changes, 0), err
    assert text in err
    assert ("idle for 2" in err) == bool(changes)
    if changes:
        history = [line.split("\t")[1:] for line in tpuctl("history", "trainer")[0].splitlines()]
        assert [changes[0], "", "idle"] in history


def _frame(answer: str) -> str:
    return "\n\0tpuctl-agent\nx" + len(answer).to_bytes(4, "big").decode("latin-1") + answer


def _holding(idle: list[float | None]) -> str:
    """Return the report of a program that holds the chips, of which each has computed nothing for some seconds."""
    program = {"pid": 7, "user": "ada", "age": 9000.0, "command": "python3 train.py"}
    devices = [
        {"device": number, "hbmUsed": 1, "hbmTotal": 2, "duty": 0.0, "idle": seconds}
        for number, seconds in enumerate(idle)
    ]
    report = {"chips": len(idle), "programs": [program], "hidden": 0, "devices": devices, "cores": [], "problem": None}
    return json.dumps({**report, "cpu": None, "memory": None, "diskFree": None})


@pytest.mark.parametrize(
    ("idle", "warns"),
    [
        pytest.param([900.0, 800.0], True, id="all"),
        pytest.param([900.0, 30.0], False, id="one computes"),
        pytest.param([900.0, None], False, id="one unknown"),
    ],
)
def test_watch_warns_of_a_program_that_holds_chips_and_computes_nothing(
    tpuctl: Console,
    sandbox: Sandbox,
    fake_ssh: Callable[[str], None],
    tmp_path: Path,
    *,
    idle: list[float | None],
    warns: bool,
) -> None:
    """It is no idleness: the node is kept."""
    busy = IDLE.replace('"inUse":[]', '"inUse":["process 7 (python3) holds the TPU"]')
    for name, answer in (("worker_use", busy), ("tpu_metrics", _holding(idle))):
        (tmp_path / name).write_text(_frame(answer), "latin-1")
    fake_ssh(
        "program=$(grep -m1 -o 'run_agent(serve_[a-z_]*')\n"
        f"case \"$program\" in *worker_use|*tpu_metrics) cat '{tmp_path}'/${{program#*serve_}} ;; ?*) exit 1 ;; esac\nexit 0"
    )
    sandbox.add_node("trainer", acceleratorType="v4-8", labels=OWNED, age=timedelta(days=1))

    watch = ("watch", "trainer", "--idle", "12m", "--until", "16m", "--events", "-")
    out, _, code = tpuctl(*watch, TPUCTL_RECHECK_AFTER="1m")

    assert (code, [one for one in sandbox.changes() if one != "patch"]) == (0, [])
    text = "its chips have computed nothing for 13m20s, although a program holds them: `tpuctl stacks trainer --device`"
    warnings = [one for one in map(json.loads, out.splitlines()) if "chips_idle" in one]
    assert [(one["event"], one["text"], one["chips_idle"]) for one in warnings] == [("note", text, 800)] * warns


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(("--idle", "0s"), "`--idle 0s` is not between 5m and 365d", id="zero"),
        pytest.param(("--idle", "8"), "`8` has no unit: write `8h` for hours or `8m` for minutes", id="no-unit"),
        pytest.param(("--idle", "299s"), "`--idle 4m59s` is not between 5m and 365d", id="too-short"),
        pytest.param(("--idle", "366d"), "`--idle 366d` is not between 5m and 365d", id="too-long"),
        pytest.param(("--on-idle", "stop"), "`--on-idle` needs a time", id="no-time"),
    ],
)
def test_idle_limit_out_of_bounds_is_an_error(offline: Console, words: tuple[str, ...], expected: str) -> None:
    _, err, code = offline("watch", "trainer", *words)

    assert (expected in err, code) == (True, 2), err


def node(kind: str, *, owned: bool, owner: str = "", spot: bool = False, kept: bool = False) -> Node:
    labels = {
        **(OWNED if owned else {}),
        **({"tpuctl-owner": owner} if owner else {}),
        **({"tpuctl-keep": ""} if kept else {}),
    }
    return Node.from_api(
        {
            "name": "projects/p/locations/us-central2-b/nodes/trainer",
            "acceleratorType": kind,
            "labels": labels,
            "schedulingConfig": {"spot": spot},
        }
    )


@pytest.mark.parametrize(
    ("found", "chosen", "expected"),
    [
        pytest.param(node("v4-8", owned=True), None, IdleAction.DELETE, id="ours"),
        pytest.param(node("v4-8", owned=False), None, IdleAction.STOP, id="of-others"),
        pytest.param(node("v4-8", owned=True, owner="ann"), None, IdleAction.STOP, id="of-another-account"),
        pytest.param(node("v4-8", owned=True, owner="ann"), IdleAction.DELETE, IdleAction.DELETE, id="as-asked-for"),
        pytest.param(node("v4-16", owned=False), None, None, id="slice-of-others"),
        pytest.param(node("v4-16", owned=True), IdleAction.STOP, None, id="slice-to-stop"),
        pytest.param(node("v4-16", owned=False), IdleAction.DELETE, IdleAction.DELETE, id="slice-to-delete"),
        pytest.param(node("v4-8", owned=True, kept=True), IdleAction.DELETE, None, id="kept"),
        pytest.param(node("v4-8", owned=False, spot=True), None, IdleAction.STOP, id="spot"),
    ],
)
def test_action_for_an_idle_node(found: Node, chosen: IdleAction | None, expected: IdleAction | None) -> None:
    assert IdleLimit(timedelta(hours=1), chosen, OWNED["tpuctl-owner"]).action_for(found) is expected
