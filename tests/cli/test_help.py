"""`--help` in groups, `tpuctl help`, `tpuctl options`, and completion of values."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from tests.cli.test_completion import LEAVES, complete
from tests.conftest import Console
from tpuctl.app.option_help import GroupedOption, OptionGroup
from tpuctl.app.options import shared_options
from tpuctl.cli.help_topics import EXIT_CODES, topic_names
from tpuctl.cli.tree import command_tree
from tpuctl.errors import ExitCode
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.policies import THRESHOLD_SETTINGS

SHARED_LINE = "Options of every command: tpuctl options"


def own_options(path: tuple[str, ...]) -> list[click.Option]:
    options = [param for param in LEAVES[path].params if isinstance(param, click.Option)]
    return [option for option in options if not (isinstance(option, GroupedOption) and option.is_shared)]


def completions(line: str) -> list[str]:
    """Return what a shell is offered after a line, whose last word is incomplete."""
    *words, last = line.split()
    return [item.value for item in ShellComplete(command_tree(), {}, "tpuctl", "").get_completions(words, last)]


MANY = [path for path in LEAVES if sum(not option.hidden for option in own_options(path)) > 8]


def titles(text: str) -> list[str]:
    return [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]


def test_up_help_has_groups_in_order(offline: Console) -> None:
    out, err, code = offline("up", "--help")

    assert (err, code) == ("", 0)
    assert titles(out) == [
        "The node",
        "Where",
        "How it is bought",
        "How long it lives",
        "Setup of its workers",
        "Network and identity of its workers",
        "When it counts as usable",
        "Repair",
        "Local commands on events",
        "Checks",
        "Access",
        "Waiting",
        "Safety",
        "Output",
    ]
    assert out.splitlines()[-1] == SHARED_LINE


def test_command_with_many_options_is_among_those_in_groups() -> None:
    assert {("up",), ("create",), ("watch",), ("run",), ("ssh",), ("check",), ("gc",), ("queue", "retry")} <= {*MANY}


@pytest.mark.parametrize("path", MANY, ids=" ".join)
def test_every_option_of_a_command_with_many_has_a_group(path: tuple[str, ...]) -> None:
    """Declare an option with `option(…, group=…)` or `grouped_option`."""
    shown = [option for option in own_options(path) if not option.hidden]

    assert [option.opts[0] for option in shown if not isinstance(option, GroupedOption) or option.group is None] == []


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_text_of_an_option_is_a_whole_sentence(path: tuple[str, ...]) -> None:
    """It begins with a capital letter, or a name such as gs://, and ends with a full stop or the default."""
    texts = {option.opts[0]: option.help or "" for option in own_options(path)}
    whole = re.compile(r"(?:[A-Z]|gs://|google\.rpc).*(?:\.|\])", re.DOTALL)

    assert {name: text for name, text in texts.items() if not whole.fullmatch(text)} == {}


def test_few_options_have_one_title(offline: Console) -> None:
    assert titles(offline("history", "--help")[0]) == ["Options"]


def test_help_shows_the_first_name_of_an_option_and_all_are_accepted(offline: Console) -> None:
    out = offline("up", "--help")[0]

    assert "  --type TYPE" in out
    assert "--accelerator-type" not in out
    LEAVES["up",].make_context("up", ["demo", "--accelerator-type", "v4-8"])


def test_thresholds_of_repair_are_settings_that_a_topic_explains(offline: Console) -> None:
    topic = offline("help", "repair")[0]

    assert [key for key in THRESHOLD_SETTINGS.values() if f"  {key} " not in topic] == []
    assert offline("up", "demo", "--unhealthy-after", "1h")[2] == 2


def test_options_explains_every_shared_option(offline: Console) -> None:
    out, err, code = offline("options")

    assert (err, code) == ("", 0)
    assert [option.opts[0] for option in shared_options() if f"{option.opts[0]} " not in out] == []
    assert titles(out) == ["Where", "Access", "Output", "Settings and shared state"]


