"""The examples for systemd, cron, Kubernetes and CI: files parse, and so does every command line of tpuctl."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tpuctl.cli.tree import command_tree
from tpuctl.clock import ManualClock
from tpuctl.config.settings import SETTINGS, FileKind, check_file_entry, parse_setting
from tpuctl.config.sources import load_config_file
from tpuctl.errors import ExitCode
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.names import NodeName
from tpuctl.nodes.hooks import hook_variables

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for name in ("watch", "clean-up", "github-actions", "gitlab-ci", "cloud-build")
    for path in (ROOT / "examples" / name).rglob("*")
    if path.is_file()
)
GUIDES = [
    ROOT / "docs" / name
    for name in ("workers.md", "how-to/a-ci-job.md", "how-to/from-gcloud.md", "how-to/keep-a-node-alive.md")
]
# Words after which the shell expects a command.
_OPENERS = frozenset({"if", "then", "else", "do", "while", "until", "exec", "sudo", "!", "{", "time", "nohup"})
_OPERATORS = frozenset(";&|()")


def test_every_kind_of_example_file_is_checked() -> None:
    kinds = {(path.suffix or path.name) for path in FILES}

    assert kinds == {".md", ".service", ".env", ".cron", ".yaml", ".yml"}


def command_lines(path: Path) -> Iterator[list[str]]:
    """Yield each command line of tpuctl in a file, as words without the program's name."""
    text = path.read_text("utf-8")
    match path.suffix:
        case ".md":
            blocks = re.findall(r"^(?: {4}.*\n)+", text, flags=re.MULTILINE)
            for line in "".join(blocks).replace("\\\n", " ").splitlines():
                yield from of_shell(_without_schedule(line.strip().removeprefix("ExecStart=")))
            # In prose a command is between backticks; what is cut short there is no line to type.
            for words in re.findall(r"`(tpuctl [^`…]*)`", text):
                yield from of_shell(words)
        case ".service":
            for line in text.splitlines():
                if line.startswith("ExecStart="):
                    yield from of_shell(line.removeprefix("ExecStart="))
        case ".cron":
            for line in text.splitlines():
                yield from of_shell(_without_schedule(line.removeprefix("#")))
        case ".yaml" | ".yml":
            for document in yaml.safe_load_all(text):
                yield from of_data(document)


def of_data(data: Any) -> Iterator[list[str]]:
    """Yield the command lines in YAML: a container's words, or the shell lines of any text."""
    match data:
        case {"image": str(image), "args": [*words], **rest} if "/tpuctl:" in image:
            yield from with_hooks(words)
            yield from of_data(rest)
        case dict():
            for value in data.values():
                yield from of_data(value)
        case list():
            for value in data:
                yield from of_data(value)
        case str():
            for line in data.replace("\\\n", " ").splitlines():
                yield from of_shell(line)


def of_shell(line: str) -> Iterator[list[str]]:
    """Yield the command lines of tpuctl in a shell line, also those inside the arguments of hooks."""
    if not re.search(r"(?:^|[\s/'\"(`])tpuctl\s", line):
        return
    lexer = shlex.shlex(re.sub(r"\$\{\{.*?\}\}", "value", line), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= _OPERATORS:
            words.append(word)
            continue
        yield from _one_command(words)
        words = []


def _one_command(words: list[str]) -> Iterator[list[str]]:
    while words and (words[0] in _OPENERS or re.match(r"[A-Z_]+=", words[0])):
        words = words[1:]
    if words and Path(words[0]).name == "tpuctl":
        # What stands after a redirection (`>`, `2>`) is its file.
        end = next((index for index, word in enumerate(words) if set(word) <= set("<>") and word), len(words))
        yield from with_hooks(words[1:end])


def with_hooks(words: list[str]) -> Iterator[list[str]]:
    """Yield a command line, and those in the commands that its hooks run."""
    yield words
    for option, value in pairwise(words):
        if option.startswith("--on-"):
            yield from of_shell(value)


def _without_schedule(line: str) -> str:
    return re.sub(r"^(?:[\d*/,-]+\s+){5}", "", line)


def parse(words: list[str]) -> None:
    """Parse a command line with the real tree, strictly, down to its last option; run nothing.

    A command's name alone is talk about it: it need only exist.
    """
    command: click.Command = command_tree()
    context = command.make_context("tpuctl", list(words))
    while isinstance(command, click.Group):
        # click 8.2 has renamed the first of the two.
        first = getattr(context, "_protected_args", None) or getattr(context, "protected_args", [])
        name, found, rest = command.resolve_command(context, [*first, *context.args])
        assert found is not None, words
        command = found
        context = command.make_context(name, rest, parent=context, resilient_parsing=not rest)


LINES = [(path, words) for path in [*FILES, *GUIDES] for words in command_lines(path)]


@pytest.mark.parametrize(
    ("path", "words"), [pytest.param(*line, id=f"{line[0].name}: {shlex.join(line[1])}") for line in LINES]
)
def test_every_command_line_of_the_examples_parses(path: Path, words: list[str]) -> None:
    parse(words)


def test_command_lines_are_found_in_every_example() -> None:
    """The search for command lines works."""
    commands = [(path.name, words[0]) for path, words in LINES]

    assert {name for name, _ in commands} >= {
        "tpuctl-watch@.service",
        "tpuctl-watch.cron",
        "tpuctl-watch.yaml",
        "tpuctl-job@.service",
        "tpuctl-job.yaml",
        "tpuctl-gc.cron",
        "tpuctl-gc.yml",
        "tpuctl-gc.yaml",
        "train-on-tpu.yml",
        "one-command.yml",
        ".gitlab-ci.yml",
        "cloudbuild.yaml",
        "cloudbuild-gc.yaml",
        "workers.md",
        "a-ci-job.md",
        "from-gcloud.md",
        "keep-a-node-alive.md",
    }
    assert {"watch", "up", "down", "ssh", "run", "scp", "sync", "list"} <= {command for _, command in commands}


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda path: path.name)
def test_every_variable_of_the_examples_exists(path: Path) -> None:
    named = set(re.findall(r"\b(TPUCTL_[A-Z_]*[A-Z])\b", path.read_text("utf-8")))
    event = NodeEvent(EventKind.PREEMPTED, ManualClock().now(), NodeName("p", "z", "n"), "")
    of_run = {"TPUCTL_WORKER_ID", "TPUCTL_WORKER_COUNT"}
    known = (
        {spec.environment for spec in SETTINGS.values()} | set(hook_variables(event)) | of_run | {"TPUCTL_STATE_DIR"}
    )

    assert named - known - {"TPUCTL_SANDBOX_SPEED"} == set()


