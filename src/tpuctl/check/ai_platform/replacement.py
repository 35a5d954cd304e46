"""The TPU VM that is nearest to the TPU of a job, and the `tpuctl.yaml` and the command that replace the job.

Type, zone and image are from the table of accelerators. Each line of the file names the key that it comes from.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tpuctl.accelerators import AcceleratorType, documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.ai_platform.training_job import (
    BucketSetting,
    JobField,
    JobStorage,
    TrainingJob,
    load_service_offer,
    program_arguments,
)
from tpuctl.config.settings import SETTINGS, parse_setting
from tpuctl.errors import InvalidInputError
from tpuctl.models.spec import check_labels
from tpuctl.names import parse_whole_number


class ReplacementMove(StrEnum):
    """What had to change to find a zone."""

    NOTHING = "nothing"
    TYPE = "type"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class Replacement:
    """The TPU VM that replaces a job's TPU.

    `requested` is the job's type; `others` are further types in the region with as many chips, with their zones.
    """

    requested: AcceleratorType
    type: AcceleratorType
    zone: str
    version: str
    move: ReplacementMove
    has_framework: bool
    others: tuple[tuple[AcceleratorType, str], ...] = ()


def find_replacement(job: TrainingJob) -> Replacement | None:
    """Return the replacement of the job's TPU; None if the file names a TPU that was not offered."""
    requested = _requested_type(job)
    if requested is None:
        return None
    type_, zone, move, others = _choose_place(requested, region_of_job(job))
    tensorflow = job.tensorflow
    image = load_service_offer()["runtimes"].get(tensorflow.value) if tensorflow else None
    version, has_framework = type_.runtime_version, bool(job.custom_image)
    # Images with an old TensorFlow do not support newer generations; a container has its own libraries.
    if image is not None and move is not ReplacementMove.TYPE and not job.custom_image:
        version, has_framework = image + ("-pod" if type_.is_slice else ""), True
    return Replacement(requested, type_, zone, version, move, has_framework, others)


def _requested_type(job: TrainingJob) -> AcceleratorType | None:
    """Return the TPU type of the job; None if its type and count were not offered."""
    offer, type_, count = load_service_offer(), job.accelerator("type"), job.accelerator("count")
    if type_ is None and count is None:
        return find_accelerator_type(f"{offer['default']['prefix']}-{offer['default']['count']}")
    offered = offer["types"].get(type_.value) if type_ else None
    cores = parse_whole_number(count.value) if count else None
    return find_accelerator_type(f"{offered['prefix']}-{cores}") if offered and cores in offered["counts"] else None


def region_of_job(job: TrainingJob) -> str:
    """Return the region that the job names, also by one of its zones; empty if it names none."""
    field = job.text("region")
    return re.sub(r"^([a-z]+-[a-z]+[0-9]+)-[a-z0-9]+\Z", r"\1", field.value) if field else ""


def _choose_place(
    requested: AcceleratorType, region: str
) -> tuple[AcceleratorType, str, ReplacementMove, tuple[tuple[AcceleratorType, str], ...]]:
    """Return type and zone: the type in its region, else a newer type there, else the type in another region."""
    for wanted in (region,) if region else load_service_offer()["regions"]:
        if zones := _zones_in_region(requested, wanted):
            return requested, zones[0], ReplacementMove.NOTHING, ()
    if newer := _newer_types(requested, region):
        return *newer[0], ReplacementMove.TYPE, tuple(newer[1:])
    zones = list(documented_zones_of(requested))
    near = [zone for zone in zones if zone.partition("-")[0] == region.partition("-")[0]]
    return requested, (near or zones)[0], ReplacementMove.REGION, ()


def _zones_in_region(accelerator: AcceleratorType, region: str) -> list[str]:
    return [zone for zone in documented_zones_of(accelerator) if zone.rpartition("-")[0] == region]


def _newer_types(requested: AcceleratorType, region: str) -> list[tuple[AcceleratorType, str]]:
    """Return the newer types with as many chips that a region offers, each with a zone.

    First types whose chips have at least as much memory, and of these the one with the least: the model still fits, and
    no unneeded capacity is billed.
    """
    found = []
    generations = list(load_accelerators().generations.values())
    for generation in generations[generations.index(requested.generation) + 1 :]:
        other = find_accelerator_type(generation.type_of(generation.size(requested.chips)))
        if other and other.is_listed and (zones := _zones_in_region(other, region)):
            found.append((other, zones[0]))
    memory = requested.generation.hbm_gib_per_chip

    def rank(item: tuple[AcceleratorType, str]) -> tuple[bool, int]:
        has = item[0].generation.hbm_gib_per_chip
        return has < memory, abs(has - memory)

    return sorted(found, key=rank)


# What YAML 1.1 reads as this exact text in every position.
_PLAIN_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
# Documentation of PyTorch/XLA.
_INSTALL_PYTORCH = "pip3 install torch 'torch_xla[tpu]' -f https://storage.googleapis.com/libtpu-releases/index.html"


