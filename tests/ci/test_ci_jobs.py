"""The training jobs of the examples never leave a node behind: two cancelled ones here, all by `make ci-jobs`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.auth import identity_pool

from tests.ci.ci_files import GITLAB, expand, gitlab_script, load
from tests.ci.ci_jobs import JOBS, CiJob, End, expected_result, run_job
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture

_BY_NAME = {job.name: job for job in JOBS}


@pytest.mark.sshd
@pytest.mark.parametrize(
    ("job", "end"),
    [
        pytest.param(_BY_NAME[name], end, id=f"{name}-{end}")
        for name, end in (
            ("one-command.yml", End.CANCELLED),
            (".gitlab-ci.yml", End.CANCELLED),
        )
    ],
)
def test_job_leaves_no_node(tmp_path: Path, job: CiJob, end: End) -> None:
    result = run_job(tmp_path, job, end)

    assert result == expected_result(job, end), result.log


@pytest.mark.parametrize("name", ["one-command.yml", "train-on-tpu.yml"])
def test_github_job_deletes_the_nodes_of_earlier_attempts(tmp_path: Path, name: str) -> None:
    """ "Re-run failed jobs" runs `down` alone, with the number of a new attempt."""
    program = tmp_path / "tpuctl"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o700)
    (script,) = _BY_NAME[name].down

    done = subprocess.run(
        [*script.shell, "-c", script.text],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_RUN_ID": "17", "GITHUB_RUN_ATTEMPT": "3"},
        capture_output=True,
        text=True,
        check=True,
    )

    node = script.environ["NODE"].replace("${{ github.run_id }}", "17")
    expected = [node.replace("${{ github.run_attempt }}", number) for number in "123"]
    assert done.stdout == f"down {' '.join(expected)} --yes\n"


def test_gitlab_starts_a_pipeline_for_each_source() -> None:
    """It starts none that has only jobs of the stages .pre and .post."""
    data = load(GITLAB)
    jobs = [job for job in data.values() if isinstance(job, dict) and "rules" in job]
    stages = {(rule["if"], job["stage"]) for job in jobs for rule in job["rules"]}
    sources = {source for source, _ in stages}

    assert sources == {f'$CI_PIPELINE_SOURCE == "{name}"' for name in ("web", "schedule")}
    assert {source for source, stage in stages if stage in data["stages"]} == sources


def test_gitlab_credentials_load_and_lie_outside_of_the_checkout(tmp_path: Path) -> None:
    """Google's library accepts the file that a job writes, and finds the job's token."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    script = gitlab_script("train")
    values = {**script.environ, "CI_PROJECT_DIR": str(checkout)}
    environ = {name: expand(value, values) for name, value in values.items()}
    lines = load(GITLAB)[".tpuctl"]["before_script"][1:]

    subprocess.run(
        [*script.shell, "-c", "\n".join(lines)],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], **environ, "GOOGLE_TOKEN": "a.b.c"},
        check=True,
    )
    path = Path(environ["GOOGLE_APPLICATION_CREDENTIALS"])
    credentials: Any = identity_pool.Credentials.from_info(json.loads(path.read_text()))  # type: ignore[no-untyped-call]  # Google's

    assert credentials.retrieve_subject_token(None) == "a.b.c"
    assert credentials.service_account_email == "ACCOUNT@PROJECT.iam.gserviceaccount.com"
    assert list(checkout.iterdir()) == []
    assert (tmp_path / "checkout.tmp/google.token").stat().st_mode & 0o077 == 0
