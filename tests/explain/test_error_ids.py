"""Every error that is printed carries an id, and every id can be looked up."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import tpuctl
from tests.conftest import Console, Sandbox
from tpuctl.errors import ExitCode, TpuctlError
from tpuctl.explain.lookup import IdEntry, IdKind, known_ids, look_up_id, similar_ids
from tpuctl.explain.messages import known_messages, message_by_id


def test_error_ends_with_its_id(tpuctl: Console, sandbox: Sandbox) -> None:
    """One that was recognised has the id of the message, another one that of its kind."""
    shown = replace(tpuctl, shows_ids=True)
    shown("list")  # the first call in a sandbox prints a note about it
    sandbox.fault("operation-error")

    mistyped, absent = shown("lst"), shown("status", "absent")

    assert mistyped[1].splitlines() == [
        "error: there is no command `tpuctl lst`",
        "  hint: did you mean `tpuctl list`?",
        "  more: tpuctl explain usage",
    ]
    assert absent[1].splitlines() == [
        "error: no node `absent` in any zone of project sandbox",
        "  hint: run `tpuctl list` to see the nodes of all zones",
        "  more: tpuctl explain not-found",
    ]
    _, err, code = shown("create", "demo", "--type", "v4-8", "--zone", "us-central2-b")
    assert (err.splitlines()[-1], code) == ("  more: tpuctl explain capacity-zone", 6)


def test_id_is_hidden_with_quiet_but_always_in_json(tpuctl: Console, sandbox: Sandbox) -> None:
    shown = replace(tpuctl, shows_ids=True)
    shown("list")

    assert "more:" not in shown("status", "absent", "--quiet")[1]
    assert json.loads(shown("status", "absent", "-o", "json")[1])["error"]["id"] == "not-found"
    assert json.loads(shown("lst", "-o", "json")[1])["error"]["id"] == "usage"


def kinds_of_errors() -> Iterator[type[TpuctlError]]:
    for module in pkgutil.walk_packages(tpuctl.__path__, "tpuctl."):
        if not module.name.endswith(("__main__", ".data")) and ".ssh.agent." not in module.name:
            importlib.import_module(module.name)
    waiting: list[type[TpuctlError]] = [TpuctlError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += found.__subclasses__()


def test_every_error_kind_is_explained() -> None:
    """One kind may have an exit code of its own in some class; that of its first class is the entry's."""
    missing, own = [], {id_: one for id_ in known_ids() if (one := look_up_id(id_)) and one.origin is IdKind.ERROR}
    first: dict[str, int] = {}
    for kind in kinds_of_errors():
        id_ = kind.kind.replace("_", "-")
        first.setdefault(id_, int(kind.exit_code))
        if look_up_id(id_) is None:
            missing.append(id_)

    assert missing == []
    assert {id_: one.exit_code for id_, one in own.items()} == {id_: first[id_] for id_ in own}


def test_every_entry_has_meaning_and_remedy() -> None:
    """A finding's text speaks of its rule; an exit code's kinds tell what to do."""
    entries = {id_: look_up_id(id_) for id_ in known_ids()}
    placeholder = re.compile(r"\{(?:node|worker|job)\}")

    assert [id_ for id_, one in entries.items() if one is None or one.id != id_ or not one.meaning] == []
    of_errors = [one for one in entries.values() if one and one.origin in {IdKind.MESSAGE, IdKind.ERROR}]
    assert [one.id for one in of_errors if not one.remedy] == []
    assert [one.id for one in of_errors if one.origin is IdKind.ERROR and not one.causes] == []
    assert [one.id for one in of_errors if placeholder.search(f"{one.meaning}{one.remedy}")] == []


def test_every_exit_code_has_an_entry() -> None:
    assert [code for code in ExitCode if look_up_id(f"exit-{int(code)}") is None] == []


def test_message_goes_before_its_kind() -> None:
    """`already-exists` and `iap-unavailable` are both; the message knows more."""
    own = {entry.id for id_ in known_ids() if (entry := look_up_id(id_)) and entry.origin is IdKind.ERROR}

    assert own & {message.id for message in known_messages()} == set()


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("no_capacity", "no-capacity"),
        (" Quota ", "quota"),
        ("exit 7", "exit-7"),
        ("tpu101", "TPU101"),
        ("capacity-zone", "capacity-zone"),
        ("capacity", None),
        ("exit-12", None),
        ("TPU000", None),
        ("", None),
    ],
)
def test_id_is_found_in_any_spelling(written: str, found: str | None) -> None:
    entry = look_up_id(written)

    assert (entry.id if entry else None) == found


@pytest.mark.parametrize(
    ("written", "likest"),
    [("capacity-zne", "capacity-zone"), ("no-capacty", "no-capacity"), ("hbm_oom ", "hbm-oom"), ("TPU1011", "TPU101")],
)
def test_unknown_id_suggests_similar(written: str, likest: str) -> None:
    assert similar_ids(written)[0] == likest
    assert similar_ids("zzzzzzzzzz") == ()


def test_entry_has_all_fields() -> None:
    message = message_by_id("capacity-zone")

    assert message is not None
    assert look_up_id("capacity-zone", {"node": "trainer", "zone": "us-x1-b"}) == IdEntry(
        id="capacity-zone",
        origin=IdKind.MESSAGE,
        meaning=message.meaning,
        remedy=(
            "try every zone that has the type with `tpuctl up trainer --zone any`",
            "or let a request wait for capacity in us-x1-b with `tpuctl up trainer --queue`",
        ),
        exit_code=6,
        message=message,
    )
    assert look_up_id("exit-8") == IdEntry(
        id="exit-8",
        origin=IdKind.EXIT_CODE,
        meaning="the node differs, or its state forbids the change",
        remedy=(
            "`conflict`: check it with `tpuctl status NODE`",
            "`name-taken`: choose another name with an option of `tpuctl ssh-config`, or rename your own host",
        ),
        exit_code=8,
        related=("conflict", "name-taken"),
    )
