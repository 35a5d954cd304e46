"""The job that a configuration describes: the fields of the API's TrainingInput, each with its line.

The file, YAML or JSON, is read as text: no objects are constructed, so the content cannot run code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath, closest_match
from tpuctl.yaml_reader import YamlDocument, load_data, parse_document

KeyPath = tuple[str | int, ...]
BASIC_TPU, CUSTOM, CLOUD_TPU = "BASIC_TPU", "CUSTOM", "cloud_tpu"
_MAX_LENGTH, _MAX_VALUES = 1 << 20, 20_000


@cache
def load_service_offer() -> dict[str, Any]:
    """Return what AI Platform Training offered before it ended, `data/ai_platform.yaml`; the file is read once."""
    return dict(load_data("ai_platform.yaml"))


@dataclass(frozen=True, slots=True)
class JobField:
    """A scalar as written, with its dotted key from the top of the file and its line, counted from 1."""

    value: str
    key: str
    line: int

    @property
    def written(self) -> str:
        """`key: value`, as in the file."""
        return f"{self.key.rpartition('.')[2]}: {self.value}"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job with a TPU. `root` is the path of the TrainingInput: below its own key, or the top of the file."""

    document: YamlDocument
    root: KeyPath = ()

    def field(self, path: KeyPath) -> JobField | None:
        """Return a scalar by its path from the top of the file, with empty text for null; None if there is none."""
        value = self.document.value
        for part in path:
            is_list = isinstance(value, list) and isinstance(part, int)
            value = value[part] if is_list else value.get(part) if isinstance(value, dict) else None
        return JobField(value, ".".join(map(str, path)), self.document.lines[path]) if isinstance(value, str) else None

    def text(self, key: str) -> JobField | None:
        """Return a field of the TrainingInput by its dotted key; None if it is absent, null or empty."""
        found = self.field((*self.root, *key.split(".")))
        return found if found and found.value else None

    def items(self, key: str) -> tuple[JobField, ...]:
        """Return the scalars of a list, or the single scalar in its place."""
        if alone := self.text(key):
            return (alone,)
        path = (*self.root, *key.split("."))
        numbers = [number for number in self.keys(path) if isinstance(number, int)]
        return tuple(found for number in numbers if (found := self.field((*path, number))))

    def keys(self, path: KeyPath) -> list[str | int]:
        """Return the keys, or the numbers of the items, directly below a path from the top of the file, in file order."""
        return [where[-1] for where in self.document.lines if where and where[:-1] == path]

    def line(self, key: str = "") -> int:
        """Return the line of a field; of the TrainingInput if the field is absent."""
        path, lines = (*self.root, *key.split(".")) if key else self.root, self.document.lines
        return lines.get(path) or (lines[self.root] if self.root else 1)

    @property
    def scale_tier(self) -> str | None:
        """The scale tier as the API spells it; gcloud's flag also accepts `basic-tpu`."""
        tier = self.text("scaleTier")
        return tier.value.upper().replace("-", "_") if tier else None

    @property
    def is_basic(self) -> bool:
        """Return whether the scale tier alone determines the TPU."""
        return self.scale_tier == BASIC_TPU

    @property
    def has_tpu_worker(self) -> bool:
        """Return whether the type of the worker is `cloud_tpu`."""
        worker = self.text("workerType")
        return worker is not None and worker.value == CLOUD_TPU

    @property
    def replica(self) -> str:
        """The configuration with the TPU: that of the worker, or of a master that is itself `cloud_tpu`."""
        master = self.text("masterType")
        return "masterConfig" if master and master.value == CLOUD_TPU and not self.has_tpu_worker else "workerConfig"

    def accelerator(self, key: str) -> JobField | None:
        """Return `type` or `count` (of cores) of the TPU's acceleratorConfig; None for the tier `BASIC_TPU`."""
        return None if self.is_basic else self.text(f"{self.replica}.acceleratorConfig.{key}")

    @property
    def master_image(self) -> JobField | None:
        """The container that runs the Python code."""
        return self.text("masterConfig.imageUri") or self.text("imageUri")

    @property
    def worker_image(self) -> JobField | None:
        """The container of the TPU worker; the master's if it has none [API field text]."""
        return self.text("workerConfig.imageUri") or self.master_image

    @property
    def custom_image(self) -> JobField | None:
        """The user's own container that runs the Python code."""
        image = self.master_image or self.worker_image
        return image if image and not image.value.startswith(load_service_offer()["prebuilt"]) else None

    @property
    def tpu_tf_version(self) -> JobField | None:
        """The tpuTfVersion of the worker's configuration, else from the other places in which it was written."""
        return (
            self.text("workerConfig.tpuTfVersion")
            or self.text("masterConfig.tpuTfVersion")
            or self.text("tpuTfVersion")
        )

    @property
    def is_pytorch(self) -> bool:
        """Return whether the job trains with PyTorch/XLA."""
        version = self.tpu_tf_version
        return any(
            image and "/training/pytorch" in image.value for image in (self.master_image, self.worker_image)
        ) or (version is not None and version.value.startswith("pytorch-"))

    @property
    def tensorflow(self) -> JobField | None:
        """The field with the TensorFlow version: tpuTfVersion for a container, else runtimeVersion."""
        if self.is_pytorch:
            return None
        return (self.tpu_tf_version if self.worker_image else None) or self.text("runtimeVersion")


