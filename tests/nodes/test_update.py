"""`tpuctl update`: labels, tags, metadata and description; other fields stay."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces
from tests.others import answer
from tpuctl.clock import ManualClock
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import ConflictError, InvalidInputError, ServiceUnavailableError, TimedOutError, TpuctlError
from tpuctl.models.node import Node
from tpuctl.models.operation import Operation, OperationError
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.actions import spec_changes
from tpuctl.nodes.commands.update_run import attached_disks, describe_changes


@pytest.fixture
def node(sandbox: Sandbox) -> Sandbox:
    """A node with something in each field that can be changed."""
    sandbox.add_node(
        "trainer", labels={"team": "vision", "run": "7"}, tags=["web"], metadata={"key": "old"}, description="mine"
    )
    return sandbox


def fields(tpuctl: Console) -> dict[str, Any]:
    """Return the fields that can be changed, as the API has them."""
    found = json.loads(tpuctl("status", "trainer", "-o", "json", "--show-metadata")[0])[0]
    return {name: found[name] for name in ("labels", "tags", "metadata", "description") if name in found}


BEFORE = {
    "labels": {"team": "vision", "run": "7"},
    "tags": ["web"],
    "metadata": {"key": "old"},
    "description": "mine",
}


@both_faces
@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (("--labels", "run=8,owner=ada"), {"labels": {"team": "vision", "run": "8", "owner": "ada"}}),
        (("--update-labels", "a=b", "--labels", "c=d"), {"labels": {**BEFORE["labels"], "a": "b", "c": "d"}}),  # type: ignore[dict-item]  # labels are a dict
        (("--remove-labels", "run,absent"), {"labels": {"team": "vision"}}),
        (("--tags", "web,ssh"), {"tags": ["web", "ssh"]}),
        (("--add-tags", "b", "--remove-tags", "web"), {"tags": ["b"]}),
        (("--metadata", "^:^key=a,b:other=c"), {"metadata": {"key": "a,b", "other": "c"}}),
        (("--metadata-from-file", "script=notes.txt"), {"metadata": {"key": "old", "script": "hello\n"}}),
        (("--description", "free to use"), {"description": "free to use"}),
    ],
)
def test_update_changes_only_the_given_fields(
    tpuctl: Console, node: Sandbox, arguments: tuple[str, ...], changed: dict[str, Any]
) -> None:
    (tpuctl.folder / "notes.txt").write_text("hello\n")

    out, err, code = tpuctl("update", "trainer", *arguments)

    assert (out, code, err.count("\n")) == ("trainer\tREADY\n", 0, 1)
    assert re.match("trainer: (set|removed) (labels|tags|metadata|the description)", err)
    assert (fields(tpuctl), node.changes()) == ({**BEFORE, **changed}, ["patch"])


def test_last_label_can_be_removed(tpuctl: Console, node: Sandbox) -> None:
    arguments = ("--remove-labels", "team,run", "--remove-tags", "web", "--remove-metadata", "key", "--description", "")

    assert tpuctl("update", "trainer", *arguments)[2] == 0
    assert not any(fields(tpuctl).values())


def test_update_without_a_change_sends_no_request(tpuctl: Console, node: Sandbox) -> None:
    assert tpuctl("update", "trainer", "--labels", "run=7", "--tags", "web") == ("trainer\tREADY\n", "", 0)
    assert node.changes() == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "error: no change given\n  hint: see `tpuctl update --help`\n"),
        (
            ("--labels", "team"),
            (
                "error: `--labels team` is not KEY=VALUE\n"
                "  hint: for a value with a comma choose another delimiter: `^:^KEY=a,b:OTHER=c`\n"
            ),
        ),
        (
            ("--metadata-from-file", "key=absent.txt"),
            "error: `--metadata-from-file absent.txt` cannot be read: No such file or directory\n",
        ),
        (
            ("--labels",),
            "error: option `--labels` requires an argument\n  hint: see `tpuctl update --help`\n",
        ),
        (
            ("--label", "a=b"),
            "error: `tpuctl update` has no option `--label`\n  hint: did you mean `--labels`?\n",
        ),
    ],
)
def test_invalid_update_changes_nothing(tpuctl: Console, node: Sandbox, arguments: tuple[str, ...], error: str) -> None:
    assert tpuctl("update", "trainer", *arguments) == ("", error.format(folder=tpuctl.folder), 2)
    assert node.changes() == []


DISKS = "projects/sandbox/zones/us-central2-b/disks"
OLD = {"sourceDisk": f"{DISKS}/old", "mode": "READ_WRITE"}
SHARED = {"sourceDisk": "projects/data/zones/us-central2-b/disks/shared", "mode": "READ_ONLY"}
KEYS = "ada:ssh-ed25519 AAAA"


@pytest.fixture
def equipped(sandbox: Sandbox) -> Sandbox:
    """A node with two disks, external addresses, ssh keys and an end."""
    sandbox.add_node(
        "trainer",
        labels={"team": "vision", "tpuctl-expires": "4000000000", "tpuctl-owner": "ada"},
        tags=["web"],
        metadata={"key": "old", "ssh-keys": KEYS},
        dataDisks=[OLD, SHARED],
        networkConfig={"enableExternalIps": True},
    )
    return sandbox


def stored(sandbox: Sandbox) -> dict[str, Any]:
    """Return the node as the service has it."""
    with sandbox.state.read() as session:
        (node,) = session.nodes("sandbox")
        return node.document


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--clear-labels --labels a=b", "labels", {"tpuctl-expires": "4000000000", "tpuctl-owner": "ada", "a": "b"}),
        ("--clear-tags", "tags", None),
        ("--clear-tags --add-tags ssh", "tags", ["ssh"]),
        ("--clear-metadata --metadata a=b", "metadata", {"ssh-keys": KEYS, "a": "b"}),
        ("--detach-disk old", "dataDisks", [SHARED]),
        (f"--detach-disk {DISKS}/old --detach-disk shared", "dataDisks", None),
        (
            "--attach-disk new,mode=read-only",
            "dataDisks",
            [OLD, SHARED, {"sourceDisk": f"{DISKS}/new", "mode": "READ_ONLY"}],
        ),
        (
            "--attach-disk source=projects/p/regions/r/disks/d --detach-disk shared",
            "dataDisks",
            [OLD, {"sourceDisk": "projects/p/regions/r/disks/d", "mode": "READ_WRITE"}],
        ),
        ("--detach-disk old --attach-disk old,mode=read-only", "dataDisks", [SHARED, {**OLD, "mode": "READ_ONLY"}]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_update_clears_fields_and_changes_disks(
    tpuctl: Console, equipped: Sandbox, line: str, field: str, value: object
) -> None:
    before = stored(equipped)

    out, err, code = tpuctl("update", "trainer", *line.split(), "--yes")

    assert (out, code, err.count("\n"), err.startswith("trainer: ")) == ("trainer\tREADY\n", 0, 1, True)
    assert stored(equipped) == {name: entry for name, entry in {**before, field: value}.items() if entry is not None}


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [
        (
            "--detach-disk absent",
            "error: disk `absent` is not attached to `trainer`\n  hint: attached are: `old`, `shared`",
            8,
        ),
        (f"--detach-disk {DISKS}/shared", f"error: disk `{DISKS}/shared` is not attached to `trainer`\n", 8),
        ("--attach-disk old,mode=read-only", "error: disk `old` is attached to `trainer` as READ_WRITE\n", 8),
        ("--attach-disk new,mode=fast", "error: `--attach-disk new,mode=fast` is not a disk\n", 2),
        ("--attach-disk new,size=3", "error: `--attach-disk new,size=3` is not a disk\n", 2),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("--") else "",
)
def test_update_of_a_wrong_disk_changes_nothing(
    tpuctl: Console, equipped: Sandbox, line: str, message: str, code: int
) -> None:
    out, err, ended = tpuctl("update", "trainer", *line.split())

    assert (out, err.startswith(message), ended) == ("", True, code), err
    assert equipped.changes() == []


def test_detaching_from_a_stopped_node_asks_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("off", state="STOPPED", dataDisks=[OLD])

    assert tpuctl("update", "off", "--detach-disk", "old") == ("off\tSTOPPED\n", "off: removed disks old\n", 0)


DETACH = ("update", "trainer", "--detach-disk", "old", "--labels", "a=b")


def test_change_of_another_client_during_the_question_stays(tpuctl: Console, equipped: Sandbox) -> None:
    """Labels are written as a whole: an older end of the node would let `tpuctl gc` delete it."""
    _, _, code = answer(tpuctl, lambda: tpuctl("update", "trainer", "--labels", "run=9"), *DETACH)

    labels = {"team": "vision", "tpuctl-expires": "4000000000", "tpuctl-owner": "ada", "run": "9", "a": "b"}
    assert (code, stored(equipped)["labels"], stored(equipped)["dataDisks"]) == (0, labels, [SHARED])


def test_node_that_was_recreated_during_the_question_is_left_alone(tpuctl: Console, equipped: Sandbox) -> None:
    _, err, code = answer(tpuctl, lambda: equipped.add_node("trainer", dataDisks=[OLD]), *DETACH)

    assert (
        code,
        "error: `trainer` changed meanwhile: another client recreated the node\n" in err,
        equipped.changes(),
    ) == (8, True, [])


def test_name_of_two_attached_disks_is_refused() -> None:
    disks = [{"sourceDisk": f"projects/{project}/zones/z/disks/data"} for project in ("a", "b")]
    node = Node.from_api({"name": "projects/p/locations/z/nodes/trainer", "dataDisks": disks})

    with pytest.raises(InvalidInputError, match="`trainer` has 2 disks named `data`"):
        attached_disks(node, [], ["data"])
    assert (
        attached_disks(node, [], ["https://www.googleapis.com/compute/v1/projects/a/zones/z/disks/data"]) == disks[1:]
    )


def test_update_of_the_external_addresses(tpuctl: Console, equipped: Sandbox) -> None:
    ways = "`trainer` has no external addresses now: use `--iap` or `--internal-ip` for ssh"
    note = f"trainer: removed external addresses\n{ways}\n"

    assert tpuctl("update", "trainer", "--internal-ips") == ("trainer\tREADY\n", note, 0)
    assert tpuctl("update", "trainer", "--internal-ips") == ("trainer\tREADY\n", "", 0)
    assert "externalIp" not in tpuctl("status", "trainer", "-o", "json")[0]
    assert tpuctl("update", "trainer", "--no-internal-ips") == (
        "trainer\tREADY\n",
        "trainer: set external addresses\n",
        0,
    )
    assert "externalIp" in tpuctl("status", "trainer", "-o", "json")[0]
    assert equipped.changes() == ["patch", "patch"]


@both_faces
def test_update_in_a_wrong_state_is_a_conflict(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("dead", state="PREEMPTED", schedulingConfig={"spot": True})

    out, err, code = tpuctl("update", "dead", "--labels", "a=b")

    assert (out, code) == ("", 8)
    assert "PREEMPTED" in err
    assert "hint:" in err


class Service(TpuClient):
    """A service whose update takes 10 s, and fails or not."""

    def __init__(self, clock: ManualClock, error: OperationError | None = None, *, is_silent: bool = False) -> None:
        self._clock, self._error, self._is_silent = clock, error, is_silent

    def update(self, *, timeout: timedelta | None = None) -> None:
        """Wait for the update, as `change_node` does."""
        begun = Operation("projects/p/locations/z/operations/1")
        self.await_operation(begun, timeout=timeout, late=lambda waited: TimedOutError(f"not after {waited}"))

    def get_operation(self, name: str) -> Operation:
        if self._is_silent and self._clock.monotonic() < timedelta(seconds=8):
            raise ServiceUnavailableError("no answer")
        is_done = self._clock.monotonic() >= timedelta(seconds=10)
        return Operation(name, done=is_done, error=self._error if is_done else None)

    def operation_error(self, error: OperationError) -> TpuctlError:
        return ConflictError(error.message)


REFUSED = OperationError(9, "not now")


@pytest.mark.parametrize("is_silent", [False, True], ids=["answers", "silent for 8 s"])
def test_update_waits_for_its_operation(clock: ManualClock, *, is_silent: bool) -> None:
    Service(clock, is_silent=is_silent).update()

    assert clock.monotonic() == timedelta(seconds=10)


def test_update_with_a_failed_operation_fails(clock: ManualClock) -> None:
    with pytest.raises(ConflictError, match="not now"):
        Service(clock, REFUSED).update()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"labels": {"team": "vision", "run": "8", "a": "b"}}, ["set labels run=8, a=b"], id="set"),
        pytest.param({"labels": {}}, ["removed labels run, team"], id="removed"),
        pytest.param({"labels": {"run": "8"}}, ["set labels run=8", "removed labels team"], id="both"),
        pytest.param({"metadata": {"key": "secret", "b": "c"}}, ["set metadata key, b"], id="no-values-of-metadata"),
        pytest.param({"tags": ["ssh"]}, ["set tags ssh", "removed tags web"], id="tags"),
        pytest.param({"description": ""}, ["removed the description"], id="no-description"),
        pytest.param({"description": "new"}, ["set the description"], id="description"),
        pytest.param({"dataDisks": []}, ["removed disks d"], id="disks"),
        pytest.param({"networkConfig": {"enableExternalIps": True}}, ["set external addresses"], id="addresses"),
        pytest.param({"networkConfig": {"enableExternalIps": False}}, ["removed external addresses"], id="no-address"),
    ],
)
def test_words_for_a_change(change: dict[str, Any], expected: list[str]) -> None:
    disks = [{"sourceDisk": "projects/p/zones/z/disks/d", "mode": "READ_WRITE"}]
    found = Node(NodeName("p", "us-central2-b", "trainer"), {**BEFORE, "dataDisks": disks})

    assert describe_changes(found, change) == expected


def test_selection_that_loses_something_is_shown_and_asked_about(tpuctl: Console, node: Sandbox) -> None:
    node.add_node("plain")
    words = ("update", "--all", "--clear-labels")

    piped = tpuctl(*words)
    _, err, refused = tpuctl(*words, stdin="n\n")

    assert (piped[2], refused, node.changes()) == (2, 1, [])
    assert [line.split()[0] for line in err.splitlines()[:2]] == ["NAME", "trainer"]
    assert err.splitlines()[2:] == [
        "trainer: removes labels run, team",
        "update `trainer`? [y/N] cancelled",
    ]
    assert tpuctl(*words, "--yes")[2] == 0
    assert tpuctl("update", "--all", "--labels", "a=b")[2] == 0
    assert node.changes() == ["patch"] * 3


def test_up_does_not_change_the_owner_of_an_existing_node() -> None:
    found = Node(NodeName("p", "us-central2-b", "trainer"), {"labels": {"tpuctl-owner": "ann"}})
    spec = NodeSpec(
        accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"tpuctl-owner": "bob", "run": "7"}
    )

    assert spec_changes(found, spec) == {"labels": {"tpuctl-owner": "ann", "run": "7"}}
