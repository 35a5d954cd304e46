"""The TPU VM that is nearest to the TPU of a job: type, zone and image, from the table of accelerators."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.accelerators import find, load, zones_of
from tpuctl.names import whole_number
from tpuctl.preflight.ai_platform import offered

if TYPE_CHECKING:
    from tpuctl.accelerators import AcceleratorType
    from tpuctl.preflight.ai_platform.training_input import TrainingInput

_ZONE = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z0-9]+")


class Move(StrEnum):
    """What had to change to find a zone."""

    NOTHING = "nothing"
    TYPE = "type"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class Replacement:
    """The TPU VM that replaces a job's TPU.

    `asked` is the job's type; `others` are further types in the region with as many chips.
    """

    asked: AcceleratorType
    type: AcceleratorType
    zone: str
    version: str
    move: Move
    has_framework: bool
    others: tuple[tuple[str, str], ...] = ()

    @property
    def is_slice(self) -> bool:
        """Return whether the TPU VM has several workers."""
        return self.type.is_slice


def replacement(job: TrainingInput) -> Replacement | None:
    """Return the replacement of the job's TPU; None if the file names a TPU that was not offered."""
    asked = asked_type(job)
    if asked is None:
        return None
    region = job.text("region")
    type_, zone, move, others = _place(asked, region_of(region.value) if region else None)
    tensorflow = job.tensorflow
    image = offered.load().runtimes.get(tensorflow.value) if tensorflow else None
    version, has_framework = type_.runtime_version, bool(job.custom_image)
    # Images with an old TensorFlow do not support newer generations; a container has its own libraries.
    if image is not None and move is not Move.TYPE and not job.custom_image:
        version, has_framework = image + ("-pod" if type_.is_slice else ""), True
    return Replacement(asked, type_, zone, version, move, has_framework, others)


def asked_type(job: TrainingInput) -> AcceleratorType | None:
    """Return the TPU type of the job; None if its type and count were not offered."""
    offer = offered.load()
    type_, count = job.accelerator_type, job.accelerator_count
    if job.is_basic or (type_ is None and count is None):
        return offer.default
    number = whole_number(count.value) if count else None
    return None if type_ is None or number is None else offer.accelerator(type_.value, number)


def region_of(text: str) -> str:
    """Return the region that a field names; for a zone its region."""
    match = _ZONE.fullmatch(text)
    return match[1] if match else text


def in_region(accelerator: AcceleratorType, region: str) -> tuple[str, ...]:
    """Return the zones of a region that offer a type [table of accelerators]."""
    return tuple(zone for zone in zones_of(accelerator) if zone.rpartition("-")[0] == region)


def _place(
    asked: AcceleratorType, region: str | None
) -> tuple[AcceleratorType, str, Move, tuple[tuple[str, str], ...]]:
    """Return type and zone: the type in its region, else a newer type there, else the type in another region."""
    for wanted in (region,) if region else offered.load().regions:
        if zones := in_region(asked, wanted):
            return asked, zones[0], Move.NOTHING, ()
    newer = _newer(asked, region) if region else ()
    if newer:
        type_, zone = newer[0]
        return type_, zone, Move.TYPE, tuple((other.name, place) for other, place in newer[1:])
    continent = (region or "").partition("-")[0]
    zones = zones_of(asked)
    near = [zone for zone in zones if zone.partition("-")[0] == continent]
    return asked, (near or list(zones))[0], Move.REGION, ()


def _newer(asked: AcceleratorType, region: str) -> tuple[tuple[AcceleratorType, str], ...]:
    """Return the newer types with as many chips that a region offers.

    First types whose chips have at least as much memory, and of these the one with the least: the model still fits, and
    no unneeded capacity is billed.
    """
    found = []
    generations = list(load().generations.values())
    for generation in generations[generations.index(asked.generation) + 1 :]:
        other = find(generation.type_of(generation.size(asked.chips)))
        if other and other.is_listed and (zones := in_region(other, region)):
            found.append((other, zones[0]))
    memory = asked.generation.hbm_gib_per_chip

    def rank(item: tuple[AcceleratorType, str]) -> tuple[bool, int]:
        has = item[0].generation.hbm_gib_per_chip
        return has < memory, abs(has - memory)

    return tuple(sorted(found, key=rank))
