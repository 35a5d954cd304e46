"""`tpuctl types` and `versions`: what each zone offers, by the API."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces


def test_types_of_a_zone_have_their_size(tpuctl: Console) -> None:
    piped, err, code = tpuctl("types", "--zone", "us-central2-b")
    table, _, _ = tpuctl("types", "--zone", "us-central2-b", terminal=True, NO_COLOR="1")

    assert (err, code) == ("", 0)
    assert piped.splitlines()[:2] == [
        "v4-8\tus-central2-b\t4\t1\t2x2x1\ttpu-ubuntu2204-base\t12.88\t?",
        "v4-16\tus-central2-b\t8\t2\t2x2x2\ttpu-ubuntu2204-base\t25.76\t?",
    ]
    assert table.splitlines()[:2] == [
        "TYPE     ZONE           CHIPS  WORKERS  TOPOLOGY  VERSION                   $/H  SPOT $/H",
        "v4-8     us-central2-b      4        1  2x2x1     tpu-ubuntu2204-base   ~$12.88         ?",
    ]


@both_faces
def test_type_lists_the_zones_that_offer_it(tpuctl: Console, face: dict[str, str]) -> None:
    mark = {"sandbox": True} if "TPUCTL_SANDBOX" in face else {}

    out, err, code = tpuctl("types", "v5p-8", "--zone", "us-central1-a", "-o", "json")

    assert (err, code) == ("", 0)
    assert json.loads(out) == [
        {
            "acceleratorType": "v5p-8",
            "zone": "us-central1-a",
            "chips": 4,
            "workers": 1,
            "topology": "2x2x1",
            "runtimeVersion": "v2-alpha-tpuv5",
            "price": {"perHour": 16.8, "isAbout": False, "asOf": "2026-08"},
            "spotPrice": {"perHour": 3.34, "isAbout": True, "asOf": "2026-08"},
            **mark,
        }
    ]
    assert tpuctl("types", "v5p-8", "-o", "name") == ("v5p-8\n", "", 0)


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (("v4-7",), "error: `v4-7` is not an accelerator type\n  hint: did you mean `v4-8`?\n", 2),
        (
            ("v4-8", "--zone", "us-east5-a"),
            "error: `v4-8` is not offered in us-east5-a\n  hint: `tpuctl types` lists what is offered\n",
            3,
        ),
    ],
)
def test_unknown_type_or_zone_is_an_error(tpuctl: Console, arguments: tuple[str, ...], error: str, code: int) -> None:
    assert tpuctl("types", *arguments) == ("", error, code)


@both_faces
def test_types_with_an_unreachable_zone_are_incomplete(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unreachable", zone="us-central1-a", count=0)

    out, err, code = tpuctl("types", "v5litepod-16")

    assert ("us-central1-a" in out, "us-west4-a" in out, code) == (False, True, 1)
    assert err.startswith("error: the list is incomplete: us-central1-a could not be listed\n")


def test_types_of_a_closed_zone_are_not_allowed(tpuctl: Console) -> None:
    out, err, code = tpuctl("types", "--zone", "us-nowhere1-z")

    assert (out, code) == ("", 4)
    assert "us-nowhere1-z" in err


@both_faces
def test_versions_of_a_zone(tpuctl: Console, face: dict[str, str]) -> None:
    mark = {"sandbox": True} if "TPUCTL_SANDBOX" in face else {}

    names, err, code = tpuctl("versions", "--zone", "us-central2-b", "-o", "name")

    assert (names.splitlines()[0], err, code) == ("tpu-ubuntu2204-base", "", 0)
    assert tpuctl("versions", CLOUDSDK_COMPUTE_ZONE="us-central2-b")[0].splitlines()[0] == (
        "tpu-ubuntu2204-base\tus-central2-b"
    )
    assert json.loads(tpuctl("versions", "--zone", "us-central2-b", "-o", "json")[0])[0] == {
        "runtimeVersion": "tpu-ubuntu2204-base",
        "zone": "us-central2-b",
        **mark,
    }


def test_versions_need_a_zone(tpuctl: Console) -> None:
    out, err, code = tpuctl("versions")

    assert (out, code) == ("", 2)
    assert err == (
        "error: no zone is set\n"
        "  hint: pass `--zone ZONE`, or set one: `tpuctl config set zone ZONE`; other ways: `tpuctl help settings`\n"
    )


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        pytest.param(("up", "demo", "--type", "v5litepod-15", "--spot"), "v5litepod-16", id="no-zone"),
        pytest.param(("up", "demo", "--type", "v6e-12", "--zone", "any"), "v6e-16", id="any-zone"),
        pytest.param(("types", "v5litepod-15"), "v5litepod-16", id="types"),
        pytest.param(("up", "demo", "--type", "v5litepod-15", "--zone", "us-west4-a"), "v5litepod-16", id="a-zone"),
    ],
)
def test_size_that_does_not_exist_has_a_suggestion_and_no_zone(
    tpuctl: Console, argv: tuple[str, ...], near: str
) -> None:
    _, err, _ = tpuctl(*argv)

    assert f"did you mean `{near}`?" in err
    assert "offered in us-" not in err


def test_missing_type_names_the_flag_as_given(tpuctl: Console) -> None:
    assert "error: no accelerator type given for `--spot`\n" in tpuctl("up", "demo", "--spot")[1]
