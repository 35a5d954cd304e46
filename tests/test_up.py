"""`tpuctl up`: from whatever is there to usable."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, put, said, told


@pytest.fixture
def clock() -> EventfulClock:
    return EventfulClock()


def test_creates_a_node_and_waits_until_ssh_answers(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*UP)

    assert (out, code) == ("demo\tREADY\n", 0)
    assert told(err) == [
        "creating v4-8 with tpu-ubuntu2204-base: there is none yet",
        "CREATING",
        "READY",
        "usable, ssh answers, after 3m28s; its health is not reported yet",
    ]
    assert sandbox.changes() == ["create"]


def test_a_second_up_changes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)

    out, _, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])


def test_a_terminal_gets_a_table_and_marked_lines(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    out, err, code = tpuctl(*UP, terminal=True, NO_COLOR="1")

    assert out.splitlines() == [
        "NAME  ZONE           TYPE  STATE  HEALTH   WORKERS  AGE  TIER",
        "demo  us-central2-b  v4-8  READY  HEALTHY  1        1h   on-demand",
    ]
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", err).splitlines() if "sandbox:" not in line]
    assert (lines, code) == (["     0s • demo READY HEALTHY", "     0s ✓ demo usable, ssh answers, after 0s"], 0)


RECREATED = ["DELETING", "gone", "creating v4-8 with tpu-ubuntu2204-base: the old one is gone", "CREATING"]
STARTED = ["STOPPED", "starting it: it is STOPPED", "STARTING", "READY"]


@pytest.mark.parametrize(
    ("found", "lines", "changes"),
    [
        ("READY", ["READY HEALTHY"], []),
        ("STARTING", ["STARTING", "READY HEALTHY"], []),
        ("RESTARTING", ["RESTARTING", "READY HEALTHY"], []),
        ("REPAIRING", ["REPAIRING", "READY HEALTHY"], []),
        ("REIMAGING", ["REIMAGING", "READY HEALTHY"], []),
        ("UNHIDING", ["UNHIDING", "READY HEALTHY"], []),
        ("STOPPED", STARTED, ["start"]),
        ("STOPPING", ["STOPPING", *STARTED], ["start"]),
        ("DELETING", [*RECREATED, "READY HEALTHY"], ["create"]),
        (
            "PREEMPTED",
            ["PREEMPTED", "deleting it: it was preempted: only its record is left", *RECREATED, "READY HEALTHY"],
            ["delete", "create"],
        ),
        (
            "TERMINATED",
            ["TERMINATED", "deleting it: it is TERMINATED: only its record is left", *RECREATED, "READY HEALTHY"],
            ["delete", "create"],
        ),
    ],
)
def test_goes_on_from_whatever_is_there(
    tpuctl: Console, sandbox: Sandbox, found: str, lines: list[str], changes: list[str]
) -> None:
    put(sandbox, state=found)

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, changes)
    assert told(err)[:-1] == lines
    assert told(err)[-1].startswith("usable, ssh answers, after ")


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ("HIDDEN", "error: `demo` is HIDDEN: the service has withdrawn it"),
        ("UNKNOWN", "error: `demo` is in the state UNKNOWN, which follows a failed repair"),
    ],
)
def test_what_the_service_gave_up_is_said_to_be_broken(
    tpuctl: Console, sandbox: Sandbox, found: str, error: str
) -> None:
    put(sandbox, state=found)

    assert tpuctl(*UP) == (
        "",
        f"demo: {found}\n{error}\n  hint: delete it with `tpuctl delete demo`, then create it again\n",
        10,
    )
    assert sandbox.changes() == []


@pytest.mark.parametrize("found", ["STATE_UNSPECIFIED", "DEFRAGMENTING"])
def test_an_unknown_state_is_not_ready_and_is_waited_for(tpuctl: Console, sandbox: Sandbox, found: str) -> None:
    put(sandbox, state=found)

    _, err, code = tpuctl(*UP)

    new = ["state DEFRAGMENTING is new to this version of tpuctl"] if found == "DEFRAGMENTING" else []
    assert (told(err), code, sandbox.changes()) == (
        [
            found,
            *new,
            f"error: `demo` is not usable by ssh after 30m: it is {found}",
            "  hint: nothing was undone; go on waiting with `tpuctl wait demo --for ssh`, or end it with `tpuctl down demo`",
        ],
        5,
        [],
    )


def test_a_node_that_is_being_created_is_adopted(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP, "--no-wait")

    out, err, code = tpuctl("up", "demo", "--for", "ready")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert told(err) == ["CREATING", "READY", "ready after 3m28s; its health is not reported yet"]


def test_a_node_that_is_preempted_meanwhile_is_made_again(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("preempt", node="demo")

    out, err, code = tpuctl(*UP, "--spot")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "delete", "create"])
    assert told(err)[1:5] == [
        "CREATING",
        "PREEMPTED",
        "deleting it: it was preempted: only its record is left",
        "DELETING",
    ]


def test_what_was_preempted_is_made_again_as_it_was(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="TERMINATED", schedulingConfig={"spot": True}, labels={"team": "vision"})

    _, err, code = tpuctl("up", "demo")

    assert (code, sandbox.changes()) == (0, ["delete", "create"])
    assert told(err)[:3] == [
        "TERMINATED",
        "deleting it: it was preempted: only its record is left",
        "DELETING",
    ]
    assert tpuctl("list")[0].split("\t")[:4] == ["demo", ZONE, "v4-8", "READY"]
    assert tpuctl("list")[0].split("\t")[7] == "spot"


def test_a_stopped_spot_node_cannot_be_started_and_nothing_is_tried(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED", schedulingConfig={"spot": True})

    assert tpuctl("up", "demo") == (
        "",
        said(
            "demo: STOPPED",
            "error: `demo` is STOPPED, and it is a spot node, and those cannot be started again once stopped",
            "  hint: make it anew: `tpuctl reset demo --mode recreate`",
        ),
        8,
    )
    assert sandbox.changes() == []


def test_a_preempted_node_of_a_queued_resource_is_not_made_anew_on_its_own(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", queued_resource="research")

    assert tpuctl("up", "demo") == (
        "",
        said(
            "demo: PREEMPTED",
            "error: `demo` is PREEMPTED and belongs to the queued resource `research`: it cannot be made anew on its own",
            "  hint: `tpuctl down demo` deletes both; then `tpuctl up demo --type v4-8` makes a node",
        ),
        8,
    )
    assert sandbox.changes() == []


QUESTION = "delete `demo` and its boot disk, to make it anew (accelerator_type: wanted `v4-8`, found `v4-16`)?"


def test_a_node_that_differs_is_left_alone(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-16")

    assert tpuctl(*UP) == (
        "",
        said(
            "demo: READY HEALTHY",
            "error: `demo` exists and differs from what is asked for:",
            "  accelerator_type: wanted `v4-8`, found `v4-16`",
            "  hint: use it as it is: `tpuctl up demo` without these flags; or delete it and make it anew: add `--replace`",
        ),
        8,
    )
    assert sandbox.changes() == []


def test_replace_asks_and_a_no_changes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-16")

    nobody = tpuctl(*UP, "--replace")
    no = tpuctl(*UP, "--replace", stdin="n\n")

    assert nobody == (
        "",
        said(
            f"error: {QUESTION} needs a confirmation, and nobody can be asked here",
            "  hint: add `--yes` if you mean it; nothing was done (`--quiet` is about output only)",
        ),
        2,
    )
    assert no == ("", f"{QUESTION} [y/N] error: nothing was done\n", 1)
    assert sandbox.changes() == []


@pytest.mark.parametrize("how", [{"stdin": "y\n"}, {"yes": "--yes"}])
def test_replace_deletes_and_makes_anew(tpuctl: Console, sandbox: Sandbox, how: dict[str, str]) -> None:
    put(sandbox, acceleratorType="v4-16")

    out, _, code = tpuctl(*UP, "--replace", *([how["yes"]] if "yes" in how else []), stdin=how.get("stdin"))

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["delete", "create"])
    assert tpuctl("list")[0].split("\t")[:3] == ["demo", ZONE, "v4-8"]


def test_replace_does_not_delete_what_was_not_there_when_it_asked(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    tpuctl(*UP, "--no-wait")
    clock.after(timedelta(seconds=10), lambda: put(sandbox, acceleratorType="v4-16"))

    _, err, code = tpuctl(*UP, "--replace", "--yes")

    assert (code, sandbox.changes()) == (8, ["create"])
    assert "accelerator_type: wanted `v4-8`, found `v4-16`" in err


def test_labels_and_description_never_conflict_and_are_patched(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels={"team": "vision"})

    out, err, code = tpuctl(*UP, "--labels", "run=7", "--description", "for ada")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["patch"])
    assert told(err)[-1] == "labels, description updated"


def test_a_spec_from_the_journal_shows_its_age_and_tier_and_asks(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP, "--spot", "--no-wait")
    tpuctl("down", "demo", "--yes")
    sandbox.advance(hours=3)
    question = "create `demo` in us-central2-b as it was (v4-8 with tpu-ubuntu2204-base, spot, from 3h ago)?"

    assert tpuctl("up", "demo") == (
        "",
        said(
            f"error: {question} needs a confirmation, and nobody can be asked here",
            "  hint: add `--yes` if you mean it; nothing was done (`--quiet` is about output only)",
        ),
        2,
    )
    assert tpuctl("up", "demo", stdin="\n") == (
        "",
        f"{question} [y/N] error: nothing was done\n  hint: name what you want: `--type TYPE`\n",
        1,
    )
    assert sandbox.changes() == ["create", "delete"]
    assert tpuctl("up", "demo", "--yes", "--no-wait")[::2] == ("demo\tCREATING\n", 0)
    assert sandbox.changes() == ["create", "delete", "create"]


def test_without_a_type_and_a_past_it_asks_for_one(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "demo", "--zone", ZONE) == (
        "",
        said(
            "error: there is no node `demo` in us-central2-b yet: which accelerator type should it have?",
            "  hint: name one: `tpuctl up demo --type v4-8`; see `tpuctl types --zone us-central2-b`",
        ),
        2,
    )


def test_a_deadline_of_nothing_creates_and_says_what_goes_on(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl(*UP, "--timeout", "0")

    assert told(err)[2:] == [
        "error: `demo` is not usable by ssh after 0s: it is CREATING",
        "  hint: nothing was undone; go on waiting with `tpuctl wait demo --for ssh`, or end it with `tpuctl down demo`",
    ]
    assert (code, sandbox.changes()) == (5, ["create"])


def test_a_deadline_may_be_forever_and_must_be_a_duration(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("hang", state="CREATING", duration=timedelta(minutes=40))

    assert tpuctl(*UP, "--timeout", "soon") == (
        "",
        said(
            "error: invalid value for `--timeout`: `soon` is not a duration; write it like 90s, 30m, 2h or 1h30m",
            "  hint: see `tpuctl up --help`",
        ),
        2,
    )
    assert sandbox.changes() == []
    assert tpuctl(*UP, "--timeout", "forever")[::2] == ("demo\tREADY\n", 0)


@pytest.mark.parametrize(
    ("goal", "last"),
    [
        ("ready", "ready after 3m28s; its health is not reported yet"),
        ("healthy", "healthy after 3m34s"),
        ("ssh", "usable, ssh answers, after 3m28s; its health is not reported yet"),
    ],
)
def test_usable_has_levels(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], goal: str, last: str
) -> None:
    if goal != "ssh":
        fake_ssh("exit 255")

    out, err, code = tpuctl(*UP, "--for", goal)

    assert (out, told(err)[-1], code) == ("demo\tREADY\n", last, 0)


REFUSES_TWICE = """echo x >> {log}
[ "$(wc -l < {log})" -gt 2 ] && exit 0
echo 'ada@10.0.0.1: Permission denied (publickey).' >&2
exit 255"""


def test_a_node_that_refuses_our_key_gets_it_once(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path
) -> None:
    put(sandbox, metadata={"ssh-keys": "eve:ssh-ed25519 AAAA eve", "note": "kept"})
    fake_ssh(REFUSES_TWICE.format(log=tmp_path / "asked"))

    out, err, code = tpuctl("up", "demo")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["patch"])
    assert told(err) == [
        "READY HEALTHY",
        "adding our ssh key to its metadata",
        "its worker refuses the key",
        "usable, ssh answers, after 4s",
    ]
    metadata = put(sandbox, "other", metadata={}) and tpuctl("status", "demo", "-o", "json")[0]
    assert '"note": "kept"' in metadata
    assert "eve:ssh-ed25519 AAAA eve\\n" in metadata
