"""A job of AI Platform Training as its file describes it: fields of the API's TrainingInput with their lines, and storage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath, closest_match
from tpuctl.yaml_reader import KeyPath, load_data, parse_document

BASIC_TPU, CUSTOM, CLOUD_TPU = "BASIC_TPU", "CUSTOM", "cloud_tpu"
_MAX_VALUES = 20_000


@cache
def load_service_offer() -> dict[str, Any]:
    """Return what AI Platform Training offered before it ended, `data/ai_platform.yaml`."""
    return dict(load_data("ai_platform.yaml"))


@dataclass(frozen=True, slots=True)
class JobField:
    """A value as written, with its dotted key from the top of the file (of an item: that of its list) and its line."""

    value: str
    key: str
    line: int

    @property
    def written(self) -> str:
        """`key: value`, as in the file."""
        return f"{self.key.rpartition('.')[2]}: {self.value}"

    @property
    def origin(self) -> str:
        """Where it is in the file, for a comment."""
        return f"{self.key}, line {self.line}"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job with a TPU. Keys are dotted, and relative to `trainingInput` for what is in it."""

    source: str
    fields: Mapping[str, Sequence[JobField]]  # the value of a key, or the items of its list
    lines: Mapping[str, int]  # of all keys

    def text(self, key: str) -> JobField | None:
        """Return the value of a key; None if it is absent or empty."""
        return next(iter(self.fields.get(key, ())), None)

    def items(self, key: str) -> Sequence[JobField]:
        """Return the items of a list, or the single value in its place."""
        return self.fields.get(key, ())

    def accelerator(self, key: str) -> JobField | None:
        """Return `type` or `count` (of cores) of the TPU's acceleratorConfig: the worker's, or that of a `cloud_tpu` master."""
        master = self.text("masterType")
        replica = "masterConfig" if master and master.value == CLOUD_TPU else "workerConfig"
        return self.text(f"{replica}.acceleratorConfig.{key}")

    @property
    def labels(self) -> dict[str, JobField]:
        """The labels of the job."""
        keys = [key for key in self.fields if key.startswith("labels.")]
        return {key.removeprefix("labels."): self.fields[key][0] for key in keys}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the program; the service added `--job-dir` [API field text of jobDir]."""
        given, job_dir = tuple(field.value for field in self.items("args")), self.text("jobDir")
        if job_dir is None or any(re.match(r"--job[-_]dir(?:=|$)", word) for word in given):
            return given
        return (*given, f"--job-dir={job_dir.value}")


# An escaped backslash is matched first: what follows it is no escape.
_ESCAPED_PAIR = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", re.IGNORECASE)


def read_job(text: str, source: str) -> TrainingJob:
    """Return the job with a TPU in a text: a whole job, or only its TrainingInput, as YAML or JSON.

    Raises `InvalidInputError` as `parse_document` does, and if the text has no job with a TPU: the message names the line with
    the other machine type.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        # JSON without what YAML rejects: tabs, and characters escaped as surrogate pairs.
        text = _ESCAPED_PAIR.sub(
            lambda pair: pair[0] if pair[0] == r"\\" else json.loads(f'"{pair[0]}"'), text.replace("\t", " ")
        )
    document = parse_document(text, source, most=_MAX_VALUES, as_written=True)
    if not isinstance(document.value, dict):
        raise InvalidInputError(
            f"{source} is not a job's configuration: it holds no `key: value` lines",
            hint="name the file that `gcloud ai-platform jobs submit training --config` took",
        )
    fields: dict[str, list[JobField]] = {}
    for path, value in _values(document.value):
        field = JobField(value, _dotted(path), document.lines[path])
        fields.setdefault(field.key.removeprefix("trainingInput."), []).append(field)
    lines: dict[str, int] = {}
    for path, line in document.lines.items():
        lines.setdefault(_dotted(path).removeprefix("trainingInput."), line)
    job = TrainingJob(source, fields, lines)
    _check_has_tpu(job)
    return job