def read_job(text: str, source: str) -> TrainingJob:
    """Return the job with a TPU in a text: a whole job, or only its TrainingInput.

    Raises `InvalidInputError` if the text is neither YAML nor JSON, is too large, too deep or has a key twice, and if it
    has no job with a TPU: the message names the line with the other machine type.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidInputError(f"{source} is too large for a job's configuration", hint="name the file of one job")
    text = text.removeprefix("\ufeff")
    is_json = text.lstrip().startswith("{")
    document = parse_document(_json_as_yaml(text) if is_json else text, source, most=_MAX_VALUES, as_written=True)
    if not isinstance(document.value, dict):
        raise InvalidInputError(
            f"{source} is not a job's configuration: it holds no `key: value` lines",
            hint="name the file that `gcloud ai-platform jobs submit training --config` took",
        )
    job = TrainingJob(document, root=("trainingInput",) if "trainingInput" in document.value else ())
    machine, master = job.text("workerType"), job.text("masterType")
    types = [job.text(f"{replica}.acceleratorConfig.type") for replica in ("workerConfig", "masterConfig")]
    is_custom = job.scale_tier in {None, CUSTOM}
    has_tpu = any(field and field.value == CLOUD_TPU for field in (machine, master)) or any(
        field and field.value.startswith("TPU_") for field in types
    )
    if not (has_tpu if is_custom else job.is_basic):
        other = job.text(f"{job.replica}.acceleratorConfig.type") or machine or master
        raise _no_tpu_error(job, other if other and is_custom else job.text("scaleTier"))
    return job


def _no_tpu_error(job: TrainingJob, field: JobField | None) -> InvalidInputError:
    hint = f"a job with a TPU has `scaleTier: {BASIC_TPU}`, or `scaleTier: {CUSTOM}` with `workerType: {CLOUD_TPU}`"
    if field is not None:
        return InvalidInputError(
            f"{job.document.source} line {field.line}: `{field.written}` is not a job with a TPU", hint=hint
        )
    for key in job.keys(job.root):
        meant = closest_match(str(key), ("trainingInput", "scaleTier"))
        if meant not in {None, key}:
            hint = (
                f"is `{key}` in {job.document.source} line {job.document.lines[*job.root, key]} meant to be `{meant}`?"
            )
            break
    return InvalidInputError(f"{job.document.source} is not a job with a TPU: it does not name its machines", hint=hint)


def _json_as_yaml(text: str) -> str:
    """Return JSON without what YAML rejects: tabs as indentation, and characters escaped as surrogate pairs."""
    # A line never begins within a string.
    text = re.sub(r"^[ \t]+", " ", text, flags=re.MULTILINE)

    def whole(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return chr(0x10000 + ((int(match[1], 16) & 0x3FF) << 10) + (int(match[2], 16) & 0x3FF))

    # An escaped backslash goes first: what follows it is no escape.
    return re.sub(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", whole, text, flags=re.IGNORECASE)


_GS_URL = re.compile(r"gs://[^\s,;'\"\\]+")
_PROGRAM_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_DATA_WORDS = re.compile(r"data|train|input|eval|valid|test|tfrecord|image|record|example|vocab")
_CHECKPOINT_WORDS = re.compile(r"job_?dir|model_?dir|output|checkpoint|ckpt|log_?dir|summar|export|save")


class BucketSetting(StrEnum):
    """The setting of tpuctl.yaml for a bucket: read, written, or unknown."""

    DATA = "data_buckets"
    CHECKPOINTS = "checkpoint_buckets"
    ANY = "buckets"


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """A location that the job reads or writes. `flag` is the program's option that names it; None without an option."""

    path: BucketPath
    setting: BucketSetting
    field: JobField
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class JobStorage:
    """What the job names: locations, Python packages, and invalid locations with the reason."""

    places: tuple[StoragePlace, ...]
    packages: tuple[JobField, ...]
    refused: tuple[tuple[JobField, str], ...]

    @property
    def buckets(self) -> dict[str, bool]:
        """Whether the job may write to each of the buckets, in file order."""
        written = {place.path.bucket for place in self.places if place.setting is not BucketSetting.DATA}
        named = [place.path.bucket for place in self.places]
        named += [BucketPath.parse(field.value).bucket for field in self.packages]
        return {bucket: bucket in written for bucket in named}


