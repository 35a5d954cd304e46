"""Write the `tpuctl.yaml` and the command that replace a job. Each line names the key that it comes from."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.model.labels import check_labels
from tpuctl.preflight.ai_platform.replacement import Move
from tpuctl.preflight.ai_platform.storage import Setting, arguments
from tpuctl.settings import SETTINGS, check_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.ai_platform.document import Text
    from tpuctl.preflight.ai_platform.replacement import Replacement
    from tpuctl.preflight.ai_platform.storage import Storage
    from tpuctl.preflight.ai_platform.training_input import TrainingInput

# What YAML 1.1 reads as this exact text in every position.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
# Documentation of PyTorch/XLA.
_PYTORCH = "pip3 install torch 'torch_xla[tpu]' -f https://storage.googleapis.com/libtpu-releases/index.html"


def settings_file(job: TrainingInput, made: Replacement, storage: Storage, *, command: str) -> str:
    """Return the text of the `tpuctl.yaml`."""
    head = [
        f"# Made from {_shown(job.document.source)}, a job of AI Platform Training, by `tpuctl check --ai-platform`.",
        "#",
    ]
    # A newline within an argument would end the comment.
    shown = command if command.isprintable() else "tpuctl run … (see `tpuctl check --ai-platform`)"
    head += ["# Instead of `gcloud ai-platform jobs submit training`:", f"#   {shown}", ""]
    lines = [*_machine(job, made), *_rest(job), *_buckets(storage), *_setup(job, storage)]
    return "\n".join([*head, *lines, ""])


def replacing_command(job: TrainingInput, made: Replacement, *, target: str) -> str:
    """Return the command that does the work of the job. `target` is the file with the settings.

    It contains `MODULE` if the file does not name the module.
    """
    words = ["tpuctl", "run", "--up", target, "--rm"]
    said = job.text("scheduling", "maxRunningTime")
    match = re.fullmatch(r"(\d{1,9})(?:\.\d+)?s", said.value) if said else None
    if limit := (int(match[1]) or None if match else None):
        words.append(f"--timeout={limit}s")
    if job.custom_image:
        # How docker runs a container on a TPU VM [documentation].
        entry = [text.value for text in job.items("masterConfig", "containerCommand")]
        words += ["--", "sudo", "docker", "run", "--rm", "--privileged", "--net=host"]
        words += [f"--entrypoint={entry[0]}"] if entry else []
        return shlex.join([*words, job.custom_image.value, *entry[1:], *arguments(job)])
    if job.is_pytorch:
        words.append("--env=PJRT_DEVICE=TPU")
    elif made.is_slice:
        # One program drives the whole slice, and must not claim the chips of its own machine [TensorFlow source].
        words += ["--worker=0", "--tpu-env", "--env=TPU_LOAD_LIBRARY=0"]
    module = job.text("pythonModule")
    return shlex.join([*words, "--", "python3", "-m", module.value if module else "MODULE", *arguments(job)])


def _machine(job: TrainingInput, made: Replacement) -> Iterator[str]:
    type_ = job.accelerator_type or (job.text("scaleTier") if job.is_basic else job.text("workerType"))
    count = job.accelerator_count
    cores = f", {_from(count)}" if count else ""
    instead = f" instead of {made.asked.name}, which the region lacks" if made.move is Move.TYPE else ""
    yield f"type: {made.type.name}  # {_from(type_)}{cores}{instead}"
    region = job.text("region")
    where = _from(region) if region else "a guess: the file names no region"
    where += ", where no zone offers it" if made.move is Move.REGION else ""
    yield f"zone: {made.zone}  # {where}"
    version = job.tensorflow if made.has_framework and not job.custom_image else None
    yield f"version: {made.version}  # {_from(version) if version else 'the default of the type'}"


def _rest(job: TrainingInput) -> Iterator[str]:
    for key, field in (("service_account", "serviceAccount"), ("network", "network")):
        said = job.text(field)
        if said is None:
            continue
        try:
            check_value(SETTINGS[key], said.value)
        except ValueError as error:
            yield f"# {key} is not converted: {error}  # {_from(said)}"
        else:
            yield f"{key}: {_render(said.value)}  # {_from(said)}"
    labels = [(key, text) for key in job.document.keys("labels") if (text := job.document.text("labels", key))]
    if not labels:
        return
    try:
        check_labels({key: text.value for key, text in labels}, kept=1)
    except InvalidInputError as error:
        yield f"# labels are not converted: {_shown(error.message)}"
        return
    yield "labels:"
    for key, text in labels:
        yield f"  {_render(key)}: {_render(text.value)}  # line {text.line}"


def _buckets(storage: Storage) -> Iterator[str]:
    for setting in Setting:
        places = [place for place in storage.places if place.setting is setting]
        if places:
            yield f"{setting}:"
        for place in places:
            flag = f" --{place.flag}" if place.flag else ""
            yield f"  - {_render(str(place.path))}  # {_from(place.said)}{flag}"


def _setup(job: TrainingInput, storage: Storage) -> Iterator[str]:
    """Yield the setting that prepares every worker. Whether `gcloud` is on all of the images is unverified."""
    if job.custom_image:
        return
    lines = [_PYTORCH] if job.is_pytorch else []
    if storage.packages:
        urls = [text.value for text in storage.packages]
        names = [f"./{url.rpartition('/')[2]}" for url in urls]
        lines += ['cd "$(mktemp -d)"', shlex.join(["gcloud", "storage", "cp", *urls, "."])]
        lines.append(shlex.join(["pip3", "install", *names]))
    if not lines:
        return
    yield f"# {_from(storage.packages[0]) if storage.packages else 'PyTorch/XLA'}"
    yield "setup: |"
    # The first line that fails must be the one that is reported.
    yield from (f"  {line}" for line in ["set -e", *lines])


def _from(said: Text | None) -> str:
    if said is None:
        return "the default of a `cloud_tpu` worker"
    return f"{re.sub(r'[.]?[0-9]+$', '', said.key)}, line {said.line}"


def _shown(text: str) -> str:
    """Return a text that cannot end the comment that contains it."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _render(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # JSON's escapes are YAML's too, but YAML takes fewer characters as they are.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
