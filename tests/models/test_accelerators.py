"""Accelerator types: chips, workers and topology of a type name, and errors for invalid names."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.accelerators import (
    Generation,
    accelerator_type_from_topology,
    canonical_type,
    check_accelerator_type,
    documented_zones_of,
    find_accelerator_type,
    find_generation,
    load_accelerators,
    parse_accelerator_type,
)
from tpuctl.errors import InvalidInputError

# Each documented type: chips, workers, default topology.
_LISTED = """
v2-8 4 1 2x2 | v2-32 16 4 4x4 | v2-128 64 16 8x8 | v2-256 128 32 8x16 | v2-512 256 64 16x16
v3-8 4 1 2x2 | v3-32 16 4 4x4 | v3-64 32 8 4x8 | v3-128 64 16 8x8 | v3-256 128 32 8x16 | v3-512 256 64 16x16
v3-1024 512 128 16x32 | v3-2048 1024 256 32x32
v4-8 4 1 2x2x1 | v4-16 8 2 2x2x2 | v4-32 16 4 2x2x4 | v4-64 32 8 2x4x4 | v4-128 64 16 4x4x4 | v4-256 128 32 4x4x8
v4-512 256 64 4x8x8 | v4-1024 512 128 8x8x8 | v4-1536 768 192 8x8x12 | v4-2048 1024 256 8x8x16
v4-4096 2048 512 8x16x16 | v4-8192 4096 1024 16x16x16
v5litepod-1 1 1 1x1 | v5litepod-4 4 1 2x2 | v5litepod-8 8 1 2x4 | v5litepod-16 16 4 4x4 | v5litepod-32 32 8 4x8
v5litepod-64 64 16 8x8 | v5litepod-128 128 32 8x16 | v5litepod-256 256 64 16x16
v5p-8 4 1 2x2x1 | v5p-16 8 2 2x2x2 | v5p-32 16 4 2x2x4 | v5p-64 32 8 2x4x4 | v5p-128 64 16 4x4x4
v6e-1 1 1 1x1 | v6e-4 4 1 2x2 | v6e-8 8 1 2x4 | v6e-16 16 4 4x4 | v6e-32 32 8 4x8 | v6e-64 64 16 8x8
v6e-128 128 32 8x16 | v6e-256 256 64 16x16
"""


def _described(name: str) -> str:
    accelerator = parse_accelerator_type(name)
    return f"{name} {accelerator.chips} {accelerator.workers} {accelerator.topology}"


def test_listed_type_has_its_chips_workers_and_topology() -> None:
    names = [
        generation.type_of(size) for generation in load_accelerators().generations.values() for size in generation.sizes
    ]

    assert [_described(name) for name in names] == [
        line.strip() for line in _LISTED.strip().replace("\n", "|").split("|")
    ]
    assert all(parse_accelerator_type(name).is_listed for name in names)


@pytest.mark.parametrize(
    ("name", "said", "is_listed"),
    [
        ("v5p-256", "v5p-256 128 32 4x4x8", True),
        ("v5p-1024", "v5p-1024 512 128 8x8x8", True),
        ("v5p-1280", "v5p-1280 640 160 4x8x20", True),
        ("v5p-12288", "v5p-12288 6144 1536 16x16x24", True),
        ("v5p-12416", "v5p-12416 6208 1552 4x4x388", False),  # beyond the largest
        ("v5p-192", "v5p-192 96 24 None", False),
        ("v4-12", "v4-12 6 2 None", False),  # two workers are needed for six chips
        ("v6e-2", "v6e-2 2 1 None", False),
    ],
)
def test_unlisted_type_is_computed_by_rule(name: str, said: str, is_listed: bool) -> None:
    assert (_described(name), parse_accelerator_type(name).is_listed, check_accelerator_type(name)) == (
        said,
        is_listed,
        name,
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("v48", "did you mean `v4-8`?"),
        ("v4-7", "did you mean `v4-8`?"),  # two cores per chip
        ("V4-7", "did you mean `v4-8`?"),
        ("v4-0", "did you mean `v4-8`?"),
        (
            "v6e",
            (
                "name a size, such as `v6e-1` (1 chip), `v6e-4` (4 chips), `v6e-8` (8 chips) or `v6e-16` (16 chips), "
                "or add `--topology`"
            ),
        ),
        (
            "V5e",
            (
                "name a size, such as `v5litepod-1` (1 chip), `v5litepod-4` (4 chips), `v5litepod-8` (8 chips) "
                "or `v5litepod-16` (16 chips), or add `--topology`"
            ),
        ),
        # One name counts chips, the other cores.
        ("v5-16", "choose `v5litepod-16` (16 chips) or `v5p-16` (8 chips)"),
        ("v6-8", "did you mean `v6e-8`?"),
        ("v5litpod-8", "did you mean `v5litepod-8`?"),
        ("tpu7x-8", "it is available through Compute Engine or Google Kubernetes Engine"),
        ("ironwood", "it is available through Compute Engine or Google Kubernetes Engine"),
        ("gpu!", "types look like `v4-8`, `v5litepod-16` or `v6e-8`; see `tpuctl types`"),
    ],
)
def test_misspelled_type_suggests_the_intended_one(text: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_accelerator_type(text)

    assert refused.value.hint == hint
    assert find_accelerator_type(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v4-8", "v4-8"),
        ("v5e-16", "v5litepod-16"),
        ("v5lite-16", "v5litepod-16"),
        ("v5-litepod-16", "v5litepod-16"),
        ("V5LITE_POD-16", "v5litepod-16"),
        ("v5_lite_16", "v5litepod-16"),
        ("tpu-v5-lite-podslice-16", "v5litepod-16"),
        ("V4-8", "v4-8"),
        ("v4_8", "v4-8"),
        (" v4-8\n", "v4-8"),
        ("V5P-128", "v5p-128"),
        ("tpu-v6e-8", "v6e-8"),
        ("tpuv6e-8", "v6e-8"),
        ("Trillium-8", "v6e-8"),
        ("v5e-17", "v5litepod-17"),  # not listed: the zone decides, as for `v5litepod-17`
        ("v48", None),
        ("v6e8", None),
        ("v5-8", None),
        ("v4-7", None),
        ("v5e-016", None),
        ("v5e-\uff11\uff16", None),
        ("v5e", None),
        ("ironwood-8", None),
        ("", None),
    ],
)
def test_spelling_means_one_type_or_none(text: str, name: str | None) -> None:
    assert canonical_type(text) == name


@given(
    st.sampled_from(list(load_accelerators().generations.values())),
    st.data(),
    st.sampled_from([str, str.upper, str.title, lambda text: f"tpu-{text}", lambda text: text.replace("-", "_")]),
)
def test_accepted_spelling_has_the_chips_of_the_canonical_name(
    generation: Generation, data: st.DataObject, write: Callable[[str], str]
) -> None:
    size = data.draw(st.sampled_from(generation.sizes))
    other = next((name for name, prefix in (("trillium", "v6e"),) if prefix == generation.prefix), generation.name)
    word = data.draw(st.sampled_from([generation.prefix, generation.name, other, generation.config_type]))

    meant = parse_accelerator_type(check_accelerator_type(write(f"{word}-{size}")))

    expected = parse_accelerator_type(generation.type_of(size))
    assert (meant.name, meant.chips, meant.workers) == (expected.name, expected.chips, expected.workers)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v5e", "v5e"),
        ("V5LITE_POD", "v5e"),
        ("v5lite", "v5e"),
        ("tpu-v5-lite-podslice", "v5e"),
        ("tpu-v4-podslice", "v4"),
        ("tpu-v5p-slice", "v5p"),
        ("tpu-v6e-slice", "v6e"),
        ("trillium", "v6e"),
        ("v5", None),
        ("ironwood", None),
        ("", None),
    ],
)
def test_generation_is_found_by_its_names(text: str, name: str | None) -> None:
    found = find_generation(text)

    assert (found.name if found else None) == name


@pytest.mark.parametrize("text", ["quantum-16", "v7-8", "v8e-256"])
def test_unknown_well_formed_type_is_accepted(text: str) -> None:
    assert (check_accelerator_type(text), find_accelerator_type(text)) == (text, None)


def test_find_without_a_type_is_none() -> None:
    assert find_accelerator_type(None) is None


@pytest.mark.parametrize(
    ("config_type", "topology", "name", "workers"),
    [
        ("v4", "2x2x2", "v4-16", 2),
        ("V4", "4X4X16", "v4-512", 64),
        ("V5LITE_POD", "2x4", "v5litepod-8", 1),
        ("v5e", "4x4", "v5litepod-16", 4),
        ("v5litepod", "1x1", "v5litepod-1", 1),
        ("v6e", "2x4", "v6e-8", 1),
        ("v5p", "4x4x12", "v5p-384", 48),
    ],
)
def test_type_from_topology_is_the_type_of_its_chips(config_type: str, topology: str, name: str, workers: int) -> None:
    accelerator = accelerator_type_from_topology(config_type, topology)

    assert (accelerator.name, accelerator.workers, accelerator.topology) == (name, workers, topology.lower())


@pytest.mark.parametrize(
    ("config_type", "topology", "message"),
    [
        ("v9", "2x2", "`v9` is not a TPU generation"),
        ("TYPE_UNSPECIFIED", "2x2", "`TYPE_UNSPECIFIED` is not a TPU generation"),
        ("v4", "4x4", "`4x4` is not a topology of v4"),
        ("v4", "0x2x2", "`0x2x2` is not a topology of v4"),
        ("v6e", "2x²", "`2x²` is not a topology of v6e"),
        ("v6e", "", "`` is not a topology of v6e"),
    ],
)
def test_type_from_topology_invalid_part_is_named(config_type: str, topology: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        accelerator_type_from_topology(config_type, topology)

    assert str(refused.value) == message


@given(st.integers(min_value=1, max_value=96))
def test_default_topology_of_a_large_type_has_its_chips(multiple: int) -> None:
    accelerator = parse_accelerator_type(f"v5p-{128 * multiple}")

    assert prod(map(int, (accelerator.topology or "0").split("x"))) == accelerator.chips
    assert accelerator_type_from_topology("v5p", accelerator.topology or "").name == accelerator.name


@given(st.text(max_size=20))
def test_parse_any_text_raises_only_invalid_input(text: str) -> None:
    try:
        hint = f"for the zone to judge: {check_accelerator_type(text)}"
    except InvalidInputError as error:
        hint = error.hint or ""
    assert hint


def test_zones_of_a_type_exclude_single_tenant_zones() -> None:
    v5p, v2 = parse_accelerator_type("v5p-8"), parse_accelerator_type("v2-8")

    assert documented_zones_of(v5p) == ("us-central1-a", "us-east5-a", "europe-west4-b")
    assert documented_zones_of(v5p, single_tenant=True)[3:] == ("us-east5-b", "us-east5-c", "us-south1-a")
    assert documented_zones_of(v2) == ("us-central1-b", "us-central1-c", "europe-west4-a", "asia-east1-c")
