"""The TPU VM that is nearest to the TPU of a job, and the `tpuctl.yaml` and the command that replace the job.

Type, zone and image are from the table of accelerators. Each line of the file names the key that it comes from.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.accelerators import documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.ai_platform.training_job import BucketSetting, load_service_offer, program_arguments
from tpuctl.config.settings import SETTINGS, parse_setting
from tpuctl.errors import InvalidInputError
from tpuctl.models.spec import check_labels
from tpuctl.names import parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.check.ai_platform.training_job import JobField, JobStorage, TrainingInput

_ZONE_NAME = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z0-9]+")


class ReplacementMove(StrEnum):
    """What had to change to find a zone."""

    NOTHING = "nothing"
    TYPE = "type"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class Replacement:
    """The TPU VM that replaces a job's TPU.

    `requested` is the job's type; `others` are further types in the region with as many chips.
    """

    requested: AcceleratorType
    type: AcceleratorType
    zone: str
    version: str
    move: ReplacementMove
    has_framework: bool
    others: tuple[tuple[str, str], ...] = ()

    @property
    def is_slice(self) -> bool:
        """Return whether the TPU VM has several workers."""
        return self.type.is_slice


def find_replacement(job: TrainingInput) -> Replacement | None:
    """Return the replacement of the job's TPU; None if the file names a TPU that was not offered."""
    requested = requested_type(job)
    if requested is None:
        return None
    region = job.text("region")
    type_, zone, move, others = _choose_place(requested, region_of_field(region.value) if region else None)
    tensorflow = job.tensorflow
    image = load_service_offer().runtimes.get(tensorflow.value) if tensorflow else None
    version, has_framework = type_.runtime_version, bool(job.custom_image)
    # Images with an old TensorFlow do not support newer generations; a container has its own libraries.
    if image is not None and move is not ReplacementMove.TYPE and not job.custom_image:
        version, has_framework = image + ("-pod" if type_.is_slice else ""), True
    return Replacement(requested, type_, zone, version, move, has_framework, others)


def requested_type(job: TrainingInput) -> AcceleratorType | None:
    """Return the TPU type of the job; None if its type and count were not offered."""
    offer = load_service_offer()
    type_, count = job.accelerator_type, job.accelerator_count
    if job.is_basic or (type_ is None and count is None):
        return offer.default
    number = parse_whole_number(count.value) if count else None
    return None if type_ is None or number is None else offer.accelerator(type_.value, number)


def region_of_field(text: str) -> str:
    """Return the region that a field names; for a zone its region."""
    match = _ZONE_NAME.fullmatch(text)
    return match[1] if match else text


def zones_in_region(accelerator: AcceleratorType, region: str) -> tuple[str, ...]:
    """Return the zones of a region that offer a type [table of accelerators]."""
    return tuple(zone for zone in documented_zones_of(accelerator) if zone.rpartition("-")[0] == region)


def _choose_place(
    requested: AcceleratorType, region: str | None
) -> tuple[AcceleratorType, str, ReplacementMove, tuple[tuple[str, str], ...]]:
    """Return type and zone: the type in its region, else a newer type there, else the type in another region."""
    for wanted in (region,) if region else load_service_offer().regions:
        if zones := zones_in_region(requested, wanted):
            return requested, zones[0], ReplacementMove.NOTHING, ()
    newer = _newer_types(requested, region) if region else ()
    if newer:
        type_, zone = newer[0]
        return type_, zone, ReplacementMove.TYPE, tuple((other.name, place) for other, place in newer[1:])
    continent = (region or "").partition("-")[0]
    zones = documented_zones_of(requested)
    near = [zone for zone in zones if zone.partition("-")[0] == continent]
    return requested, (near or list(zones))[0], ReplacementMove.REGION, ()


def _newer_types(requested: AcceleratorType, region: str) -> tuple[tuple[AcceleratorType, str], ...]:
    """Return the newer types with as many chips that a region offers.

    First types whose chips have at least as much memory, and of these the one with the least: the model still fits, and
    no unneeded capacity is billed.
    """
    found = []
    generations = list(load_accelerators().generations.values())
    for generation in generations[generations.index(requested.generation) + 1 :]:
        other = find_accelerator_type(generation.type_of(generation.size(requested.chips)))
        if other and other.is_listed and (zones := zones_in_region(other, region)):
            found.append((other, zones[0]))
    memory = requested.generation.hbm_gib_per_chip

    def rank(item: tuple[AcceleratorType, str]) -> tuple[bool, int]:
        has = item[0].generation.hbm_gib_per_chip
        return has < memory, abs(has - memory)

    return tuple(sorted(found, key=rank))


# What YAML 1.1 reads as this exact text in every position.
_PLAIN_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
# Documentation of PyTorch/XLA.
_INSTALL_PYTORCH = "pip3 install torch 'torch_xla[tpu]' -f https://storage.googleapis.com/libtpu-releases/index.html"