@pytest.mark.parametrize("name", topic_names())
def test_help_prints_a_topic_that_its_list_names(offline: Console, name: str) -> None:
    out, err, code = offline("help", name)
    title = next(line for line in offline("help")[0].splitlines() if line.startswith(f"  {name} "))

    assert (err, code) == ("", 0)
    assert out.splitlines()[:2] == [title.removeprefix(f"  {name}").strip(), ""]
    assert len(out.splitlines()) > 10
    assert "\n@" not in out


def test_topics_name_every_exit_code_and_condition(offline: Console) -> None:
    codes, levels = offline("help", "exit", "codes")[0], offline("help", "levels")[0]

    assert [code for code in ExitCode if f"\n  {int(code)} " not in codes] == []
    assert {*EXIT_CODES} == {*ExitCode}
    assert [goal for goal in Condition if f"\n  {goal} " not in levels] == []


@pytest.mark.parametrize("words", [("list",), ("ls",), ("queue",), ("queue", "retry"), ("config", "set")], ids=" ".join)
def test_help_of_a_command_is_its_help_option(offline: Console, words: tuple[str, ...]) -> None:
    assert offline("help", *words) == offline(*("list" if word == "ls" else word for word in words), "--help")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param("setings", "did you mean `tpuctl help settings`?", id="topic"),
        pytest.param("exit-code", "did you mean `tpuctl help exit-codes`?", id="topic-of-two-words"),
        pytest.param("Levles", "did you mean `tpuctl help levels`?", id="upper-case"),
        pytest.param("quue", "did you mean `tpuctl help queue`?", id="command"),
        pytest.param("queue rety", "did you mean `tpuctl help queue retry`?", id="command-of-a-group"),
        pytest.param("list zzz", "see `tpuctl help`", id="word-after-a-command"),
        pytest.param("zzz", "see `tpuctl help`", id="nothing-similar"),
    ],
)
def test_mistyped_topic_is_refused_with_a_suggestion(offline: Console, words: str, hint: str) -> None:
    out, err, code = offline("help", *words.split())

    assert (out, code) == ("", 2)
    assert err == f"error: there is no topic or command `{words}`\n  hint: {hint}\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        pytest.param("up demo --tier s", ["spot"], id="tier"),
        pytest.param("create demo --tier spot,on", ["spot,on-demand"], id="second-tier"),
        pytest.param("up demo --tier spot,s", [], id="tier-given-before"),
        pytest.param("up demo --type v6e-2", ["v6e-256"], id="type"),
        pytest.param("up demo --type v4-8 --zone us", ["us-central2-b"], id="zone-of-the-type"),
        pytest.param("wait x --zone us-east1-d,us-east4-", ["us-east1-d,us-east4-a", "us-east1-d,us-east4-b"], id="zones"),
        pytest.param("up demo --zone a", ["asia-east1-c", "asia-northeast1-b", "any"], id="any-zone"),
        pytest.param("help exit", ["exit-codes"], id="topic"),
        pytest.param("help queue re", ["retry"], id="command-of-a-group"),
    ],
)  # fmt: skip
def test_completion_offers_values_without_a_request(
    words: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # no past nodes

    assert completions(words) == offered


def test_completion_offers_the_zones_of_past_nodes(tpuctl: Console) -> None:
    tpuctl("create", "old", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")

    assert complete(tpuctl, "up", "demo", "--type", "v6e-8", "--zone", "us-central2") == ["us-central2-b"]


def test_help_index_names_the_commands_that_say_more(offline: Console) -> None:
    out, err, code = offline("help")

    assert (err, code) == ("", 0)
    assert [name for name in topic_names() if f"\n  {name} " not in out] == []
    assert "  tpuctl options" in out


def test_root_help_has_commands_before_options(offline: Console) -> None:
    found = titles(offline("--help")[0])

    assert found == ["Nodes", "Workers", "Jobs on workers", "More", "Options"]
    assert SHARED_LINE in offline("--help")[0]


def test_groups_have_titles_of_their_own() -> None:
    assert len({*OptionGroup}) == len([*OptionGroup.__members__])
