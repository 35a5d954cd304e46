"""Convert a job of AI Platform Training with a TPU to a TPU VM: what the service would have rejected, and what replaces it.

Pure: takes a text, returns findings, a `tpuctl.yaml` and a command. No request is sent, and no file is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.ai_platform import machines, software, surroundings
from tpuctl.preflight.ai_platform.document import read
from tpuctl.preflight.ai_platform.judging import Case
from tpuctl.preflight.ai_platform.replacement import replacement
from tpuctl.preflight.ai_platform.storage import storage
from tpuctl.preflight.ai_platform.training_input import find_job
from tpuctl.preflight.ai_platform.writing import replacing_command, settings_file
from tpuctl.preflight.evaluation import ALL, Report
from tpuctl.preflight.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpuctl.preflight.ai_platform.replacement import Replacement

CATEGORY = "AI Platform Training"
RULES = tuple(sorted((*machines.RULES, *software.RULES, *surroundings.RULES), key=lambda rule: rule.id))


@dataclass(frozen=True, slots=True)
class Translation:
    """The result of the conversion. `file` is None if an error prevents it; the findings say why."""

    source: str
    report: Report
    replacement: Replacement | None
    file: str | None
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the replacement for scripts, without the findings."""
        made = self.replacement
        return {
            "source": self.source,
            "acceleratorType": made.type.name if made else None,
            "zone": made.zone if made else None,
            "runtimeVersion": made.version if made else None,
            "command": self.command,
            "file": self.file,
        }


def from_ai_platform(
    text: str, source: str, *, target: str = "tpuctl.yaml", accepted: Collection[str] = ()
) -> Translation:
    """Convert a configuration in YAML or JSON: a `trainingInput`, alone or in a whole job.

    `source` is the file name for messages, `target` the name of the new file. Findings whose id is `accepted` (or
    `all`) are one level milder. Raises `InvalidInputError` for an unreadable file and for a job without a TPU.
    """
    job = find_job(read(text, source))
    made, places = replacement(job), storage(job)
    command = replacing_command(job, made, target=target) if made else None
    case = Case(job, made, places, target, command)
    findings = [
        Finding(rule.id, rule.title, found, accepted=bool({rule.id, ALL} & set(accepted)))
        for rule in RULES
        for found in rule.judge(case)
    ]
    findings.sort(key=lambda finding: (finding.level.rank, finding.id))
    file = settings_file(job, made, places, command=command) if made and command else None
    return Translation(source, Report(tuple(findings)), made, file, command)
