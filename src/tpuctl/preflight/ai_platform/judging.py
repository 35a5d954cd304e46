"""The input of the rules about jobs of AI Platform Training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.preflight.findings import Found, Level, Remedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.preflight.ai_platform.document import Text
    from tpuctl.preflight.ai_platform.replacement import Replacement
    from tpuctl.preflight.ai_platform.storage import Storage
    from tpuctl.preflight.ai_platform.training_input import TrainingInput


@dataclass(frozen=True, slots=True)
class Case:
    """One job and its replacement: the file name `target`, and the command that replaces the submission."""

    job: TrainingInput
    replacement: Replacement | None
    storage: Storage
    target: str
    command: str | None

    def found(
        self,
        level: Level,
        said: Text | str | None,
        text: str,
        *,
        why: str | None = None,
        remedies: Iterable[Remedy] = (),
    ) -> Found:
        """Return a result about a field, about the path of an absent field, or about the whole job."""
        path = tuple(said.split(".")) if isinstance(said, str) else ()
        source = self.job.document.source
        subject = self.job.place(*path) if said is None or isinstance(said, str) else f"{source} line {said.line}"
        facts: dict[str, object] = {"file": source, "line": int(subject.rpartition(" ")[2])}
        if said is not None:
            facts["key"] = said if isinstance(said, str) else said.key
            facts["value"] = None if isinstance(said, str) else said.value or None
        return Found(level=level, subject=subject, text=text, why=why, remedies=tuple(remedies), facts=facts)


def listing(words: Iterable[object], *, last: str = "or") -> str:
    """Return `8`, `32 or 128`, `32, 128 or 256`."""
    texts = [str(word) for word in words]
    return f" {last} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
