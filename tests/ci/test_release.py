"""`.ci/release`: a tag, the version and the changelog must agree before anything is published."""

from __future__ import annotations

import runpy

import pytest

from tests.ci.ci_files import ROOT

_notes = runpy.run_path(str(ROOT / ".ci/release"))["release_notes"]
_CHANGELOG = """# Changelog

## Unreleased

- next

## 1.2.0 - 2026-11-23

### Added

- a thing

## 1.1.0

- old

## 0.9.0
"""


@pytest.mark.parametrize(
    ("tag", "version", "notes"),
    [
        pytest.param("v1.2.0", "1.2.0", "### Added\n\n- a thing\n", id="with a date"),
        pytest.param("v1.1.0", "1.1.0", "- old\n", id="without a date"),
    ],
)
def test_release_notes_are_the_section_of_the_version(tag: str, version: str, notes: str) -> None:
    assert _notes(tag, version, _CHANGELOG) == notes


@pytest.mark.parametrize(
    ("tag", "version", "message"),
    [
        pytest.param("v1.2.1", "1.2.0", "tag `v1.2.1` is not `v1.2.0`", id="another version"),
        pytest.param("1.2.0", "1.2.0", "tag `1.2.0` is not `v1.2.0`", id="no v"),
        pytest.param("v1.2", "1.2", "no notes for 1.2 in CHANGELOG.md", id="a prefix of a version"),
        pytest.param("v1x2.0", "1x2.0", "no notes for 1x2.0 in CHANGELOG.md", id="no section"),
        pytest.param("v0.9.0", "0.9.0", "no notes for 0.9.0 in CHANGELOG.md", id="an empty section"),
    ],
)
def test_release_without_agreement_stops(tag: str, version: str, message: str) -> None:
    with pytest.raises(SystemExit, match=f"error: {message}\n  hint: "):
        _notes(tag, version, _CHANGELOG)
