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
from tests.lifecycle import both_faces
from tpuctl.app.seen_jobs import note_seen_jobs, seen_jobs
from tpuctl.app.state_paths import journal_folder
from tpuctl.cli.tree import command_tree
from tpuctl.cli.word_completion import parse_words
from tpuctl.clock import ManualClock
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.journal import Journal


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
    in_one_file = {"config", "ray", "ssh-key"}
    assert [path for path, command in LEAVES.items() if path[0] not in in_one_file and command.short_help] == []


def answer(console: Console, line: str) -> list[tuple[str, ...]]:
    """Return the program's answer to a shell for this line: kind, value and description of each candidate."""
    out, err, code = console(_TPUCTL_COMPLETE="line", COMP_LINE=line)
    assert (err, code) == ("", 0)
    return [tuple(entry.split("\t")) for entry in out.splitlines()]


def complete(console: Console, *words: str) -> list[str]:
    """Return the values that are offered after these words, the last of which is incomplete."""
    return [value for kind, value, _ in answer(console, shlex.join(("tpuctl", *words[:-1])) + f" {words[-1]}")]


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
    assert complete(offline, "config", "set", "max") == [
        *("max_reboots", "max_restarts", "max_recreates", "max_failures", "max_price"),
    ]


def test_completion_of_nodes_reads_the_journal(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl("create", "trainer-0", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    tpuctl("create", "trainer-1", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    sandbox.add_node("not-mine")
    requests = len(sandbox.changes())

    assert complete(tpuctl, "status", "") == ["trainer-0", "trainer-1"]
    assert complete(tpuctl, "down", "us-central2-b/trainer-1") == ["us-central2-b/trainer-1"]
    assert complete(tpuctl, "down", "trainer-0", "trainer-1") == ["trainer-1"]
    assert complete(tpuctl, "down", "trainer-0", "") == ["trainer-1"]
    assert complete(tpuctl, "down", "us-central2-b/trainer-0", "") == ["trainer-1"]
    assert len(sandbox.changes()) == requests


def test_completion_has_descriptions(offline: Console) -> None:
    assert answer(offline, "tpuctl sto") == [("plain", "stop", "Stop nodes, keeping their boot disks.")]
    assert "  stop         Stop nodes, keeping their boot disks." in offline("--help")[0].splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_in_its_shell(offline: Console, shell: str) -> None:
    script, err, code = offline("completion", shell)

    assert (err, code) == ("", 0)
    assert "_TPUCTL_COMPLETE" in script
    if program := shutil.which(shell):
        checked = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (checked.stderr, checked.returncode) == ("", 0)


@both_faces
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
    assert complete(offline, "explain", "--topic", "capac") == ["capacity"]
    assert complete(offline, "sandbox", "fault", "pr") == ["preempt"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("tpuctl up ", ["up", ""], id="a new word"),
        pytest.param("tpuctl up de", ["up", "de"], id="a word"),
        pytest.param("tpuctl stop 'de", ["stop", "de"], id="an open quote"),
        pytest.param("tpuctl run demo -- 'a b' c", ["run", "demo", "--", "a b", "c"], id="a quoted word"),
        pytest.param("tpuctl scp demo:out/", ["scp", "demo:out/"], id="a colon"),
        pytest.param("tpuctl stop a\\ b", ["stop", "a b"], id="an escaped space"),
        pytest.param("tpuctl explain '", ["explain", ""], id="only a quote"),
    ],
)
def test_line_is_split_as_shells_do(line: str, expected: list[str]) -> None:
    assert list(parse_words(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("up demo --type=v5e-6", ["plain v5e-64"], id="value after ="),
        pytest.param("up demo --zone us-east1-d,us-central2-", ["plain us-east1-d,us-central2-b"], id="value after a comma"),
        pytest.param("list --columns name,sta", ["plain name,state"], id="columns"),
        pytest.param("list --columns al", ["plain all"], id="all columns"),
        pytest.param("list --sort al", [], id="sort has no all"),
        pytest.param("cost --sort so", ["plain so-far"], id="columns of costs"),
        pytest.param("queue list --columns nam", ["plain name"], id="columns of the queue"),
        pytest.param("jobs demo --columns dur", ["plain duration"], id="columns of jobs"),
        pytest.param("types --columns spot", ["plain spot-price"], id="columns of types"),
        pytest.param("cost --by o", ["plain owner"], id="grouping"),
        pytest.param("cost --by l", ["plain label:"], id="grouping that goes on"),
        pytest.param("explain no-cap", ["plain no-capacity", "file no-cap"], id="id of a message, or a file"),
        pytest.param("explain TPU101", ["plain TPU101", "file TPU101"], id="id of a finding"),
        pytest.param("explain --topic capac", ["plain capacity"], id="topic"),
        pytest.param("up demo --skip-check TPU101,al", ["plain TPU101,all"], id="check"),
        pytest.param("doctor --skip TPU901,al", ["plain TPU901,all"], id="finding of doctor"),
        pytest.param("kill demo -s U", ["plain USR1", "plain USR2"], id="signal"),
        pytest.param("run demo --tpu-min-log-level W", ["plain WARNING"], id="log level"),
        pytest.param("run --up v5e-6", ["plain v5e-64", "file v5e-6"], id="type or file"),
        pytest.param("check v5e-6", ["plain v5e-64", "file v5e-6"], id="node, type or file"),
        pytest.param("run demo -- python3 tr", ["file tr"], id="command for workers"),
        pytest.param("run demo --log-dir o", ["dir o"], id="folder"),
        pytest.param("scp demo:o", [], id="path on a worker"),
        pytest.param("scp ou", ["file ou"], id="path here"),
        pytest.param("sync demo ou", ["dir ou"], id="folder to sync"),
        pytest.param("config set sandbox t", ["plain true"], id="setting that is on or off"),
        pytest.param("config set output js", ["plain json"], id="setting with choices"),
        pytest.param("config set tier sp", ["plain spot"], id="setting with an option"),
        pytest.param("config set ssh_key ~/.s", ["file ~/.s"], id="setting that is a path"),
        pytest.param("config set nonsense v", [], id="unknown setting"),
        pytest.param("sandbox stock --tier sp", ["plain spot"], id="stock"),
        pytest.param("sandbox seed wor", ["file wor"], id="file of the sandbox"),
        pytest.param("help exit", ["plain exit-codes"], id="topic of help"),
        pytest.param("ls --col", ["plain --columns"], id="alias"),
        pytest.param("rm", [], id="alias is not offered"),
        pytest.param("up --nonsense demo --tier sp", ["plain spot"], id="unknown option"),
    ],
)  # fmt: skip
def test_completion_of_values(offline: Console, line: str, expected: list[str]) -> None:
    found = [f"{kind} {value}" for kind, value, _ in answer(offline, f"tpuctl {line}")]

    assert found == expected


def test_completion_of_jobs_and_labels_knows_past_commands(offline: Console) -> None:
    state = Path(offline.environ["TPUCTL_STATE_DIR"])
    node = NodeName("acme", "us-central2-b", "trainer")
    spec = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"team": "vision"})
    journal = Journal(journal_folder({"TPUCTL_STATE_DIR": str(state)}, sandbox=False))
    journal.append(node, "create", ManualClock().now(), spec=spec.to_json())
    note_seen_jobs(offline.environ, [node], ["nightly-1"])
    note_seen_jobs(offline.environ, [node], ["nightly-2"])

    assert answer(offline, "tpuctl logs trainer n") == [
        ("plain", "nightly-2", "job of trainer"),
        ("plain", "nightly-1", "job of trainer"),
    ]
    assert complete(offline, "logs", "us-central2-b/trainer", "n") == ["nightly-2", "nightly-1"]
    assert complete(offline, "logs", "other", "n") == []
    assert complete(offline, "logs", "trainer", "nightly-1", "") == ["nightly-2"]
    assert complete(offline, "logs", "tr") == ["trainer"]
    assert complete(offline, "jobs", "trainer", "--remove", "nightly-1") == ["nightly-1"]
    assert answer(offline, "tpuctl scp tr") == [("plain", "trainer:", "node in us-central2-b"), ("file", "tr", "")]
    assert complete(offline, "list", "-l", "") == ["team="]
    assert complete(offline, "list", "-l", "team=") == ["team=vision"]
    assert complete(offline, "up", "new", "--labels", "run=7,te") == ["run=7,team="]
    assert complete(offline, "list", "--project", "a") == ["acme"]
    assert complete(offline, "update", "trainer", "--zone", "us-central2-") == ["us-central2-b"]

    note_seen_jobs(offline.environ, [node], ["nightly-2"], replace=True)
    assert complete(offline, "logs", "trainer", "n") == ["nightly-2"]


