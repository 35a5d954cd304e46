"""Convert a job of AI Platform Training with a TPU to a TPU VM: what the service would have rejected, and what replaces it.

Pure: takes a text, returns findings, a `tpuctl.yaml` and a command. No request is sent, and no file is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.check.ai_platform.job_rules import ENVIRONMENT_RULES, MACHINE_RULES, SOFTWARE_RULES, JobCase
from tpuctl.check.ai_platform.replacement import find_replacement, render_command, render_settings_file
from tpuctl.check.ai_platform.training_job import find_job, find_job_storage, read_job_document
from tpuctl.check.findings import ALL_CHECKS, CheckReport, Finding

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpuctl.check.ai_platform.replacement import Replacement

JOB_CATEGORY = "AI Platform Training"
JOB_RULES = tuple(sorted((*MACHINE_RULES, *SOFTWARE_RULES, *ENVIRONMENT_RULES), key=lambda rule: rule.id))


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
    job = find_job(read_job_document(text, source))
    replacement, places = find_replacement(job), find_job_storage(job)
    command = render_command(job, replacement, target=target) if replacement else None
    case = JobCase(job, replacement, places, target, command)
    findings = [
        Finding(rule.id, rule.title, found, accepted=bool({rule.id, ALL_CHECKS} & set(accepted)))
        for rule in JOB_RULES
        for found in rule.judge(case)
    ]
    findings.sort(key=lambda finding: (finding.level.rank, finding.id))
    file = render_settings_file(job, replacement, places, command=command) if replacement and command else None
    return JobTranslation(source, CheckReport(tuple(findings)), replacement, file, command)
