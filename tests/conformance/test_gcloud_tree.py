"""docs/reference/gcloud.yaml has every command and flag of gcloud for TPUs, in its track, and names flags that tpuctl has."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tpuctl.cli.tree import command_tree

LISTED = yaml.safe_load((Path(__file__).resolve().parents[2] / "docs/reference/gcloud.yaml").read_text("utf-8"))
# By its full name below `gcloud compute tpus`.
ENTRIES: dict[str, dict[str, Any]] = {
    f"{group['prefix']} {name}".strip(): entry
    for group in LISTED["groups"]
    for name, entry in group["commands"].items()
}
# gcloud's tree lacks it: the main command has a flag of that name.
UNLISTED = {"--version"}


def read_tree() -> dict[str, Any]:
    """Return the tree that gcloud uses for completion."""
    program = shutil.which("gcloud")
    assert program is not None
    source = Path(program).resolve().parents[1] / "data" / "cli" / "gcloud_completions.py"
    (assignment,) = (node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.Assign))
    tree: dict[str, Any] = ast.literal_eval(assignment.value)
    return tree


def commands_of(group: dict[str, Any], *above: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the commands of a group, with their flags."""
    for name, entry in group.get("commands", {}).items():
        if entry.get("commands"):
            yield from commands_of(entry, *above, name)
        else:
            yield " ".join((*above, name)), set(entry.get("flags", {}))


@pytest.mark.gcloud
def test_list_has_every_command_and_flag_of_gcloud() -> None:
    tree = read_tree()["commands"]
    usual = dict(commands_of(tree["compute"]["commands"]["tpus"]))
    alpha = dict(commands_of(tree["alpha"]["commands"]["compute"]["commands"]["tpus"]))

    assert sorted([*ENTRIES, *LISTED["ended"]]) == sorted(alpha)
    assert {name for name, entry in ENTRIES.items() if entry.get("only") == "alpha"} == ENTRIES.keys() - usual.keys()
    everywhere = set(LISTED["everywhere"])
    found = {
        name: (flags - everywhere, alpha[name] - flags - everywhere)
        for name in ENTRIES
        for flags in [usual.get(name, alpha[name])]
        if ENTRIES[name]["ours"]
    }
    assert {
        name: (set(entry.get("flags", {})) - UNLISTED, set(entry.get("alpha", {})))
        for name, entry in ENTRIES.items()
        if entry["ours"]
    } == found


def flags_of(command: click.Command) -> set[str]:
    return {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize(
    ("name", "entry"), [pytest.param(name, entry, id=name) for name, entry in ENTRIES.items() if entry["ours"]]
)
def test_our_command_has_the_flags_that_the_list_names(name: str, entry: dict[str, Any]) -> None:
    """A flag counts if the named command has it; `ssh` passes some on to other programs."""
    tree: click.Command = command_tree()
    for word in entry["ours"].split():
        assert isinstance(tree, click.Group)
        found = tree.get_command(click.Context(tree), word)
        assert found is not None, name
        tree = found
    answers = {**entry.get("flags", {}), **entry.get("alpha", {})}
    same = {flag for flag, answer in answers.items() if answer and answer.startswith("same")}
    others = {
        flag
        for answer in answers.values()
        if answer and not answer.startswith("`tpuctl")
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", answer)
    }

    assert (same | others) - flags_of(tree) == set()