def test_seen_jobs_are_bounded(offline: Console) -> None:
    nodes = [NodeName("acme", "us-central2-b", f"n{number}") for number in range(120)]
    note_seen_jobs(offline.environ, nodes, [f"job-{number}" for number in range(70)])

    assert seen_jobs(offline.environ, ["n19"]) == []
    assert seen_jobs(offline.environ, ["n20"]) == [f"job-{number}" for number in range(50)]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[]", id="no object"),
        pytest.param('{"a/trainer": "x"}', id="no list"),
        pytest.param('{"a/trainer": ["$(reboot)"]}', id="not the name of a job"),
        pytest.param('{"a/trainer": ["x\\ny"]}', id="line end"),
        pytest.param("{", id="torn"),
    ],
)
def test_damaged_note_of_jobs_completes_nothing(offline: Console, content: str) -> None:
    file = Path(offline.environ["TPUCTL_STATE_DIR"]) / "seen-jobs.json"
    file.parent.mkdir()
    file.write_text(content)

    assert complete(offline, "logs", "trainer", "") == []
    note_seen_jobs(offline.environ, [NodeName("acme", "us-central2-b", "trainer")], ["nightly"])
    assert complete(offline, "logs", "trainer", "") == ["nightly"]


def test_name_that_no_node_can_have_is_not_offered(offline: Console) -> None:
    """bash inserts a value as it is: a file with this name in the journal must not become an option or a command."""
    folder = journal_folder(offline.environ, sandbox=False) / "acme" / "us-central2-b"
    folder.mkdir(parents=True)
    for name in ("$(reboot)", "a b", "x;y", "-rf", "Ünï", "col:on", "plain"):
        (folder / f"{name}.jsonl").write_text("{}\n")

    assert complete(offline, "history", "") == ["plain"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        pytest.param("project/tpuctl.yaml", "zone: [", id="project file"),
        pytest.param("home/.config/tpuctl/config.yaml", "sandbox: maybe", id="user file"),
    ],
)
def test_completion_with_a_broken_settings_file_prints_no_error(
    offline: Console, tmp_path: Path, file: str, content: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)

    assert complete(offline, "up", "demo", "--tier", "sp") == ["spot"]


