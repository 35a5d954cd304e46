"""The scripts in the repository's files for CI systems, each with the shell that its system starts it with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
WORKFLOWS = sorted(
    [
        *(ROOT / ".github/workflows").glob("*.yml"),
        *(ROOT / "examples/github-actions").glob("*.yml"),
        *(ROOT / "examples/clean-up").glob("*.yml"),
    ]
)
GITLAB = ROOT / "examples/gitlab-ci/.gitlab-ci.yml"
CLOUD_BUILD = sorted((ROOT / "examples/cloud-build").glob("*.yaml"))

# GitHub's shells on Linux and macOS: without `shell:`, and with `shell: bash`.
_GITHUB_SHELLS = {
    None: ("bash", "-e"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"),
    "sh": ("sh", "-e"),
}
# What GitLab's runner sets before the script of a job.
_GITLAB_SHELL = ("bash", "-eo", "pipefail")


@dataclass(frozen=True, slots=True)
class CiScript:
    """A script: its text, the shell that gets it as a file, and the variables that the file gives it."""

    file: Path
    name: str
    text: str
    shell: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


@cache
def load(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file. Read once: not to be changed."""
    data = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(data, dict)
    return data


def github_steps(path: Path, job: str) -> list[dict[str, Any]]:
    """Return the steps of a job of a workflow; none of a job that calls another workflow."""
    return list(load(path)["jobs"][job].get("steps", []))


def github_scripts(path: Path, job: str) -> list[CiScript]:
    """Return the scripts of a job of a workflow."""
    workflow = load(path)
    shared = {**workflow.get("env", {}), **workflow["jobs"][job].get("env", {})}
    return [*_of_steps(path, github_steps(path, job), shared)]


def action_scripts() -> list[CiScript]:
    """Return the scripts of the action."""
    return [*_of_steps(ACTION, load(ACTION)["runs"]["steps"], {})]


def _of_steps(path: Path, steps: list[dict[str, Any]], shared: Mapping[str, str]) -> Iterator[CiScript]:
    for number, step in enumerate(steps):
        if "run" in step:
            environ = {**shared, **step.get("env", {})}
            name = step.get("name") or step.get("id") or f"step {number}"
            yield CiScript(path, name, step["run"], _GITHUB_SHELLS[step.get("shell")], environ)


def gitlab_script(job: str, key: str = "script") -> CiScript:
    """Return what a job of the GitLab example runs in one shell: its script after its `before_script`, or another key."""
    data = load(GITLAB)
    merged = {**data[data[job]["extends"]], **data[job]}
    lines = [*(merged["before_script"] if key == "script" else []), *merged[key]]
    environ = {**data["variables"], **merged.get("variables", {})}
    return CiScript(GITLAB, f"{job} {key}", "\n".join(lines) + "\n", _GITLAB_SHELL, environ)


def cloud_build_scripts(path: Path) -> list[CiScript]:
    """Return the scripts of a build: files that are started by their first line."""
    data = load(path)
    environ = dict(entry.split("=", 1) for entry in data["options"]["env"])
    steps = enumerate(data["steps"])
    return [CiScript(path, step.get("id", f"step {number}"), step["script"], (), environ) for number, step in steps]


@cache
def all_scripts() -> list[CiScript]:
    """Return every script of every file."""
    found = [script for path in WORKFLOWS for job in load(path)["jobs"] for script in github_scripts(path, job)]
    jobs = [(job, key) for job, value in load(GITLAB).items() for key in ("script", "after_script") if key in value]
    return [
        *found,
        *action_scripts(),
        *(gitlab_script(job, key) for job, key in jobs if isinstance(load(GITLAB)[job], dict)),
        *(script for path in CLOUD_BUILD for script in cloud_build_scripts(path)),
    ]


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace what a system replaces before a script starts: `${{ NAME }}`, `$NAME` and `${NAME}`, of the given names only."""

    def value(match: re.Match[str]) -> str:
        return values.get(match["expression"] or match["name"], match[0])

    return re.sub(r"\$\{\{ *(?P<expression>[^}]+?) *\}\}|\$\{?(?P<name>[A-Z_]+)\}?", value, str(text))
