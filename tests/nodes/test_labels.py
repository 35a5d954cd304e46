"""Labels and network tags: what the service refuses is not sent, what it takes is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_completion import LEAVES
from tests.conftest import Console, Sandbox
from tests.lifecycle import put

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


def test_valid_labels_are_sent(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    assert tpuctl("update", "demo", "--labels", "équipe=vision-1_b,größe=,日本=東京")[2] == 0
    assert tpuctl("update", "demo", "--tags", "web-1,db")[2] == 0
    too_many = tpuctl("create", "new", "--zone", "us-central2-b", "--type", "v4-8", "--labels", LABELS)
    hint = "a node has at most 64, 4 of them tpuctl's own"
    assert too_many == ("", f"error: 64 labels are too many\n  hint: {hint}\n", 2)


# Every command with `--labels`, as it must be written to get to them.
COMMANDS = {
    "check": ("check", "--zone", "us-central2-b", "--type", "v4-8"),
    "create": ("create", "demo", "--zone", "us-central2-b", "--type", "v4-8"),
    "run": ("run", "demo", "--up", "v4-8", "--zone", "us-central2-b"),
    "up": ("up", "demo", "--zone", "us-central2-b", "--type", "v4-8"),
    "update": ("update", "demo"),
    "watch": ("watch", "demo", "--zone", "us-central2-b", "--type", "v4-8"),
}
DOORS = [*COMMANDS, "update --remove", "up --queue", "environment", "project-file", "user-file", "config-set"]
HINTS = {
    "tpuctl-expires": "`--ttl 8h` limits the time of a new node; change it with `tpuctl extend NODE 2h`, or `--no-expiry`",
    "tpuctl-owner": "`tpuctl up` and `tpuctl create` write it for the account that creates the node",
    "tpuctl-race": "`tpuctl up NODE --race` writes it",
    "tpuctl-request": "each request that creates a node writes its own",
    "tpuctl-rm": "`tpuctl run NODE --up --rm` writes it",
    "tpuctl-team": "of the labels that begin with `tpuctl-`, users set `tpuctl-keep` only",
}


def test_each_command_with_labels_is_in_the_table() -> None:
    commands = {
        " ".join(path)
        for path, command in LEAVES.items()
        if any("--labels" in parameter.opts for parameter in command.params)
    }
    assert commands == set(COMMANDS)


@pytest.mark.parametrize("label", HINTS)
@pytest.mark.parametrize(
    "door", [*COMMANDS, "update --remove", "up --queue", "environment", "project-file", "user-file", "config-set"]
)
def test_label_of_tpuctl_itself_is_set_nowhere(tpuctl: Console, sandbox: Sandbox, door: str, label: str) -> None:
    put(sandbox)
    line, pair, place, in_environment = COMMANDS.get(door, COMMANDS["up"]), f"{label}=1", "", ""
    match door:
        case "environment":
            in_environment = pair
        case "project-file":
            (tpuctl.folder / "tpuctl.yaml").write_text(f"labels: {{{label}: '1'}}\n")
            place = "tpuctl.yaml line 1: "
        case "user-file":
            file = Path(tpuctl.environ["HOME"]) / ".config" / "tpuctl" / "config.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(f"labels: {{{label}: '1'}}\n")
            place = f"{file} line 1: "
        case "config-set":
            line = ("config", "set", "labels", pair)
        case "run":
            line = (*line, "--labels", pair, "--", "true")
        case "update --remove":
            line = (*COMMANDS["update"], "--remove-labels", f"team,{label}")
        case "up --queue":
            line = (*line, "--queue", "--labels", pair)
        case _:
            line = (*line, "--labels", f"team=vision,{pair}")

    out, err, code = tpuctl(*line, TPUCTL_LABELS=in_environment)

    message = f"the label `{label}` cannot be changed: it is tpuctl's own"
    assert err.replace(str(tpuctl.folder) + "/", "") == f"error: {place}{message}\n  hint: {HINTS[label]}\n"
    assert (out, code, sandbox.changes()) == ("", 2, [])


def test_keep_is_a_label_of_users(tpuctl: Console, sandbox: Sandbox) -> None:
    line = COMMANDS["up"]
    assert tpuctl(*line, "--labels", "tpuctl-keep=yes")[2] == 0
    assert json.loads(tpuctl("status", "demo", "-o", "json")[0])[0]["labels"]["tpuctl-keep"] == "yes"