def _values(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield each scalar with its path. A key without a value is an absent key."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(item, (*path, key))
    elif value or isinstance(path[-1], int):
        yield path, value


def _dotted(path: KeyPath) -> str:
    return ".".join(part for part in path if isinstance(part, str))


def _check_has_tpu(job: TrainingJob) -> None:
    tier = job.text("scaleTier")
    # gcloud's flag also accepts `basic-tpu`.
    tier_name = tier.value.upper().replace("-", "_") if tier else CUSTOM
    keys = ("workerConfig.acceleratorConfig.type", "masterConfig.acceleratorConfig.type", "workerType", "masterType")
    machines = [field for key in keys if (field := job.text(key))]
    if tier_name == BASIC_TPU:
        return
    if tier_name == CUSTOM:
        if any(machine.value == CLOUD_TPU or machine.value.startswith("TPU_") for machine in machines):
            return
        tier = next(iter(machines), tier)
    hint = f"a job with a TPU has `scaleTier: {BASIC_TPU}`, or `scaleTier: {CUSTOM}` with `workerType: {CLOUD_TPU}`"
    if tier:
        raise InvalidInputError(f"{job.source} line {tier.line}: `{tier.written}` is not a job with a TPU", hint=hint)
    for key, line in job.lines.items():
        meant = closest_match(key, ("trainingInput", "scaleTier"))
        if meant not in {None, key}:
            hint = f"is `{key}` in {job.source} line {line} meant to be `{meant}`?"
            break
    raise InvalidInputError(f"{job.source} is not a job with a TPU: it does not name its machines", hint=hint)


_GS_URL = re.compile(r"gs://[^\s,;'\"\\]+")
_PROGRAM_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
# The setting of a bucket, by the name of the argument with it. The first match counts: `train_output_dir` is written.
_CHECKPOINTS = "checkpoint_buckets"
_BUCKET_SETTINGS = {
    _CHECKPOINTS: re.compile(r"job_?dir|model_?dir|output|checkpoint|ckpt|log_?dir|summar|export|save"),
    "data_buckets": re.compile(r"data|train|input|eval|valid|test|tfrecord|image|record|example|vocab"),
    "buckets": re.compile(""),
}


@dataclass(frozen=True, slots=True)
class JobStorage:
    """What a job names in Cloud Storage: buckets, Python packages, and invalid locations with the reason.

    `buckets` are the locations of each setting of tpuctl.yaml, with the key of the job that names them.
    """

    buckets: Mapping[str, Mapping[BucketPath, str]]
    packages: tuple[JobField, ...]
    refused: tuple[tuple[JobField, str], ...]


def find_job_storage(job: TrainingJob) -> JobStorage:
    """Return the locations that a job names."""
    buckets: dict[str, dict[BucketPath, str]] = {"data_buckets": {}, _CHECKPOINTS: {}, "buckets": {}}
    packages: list[JobField] = []
    refused: list[tuple[JobField, str]] = []
    for field, setting, url, origin in _bucket_locations(job):
        # A pattern of files is cut to its folder.
        wild = re.search(r"[*?\[{#]", url)
        try:
            path = BucketPath.parse(url[: url.rfind("/", 0, wild.start())] if wild else url)
            buckets[setting].setdefault(path, origin)
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
    return JobStorage(buckets, tuple(packages), tuple(refused))


def _bucket_locations(job: TrainingJob) -> Iterator[tuple[JobField, str, str, str]]:
    """Yield what looks like a location: its field, the setting for it, its URL, and the key and option that name it."""
    if field := job.text("jobDir"):
        yield field, _CHECKPOINTS, field.value, field.origin
    flag_before = ""
    for field in job.items("args"):
        match = _PROGRAM_FLAG.fullmatch(field.value)
        flag = match["name"] if match else flag_before
        flag_before = match["name"] if match and match["value"] is None else ""
        name = flag.lower().replace("-", "_")
        setting = next(setting for setting, words in _BUCKET_SETTINGS.items() if words.search(name))
        for url in _GS_URL.findall(field.value):
            yield field, setting, url, field.origin + (f" --{flag}" if flag else "")
