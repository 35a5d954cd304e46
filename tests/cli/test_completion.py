"""Shell completion, and the help of all commands with its examples."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.conftest import Console, Sandbox
from tests.tpuctl_process import run_tpuctl
from tpuctl.cli.tree import command_tree


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is not a group, with its path."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from leaves(command, (*path, name))
            else:
                yield (*path, name), command


LEAVES = dict(leaves(command_tree()))


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_explains_every_option_and_its_examples_parse(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = LEAVES[path]

    assert command.help
    assert [param.opts for param in command.params if isinstance(param, click.Option) and not param.help] == []
    assert len(path) > 1 or "Examples:" in command.help
    for line in map(str.strip, command.help.splitlines()):
        if line.startswith("tpuctl "):
            words = shlex.split(line.partition(" (")[0])
            end = next((index for index, word in enumerate(words) if word in {"|", ">", "&&"}), len(words))
            assert words[1 : 1 + len(path)] == list(path)
            for word in words[1 + len(path) : end]:
                if word.endswith(".yaml"):
                    (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                    (tmp_path / word).touch()
            # Raises what a user would get who typed it.
            command.make_context(" ".join(path), words[1 + len(path) : end])


def test_renamed_flags_accept_their_old_names_hidden_from_help(tpuctl: Console, sandbox: Sandbox) -> None:
    help_text = tpuctl("start", "--help")[0]
    sandbox.add_node("demo", zone="us-central2-b", state="STOPPED")

    assert "--force-lease" in help_text
    assert "--skip-validation" in help_text
    assert not {"--steal", "--anyway"} & set(help_text.split())
    dry_run = ("start", "demo", "--dry-run")
    assert tpuctl(*dry_run, "--steal", "--anyway") == tpuctl(*dry_run, "--force-lease", "--skip-validation")


def test_short_help_is_only_in_the_table_of_commands() -> None:
    """`tpuctl --help` imports no command: their descriptions are beside their names."""
    # The commands of these groups share a file, so nothing is imported for one that was not needed for the other.
    in_one_file = {"config", "ssh-key"}
    assert [path for path, command in LEAVES.items() if path[0] not in in_one_file and command.short_help] == []


def ask(console: Console, **environ: str) -> list[str]:
    """Return the program's answer to a shell. It needs a process, because it reads the environment of its own."""
    done = run_tpuctl([], env={**console.environ, **environ}, cwd=console.folder, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    answer: list[str] = done.stdout.splitlines()
    return answer


def complete(console: Console, *words: str) -> list[str]:
    """Return what bash is offered after these words, the last of which is incomplete."""
    line = " ".join(("tpuctl", *words))
    answer = ask(console, _TPUCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return [entry.partition(",")[2] for entry in answer]


def test_completion_lists_commands_and_options(offline: Console) -> None:
    assert complete(offline, "st") == ["status", "start", "stop", "stacks"]
    assert complete(offline, "sandbox", "rese") == ["reset"]
    assert complete(offline, "up", "demo", "--ma") == [
        "--max-run-duration",
        "--max-reboots",
        "--max-restarts",
        "--max-recreates",
        "--max-price",
    ]
    assert complete(offline, "reset", "demo", "--mode", "re") == ["restart", "reboot", "recreate"]
    assert complete(offline, "list", "-o", "") == ["table", "wide", "tsv", "json", "yaml", "name"]
    assert complete(offline, "status", "-o", "") == ["table", "wide", "tsv", "json", "yaml", "name"]
    assert complete(offline, "config", "set", "max") == ["max_reboots", "max_restarts", "max_recreates", "max_price"]


def test_completion_of_nodes_reads_the_journal(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl("create", "trainer-0", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    tpuctl("create", "trainer-1", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    sandbox.add_node("not-mine")
    requests = len(sandbox.changes())

    assert complete(tpuctl, "status", "") == ["trainer-0", "trainer-1"]
    assert complete(tpuctl, "down", "us-central2-b/trainer-1") == ["us-central2-b/trainer-1"]
    assert complete(tpuctl, "down", "trainer-0", "trainer-1") == ["trainer-1"]
    assert len(sandbox.changes()) == requests


def test_completion_in_zsh_and_fish_has_descriptions(offline: Console) -> None:
    zsh = ask(offline, _TPUCTL_COMPLETE="zsh_complete", COMP_WORDS="tpuctl sto", COMP_CWORD="1")
    fish = ask(offline, _TPUCTL_COMPLETE="fish_complete", COMP_WORDS="tpuctl sto", COMP_CWORD="sto")

    assert zsh == ["plain", "stop", "Stop nodes, keeping their boot disks."]
    assert fish == ["plain,stop\tStop nodes, keeping their boot disks."]
    assert "  stop         Stop nodes, keeping their boot disks." in offline("--help")[0].splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_in_its_shell(offline: Console, shell: str) -> None:
    script, err, code = offline("completion", shell)

    assert (err, code) == ("", 0)
    assert "_TPUCTL_COMPLETE" in script
    if program := shutil.which(shell):
        checked = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (checked.stderr, checked.returncode) == ("", 0)


def test_completion_for_an_unknown_shell_is_refused(offline: Console) -> None:
    assert offline("completion", "zhs") == (
        "",
        (
            "error: invalid value for `{bash|zsh|fish}`: `zhs` is not one of `bash`, `zsh`, `fish`\n"
            "  hint: did you mean `zsh`?\n"
        ),
        2,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(("down", "t"), ["trainer-1"], id="needs-a-node"),
        pytest.param(("history", "t"), ["trainer-0", "trainer-1"], id="history"),
        pytest.param(("up", "t"), ["trainer-0", "trainer-1"], id="creates-it-again"),
    ],
)
def test_completion_leaves_out_deleted_nodes(tpuctl: Console, words: tuple[str, ...], expected: list[str]) -> None:
    for name in ("trainer-0", "trainer-1"):
        tpuctl("create", name, "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    assert tpuctl("down", "trainer-0", "--yes")[2] == 0

    assert complete(tpuctl, *words) == expected


def test_completion_knows_the_values_of_the_table(offline: Console) -> None:
    assert complete(offline, "up", "demo", "--type", "v5e-1") == ["v5e-1", "v5e-16", "v5e-128"]
    assert complete(offline, "up", "demo", "--version", "v2-") == [
        "v2-alpha-tpuv5",
        "v2-alpha-tpuv5-lite",
        "v2-alpha-tpuv6e",
    ]
    assert complete(offline, "explain", "capac") == ["capacity"]
    assert complete(offline, "sandbox", "fault", "pr") == ["preempt"]
