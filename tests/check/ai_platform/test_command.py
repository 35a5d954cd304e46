"""`tpuctl check --ai-platform`: streams, overwriting of files, and exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.check.ai_platform.corpus import MNIST, config_of
from tpuctl.check.ai_platform import translate_job
from tpuctl.errors import ExitCode

if TYPE_CHECKING:
    from tests.conftest import Console
from tests.lifecycle import both_faces


def test_file_goes_to_stdout_and_findings_to_stderr(tpuctl: Console) -> None:
    """`> tpuctl.yaml` writes a usable file."""
    (tpuctl.folder / "config.yaml").write_text(MNIST)

    stdout, stderr, code = tpuctl("check", "--ai-platform", "config.yaml")

    assert (stdout, code) == (translate_job(MNIST, "config.yaml").file, ExitCode.OK)
    assert "TPU801" in stderr
    assert stderr.endswith("2 warnings; 5 rules examined\n")


def test_error_fails_the_check(tpuctl: Console) -> None:
    (tpuctl.folder / "config.yaml").write_text(config_of("TPU_V2 with 16 cores"))

    stdout, stderr, code = tpuctl("check", "--ai-platform", "config.yaml")

    assert (stdout, code) == ("", ExitCode.CHECK_FAILED)
    assert stderr.endswith("warning: no tpuctl.yaml was written, because of the errors\n")


def test_existing_file_is_not_overwritten_without_confirmation(tpuctl: Console) -> None:
    """An identical file needs no confirmation."""
    (tpuctl.folder / "config.yaml").write_text(MNIST)
    there = tpuctl.folder / "new.yaml"
    translation = translate_job(MNIST, "config.yaml", target="new.yaml")
    words = ("check", "--ai-platform", "config.yaml", "--write", "new.yaml", "--quiet")

    assert tpuctl(*words) == (f"{translation.command}\n", "", ExitCode.OK)
    assert there.read_text() == translation.file
    assert tpuctl(*words) == (f"{translation.command}\n", "", ExitCode.OK)

    there.write_text("zone: us-central1-b\n")
    refused = tpuctl(*words)
    assert (refused[0], there.read_text(), refused[2]) == ("", "zone: us-central1-b\n", ExitCode.USAGE)
    assert "--yes" in refused[1]
    assert tpuctl(*words, "--yes") == (f"{translation.command}\n", "", ExitCode.OK)
    assert there.read_text() == translation.file


@both_faces
def test_json_has_file_command_and_findings(tpuctl: Console) -> None:
    (tpuctl.folder / "config.yaml").write_text(MNIST)
    translation = translate_job(MNIST, "config.yaml")

    stdout, stderr, code = tpuctl("check", "--ai-platform", "config.yaml", "-o", "json")

    shown = json.loads(stdout)
    assert (stderr, code) == ("", ExitCode.OK)
    assert [(finding["id"], finding["level"]) for finding in shown.pop("findings")] == [
        (finding.id, str(finding.level)) for finding in translation.report.findings
    ]
    assert [rule["id"] for rule in shown.pop("examined")] == ["TPU801", "TPU803", "TPU808", "TPU812", "TPU817"]
    assert shown == {
        "schemaVersion": 2,
        "source": "config.yaml",
        "acceleratorType": "v2-8",
        "zone": "us-central1-b",
        "runtimeVersion": "tpu-vm-tf-2.11.0",
        "command": translation.command,
        "file": translation.file,
        "summary": {"error": 0, "warning": 2, "unknown": 0, "note": 0},
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ai-platform", "absent.yaml"), "`--ai-platform absent.yaml` cannot be read: No such file or directory"),
        (
            ("--ai-platform", "config.yaml", "--write", "out.txt"),
            "`--write out.txt`: `tpuctl run --up` needs the ending `.yaml` or `.yml`",
        ),
        (
            ("--ai-platform", "latin.yaml"),
            "`--ai-platform latin.yaml` cannot be read: not UTF-8 text: line 1, byte 4 (0xe9)",
        ),
    ],
)
def test_bad_file_is_a_usage_error(tpuctl: Console, words: tuple[str, ...], message: str) -> None:
    (tpuctl.folder / "config.yaml").write_text(MNIST)
    (tpuctl.folder / "latin.yaml").write_bytes(b"a: \xe9\n")

    stdout, stderr, code = tpuctl("check", *words)

    assert (stdout, code) == ("", ExitCode.USAGE)
    assert f"error: {message}\n" in stderr


def test_job_is_read_from_stdin(tpuctl: Console) -> None:
    stdout, _, code = tpuctl("check", "--ai-platform", "-", stdin=MNIST)

    assert (stdout, code) == (translate_job(MNIST, "stdin").file, ExitCode.OK)
