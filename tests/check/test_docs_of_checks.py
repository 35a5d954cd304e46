"""The page about `tpuctl check` names the permissions and settings that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.test_docs_tables import table, words
from tpuctl.config.settings import SETTINGS

_CHECKING = Path(__file__).resolve().parents[2] / "src/tpuctl/check"
_PERMISSION = re.compile(r'(?:ApiCall\.of|\bcall)\(\s*"([^"]+)"')


def test_every_query_permission_is_documented() -> None:
    asked = {name for path in _CHECKING.glob("*.py") for name in _PERMISSION.findall(path.read_text("utf-8"))}
    named = {name for row in table("check.md", "permissions") for name in words(row[1])}

    assert len(asked) > 15
    assert asked - named == set()


def test_check_keys_are_settings_with_flags() -> None:
    rows = [words(row[0]) for row in table("check.md", "check-settings")]

    assert len(rows) > 5
    assert {key: flags for key, *flags in rows if not {*flags} <= {SETTINGS[key].flag}} == {}