def render_settings_file(job: TrainingJob, replacement: Replacement, storage: JobStorage, *, command: str) -> str:
    """Return the text of the `tpuctl.yaml`."""
    # A newline within an argument would end the comment.
    shown = command if command.isprintable() else "tpuctl run … (see `tpuctl check --ai-platform`)"
    lines = [
        f"# Made from {_printable(job.document.source)}, a job of AI Platform Training, by `tpuctl check --ai-platform`.",
        "#",
        "# Instead of `gcloud ai-platform jobs submit training`:",
        f"#   {shown}",
        "",
        *_machine_lines(job, replacement),
        *_other_lines(job),
    ]
    for setting in BucketSetting:
        places = [place for place in storage.places if place.setting is setting]
        lines += [f"{setting}:"] if places else []
        for place in places:
            flag = f" --{place.flag}" if place.flag else ""
            lines.append(f"  - {_render_scalar(str(place.path))}  # {_origin(place.field)}{flag}")
    return "\n".join([*lines, *_setup_lines(job, storage), ""])


def render_command(job: TrainingJob, replacement: Replacement, *, target: str) -> str:
    """Return the command that does the work of the job. `target` is the file with the settings.

    It contains `MODULE` if the file does not name the module.
    """
    words = ["tpuctl", "run", "--up", target, "--rm"]
    field = job.text("scheduling.maxRunningTime")
    match = re.fullmatch(r"0*([1-9]\d{0,8})(?:\.\d+)?s", field.value) if field else None
    words += [f"--timeout={match[1]}s"] if match else []
    if job.custom_image:
        # How docker runs a container on a TPU VM [documentation].
        entry = [word.value for word in job.items("masterConfig.containerCommand")]
        words += ["--", "sudo", "docker", "run", "--rm", "--privileged", "--net=host"]
        words += [f"--entrypoint={entry[0]}"] if entry else []
        return shlex.join([*words, job.custom_image.value, *entry[1:], *program_arguments(job)])
    if job.is_pytorch:
        words.append("--env=PJRT_DEVICE=TPU")
    elif replacement.type.is_slice:
        # One program drives the whole slice, and must not claim the chips of its own machine [TensorFlow source].
        words += ["--worker=0", "--tpu-env", "--env=TPU_LOAD_LIBRARY=0"]
    module = job.text("pythonModule")
    return shlex.join([*words, "--", "python3", "-m", module.value if module else "MODULE", *program_arguments(job)])


def _machine_lines(job: TrainingJob, replacement: Replacement) -> Iterator[str]:
    type_ = job.accelerator("type") or job.text("scaleTier" if job.is_basic else "workerType")
    count, region = job.accelerator("count"), job.text("region")
    origin = _origin(type_) if type_ else "the default of a `cloud_tpu` worker"
    origin += f", {_origin(count)}" if count else ""
    if replacement.move is ReplacementMove.TYPE:
        origin += f" instead of {replacement.requested.name}, which the region lacks"
    yield f"type: {replacement.type.name}  # {origin}"
    where = _origin(region) if region else "a guess: the file names no region"
    where += ", where no zone offers it" if replacement.move is ReplacementMove.REGION else ""
    yield f"zone: {replacement.zone}  # {where}"
    version = job.tensorflow if replacement.has_framework and not job.custom_image else None
    yield f"version: {replacement.version}  # {_origin(version) if version else 'the default of the type'}"


def _other_lines(job: TrainingJob) -> Iterator[str]:
    for key, job_key in (("service_account", "serviceAccount"), ("network", "network")):
        if field := job.text(job_key):
            try:
                parse_setting(SETTINGS[key], field.value)
                yield f"{key}: {_render_scalar(field.value)}  # {_origin(field)}"
            except ValueError as error:
                yield f"# {key} is not converted: {error}  # {_origin(field)}"
    labels = {str(key): field for key in job.keys(("labels",)) if (field := job.field(("labels", key))) and field.value}
    try:
        check_labels({key: field.value for key, field in labels.items()}, kept=1)
    except InvalidInputError as error:
        yield f"# labels are not converted: {_printable(error.message)}"
        return
    if labels:
        yield "labels:"
    for key, field in labels.items():
        yield f"  {_render_scalar(key)}: {_render_scalar(field.value)}  # line {field.line}"


def _setup_lines(job: TrainingJob, storage: JobStorage) -> Iterator[str]:
    """Yield the setting that prepares every worker. Whether `gcloud` is on all of the images is unverified."""
    lines = [_INSTALL_PYTORCH] if job.is_pytorch else []
    if storage.packages:
        urls = [field.value for field in storage.packages]
        lines += ['cd "$(mktemp -d)"', shlex.join(["gcloud", "storage", "cp", *urls, "."])]
        lines.append(shlex.join(["pip3", "install", *(f"./{url.rpartition('/')[2]}" for url in urls)]))
    if lines and not job.custom_image:
        yield f"# {_origin(storage.packages[0]) if storage.packages else 'PyTorch/XLA'}"
        yield "setup: |"
        # The first line that fails must be the one that is reported.
        yield from (f"  {line}" for line in ["set -e", *lines])


def _origin(field: JobField) -> str:
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
