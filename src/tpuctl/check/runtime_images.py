"""Which runtime versions (images) fit which accelerators.

The service accepts an image that does not fit: the node becomes READY, and its chips are not visible [observed:
pytorch/xla#8295, jax#13260, dstack#2148].
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from tpuctl.accelerators import AcceleratorType, load_accelerators
from tpuctl.names import last_segment

_TENSORFLOW_IMAGE = re.compile(
    r"tpu-vm-tf-(?P<version>\d{1,9}\.\d{1,9}\.\d{1,9})(?P<pod>-pod)?(?:-(?P<generation>v\d\w*))?(?P<api>-pjrt|-se)?"
)


class ImageFit(StrEnum):
    """How well an image fits an accelerator. DOUBTFUL: the pair is not documented, and works or may work."""

    FITS = "fits"
    DOUBTFUL = "doubtful"
    MISFIT = "misfit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ImageVerdict:
    """How well an image fits, the reason, and an image that fits."""

    match: ImageFit
    reason: str
    better: str | None = None


def judge_image(runtime_version: str, accelerator: AcceleratorType) -> ImageVerdict:
    """Return how well an image fits an accelerator, judged by its name and the table."""
    name = last_segment(runtime_version)
    if tensorflow := _TENSORFLOW_IMAGE.fullmatch(name):
        return _judge_tensorflow_image(tensorflow, accelerator)
    for pattern, entry in load_accelerators().images.items():
        if fnmatchcase(name, pattern):
            fits, works, generation = entry["fits"], entry.get("works", ()), accelerator.generation.name
            if generation in fits:
                return ImageVerdict(ImageFit.FITS, f"it is for {generation}")
            documented = " and ".join(filter(None, (", ".join(fits[:-1]), fits[-1])))
            reason = f"it is documented for {documented}, not for {generation}"
            # Generations with the same device files have similar drivers: v2-alpha-tpuv5 works on v5e [observed: xla#8295].
            devices = {load_accelerators().generations[name].devices for name in fits}
            is_doubtful = generation in works or accelerator.generation.devices in devices
            return ImageVerdict(
                ImageFit.DOUBTFUL if is_doubtful else ImageFit.MISFIT, reason, accelerator.runtime_version
            )
    return ImageVerdict(ImageFit.UNKNOWN, "tpuctl does not know this image", accelerator.runtime_version)


def is_documented_image(runtime_version: str, accelerator: AcceleratorType) -> bool:
    """Return whether the documentation names exactly this image for the accelerator's generation."""
    entry = load_accelerators().images.get(last_segment(runtime_version))
    return entry is not None and accelerator.generation.name in entry["fits"]


def _judge_tensorflow_image(found: re.Match[str], accelerator: AcceleratorType) -> ImageVerdict:
    table, generation = load_accelerators().tensorflow_images, accelerator.generation.name
    version = tuple(int(part) for part in found["version"].split("."))
    needs_pjrt, pjrt_since = generation in table["pjrt_only"], tuple(table["pjrt_since"])
    has_suffix = version <= tuple(table["own_suffix"].get(generation, ()))
    if needs_pjrt and version < pjrt_since:
        since = ".".join(map(str, pjrt_since))
        reason = f"{generation} needs TensorFlow {since} or later, with PJRT"
        return ImageVerdict(ImageFit.MISFIT, reason, _tensorflow_image_name(since, accelerator, suffix="-pjrt"))
    suffix = f"-{generation}" if has_suffix else "-pjrt" if needs_pjrt else found["api"] or ""
    better = _tensorflow_image_name(found["version"], accelerator, suffix=suffix)
    if (found["generation"] or "") != (generation if has_suffix else ""):
        # The driver is installed anyway: another framework than the image's TensorFlow can use the chips.
        reason = f"it is for {found['generation'] or 'other generations'}, not for {generation}"
        return ImageVerdict(ImageFit.MISFIT if needs_pjrt else ImageFit.DOUBTFUL, reason, better)
    if needs_pjrt and found["api"] != "-pjrt":
        return ImageVerdict(ImageFit.MISFIT, f"{generation} needs an image with PJRT", better)
    if accelerator.is_slice and not found["pod"]:
        reason = f"{accelerator.name} has {accelerator.workers} workers; an image without `-pod` is for a single worker"
        return ImageVerdict(ImageFit.DOUBTFUL, reason, better)
    if found["pod"] and not accelerator.is_slice:
        reason = f"{accelerator.name} has one worker; an image with `-pod` is for slices with several workers"
        return ImageVerdict(ImageFit.DOUBTFUL, reason, better)
    return ImageVerdict(ImageFit.FITS, f"it is for {generation}")


def _tensorflow_image_name(version: str, accelerator: AcceleratorType, *, suffix: str) -> str:
    return f"tpu-vm-tf-{version}{'-pod' if accelerator.is_slice else ''}{suffix}"
