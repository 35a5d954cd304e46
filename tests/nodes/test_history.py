"""`tpuctl history`: the timeline of a node from its journal; and usual durations of creations from many."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, said
from tpuctl.cloud.storage import StorageClient
from tpuctl.errors import ExitCode
from tpuctl.models.spec import NodeSpec
from tpuctl.names import BucketPath, NodeName
from tpuctl.nodes.journal import BucketJournalStore, Journal
from tpuctl.sandbox import administration
from tpuctl.sandbox.in_process import SandboxHttp

START = datetime(2026, 1, 1, tzinfo=UTC)
NAME = NodeName("sandbox", ZONE, "trainer")
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="img").to_json()

Told = tuple[float, str, dict[str, Any]]


def seen(at: float, state: str | None, health: str | None = None, node_id: str = "1") -> Told:
    return at, "state", {"state": state, "health": health, "id": node_id}


LIFE: tuple[Told, ...] = (
    (0, "create", {"spec": SPEC, "reason": "there is none"}),
    (2, "bringing-up", {"id": "1"}),
    seen(3, "CREATING"),
    seen(200, "READY", "HEALTHY"),
    (210, "usable", {"id": "1", "level": "ssh", "took": 210.0}),
    seen(4000, "READY", "TIMEOUT"),
    (4300, "restart", {"id": "1", "reason": "READY but TIMEOUT for 5m"}),
    seen(4302.5, "STOPPING"),
    seen(4400, "PREEMPTED"),
    (4400, "preempted", {"id": "1"}),
    (4401, "delete", {"id": "1", "spec": SPEC, "reason": "it was preempted"}),
    seen(4402, None),
    (4402, "create", {"spec": SPEC, "reason": "it was preempted"}),
    seen(4405, "CREATING", node_id="2"),
    seen(4700, "READY", "HEALTHY", node_id="2"),
    (4710, "usable", {"id": "2", "level": "ssh"}),
)


def write(journal: Journal, life: tuple[Told, ...], name: NodeName = NAME) -> None:
    for at, event, data in life:
        journal.append(name, event, START + timedelta(seconds=at), durable=False, **data)


@pytest.fixture
def lived(tpuctl: Console) -> Console:
    """The program two hours after a node's life began, with its journal."""
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"
    write(Journal(folder, writer="here 1"), LIFE)
    tpuctl("list")
    tpuctl.clock.sleep(timedelta(hours=2))
    return tpuctl


def test_history_on_a_terminal_has_bars_and_totals(lived: Console) -> None:
    assert lived("history", "trainer", terminal=True, width=110, NO_COLOR="1") == (
        said(
            "TIME (UTC)           WHAT             FOR                                       WHY",
            "2026-01-01 00:00:00  → create                                                   there is none: v4-8 with img…",
            "2026-01-01 00:00:03    CREATING       3m17s   █▋",
            "2026-01-01 00:03:20    READY HEALTHY  1h03m   ████████████████████████████████",
            "2026-01-01 00:03:30  ✓ usable                                                   ssh, after 3m30s",
            "2026-01-01 01:06:40    READY TIMEOUT  5m02s   ██▌",
            "2026-01-01 01:11:40  → restart                                                  READY but TIMEOUT for 5m",
            "2026-01-01 01:11:42    STOPPING       1m38s   ▉",
            "2026-01-01 01:13:20    PREEMPTED      2s      ▏",
            "2026-01-01 01:13:20  ! preempted",
            "2026-01-01 01:13:21  → delete                                                   it was preempted",
            "2026-01-01 01:13:22    gone",
            "2026-01-01 01:13:22  → create                                                   it was preempted: v4-8 with…",
            "2026-01-01 01:13:25    CREATING       4m55s   ██▌",
            "2026-01-01 01:18:20    READY HEALTHY  41m40s  █████████████████████             as last seen",
            "2026-01-01 01:18:30  ✓ usable                                                   ssh, after 5m08s",
            "",
            "usable          1h44m of 2h (87%)",
            "repairs         1 restart",
            "preempted       1 time",
            "time to usable  4m19s (median of 2)",
        ),
        "sandbox: nothing here is real, and nothing is billed\n",
        0,
    )


def _guarded(*later: Told) -> tuple[Told, ...]:
    until = {"id": "1", "ok": True, "text": "guarded", "until": "2026-01-01T00:10:00Z"}
    return (*LIFE[:5], (220, "guard", until), *later)


