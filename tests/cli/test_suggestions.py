"""What is suggested for a mistyped word, over the whole command tree: never what does more harm than the word typed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import click
import pytest

from tests.conftest import Console
from tpuctl.app.suggestions import Harm, harm_of, suggest_word
from tpuctl.cli.tree import command_tree

HARMLESS = {
    *(
        "attach",
        "attributes",
        "bundle",
        "check",
        "completion",
        "config",
        "cost",
        "describe",
        "doctor",
        "env",
        "exec",
        "explain",
        "get-guest-attributes",
        "help",
    ),
    *(
        "history",
        "jobs",
        "list",
        "log",
        "logs",
        "ls",
        "options",
        "path",
        "queue",
        "sandbox",
        "schema",
        "serve",
        "show",
        "ssh",
        "stacks",
    ),
    *("ssh-config", "ssh-key", "status", "types", "version", "versions", "wait"),
}
# The commands with the most harmful options.
RISKY = {"tpuctl down", "tpuctl gc", "tpuctl queue cancel"}
# Programs and words that people type by habit.
HABITS = (
    "top",
    "htop",
    "own",
    "dow",
    "sto",
    "up-",
    "ps",
    "kil",
    "ll",
    "new",
    "stat",
    "del",
    "rest",
    "gcl",
    "sop",
    "clown",
)


def groups(command: click.Command, path: str = "tpuctl") -> Iterator[tuple[str, click.Command, list[str]]]:
    """Yield each command with its path, and the names of its commands."""
    names = []
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name=path)
        names = [*command.list_commands(ctx), *getattr(command, "_aliases", ())]
    yield path, command, names
    for name in names:
        child = command.get_command(click.Context(command), name) if isinstance(command, click.Group) else None
        if child is not None:
            yield from groups(child, f"{path} {name}")


TREE = list(groups(command_tree()))
OPTIONS = {
    path: sorted(
        {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name[:2] == "--"}
    )
    for path, command, _ in TREE
}


def typing_errors(word: str) -> set[str]:
    """Return what hasty people type: a letter too few, one twice, two exchanged, one wrong, or only the beginning."""
    found = {word[:end] for end in range(1, len(word))}
    found |= {word[:at] + word[at + 1 :] for at in range(len(word))}
    found |= {word[:at] + word[at] * 2 + word[at + 1 :] for at in range(len(word))}
    found |= {word[:at] + "x" + word[at + 1 :] for at in range(len(word))}
    for (at, one), (_, other) in pairwise(enumerate(word)):
        found.add(word[:at] + other + one + word[at + 2 :])
    return found - {word, ""}


def distance(typed: str, word: str) -> int:
    """Return how many letters were missed, added, mistaken or exchanged: Damerau's distance, as in textbooks."""
    rows = [[0] * (len(word) + 1) for _ in range(len(typed) + 1)]
    for one in range(len(typed) + 1):
        for other in range(len(word) + 1):
            if not one or not other:
                rows[one][other] = one + other
                continue
            is_same = typed[one - 1] == word[other - 1]
            best = min(rows[one - 1][other] + 1, rows[one][other - 1] + 1, rows[one - 1][other - 1] + (not is_same))
            if one > 1 and other > 1 and (typed[one - 1], typed[one - 2]) == (word[other - 2], word[other - 1]):
                best = min(best, rows[one - 2][other - 2] + 1)
            rows[one][other] = best
    return rows[-1][-1]


def test_every_command_is_known_to_be_harmful_or_harmless() -> None:
    found = {name for _, _, names in TREE for name in names}

    assert {name for name in found if harm_of(name) is Harm.NONE} - HARMLESS == set()
    assert {name for name in HARMLESS if harm_of(name) is not Harm.NONE} == set()


def test_suggestion_is_never_more_harmful_than_what_was_typed() -> None:
    """Anything but a plain typing error in a harmful word means something harmless, or nothing."""
    vocabularies = {tuple(names) for _, _, names in TREE if names} | {
        tuple(names) for names in OPTIONS.values() if names
    }
    asked = 0
    for known in sorted(vocabularies):
        prefix = "--" if known[0].startswith("--") else ""
        harmful = [word.removeprefix(prefix) for word in known if harm_of(word) is not Harm.NONE]
        typed = {error for word in harmful for error in typing_errors(word)} | {*HABITS}
        for word in sorted(typed):
            found = suggest_word(prefix + word, known)
            asked += 1
            if prefix + word in known or found is None or harm_of(found) is Harm.NONE:
                continue
            meant = found.removeprefix(prefix)
            assert (word[0], distance(word, meant)) == (meant[0], 1), (word, found)
            near = [one.removeprefix(prefix) for one in known if one.startswith(prefix + word[0])]
            near = [one for one in near if abs(len(one) - len(word)) <= 1]
            nearest = [prefix + one for one in near if distance(word, one) == 1 and len(one) > 2]
            assert harm_of(found) == min(map(harm_of, nearest)), (word, found, nearest)
    assert asked > 1000


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param(("top",), "see `tpuctl --help`", id="top-is-not-stop"),
        pytest.param(("own", "a"), "see `tpuctl --help`", id="own-is-not-down"),
        pytest.param(("stat", "a"), "did you mean `tpuctl status`?", id="stat-is-status-not-start"),
        pytest.param(("dwon", "a"), "did you mean `tpuctl down`?", id="exchanged-letters"),
        pytest.param(("delte", "a"), "did you mean `tpuctl delete`?", id="missed-letter"),
        pytest.param(("destroy", "a"), "did you mean `tpuctl down`?", id="as-harmful-as-typed"),
        pytest.param(("queue", "cance", "a"), "did you mean `tpuctl queue cancel`?", id="group"),
        pytest.param(("--foo", "list"), "see `tpuctl --help`", id="foo-is-not-force"),
        pytest.param(("queue", "cancel", "a", "--all"), "see `tpuctl queue cancel --help`", id="all-is-not-all-nodes"),
        pytest.param(("down", "a", "--all-node"), "did you mean `--all-nodes`?", id="option-with-a-missed-letter"),
        pytest.param(("wait", "a", "--for", "deleted"), "did you mean `gone`?", id="deleted-is-gone"),
        pytest.param(("wait", "a", "--for", "prempted"), "did you mean `preempted`?", id="value"),
        pytest.param(("reset", "a", "--mode", "rec"), "see `tpuctl reset --help`", id="beginning-of-a-harmful-value"),
    ],
)
def test_hint_for_a_mistyped_word(offline: Console, words: tuple[str, ...], hint: str) -> None:
    out, err, code = offline(*words)

    assert (out, err.splitlines()[1], code) == ("", f"  hint: {hint}", 2)
