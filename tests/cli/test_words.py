"""Texts use words that a user would search for: some words are banned."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_REFUSED = re.compile(
    r"\b(anew|mend|mends|mended|mending|told|be had|whoever|nobody|somebody|what there is|(?:is|are|was|were) to be)\b",
    re.IGNORECASE,
)


def test_no_text_has_a_refused_word() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py")]
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".yaml"}]
    refused = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in (*pages, *sources)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for found in _REFUSED.finditer(line)
    ]

    assert refused == []
