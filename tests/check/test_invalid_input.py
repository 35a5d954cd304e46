"""Mistakes in the input of a check: the source is named, and no request is sent."""

from __future__ import annotations

import json

import pytest

from tests.check.ai_platform.corpus import MNIST
from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tpuctl.sandbox import administration

V4 = ("check", "v4-8", "--zone", ZONE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("skip_checks: [TPU101, TPU999]", "`skip_checks`: there is no check `TPU999`"),
        ("skip_checks: [all, tpu405]", "`skip_checks` of a project file cannot name `TPU405` and `all`"),
        ("skip_checks: TPU101,all", "`skip_checks` of a project file cannot name `all`"),
        ("skip_checks: ['TPU101,TPU405']", "`skip_checks`: there is no check `TPU101,TPU405`"),
        (
            "buckets: [gs://a-b, gs://c-d//]",
            "`buckets`: `gs://c-d//` is not a valid location: it ends with several slashes",
        ),
        (
            "data_buckets: [./here]",
            "`data_buckets`: `./here` is a path on this machine; the workers of a TPU cannot read it",
        ),
        (
            "checkpoint_buckets: [s3://a-b]",
            "`checkpoint_buckets`: `s3://a-b` is not in Cloud Storage; a TPU reads `gs://` buckets",
        ),
        ("check_timeout: 0", "`check_timeout` is `0`: it must be at least 0.1s"),
        ("check_timeout: 0.09s", "`check_timeout` is `0.09s`: it must be at least 0.1s"),
        ("check_timeout: 10m1s", "`check_timeout` is `10m1s`: it must be at most 10m"),
    ],
)
def test_mistake_in_file_names_file_and_line(tpuctl: Console, sandbox: Sandbox, line: str, message: str) -> None:
    (tpuctl.folder / "tpuctl.yaml").write_text(f"type: v4-8\n{line}\n")

    out, err, code = tpuctl("check", "--zone", ZONE, TPUCTL_TRUST_PROJECT_FILE="1")

    first = err.splitlines()[0]
    assert (out, code, sandbox.changes()) == ("", 2, [])
    assert first.startswith("error: ")
    assert first.endswith(f"tpuctl.yaml line 2: {message}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--check-timeout", "0"), "--check-timeout: `check_timeout` is `0`: it must be at least 0.1s"),
        (("--check-timeout", "11m"), "--check-timeout: `check_timeout` is `11m`: it must be at most 10m"),
        (("--skip-check", "TPU101,TPU999"), "`--skip-check TPU999`: there is no such check"),
        (("--bucket", "gs://b-c///a"), "`gs://b-c///a` has several slashes in a row"),
    ],
)
def test_mistake_in_flag_names_flag(tpuctl: Console, flags: tuple[str, ...], message: str) -> None:
    out, err, code = tpuctl(*V4, *flags)

    assert (out, err.splitlines()[0], code) == ("", f"error: {message}", 2)


@pytest.mark.parametrize("timeout", ["0.1s", "10m"])
def test_timeout_at_bounds_is_accepted(tpuctl: Console, timeout: str) -> None:
    assert "check_timeout" not in tpuctl(*V4, "--check-timeout", timeout)[1]


@pytest.mark.parametrize("flags", [("--skip-check", "TPU101,tpu401"), ("--skip-check", "TPU101 , TPU401,")])
def test_skip_check_accepts_commas(tpuctl: Console, sandbox: Sandbox, flags: tuple[str, ...]) -> None:
    administration.add_bucket(sandbox.state, "data", location="EUROPE-WEST4")

    out, _, code = tpuctl(*V4, "--bucket", "gs://data", *flags, "-o", "json")

    accepted = {entry["id"] for entry in json.loads(out)["findings"] if entry["accepted"]}
    assert ("TPU101" in accepted, code) == (True, 0)


@pytest.mark.parametrize(
    ("flags", "warnings", "code"),
    [
        ((), 2, 9),
        (("--skip-check", "TPU801"), 1, 9),
        (("--skip-check", "tpu801,TPU817"), 0, 0),
        (("--skip-check", "all"), 0, 0),
    ],
)
def test_skip_check_accepts_job_ids(tpuctl: Console, flags: tuple[str, ...], warnings: int, code: int) -> None:
    (tpuctl.folder / "config.yaml").write_text(MNIST)

    out, err, ended = tpuctl("check", "--ai-platform", "config.yaml", "--strict", "-o", "json", *flags)

    assert (json.loads(out)["summary"]["warning"], ended, err) == (warnings, code, "")


def test_skip_check_unknown_job_id_is_refused(tpuctl: Console) -> None:
    (tpuctl.folder / "config.yaml").write_text(MNIST)

    _, err, code = tpuctl("check", "--ai-platform", "config.yaml", "--skip-check", "TPU899")

    assert (err.splitlines()[0], code) == ("error: `--skip-check TPU899`: there is no such check", 2)


def test_fix_without_zone_is_refused(tpuctl: Console) -> None:
    out, err, code = tpuctl("check", "v4-8", "--fix", "--yes", "--where")

    assert (out, code) == ("", 2)
    assert err.splitlines()[0] == "error: `--fix` needs a zone, as the fixes depend on it"
