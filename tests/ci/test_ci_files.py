"""The files of CI systems fit the schemas of their systems, and keep a few rules of our own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
from click.testing import CliRunner

from tests.ci.ci_files import ACTION, CLOUD_BUILD, GITLAB, ROOT, WORKFLOWS, CiScript, all_scripts, github_steps, load
from tpuctl import __version__

_OWN = [path for path in WORKFLOWS if ROOT / ".github" in path.parents]
_EXAMPLES = [path for path in WORKFLOWS if path not in _OWN]


def _rows(scripts: Iterable[CiScript]) -> list[Any]:
    return [pytest.param(script, id=f"{script.file.name}: {script.name}") for script in scripts]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        pytest.param("vendor.github-workflows", WORKFLOWS, id="GitHub workflows"),
        pytest.param("vendor.github-actions", [ACTION], id="GitHub action"),
        pytest.param("vendor.dependabot", [ROOT / ".github/dependabot.yml"], id="dependabot"),
        pytest.param("vendor.gitlab-ci", [GITLAB], id="GitLab"),
        pytest.param("vendor.cloudbuild", CLOUD_BUILD, id="Cloud Build"),
    ],
)
def test_file_fits_the_schema_of_its_system(schema: str, paths: list[Path]) -> None:
    transform = ("--data-transform", "gitlab-ci") if schema == "vendor.gitlab-ci" else ()

    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *transform, *map(str, paths)])

    assert (len(paths) > 0, done.exit_code) == (True, 0), done.output


def test_zizmor_finds_nothing_in_workflows_and_action() -> None:
    program = Path(sys.executable).with_name("zizmor")

    done = subprocess.run(
        [program, "--offline", ".github", ACTION], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", _rows(all_scripts()))
def test_script_has_the_syntax_of_its_shell(script: CiScript) -> None:
    program = script.shell[0] if script.shell else "bash"

    done = subprocess.run([program, "-n"], input=script.text, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert script.shell or script.text.startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("script", _rows(one for one in all_scripts() if one.file in {*WORKFLOWS, ACTION}))
def test_script_gets_values_only_as_variables(script: CiScript) -> None:
    """GitHub replaces an expression before the shell reads the script: the title of a pull request would be code."""
    assert "${{" not in script.text


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=lambda path: path.name)
def test_actions_of_others_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"^ *(?:- )?uses: (\S+)(.*)", path.read_text("utf-8"), re.MULTILINE)

    assert [name for name, comment in used if not _is_pinned(name, comment)] == []


def _is_pinned(name: str, comment: str) -> bool:
    return name.startswith(("./", "tpuctl/tpuctl@")) or bool(
        re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name) and re.fullmatch(r" # v[\d.]+", comment)
    )


def test_one_commit_of_each_action_is_used() -> None:
    used = {
        match
        for path in (ACTION, *WORKFLOWS)
        for match in re.findall(r"^ .*uses: (\S+)@(\S+)", path.read_text("utf-8"), re.M)
    }

    assert len(used) == len({name for name, _ in used})


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.name)
def test_example_uses_the_action_of_this_version(path: Path) -> None:
    used = set(re.findall(r"uses: (\S+)", path.read_text("utf-8")))

    assert f"tpuctl/tpuctl@v{__version__}" in used
    assert {name.partition("@")[0] for name in used} <= {"tpuctl/tpuctl", "actions/checkout", "actions/upload-artifact"}


def test_every_place_names_this_version() -> None:
    files = (path for name in ("examples", "docs") for path in (ROOT / name).rglob("*") if path.is_file())
    pages = [ACTION, *(path for path in files if path.suffix != ".pyc")]
    pattern = re.compile(r"\b(tpuctl/tpuctl@v|ghcr\.io/tpuctl/tpuctl:)(\d[\w.]*\w)")
    found = {match for path in pages for match in pattern.findall(path.read_text("utf-8"))}

    assert found == {("tpuctl/tpuctl@v", __version__), ("ghcr.io/tpuctl/tpuctl:", __version__)}


@pytest.mark.parametrize("path", _OWN, ids=lambda path: path.name)
def test_workflow_has_least_permissions_and_limits(path: Path) -> None:
    workflow = load(path)

    assert (workflow["permissions"], "concurrency" in workflow) == ({}, True)
    for name, job in workflow["jobs"].items():
        assert "permissions" in job
        # GitHub refuses a limit for a call of a workflow, whose jobs have their own.
        assert "uses" in job or job["timeout-minutes"] <= 90
        for step in github_steps(path, name):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_image_has_the_wheel_that_is_published_and_is_tried_first() -> None:
    steps = github_steps(ROOT / ".github/workflows/release.yml", "image")
    wheel = "dist/tpuctl-${{ steps.version.outputs.version }}-py3-none-any.whl"
    (tried,) = (number for number, step in enumerate(steps) if step.get("name") == "Try the image")
    (pushed,) = (number for number, step in enumerate(steps) if step.get("with", {}).get("push"))

    assert tried < pushed
    assert steps[tried]["env"] == {"WHEEL": wheel}
    assert steps[pushed]["with"]["build-args"] == f"SOURCE={wheel}\n"


def test_only_what_is_tested_is_published() -> None:
    path = ROOT / ".github/workflows/release.yml"
    jobs = load(path)["jobs"]

    def needed(name: str) -> set[str]:
        names = jobs[name].get("needs", [])
        return {one for each in ([names] if isinstance(names, str) else names) for one in (each, *needed(each))}

    called = {name: job["uses"] for name, job in jobs.items() if "uses" in job}
    assert called == {"test": "./.github/workflows/test.yml"}
    assert {name for name in jobs if "test" not in needed(name)} == {"test"}
    # YAML 1.1 reads the key `on` as true.
    assert "workflow_call" in load(path.with_name("test.yml"))[True]  # type: ignore[index]


def test_only_jobs_that_publish_may_write() -> None:
    granted = {
        (path.name, name, right)
        for path in _OWN
        for name, job in load(path)["jobs"].items()
        for right, level in job["permissions"].items()
        if level == "write"
    }

    assert {row for row in granted if row[0] in {"release.yml", "test.yml"}} == {
        ("release.yml", "pypi", "id-token"),
        ("release.yml", "image", "packages"),
        ("release.yml", "release", "contents"),
    }
