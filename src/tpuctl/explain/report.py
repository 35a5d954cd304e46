"""The report of a log that tpuctl does not know, for an issue: its telling lines without secrets, and versions."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

from tpuctl import __version__
from tpuctl.escaping import escape_unprintable
from tpuctl.explain.unrecognised import search_term
from tpuctl.redaction import AccountAliases, redact

if TYPE_CHECKING:
    from tpuctl.explain.conclusion import Explanation

_PROJECT = re.compile(r"\bprojects/[\w.:-]{1,80}")
_HOME = re.compile(r"(?:/home|/Users)/[\w.-]{1,60}")


def unrecognised_report(explanation: Explanation) -> str:
    """Return the report as Markdown. Secrets, accounts, addresses, projects and home folders are removed."""
    lines = [place.text for place in explanation.suspicious]
    text = redact("\n".join(lines).encode(), AccountAliases()).decode(errors="replace")
    text = _HOME.sub("/home/USER", _PROJECT.sub("projects/PROJECT", text))
    verdicts = ", ".join(f"`{one.id}` ({one.confidence})" for one in explanation.conclusions)
    return "\n".join(
        [
            "## A log that `tpuctl explain` does not know",
            "",
            f"- tpuctl {__version__}, Python {platform.python_version()}, {platform.system()}",
            f"- {explanation.lines} lines; verdicts: {verdicts or 'none'}",
            "- what ran (framework and version, accelerator type), and what was wrong in the end:",
            "",
            "The lines that look most like an error, the most telling first:",
            "",
            # Indented, so that no line of a log can end the block or become markup.
            *(f"    {escape_unprintable(line)}" for line in text.splitlines()),
            "",
            f"Words to search for: {'; '.join(dict.fromkeys(filter(None, map(search_term, text.splitlines()))))}",
            "",
        ]
    )