@pytest.mark.parametrize(
    ("life", "expired"),
    [
        pytest.param(_guarded(), "2026-01-01T00:10:00Z", id="not-seen-after"),
        pytest.param(_guarded((660, "usable", {"id": "1"})), "2026-01-01T00:11:00Z", id="alive-shortly-after"),
        pytest.param(_guarded((1500, "usable", {"id": "1"})), None, id="alive-long-after"),
        pytest.param(_guarded((590, "delete", {"id": "1", "spec": SPEC})), None, id="deleted"),
        pytest.param(_guarded((590, "extend", {"id": "1", "reason": "expires never"})), None, id="never-any-more"),
        pytest.param(_guarded((590, "delete", {"id": "1", "spec": SPEC}), seen(630, None)), None, id="gone"),
    ],
)
def test_history_ends_with_what_the_guard_did(tpuctl: Console, life: tuple[Told, ...], expired: str | None) -> None:
    write(Journal(Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal", writer="here 1"), life)
    tpuctl("list")
    tpuctl.clock.sleep(timedelta(hours=2))

    lines = [line.split("\t") for line in tpuctl("history", "trainer")[0].splitlines()]

    assert [line[0] for line in lines if line[1] == "expired"] == ([expired] if expired else [])


def test_history_on_a_narrow_terminal_has_no_bars(lived: Console) -> None:
    narrow, _, _ = lived("history", "trainer", "-n", "3", terminal=True, width=60, NO_COLOR="1")
    colored, _, _ = lived("history", "trainer", "-n", "2", terminal=True, width=100)

    assert narrow.split("\n\n")[0].splitlines() == [
        "TIME (UTC)      WHAT             FOR     WHY",
        "01-01 01:13:25    CREATING       4m55s",
        "01-01 01:18:20    READY HEALTHY  41m40s  as last seen",
        "01-01 01:18:30  ✓ usable                 ssh, after 5m08s",
    ]
    assert colored.splitlines()[1:3] == [
        f"\x1b[2m2026-01-01 01:18:20\x1b[0m  \x1b[32m  READY HEALTHY\x1b[0m  41m40s  \x1b[32m{'█' * 32}\x1b[0m  as last seen",
        f"\x1b[2m2026-01-01 01:18:30\x1b[0m  \x1b[32m✓ usable\x1b[0m{' ' * 51}ssh, after 5m08s",
    ]


def test_history_in_a_pipe_has_tabs_times_and_seconds(lived: Console) -> None:
    assert lived("history", "trainer", "-n", "11") == (
        said(
            "2026-01-01T01:06:40Z\tREADY TIMEOUT\t302.5s\t",
            "2026-01-01T01:11:40Z\trestart\t\tREADY but TIMEOUT for 5m",
            "2026-01-01T01:11:42Z\tSTOPPING\t97.5s\t",
            "2026-01-01T01:13:20Z\tPREEMPTED\t2s\t",
            "2026-01-01T01:13:20Z\tpreempted\t\t",
            "2026-01-01T01:13:21Z\tdelete\t\tit was preempted",
            "2026-01-01T01:13:22Z\tgone\t\t",
            "2026-01-01T01:13:22Z\tcreate\t\tit was preempted: v4-8 with img, on-demand",
            "2026-01-01T01:13:25Z\tCREATING\t295s\t",
            "2026-01-01T01:18:20Z\tREADY HEALTHY\t2500s\tas last seen",
            "2026-01-01T01:18:30Z\tusable\t\tssh, after 5m08s",
        ),
        "",
        0,
    )
    assert lived("history", f"{ZONE}/trainer", "--since", "42m", "-o", "name") == (
        said("CREATING", "READY", "usable"), "", 0
    )  # fmt: skip
    assert lived("history", "trainer", "--since", "0s", "-o", "name") == (said("READY"), "", 0)


def test_history_in_json_has_the_journal_entries(lived: Console) -> None:
    out, err, code = lived("history", str(NAME), "-o", "json", "--last", "2")

    assert (json.loads(out), err, code) == (
        [
            {
                "at": "2026-01-01T01:18:20Z", "by": "here 1", "event": "state", "health": "HEALTHY", "id": "2",
                "state": "READY", "sandbox": True,
            },
            {"at": "2026-01-01T01:18:30Z", "by": "here 1", "event": "usable", "id": "2", "level": "ssh", "sandbox": True},
        ],
        "",
        0,
    )  # fmt: skip


def test_history_finds_a_node_without_a_call(lived: Console) -> None:
    folder = Path(lived.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"
    write(Journal(folder), LIFE[:1], NodeName("sandbox", "us-east5-a", "trainer"))

    assert lived("history", "trainr") == (
        "",
        said(
            "error: the journal has no node `trainr`",
            "  hint: did you mean `trainer`?",
            "  hint: `tpuctl status trainr` asks the cloud; the journal has only what tpuctl did and saw",
        ),
        ExitCode.NOT_FOUND,
    )
    assert lived("history", "trainer") == (
        "",
        said(
            "error: the journal has 2 nodes `trainer`: us-central2-b/trainer, us-east5-a/trainer",
            "  hint: name the zone: `--zone ZONE` or `ZONE/NODE`; for different projects `--project ID`",
        ),
        ExitCode.CONFLICT,
    )
    alone = ("2026-01-01T00:00:00Z\tcreate\t\tthere is none: v4-8 with img, on-demand\n", "", 0)
    assert lived("history", "trainer", "--zone", "us-east5-a") == alone
    assert lived("history", "trainer", TPUCTL_ZONE="us-east5-a") == alone
    assert lived("history", "us-east5-a/trainer", "--since", "1h") == (
        "", "the journal has no entry of `trainer` in the last 1h\n", 0
    )  # fmt: skip


def test_history_reads_the_journal_of_a_bucket(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "state")
    storage = StorageClient(lambda: SandboxHttp(sandbox.state), tpuctl.clock)
    elsewhere = Journal(BucketJournalStore(storage, BucketPath.parse("gs://state/us"), tpuctl.clock))
    write(elsewhere, LIFE[:1])
    elsewhere.flush()

    assert tpuctl("history", "trainer", TPUCTL_JOURNAL="gs://elsewhere")[2] == ExitCode.NOT_FOUND
    assert tpuctl("history", "trainer", "--journal", "gs://state", "-o", "name")[2] == ExitCode.NOT_FOUND
    assert tpuctl("history", "trainer", "--journal", "gs://state/us", "-o", "name") == ("create\n", "", 0)


def test_history_ignores_the_journal_of_an_untrusted_project_file(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("journal: gs://theirs/p\n")

    assert offline("history", "trainer") == (
        "",
        said(
            f"error: {offline.folder}/tpuctl.yaml line 1: `journal` is never read from a project file",
            "  hint: use `--journal`, `TPUCTL_JOURNAL` or the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)",
        ),
        ExitCode.USAGE,
    )


GUARDED: tuple[Told, ...] = (
    (0, "create", {"spec": SPEC, "reason": "there is none"}),
    seen(100, "READY", "HEALTHY"),
    (100, "usable", {"id": "1", "level": "ssh", "took": 100.0}),
    (101, "guard", {"id": "1", "ok": True, "until": "2026-01-01T01:00:00Z"}),
)


@pytest.mark.parametrize(
    ("more", "last"),
    [
        pytest.param((), "the guard on worker 0 deletes it, unless it was extended elsewhere", id="guard"),
        pytest.param(
            ((200, "guard", {"id": "1", "ok": False}), (300, "extend", {"id": "1", "until": "2026-01-01T01:00:00Z"})),
            "any clean-up may delete it; the journal knows of no guard on it",
            id="guard-not-started",
        ),
        pytest.param(
            (seen(200, "READY", "HEALTHY", "2"), (300, "extend", {"id": "2", "until": "2026-01-01T01:00:00Z"})),
            "any clean-up may delete it; the journal knows of no guard on it",
            id="recreated-elsewhere",
        ),
    ],
)
def test_history_names_the_guard_only_if_one_runs(tpuctl: Console, more: tuple[Told, ...], last: str) -> None:
    write(Journal(Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"), GUARDED + more)
    tpuctl("list")
    tpuctl.clock.sleep(timedelta(hours=2))

    assert tpuctl("history", "trainer", "-n", "1")[0] == f"2026-01-01T01:00:00Z\texpired\t\tits time ended: {last}\n"


def test_history_of_a_node_that_a_guard_deleted_ends_with_its_time(tpuctl: Console) -> None:
    write(Journal(Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"), GUARDED)
    tpuctl("list")
    tpuctl.clock.sleep(timedelta(hours=2))

    out = tpuctl("history", "trainer", terminal=True, width=110)[0]

    assert "as last seen" not in out
    assert "usable          58m20s of 1h (97%)" in out
    assert "2026-01-01T00:01:40Z\tREADY HEALTHY\t3500s\t\n" in tpuctl("history", "trainer")[0]


RECREATED = [(7200, "create", {"spec": SPEC, "reason": "there is none"}), seen(7210, "CREATING", node_id="2")]
_GONE = "gone\t\twhen is not known: no run looked"
# What the journal has of an earlier node, and what the timeline says of its end.
ENDINGS: dict[str, tuple[tuple[Told, ...], list[str]]] = {
    "expired": (
        GUARDED,
        [
            "00:01:40Z\tREADY HEALTHY\t3500s\t",
            "01:00:00Z\texpired\t\tits time ended: the guard on worker 0 deletes it, unless it was extended elsewhere",
        ],
    ),
    "not-seen": (GUARDED[:3], ["00:01:40Z\tREADY HEALTHY\t\t", f"02:00:00Z\t{_GONE}"]),
    "down-without-a-wait": (
        (*GUARDED[:3], (400, "delete", {"id": "1", "reason": "asked for"})),
        ["00:01:40Z\tREADY HEALTHY\t300s\t", "00:06:40Z\tdelete\t\tasked for", f"02:00:00Z\t{_GONE}"],
    ),
    "down-that-was-interrupted": (
        (*GUARDED[:3], (400, "delete", {"id": "1", "reason": "asked for"}), seen(402, "DELETING")),
        ["00:06:40Z\tdelete\t\tasked for", "00:06:42Z\tDELETING\t\t", f"02:00:00Z\t{_GONE}"],
    ),
    "gone": (
        (*GUARDED[:3], (400, "delete", {"id": "1", "reason": "asked for"}), seen(402, "DELETING"), seen(450, None)),
        ["00:06:42Z\tDELETING\t48s\t", "00:07:30Z\tgone\t\t"],
    ),
}


@pytest.mark.parametrize(("life", "ending"), ENDINGS.values(), ids=ENDINGS)
def test_history_shows_how_each_node_ended(tpuctl: Console, life: tuple[Told, ...], ending: list[str]) -> None:
    write(Journal(Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"), (*life, *RECREATED))
    tpuctl("list")
    tpuctl.clock.sleep(timedelta(hours=3))

    lines = [line.removeprefix("2026-01-01T") for line in tpuctl("history", "trainer")[0].splitlines()]

    before = lines[: next(index for index, line in enumerate(lines) if line.startswith("02:00:00Z\tcreate"))]
    assert [line for line in before if "usable" not in line and "guard\t" not in line][-len(ending) :] == ending


def test_history_says_once_that_the_request_is_active(tpuctl: Console) -> None:
    """Each run that finds it ACTIVE writes that."""
    active: Told = (50, "request", {"state": "ACTIVE", "text": "USER"})
    life = (
        LIFE[0],
        active,
        *LIFE[2:5],
        (300, *active[1:]),
        (7100, "delete", {"id": "1"}),
        *RECREATED,
        (7300, *active[1:]),
    )
    write(Journal(Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"), life)
    tpuctl("list")
    tpuctl.clock.sleep(timedelta(hours=3))

    out = tpuctl("history", "trainer")[0]

    assert [line[11:19] for line in out.splitlines() if "request ACTIVE" in line] == ["00:00:50", "02:01:40"]


def test_history_after_only_extend_claims_neither_guard_nor_state(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("mine", zone=ZONE)
    assert tpuctl("extend", "mine", "1h", "--yes")[2] == 0
    tpuctl.clock.sleep(timedelta(hours=2))

    out = tpuctl("history", "mine", terminal=True, width=160, NO_COLOR="1")[0]

    assert "its time ended: any clean-up may delete it; the journal knows of no guard on it" in out
    assert "usable   unknown: the journal has no state of it" in out


def test_history_of_a_name_in_two_zones_is_that_of_the_node_that_exists(lived: Console) -> None:
    folder = Path(lived.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal"
    gone: tuple[Told, ...] = (LIFE[0], seen(5, "READY"), (9, "delete", {"id": "1"}))
    write(Journal(folder), gone, NodeName("sandbox", "us-east5-a", "trainer"))

    assert lived("history", "trainer") == lived("history", f"{ZONE}/trainer")
