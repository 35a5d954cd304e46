"""Rules about images: fit with the accelerator, and the offer of the zone. A row for each pair and boundary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.offer_facts import ZONE, facts, found_by, spec, summaries, wanted
from tpuctl.accelerators import parse_accelerator_type
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.rules.zone_rules import ImageFit, image_fits_accelerator, image_is_offered, judge_image

SLOW = Unknown("no answer within 15s", is_passing=True)


@pytest.mark.parametrize(
    ("image", "accelerator_type", "match", "better"),
    [
        ("tpu-ubuntu2204-base", "v2-8", ImageFit.FITS, None),
        ("tpu-ubuntu2204-base", "v3-32", ImageFit.FITS, None),
        ("tpu-ubuntu2204-base", "v4-8", ImageFit.FITS, None),
        ("tpu-ubuntu2204-base", "v5litepod-8", ImageFit.DOUBTFUL, "v2-alpha-tpuv5-lite"),
        ("tpu-ubuntu2204-base", "v5p-8", ImageFit.MISFIT, "v2-alpha-tpuv5"),
        ("tpu-ubuntu2204-base", "v6e-8", ImageFit.MISFIT, "v2-alpha-tpuv6e"),
        ("v2-alpha-tpuv5-lite", "v5litepod-8", ImageFit.FITS, None),
        ("v2-alpha-tpuv5-lite", "v5p-8", ImageFit.DOUBTFUL, "v2-alpha-tpuv5"),
        ("v2-alpha-tpuv5", "v5p-8", ImageFit.FITS, None),
        ("v2-alpha-tpuv5", "v5litepod-16", ImageFit.DOUBTFUL, "v2-alpha-tpuv5-lite"),
        ("v2-alpha-tpuv6e", "v6e-8", ImageFit.FITS, None),
        ("v2-alpha-tpuv6e", "v4-8", ImageFit.MISFIT, "tpu-ubuntu2204-base"),
        ("v2-alpha-tpuv6e", "v5litepod-8", ImageFit.DOUBTFUL, "v2-alpha-tpuv5-lite"),
        ("v2-alpha-tpuv5", "v6e-8", ImageFit.DOUBTFUL, "v2-alpha-tpuv6e"),
        ("v2-alpha-tpuv5", "v3-8", ImageFit.MISFIT, "tpu-ubuntu2204-base"),
        ("tpu-vm-base", "v3-8", ImageFit.FITS, None),
        ("tpu-vm-base", "v4-8", ImageFit.DOUBTFUL, "tpu-ubuntu2204-base"),
        ("tpu-vm-base", "v5litepod-4", ImageFit.MISFIT, "v2-alpha-tpuv5-lite"),
        ("tpu-vm-v4-base", "v4-8", ImageFit.FITS, None),
        ("tpu-vm-v4-base", "v2-8", ImageFit.DOUBTFUL, "tpu-ubuntu2204-base"),
        ("tpu-vm-v4-pt-1.13", "v4-8", ImageFit.FITS, None),
        ("tpu-vm-pt-2.0", "v3-8", ImageFit.FITS, None),
        ("tpu-vm-pt-2.0", "v4-8", ImageFit.DOUBTFUL, "tpu-ubuntu2204-base"),
        ("our-own-image", "v4-8", ImageFit.UNKNOWN, "tpu-ubuntu2204-base"),
        ("tpu-vm-tf-2.16.1", "v3-8", ImageFit.FITS, None),
        ("tpu-vm-tf-2.16.1-se", "v3-8", ImageFit.FITS, None),
        ("tpu-vm-tf-2.16.1-pjrt", "v4-8", ImageFit.FITS, None),
        ("tpu-vm-tf-2.16.1-pod-pjrt", "v4-16", ImageFit.FITS, None),
        ("tpu-vm-tf-2.16.1", "v4-16", ImageFit.DOUBTFUL, "tpu-vm-tf-2.16.1-pod"),
        ("tpu-vm-tf-2.16.1-pod", "v4-8", ImageFit.DOUBTFUL, "tpu-vm-tf-2.16.1"),
        ("tpu-vm-tf-2.10.0", "v4-8", ImageFit.DOUBTFUL, "tpu-vm-tf-2.10.0-v4"),
        ("tpu-vm-tf-2.10.0-pod-v4", "v4-16", ImageFit.FITS, None),
        ("tpu-vm-tf-2.10.1", "v4-8", ImageFit.FITS, None),
        ("tpu-vm-tf-2.10.1-v4", "v4-8", ImageFit.DOUBTFUL, "tpu-vm-tf-2.10.1"),
        ("tpu-vm-tf-2.10.0-v4", "v2-8", ImageFit.DOUBTFUL, "tpu-vm-tf-2.10.0"),
        ("tpu-vm-tf-2.14.1", "v5litepod-8", ImageFit.MISFIT, "tpu-vm-tf-2.15.0-pjrt"),
        ("tpu-vm-tf-2.15.0-pjrt", "v5litepod-8", ImageFit.FITS, None),
        ("tpu-vm-tf-2.15.0-se", "v6e-8", ImageFit.MISFIT, "tpu-vm-tf-2.15.0-pjrt"),
        ("tpu-vm-tf-2.18.0", "v5p-16", ImageFit.MISFIT, "tpu-vm-tf-2.18.0-pod-pjrt"),
        ("tpu-vm-tf-2.18.0-pjrt", "v5p-16", ImageFit.DOUBTFUL, "tpu-vm-tf-2.18.0-pod-pjrt"),
        ("tpu-vm-tf-2.18.0-v4-pjrt", "v5p-8", ImageFit.MISFIT, "tpu-vm-tf-2.18.0-pjrt"),
    ],
)
def test_image_fit_by_name(image: str, accelerator_type: str, match: ImageFit, better: str | None) -> None:
    verdict = judge_image(f"projects/p/locations/z/runtimeVersions/{image}", parse_accelerator_type(accelerator_type))

    assert (verdict.match, verdict.better) == (match, better)


@pytest.mark.parametrize(
    ("made", "creates", "level", "text", "command"),
    [
        (
            spec("v6e-8"),
            True,
            "error",
            "`tpu-ubuntu2204-base` on v6e-8: it is documented for v2, v3 and v4, not for v6e",
            f"tpuctl up trainer --project=p --zone={ZONE} --type=v6e-8 --version=v2-alpha-tpuv6e",
        ),
        (
            spec("v6e-8"),
            False,
            "error",
            "`tpu-ubuntu2204-base` on v6e-8: it is documented for v2, v3 and v4, not for v6e",
            f"tpuctl up trainer --project=p --zone={ZONE} --type=v6e-8 --version=v2-alpha-tpuv6e --replace",
        ),
        (
            spec("v5litepod-8"),
            True,
            "warning",
            "`tpu-ubuntu2204-base` on v5litepod-8: it is documented for v2, v3 and v4, not for v5e",
            f"tpuctl up trainer --project=p --zone={ZONE} --type=v5litepod-8 --version=v2-alpha-tpuv5-lite",
        ),
        (
            spec(runtime_version="our-own"),
            True,
            "note",
            "`our-own` on v4-8: tpuctl does not know this image",
            f"tpuctl up trainer --project=p --zone={ZONE} --type=v4-8 --version=tpu-ubuntu2204-base",
        ),
    ],
)
def test_misfit_image_names_better_one(made: Any, *, creates: bool, level: str, text: str, command: str | None) -> None:
    (found,) = found_by(image_fits_accelerator, facts(wanted(made, creates=creates)))

    assert (found.level, found.text, [remedy.command for remedy in found.remedies]) == (
        level,
        text,
        [command] if command else [],
    )


def test_image_that_fits_or_of_unknown_type_is_silent() -> None:
    assert summaries(image_fits_accelerator, facts(wanted(spec()))) == []
    assert summaries(image_fits_accelerator, facts(wanted(spec("v9-8")))) == []


VERSIONS = ("tpu-ubuntu2204-base", "tpu-vm-tf-2.18.0", "v2-alpha-tpuv6e")


@pytest.mark.parametrize(
    ("image", "versions", "creates", "expected"),
    [
        ("tpu-ubuntu2204-base", Known(VERSIONS), True, []),
        ("tpu-ubuntu2204-base", Known(VERSIONS), False, []),
        ("tpu-ubuntu2204-base", None, True, []),
        (
            "tpu-vm-tf-2.18.1",
            Known(VERSIONS),
            True,
            [("error", f"{ZONE} has no runtime version `tpu-vm-tf-2.18.1`; the nearest is `tpu-vm-tf-2.18.0`")],
        ),
        (
            "zzz",
            Known(VERSIONS),
            True,
            [("error", f"{ZONE} has no runtime version `zzz`; the nearest is `tpu-ubuntu2204-base`")],
        ),
        # The documentation names it for v4; an empty list says nothing.
        (
            "tpu-ubuntu2204-base",
            Known(("v2-alpha-tpuv6e",)),
            True,
            [("warning", f"{ZONE} has no runtime version `tpu-ubuntu2204-base`")],
        ),
        (
            "v2-alpha-tpuv5",
            Known(("tpu-vm-base",)),
            True,
            [("error", f"{ZONE} has no runtime version `v2-alpha-tpuv5`")],
        ),
        (
            "zzz",
            Known(()),
            True,
            [("unknown", f"the list of runtime versions in {ZONE} could not be read: its list is empty")],
        ),
        ("zzz", Absent(), True, []),
        ("zzz", Unknown("none", error_id="zone-not-supported"), True, []),
        (
            "zzz",
            SLOW,
            True,
            [("unknown", f"the list of runtime versions in {ZONE} could not be read: no answer within 15s")],
        ),
    ],
)
def test_image_is_in_zone_list(image: str, versions: Any, *, creates: bool, expected: list[tuple[str, str]]) -> None:
    about = facts(wanted(spec(runtime_version=image), creates=creates), versions=versions)

    assert [(str(found.level), found.text) for found in found_by(image_is_offered, about)] == expected


@pytest.mark.parametrize("fact", [Absent("no such zone"), Unknown("no such zone", error_id="zone-not-supported")])
def test_image_list_unread_in_zone_with_types_is_unknown(fact: Any) -> None:
    about = facts(versions=fact, types=Known(("v4-8",)))

    assert [level for level, _, _ in summaries(image_is_offered, about)] == ["unknown"]


OFFERED = (
    *("tpu-ubuntu2204-base", "tpu-vm-base", "tpu-vm-pt-2.0", "tpu-vm-v4-base", "tpu-vm-v4-pt-2.0"),
    *("v2-alpha-tpuv5", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv6e"),
)


@pytest.mark.parametrize(
    ("image", "type_", "nearest"),
    [
        ("v2-alpha", "v6e-1", "v2-alpha-tpuv6e"),
        ("v2-alpha", "v5litepod-4", "v2-alpha-tpuv5-lite"),
        ("v2-alpha", "v5p-8", "v2-alpha-tpuv5"),
        ("v2-alpha", "v3-8", "tpu-ubuntu2204-base"),
        ("v2-alpha", "v4-8", "tpu-ubuntu2204-base"),
        ("tpu-vm-v4-pt-2.1", "v3-8", "tpu-vm-pt-2.0"),
        ("tpu-vm-v4-pt-2.1", "v4-8", "tpu-vm-v4-pt-2.0"),
        ("ours", "v9-8", None),
    ],
)
def test_nearest_image_fits_the_type(image: str, type_: str, nearest: str | None) -> None:
    (found,) = found_by(image_is_offered, facts(wanted(spec(type_, runtime_version=image)), versions=Known(OFFERED)))

    assert found.facts["nearest"] == nearest