def test_project_file_of_the_deployment_is_valid(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((ROOT / "examples/watch/kubernetes/tpuctl-watch.yaml").read_text("utf-8")))
    (tmp_path / "tpuctl.yaml").write_text(documents[1]["data"]["tpuctl.yaml"])

    entries = load_config_file(tmp_path / "tpuctl.yaml").entries

    for key, entry in entries.items():
        check_file_entry(FileKind.PROJECT, key, entry.value, place=key)
    assert {"type", "zone", "setup"} <= set(entries)


def test_deployment_references_match() -> None:
    """Its mounts, selector and service account exist in the manifest."""
    account, config, deployment = yaml.safe_load_all(
        (ROOT / "examples/watch/kubernetes/tpuctl-watch.yaml").read_text("utf-8")
    )
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]

    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/tmp", container["workingDir"], "/state"} <= mounted
    assert pod["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_supervisor_of_a_job_is_not_restarted_when_a_restart_does_not_help() -> None:
    """Systemd and Kubernetes agree, and neither takes SIGTERM for the end of the job."""
    unit = read_unit("tpuctl-job@.service")["Service"]
    account, job = yaml.safe_load_all((ROOT / "examples/watch/kubernetes/tpuctl-job.yaml").read_text("utf-8"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    failing, ignored = job["spec"]["podFailurePolicy"]["rules"]
    codes = {ExitCode(code) for code in failing["onExitCodes"]["values"]}

    assert codes == {
        ExitCode.USAGE,
        ExitCode.NOT_FOUND,
        ExitCode.NOT_ALLOWED,
        ExitCode.TIMED_OUT,
        ExitCode.REMOTE_FAILED,
    }
    assert codes == {ExitCode(int(code)) for code in unit["RestartPreventExitStatus"].split()}
    assert (unit["Restart"], int(unit["SuccessExitStatus"])) == ("on-failure", ExitCode.TERMINATED)
    assert (failing["action"], failing["onExitCodes"]["containerName"]) == ("FailJob", container["name"])
    assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert (pod["restartPolicy"], pod["serviceAccountName"]) == ("Never", account["metadata"]["name"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert {"TPUCTL_JOURNAL", "TPUCTL_LEASE"} <= {each["name"] for each in container["env"]}


def test_environment_file_has_valid_values() -> None:
    text = (ROOT / "examples/watch/systemd/trainer.env").read_text("utf-8")
    values = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    by_variable = {spec.environment: spec for spec in SETTINGS.values()}

    for name, value in values.items():
        parse_setting(by_variable[name], shlex.split(value)[0])


def read_unit(name: str) -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # what the library's documentation says to do
    unit.read(ROOT / "examples/watch/systemd" / name)
    return unit


def test_systemd_unit_restarts_except_after_errors_a_person_must_fix() -> None:
    unit = read_unit("tpuctl-watch@.service")

    kept = {ExitCode(int(code)) for code in unit["Service"]["RestartPreventExitStatus"].split()}

    assert unit["Service"]["Restart"] == "on-failure"
    assert kept == {
        ExitCode.USAGE,
        ExitCode.NOT_FOUND,
        ExitCode.NOT_ALLOWED,
        ExitCode.CONFLICT,
        ExitCode.BROKEN,
        ExitCode.REMOTE_FAILED,
    }