def find_job_storage(job: TrainingJob) -> JobStorage:
    """Return the locations that a job names; a repeated location with the same setting only once."""
    places: dict[tuple[BucketSetting, BucketPath], StoragePlace] = {}
    packages: list[JobField] = []
    refused: list[tuple[JobField, str]] = []
    for field, flag, setting, url in _storage_candidates(job):
        try:
            wild = re.search(r"[*?\[{#]", url)
            path = BucketPath.parse(url if wild is None else url[: url.rfind("/", 0, wild.start())])
            places.setdefault((setting, path), StoragePlace(path, setting, field, flag))
        except InvalidInputError as error:
            refused.append((field, error.message))
    for field in job.items("packageUris"):
        try:
            BucketPath.parse(field.value)
        except InvalidInputError as error:
            refused.append((field, error.message))
            continue
        if field.value.isprintable():
            packages.append(field)
        else:
            refused.append((field, f"`{field.value}` has characters that a command line must not have"))
    return JobStorage(tuple(places.values()), tuple(packages), tuple(refused))


def _storage_candidates(job: TrainingJob) -> Iterator[tuple[JobField, str | None, BucketSetting, str]]:
    """Yield what looks like a location, with the option that names it and its purpose."""
    if field := job.text("jobDir"):
        yield field, None, BucketSetting.CHECKPOINTS, field.value
    before: str | None = None
    for field in (*job.items("args"), *job.items("masterConfig.containerArgs")):
        match = _PROGRAM_FLAG.fullmatch(field.value)
        flag = match["name"] if match else before
        text = (match["value"] or "") if match else field.value
        before = match["name"] if match and match["value"] is None else None
        name = (flag or "").lower().replace("-", "_")
        # `train_output_dir` is written, so written locations are matched first.
        if _CHECKPOINT_WORDS.search(name):
            setting = BucketSetting.CHECKPOINTS
        else:
            setting = BucketSetting.DATA if _DATA_WORDS.search(name) else BucketSetting.ANY
        for url in _GS_URL.findall(text):
            yield field, flag, setting, url


def program_arguments(job: TrainingJob) -> tuple[str, ...]:
    """Return the program's arguments; the service added `--job-dir` [API field text of jobDir]."""
    given = tuple(field.value for field in job.items("args") or job.items("masterConfig.containerArgs"))
    job_dir = job.text("jobDir")
    if job_dir is None or any(re.match(r"--job[-_]dir(?:=|$)", word) for word in given):
        return given
    return (*given, f"--job-dir={job_dir.value}")
