"""`tpuctl up`: from any state to usable."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, both_faces, put, said, told


@both_faces
def test_up_creates_a_node_and_waits_until_ssh_answers(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*UP)

    assert (out, code) == ("demo\tREADY\n", 0)
    assert told(err) == [
        "creating v4-8 (tpu-ubuntu2204-base, about $12.88/h)",
        "CREATING",
        "READY",
        "usable (ssh) after 3m28s",
    ]
    assert sandbox.changes() == ["create"]


def test_second_up_changes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)

    out, _, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])


def test_up_on_a_terminal_has_a_table_and_marked_lines(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    out, err, code = tpuctl(*UP, terminal=True, NO_COLOR="1")

    assert out.splitlines() == [
        "NAME  ZONE           TYPE  STATE  HEALTH   CHIPS  AGE  TIER       NOTE",
        "demo  us-central2-b  v4-8  READY  HEALTHY      4  1h   on-demand",
    ]
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", err).splitlines() if "sandbox:" not in line]
    assert (lines, code) == (["     0s • demo READY HEALTHY", "        ✓ demo usable (ssh) after 0s"], 0)


QUESTION = "delete `demo` and its boot disk, and recreate it (accelerator_type: wanted `v4-8`, found `v4-16`)?"


def test_up_of_a_differing_node_changes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-16")

    assert tpuctl(*UP) == (
        "",
        said(
            "demo: READY HEALTHY",
            "error: `demo` exists and differs from the requested spec:",
            "  accelerator_type: wanted `v4-8`, found `v4-16`",
            "  hint: to use it unchanged, leave out the options that differ; to delete and recreate it, add `--replace`",
        ),
        8,
    )
    assert sandbox.changes() == []


def test_replace_asks_and_changes_nothing_without_yes(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-16")

    unanswered = tpuctl(*UP, "--replace")
    no = tpuctl(*UP, "--replace", stdin="n\n")

    assert unanswered == (
        "",
        said(
            f"error: cannot ask for confirmation ({QUESTION}): stdin is not a terminal",
            "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)",
        ),
        2,
    )
    assert no == ("", f"{QUESTION} [y/N] cancelled\n", 1)
    assert sandbox.changes() == []


@pytest.mark.parametrize("how", [{"stdin": "y\n"}, {"yes": "--yes"}])
def test_replace_deletes_and_recreates(tpuctl: Console, sandbox: Sandbox, how: dict[str, str]) -> None:
    put(sandbox, acceleratorType="v4-16")

    out, _, code = tpuctl(*UP, "--replace", *([how["yes"]] if "yes" in how else []), stdin=how.get("stdin"))

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["delete", "create"])
    assert tpuctl("list")[0].split("\t")[:3] == ["demo", ZONE, "v4-8"]


def test_replace_does_not_delete_an_unconfirmed_node(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    tpuctl(*UP, "--no-wait")
    clock.after(timedelta(seconds=10), lambda: put(sandbox, acceleratorType="v4-16"))

    _, err, code = tpuctl(*UP, "--replace", "--yes")

    assert (code, sandbox.changes()) == (8, ["create"])
    assert "accelerator_type: wanted `v4-8`, found `v4-16`" in err


@both_faces
def test_labels_and_description_are_patched(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels={"team": "vision"})

    out, err, code = tpuctl(*UP, "--labels", "run=7", "--description", "for ada")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["patch"])
    assert told(err)[-1] == "labels, description updated"


def test_spec_from_the_journal_is_confirmed_with_age_and_tier(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP, "--spot", "--no-wait")
    tpuctl("down", "demo", "--yes")
    sandbox.advance(hours=3)
    question = "create `demo` in us-central2-b with the spec it had (v4-8 with tpu-ubuntu2204-base, spot, from 3h ago)?"

    zone = "demo: in us-central2-b, where it was before"
    assert tpuctl("up", "demo") == (
        "",
        said(
            zone,
            f"error: cannot ask for confirmation ({question}): stdin is not a terminal",
            "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)",
        ),
        2,
    )
    assert tpuctl("up", "demo", stdin="\n") == (
        "",
        f"{zone}\n{question} [y/N] cancelled\n  hint: name another type: `--type TYPE`\n",
        1,
    )
    assert sandbox.changes() == ["create", "delete"]
    assert tpuctl("up", "demo", "--yes", "--no-wait")[::2] == ("demo\tCREATING\n", 0)
    assert sandbox.changes() == ["create", "delete", "create"]


def test_up_without_a_type_and_a_journal_is_refused(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "demo", "--zone", ZONE) == (
        "",
        said(
            "error: cannot create `demo` in us-central2-b: no accelerator type given",
            "  hint: name one, such as `tpuctl up demo --type v4-8 --zone us-central2-b`; "
            "see `tpuctl types --zone us-central2-b`",
        ),
        2,
    )


def test_timeout_of_zero_polls_once(tpuctl: Console, sandbox: Sandbox) -> None:
    look = (*UP, "--timeout", "0")

    assert tpuctl(*look) == (
        "",
        said(
            "error: `demo` does not exist and was not created",
            "  hint: nothing is billed; `tpuctl up demo --type v4-8 --zone us-central2-b` creates it",
        ),
        5,
    )
    assert sandbox.changes() == []
    tpuctl(*UP, "--no-wait")
    assert tpuctl(*look) == (
        "",
        said(
            "demo: CREATING",
            "error: `demo` is not usable by ssh: it is CREATING",
            "  hint: no change was undone; continue with `tpuctl wait demo --for ssh --zone us-central2-b`, "
            "or delete it with `tpuctl down demo --zone us-central2-b`",
        ),
        5,
    )
    tpuctl("wait", "demo")
    assert tpuctl(*look)[::2] == ("demo\tREADY\n", 0)
    assert sandbox.changes() == ["create"]


@pytest.mark.parametrize(
    ("node", "options", "code", "words"),
    [
        pytest.param({}, ("--labels", "a=b", "--ttl", "2h", "--idle", "1h"), 0, "usable", id="labels and limits"),
        pytest.param({"acceleratorType": "v4-16"}, ("--replace", "--yes"), 5, "it differs: accelerator", id="replace"),
        pytest.param({"acceleratorType": "v4-16"}, (), 8, "exists and differs", id="differs"),
        pytest.param({"state": "PREEMPTED"}, (), 5, "it is PREEMPTED", id="preempted"),
        pytest.param({"state": "STOPPED"}, ("--ttl", "2h"), 5, "it is STOPPED", id="stopped"),
    ],
)
def test_timeout_of_zero_sends_and_writes_nothing(
    tpuctl: Console, sandbox: Sandbox, *, node: dict[str, str], options: tuple[str, ...], code: int, words: str
) -> None:
    put(sandbox, **node)

    _, err, found = tpuctl(*UP, "--timeout", "0", *options)

    assert (found, sandbox.changes()) == (code, [])
    assert words in err
    assert [path for path in Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("*demo*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("node", "options", "sent", "words"),
    [
        pytest.param(
            {"acceleratorType": "v4-16"},
            ("--replace", "--yes"),
            ["delete"],
            "its deletion was requested (it differs: accelerator_type: wanted `v4-8`, found `v4-16`); its creation is to",
            id="replace",
        ),
        pytest.param(
            {"state": "PREEMPTED"},
            (),
            ["delete"],
            "its deletion was requested (it was preempted: only its record is left); its creation is to follow",
            id="preempted",
        ),
        pytest.param(
            {"state": "DELETING"}, (), [], "nothing was sent (it is being deleted); its creation", id="deleting"
        ),
        pytest.param({"state": "STOPPING"}, (), [], "nothing was sent (it is STOPPING); its start is", id="stopping"),
    ],
)
def test_no_wait_says_what_is_to_follow_a_deletion(
    tpuctl: Console, sandbox: Sandbox, *, node: dict[str, str], options: tuple[str, ...], sent: list[str], words: str
) -> None:
    put(sandbox, **node)

    out, err, code = tpuctl(*UP, "--no-wait", *options)

    assert (out, code, sandbox.changes()) == ("", 5, sent)
    assert f"error: `demo` is not usable by ssh: {words}" in err
    assert re.search(r"hint: `tpuctl up demo .*` waits until that is possible, and requests it", err)


def test_no_wait_does_not_replace_a_node_in_creation(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl("up", "demo", "--type", "v4-16", "--zone", ZONE, "--no-wait")

    _, err, code = tpuctl(*UP, "--no-wait", "--replace", "--yes")

    assert (code, sandbox.changes()) == (5, ["create"])
    assert "nothing was sent (it is CREATING and will be replaced when that has ended); its replacement is to" in err


def test_node_deleted_without_waiting_is_created_by_the_next_run(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, acceleratorType="v4-16")
    tpuctl(*UP, "--no-wait", "--replace", "--yes")

    assert tpuctl(*UP)[::2] == ("demo\tREADY\n", 0)
    assert sandbox.changes() == ["delete", "create"]


def test_timeout_of_zero_in_several_zones_takes_no_lease(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "demo", "--type", "v6e-8", "--zone", "us-east5-a,us-east5-b", "--timeout", "0")

    assert tpuctl(*up)[2] == 5
    put(sandbox, zone="us-east5-b", acceleratorType="v6e-8", runtimeVersion="v2-alpha-tpuv6e")
    assert tpuctl(*up)[2] == 0
    assert sandbox.changes() == []
    assert [path for path in Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("*demo*") if path.is_file()] == []


def test_timeout_of_zero_leaves_a_setup_to_the_next_run(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]
) -> None:
    fake_ssh("cat > /dev/null; echo; echo tpuctl-set-up-begins")
    assert tpuctl(*UP, "--setup", "true", "--no-wait")[2] == 0
    assert tpuctl("wait", "demo")[2] == 0
    (journal,) = Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("demo*.jsonl")
    before = journal.read_bytes()

    _, err, code = tpuctl("up", "demo", "--timeout", "0")

    assert (code, "its set-up has not succeeded yet" in err) == (5, True)
    assert journal.read_bytes() == before
    assert tpuctl("up", "demo")[2] == 0


def test_timeout_is_a_duration_or_forever(tpuctl: Console, sandbox: Sandbox) -> None:
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
        ("ready", "ready after 3m28s"),
        ("healthy", "healthy after 3m34s"),
        ("ssh", "usable (ssh) after 3m28s"),
    ],
)
def test_up_for_each_level(
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


@both_faces
def test_node_that_refuses_our_key_gets_it_once(
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
        "usable (ssh) after 4s",
    ]
    metadata = put(sandbox, "other", metadata={}) and tpuctl("status", "demo", "-o", "json", "--show-metadata")[0]
    assert '"note": "kept"' in metadata
    assert "eve:ssh-ed25519 AAAA eve\\n" in metadata


def test_flags_without_effect_are_refused(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("demo", zone="us-central2-b")

    assert tpuctl("up", "demo", "--labels", "a=b", "--zone", "us-central2-b") == (
        "",
        "error: no accelerator type given for `--labels`\n  hint: add `--type TYPE`; for an existing node its own type\n",
        2,
    )
    assert sandbox.changes() == []
