"""Convert a job of AI Platform Training with a TPU to a TPU VM: what the service would have rejected, and what replaces it.

Pure: takes a text, returns findings, a `tpuctl.yaml` and a command. No request is sent, and no file is written here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tpuctl.check.ai_platform.job_rules import JOB_RULES, JobCase
from tpuctl.check.ai_platform.replacement import Replacement, find_replacement, render_command, render_settings_file
from tpuctl.check.ai_platform.training_job import find_job_storage, read_job
from tpuctl.check.findings import CheckReport, evaluate_rules

__all__ = ["JOB_RULES", "JobTranslation", "translate_job"]


@dataclass(frozen=True, slots=True)
class JobTranslation:
    """The result of the conversion. `file` is None if an error prevents it; the findings say why."""

    source: str
    report: CheckReport
    replacement: Replacement | None
    file: str | None
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the replacement for scripts, without the findings."""
        replacement = self.replacement
        return {
            "source": self.source,
            "acceleratorType": replacement.type.name if replacement else None,
            "zone": replacement.zone if replacement else None,
            "runtimeVersion": replacement.version if replacement else None,
            "command": self.command,
            "file": self.file,
        }


def translate_job(
    text: str, source: str, *, target: str = "tpuctl.yaml", accepted: Collection[str] = ()
) -> JobTranslation:
    """Convert a configuration in YAML or JSON: a `trainingInput`, alone or in a whole job.

    `source` is the file name for messages, `target` the name of the new file. Findings whose id is `accepted` (or
    `all`) are one level milder. Raises `InvalidInputError` for an unreadable file and for a job without a TPU.
    """
    job = read_job(text, source)
    replacement, storage = find_replacement(job), find_job_storage(job)
    command = render_command(job, replacement, target=target) if replacement else None
    report = evaluate_rules(JobCase(job, replacement, storage, target, command), JOB_RULES, accepted=accepted)
    file = render_settings_file(job, replacement, storage, command=command) if replacement and command else None
    return JobTranslation(source, report, replacement, file, command)