def free_values() -> Iterator[tuple[str, str]]:
    """Yield each option and argument whose value nothing completes, with its command."""
    for path, command in LEAVES.items():
        for param in command.params:
            if isinstance(param, click.Option) and (param.is_flag or param.count):
                continue
            # click has no public name for the completer of a parameter.
            if param._custom_shell_complete is None and not isinstance(param.type, click.Choice | click.Path):
                name = param.opts[0] if isinstance(param, click.Option) else (param.metavar or "")
                yield name, " ".join(path)


def test_every_value_completes_or_has_a_reason() -> None:
    """A new option with a value needs a completer, or a place in this list."""
    found: dict[str, set[str]] = {}
    for name, path in free_values():
        found.setdefault(name, set()).add(path)

    assert set(found) == {name for names in FREE.values() for name in names}


# Why nothing completes the values of these options and arguments.
FREE = {
    "a number, an amount or a size": {
        "--batch", "--batch-size", "--boot-disk-size", "--budget", "--code", "--dataset-size", "--fanout", "--last",
        "--max-cost", "--max-failures", "--megascale-port", "--slice",
        "--max-price", "--max-reboots", "--max-recreates", "--max-restarts", "--max-size", "--nodes", "--pid", "--port",
        "--queue-count", "--retry-after", "--slices",
        "--status", "--tail", "--times", "--topology", "--tpu-max-log-size-mb", "--worker",
    },
    "a duration or a moment": {
        "--after", "--check-timeout", "--connect-timeout", "--duration", "--grace", "--hang-after", "--healthy-after", "--idle",
        "--interval",
        "--older-than", "--queue-for",         "--run-for", "--since", "--ssh-key-expire-after", "--start-after",
        "--start-grace", "--started-before",         "--timeout", "--ttl", "--until", "--waiting-for", "TIME",
    },
    "a text of the user": {
        "--command", "--description", "--env", "--install", "--message", "--metadata", "--metadata-from-file",
        "--name", "--prefix", "--preempt-signal", "--restart-on", "--setup", "--stop-on", "--tags", "--tmux", "--user",
    },
    "a command with its arguments": {
        "--on-give-up", "--on-job-end", "--on-job-stall", "--on-maintenance",
        "--on-preempt", "--on-recover", "--on-usable", "--probe", "[-- COMMAND...]",
    },
    "a resource that only an API knows": {
        "--attach-disk", "--bucket", "--checkpoint-bucket", "--data-bucket", "--data-disk", "--detach-disk", "--image",
        "--impersonate-service-account", "--journal", "--lease", "--network", "--range", "--remove", "--remove-labels",
        "--remove-metadata", "--remove-tags", "--reservation", "--scopes", "--service-account", "--subnetwork", "--vm",
    },
    "a path on a worker": {"--collect", "--mount", "--python", "--ray", "--query-path", "--to", "--tpu-log-dir", "--workdir"},
    "an address": {"--call", "--endpoint", "--forward", "-D", "-L", "-R"},
    "an option of ssh": {"--ssh-flag", "-o"},
}  # fmt: skip