def render_settings_file(job: TrainingInput, replacement: Replacement, storage: JobStorage, *, command: str) -> str:
    """Return the text of the `tpuctl.yaml`."""
    head = [
        f"# Made from {_printable(job.document.source)}, a job of AI Platform Training, by `tpuctl check --ai-platform`.",
        "#",
    ]
    # A newline within an argument would end the comment.
    shown = command if command.isprintable() else "tpuctl run … (see `tpuctl check --ai-platform`)"
    head += ["# Instead of `gcloud ai-platform jobs submit training`:", f"#   {shown}", ""]
    lines = [*_machine_lines(job, replacement), *_other_lines(job)]
    for setting in BucketSetting:
        places = [place for place in storage.places if place.setting is setting]
        lines += [f"{setting}:"] if places else []
        for place in places:
            flag = f" --{place.flag}" if place.flag else ""
            lines.append(f"  - {_render_scalar(str(place.path))}  # {_origin_comment(place.field)}{flag}")
    lines += _setup_lines(job, storage)
    return "\n".join([*head, *lines, ""])


def render_command(job: TrainingInput, replacement: Replacement, *, target: str) -> str:
    """Return the command that does the work of the job. `target` is the file with the settings.

    It contains `MODULE` if the file does not name the module.
    """
    words = ["tpuctl", "run", "--up", target, "--rm"]
    field = job.text("scheduling", "maxRunningTime")
    match = re.fullmatch(r"(\d{1,9})(?:\.\d+)?s", field.value) if field else None
    if limit := (int(match[1]) or None if match else None):
        words.append(f"--timeout={limit}s")
    if job.custom_image:
        # How docker runs a container on a TPU VM [documentation].
        entry = [text.value for text in job.items("masterConfig", "containerCommand")]
        words += ["--", "sudo", "docker", "run", "--rm", "--privileged", "--net=host"]
        words += [f"--entrypoint={entry[0]}"] if entry else []
        return shlex.join([*words, job.custom_image.value, *entry[1:], *program_arguments(job)])
    if job.is_pytorch:
        words.append("--env=PJRT_DEVICE=TPU")
    elif replacement.is_slice:
        # One program drives the whole slice, and must not claim the chips of its own machine [TensorFlow source].
        words += ["--worker=0", "--tpu-env", "--env=TPU_LOAD_LIBRARY=0"]
    module = job.text("pythonModule")
    return shlex.join([*words, "--", "python3", "-m", module.value if module else "MODULE", *program_arguments(job)])


def _machine_lines(job: TrainingInput, replacement: Replacement) -> Iterator[str]:
    type_ = job.accelerator_type or (job.text("scaleTier") if job.is_basic else job.text("workerType"))
    count = job.accelerator_count
    cores = f", {_origin_comment(count)}" if count else ""
    instead = (
        f" instead of {replacement.requested.name}, which the region lacks"
        if replacement.move is ReplacementMove.TYPE
        else ""
    )
    yield f"type: {replacement.type.name}  # {_origin_comment(type_)}{cores}{instead}"
    region = job.text("region")
    where = _origin_comment(region) if region else "a guess: the file names no region"
    where += ", where no zone offers it" if replacement.move is ReplacementMove.REGION else ""
    yield f"zone: {replacement.zone}  # {where}"
    version = job.tensorflow if replacement.has_framework and not job.custom_image else None
    yield f"version: {replacement.version}  # {_origin_comment(version) if version else 'the default of the type'}"


def _other_lines(job: TrainingInput) -> Iterator[str]:
    for key, job_key in (("service_account", "serviceAccount"), ("network", "network")):
        field = job.text(job_key)
        if field is None:
            continue
        try:
            parse_setting(SETTINGS[key], field.value)
        except ValueError as error:
            yield f"# {key} is not converted: {error}  # {_origin_comment(field)}"
        else:
            yield f"{key}: {_render_scalar(field.value)}  # {_origin_comment(field)}"
    labels = [(key, text) for key in job.document.keys("labels") if (text := job.document.text("labels", key))]
    if not labels:
        return
    try:
        check_labels({key: text.value for key, text in labels}, kept=1)
    except InvalidInputError as error:
        yield f"# labels are not converted: {_printable(error.message)}"
        return
    yield "labels:"
    for key, text in labels:
        yield f"  {_render_scalar(key)}: {_render_scalar(text.value)}  # line {text.line}"


def _setup_lines(job: TrainingInput, storage: JobStorage) -> Iterator[str]:
    """Yield the setting that prepares every worker. Whether `gcloud` is on all of the images is unverified."""
    if job.custom_image:
        return
    lines = [_INSTALL_PYTORCH] if job.is_pytorch else []
    if storage.packages:
        urls = [text.value for text in storage.packages]
        names = [f"./{url.rpartition('/')[2]}" for url in urls]
        lines += ['cd "$(mktemp -d)"', shlex.join(["gcloud", "storage", "cp", *urls, "."])]
        lines.append(shlex.join(["pip3", "install", *names]))
    if not lines:
        return
    yield f"# {_origin_comment(storage.packages[0]) if storage.packages else 'PyTorch/XLA'}"
    yield "setup: |"
    # The first line that fails must be the one that is reported.
    yield from (f"  {line}" for line in ["set -e", *lines])


def _origin_comment(field: JobField | None) -> str:
    if field is None:
        return "the default of a `cloud_tpu` worker"
    return f"{re.sub(r'[.]?[0-9]+$', '', field.key)}, line {field.line}"


def _printable(text: str) -> str:
    """Return a text that cannot end the comment that contains it."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _render_scalar(text: str) -> str:
    if _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    # JSON's escapes are YAML's too, but YAML takes fewer characters as they are.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
