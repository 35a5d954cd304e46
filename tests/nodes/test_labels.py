"""Labels and network tags: what the service refuses is not sent, what it takes is."""

from __future__ import annotations

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import one_face, put

LABELS = ",".join(f"k{number}=v" for number in range(64))


@pytest.mark.parametrize(
    ("flag", "value", "message", "meant"),
    [
        ("--labels", "Team=vision", "`Team=vision` is not a valid label", "team=vision"),
        ("--labels", "team=Vision One", "`team=Vision One` is not a valid label", "team=vision-one"),
        ("--labels", "7th=x", "`7th=x` is not a valid label", "th=x"),
        ("--labels", f"team={'x' * 64}", f"`team={'x' * 64}` is not a valid label", f"team={'x' * 63}"),
        ("--tags", "Web_Server", "`Web_Server` is not a valid network tag", "web-server"),
        ("--tags", "8080", "`8080` is not a valid network tag", None),
        ("--tags", "web-", "`web-` is not a valid network tag", "web"),
    ],
)
def test_invalid_labels_and_tags_are_not_sent(
    offline: Console, flag: str, value: str, message: str, meant: str | None
) -> None:
    place = ("demo", "--project", "p", "--zone", "us-central2-b")
    for line in (("up", *place, "--type", "v4-8"), ("create", *place, "--type", "v4-8"), ("update", *place)):
        out, err, code = offline(*line, flag, value)
        first, hint = err.splitlines()
        assert (out, first, code) == ("", f"error: {message}", 2)
        assert hint.partition("; did you mean ")[2] == (f"`{meant}`?" if meant else "")
    out, err, code = offline("config", "set", flag.removeprefix("--"), value)
    assert (err.splitlines()[0], code) == (f"error: {message}", 2)


@one_face
def test_valid_labels_are_sent(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    assert tpuctl("update", "demo", "--labels", "équipe=vision-1_b,größe=,日本=東京")[2] == 0
    assert tpuctl("update", "demo", "--tags", "web-1,db")[2] == 0
    too_many = tpuctl("create", "new", "--zone", "us-central2-b", "--type", "v4-8", "--labels", LABELS)
    hint = "a node has at most 64, 4 of them tpuctl's own"
    assert too_many == ("", f"error: 64 labels are too many\n  hint: {hint}\n", 2)
