"""Versions of packages, compared as far as pairs of frameworks need it."""

from __future__ import annotations

import pytest

from tpuctl.doctor.framework_rules import Requirement, parse_requirement, release_numbers, satisfies


@pytest.mark.parametrize(
    ("version", "clauses", "expected"),
    [
        ("0.4.35", "", True),
        ("0.4.35", "<=0.4.35,>=0.4.34", True),
        ("0.4.36", "<=0.4.35", False),
        ("0.4.33", ">=0.4.34", False),
        ("0.4.10", ">0.4.9", True),
        ("0.4", "<0.4.0", False),
        ("0.4.0", "==0.4", True),
        ("0.4.1", "!=0.4.1", False),
        ("0.0.7.1", "==0.0.7.*", True),
        ("0.0.71", "==0.0.7.*", False),
        ("0.0.7", "!=0.0.8.*", True),
        ("2.5.1+cpu", "==2.5.1", True),
        ("2.5.9", "~=2.5.1", True),
        ("2.6.0", "~=2.5.1", False),
        ("2.6.0", "~=2.5", True),
        ("0.1.dev20240903+nightly", "==0.1.dev20240903", True),
        ("0.1.dev20240904", "==0.1.dev20240903", False),
        ("0.5.0.dev1", "<0.5.0", True),
        ("0.5.0rc1", "<0.5.0", True),
        ("0.5.0rc1", ">0.5.0b9", True),
        ("0.5.0.post1", ">0.5.0", True),
        ("of its own", ">1", None),
        ("1.0", "like 1", None),
        ("1.0", "<2,like 1", None),
        ("3.0", "<2,like 1", False),
        ("1.0", ">=1.*", None),
    ],
)
def test_versions_compare_as_in_pip(version: str, clauses: str, expected: bool | None) -> None:
    assert satisfies(version, clauses) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jaxlib <=0.4.35,>=0.4.34", Requirement("jaxlib", "<=0.4.35,>=0.4.34", None)),
        ("jaxlib (<=0.4.35)", Requirement("jaxlib", "<=0.4.35", None)),
        ('libtpu ==0.0.8.*; extra == "tpu"', Requirement("libtpu", "==0.0.8.*", "tpu")),
        ("libtpu; extra == 'tpu'", Requirement("libtpu", "", "tpu")),
        ('libtpu >1; python_version > "3.9"', None),
        ("libtpu @ https://host/x.whl", None),
    ],
)
def test_parse_requirement_returns_none_for_unknown_forms(text: str, expected: Requirement | None) -> None:
    assert parse_requirement(text) == expected


def test_release_of_text_without_numbers_is_none() -> None:
    assert (release_numbers("2.5.1+cpu"), release_numbers("x")) == ((2, 5, 1), None)
