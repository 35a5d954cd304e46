"""The job that a configuration describes: the fields of the API's TrainingInput, each with its line.

The file, YAML or JSON, is read as text: no objects are constructed, so the content cannot run code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from tpuctl.accelerators import AcceleratorType, find_accelerator_type
from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath, closest_match
from tpuctl.yaml_reader import compose_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

BASIC_TPU, CUSTOM = "BASIC_TPU", "CUSTOM"
_CUSTOM_TIER_FIELDS = ("masterType", "workerType", "workerCount", "parameterServerType", "parameterServerCount")


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """A job with a TPU. `root` is the path of the TrainingInput: below its own key, or the top of the file."""

    document: JobDocument
    root: KeyPath

    def text(self, *path: str) -> JobField | None:
        """Return one field; None if it is absent or empty."""
        return self.document.text(*self.root, *path)

    def items(self, *path: str) -> tuple[JobField, ...]:
        """Return the items of a list."""
        return self.document.items(*self.root, *path)

    def place(self, *path: str) -> str:
        """Return `FILE line N` of a field; of the TrainingInput if the field is absent."""
        where = (*self.root, *path)
        return self.document.place(*(where if self.document.has(*where) else self.root))

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
    def fields_of_custom(self) -> tuple[JobField, ...]:
        """The fields that only the tier `CUSTOM` allows."""
        return tuple(text for key in _CUSTOM_TIER_FIELDS if (text := self.text(key)))

    @property
    def replica(self) -> str:
        """The configuration with the TPU: that of the worker, or of a master that is itself `cloud_tpu`."""
        master, worker = self.text("masterType"), self.text("workerType")
        is_master = master is not None and master.value == CLOUD_TPU and (worker is None or worker.value != CLOUD_TPU)
        return "masterConfig" if is_master else "workerConfig"

    @property
    def accelerator_type(self) -> JobField | None:
        """The `type` of the TPU's acceleratorConfig; None for the tier `BASIC_TPU`."""
        return None if self.is_basic else self.text(self.replica, "acceleratorConfig", "type")

    @property
    def accelerator_count(self) -> JobField | None:
        """The `count` of the TPU's acceleratorConfig: cores."""
        return None if self.is_basic else self.text(self.replica, "acceleratorConfig", "count")

    @property
    def master_image(self) -> JobField | None:
        """The container that runs the Python code."""
        return self.text("masterConfig", "imageUri") or self.text("imageUri")

    @property
    def worker_image(self) -> JobField | None:
        """The container of the TPU worker; the master's if it has none [API field text]."""
        return self.text("workerConfig", "imageUri") or self.master_image

    @property
    def custom_image(self) -> JobField | None:
        """The user's own container that runs the Python code."""
        image = self.master_image or self.worker_image
        return image if image and not load_service_offer().is_prebuilt(image.value) else None

    @property
    def tpu_tf_version(self) -> JobField | None:
        """The tpuTfVersion of the worker's configuration, else from the other places in which it was written."""
        places = (("workerConfig", "tpuTfVersion"), ("masterConfig", "tpuTfVersion"), ("tpuTfVersion",))
        return next((text for path in places if (text := self.text(*path))), None)

    @property
    def is_pytorch(self) -> bool:
        """Return whether the job trains with PyTorch/XLA."""
        images = [image.value for image in (self.master_image, self.worker_image) if image]
        version = self.tpu_tf_version
        return any("/training/pytorch" in image for image in images) or bool(
            version and version.value.startswith("pytorch-")
        )

    @property
    def tensorflow(self) -> JobField | None:
        """The field with the TensorFlow version: tpuTfVersion for a container, else runtimeVersion."""
        if self.is_pytorch:
            return None
        return (self.tpu_tf_version if self.worker_image else None) or self.text("runtimeVersion")


def find_job(document: JobDocument) -> TrainingInput:
    """Return the job with a TPU in a file: a whole job or only its TrainingInput.

    Raises `InvalidInputError` if there is none: the message names the line with the other machine type.
    """
    root = ("trainingInput",) if document.has("trainingInput") else ()
    job = TrainingInput(document, root)
    machines = [text.value for key in ("workerType", "masterType") if (text := job.text(key))]
    types = [job.text(replica, "acceleratorConfig", "type") for replica in ("workerConfig", "masterConfig")]
    has_tpu = CLOUD_TPU in machines or any(text is not None and text.value.startswith("TPU_") for text in types)
    if has_tpu if job.scale_tier in {None, CUSTOM} else job.is_basic:
        return job
    hint = f"a job with a TPU has `scaleTier: {BASIC_TPU}`, or `scaleTier: {CUSTOM}` with `workerType: {CLOUD_TPU}`"
    field = job.text(job.replica, "acceleratorConfig", "type") or job.text("workerType") or job.text("masterType")
    field = field if field and job.scale_tier in {None, CUSTOM} else job.text("scaleTier")
    if field is not None:
        key = field.key.rpartition(".")[2]
        raise InvalidInputError(
            f"{document.source} line {field.line}: `{key}: {field.value}` is not a job with a TPU", hint=hint
        )
    known = ("trainingInput", "scaleTier")
    near = next(
        ((key, guess) for key in document.keys(*root) if (guess := closest_match(key, known)) and guess != key), None
    )
    raise InvalidInputError(
        f"{document.source} is not a job with a TPU: it does not name its machines",
        hint=f"is `{near[0]}` in {document.place(*root, near[0])} meant to be `{near[1]}`?" if near else hint,
    )


KeyPath = tuple[str, ...]
_YamlNode = Any  # PyYAML's node; with the C loader its types do not say what marks hold
_NULL_TAG = "tag:yaml.org,2002:null"
_MAX_LENGTH, _MAX_DEPTH, _MAX_KEYS = 1 << 20, 24, 20_000


@dataclass(frozen=True, slots=True)
class JobField:
    """A scalar as written, with its dotted key from the top of the file and its line, counted from 1."""

    value: str
    key: str
    line: int


@dataclass(frozen=True, slots=True)
class JobDocument:
    """The content of a file: every scalar and every key by its path. List items have their index as key."""

    source: str
    scalars: dict[KeyPath, JobField]
    lines: dict[KeyPath, int]

    def text(self, *path: str) -> JobField | None:
        """Return one scalar; None if it is absent, null or empty."""
        found = self.scalars.get(path)
        return found if found and found.value else None

    def items(self, *path: str) -> tuple[JobField, ...]:
        """Return the scalars of a list, or the single scalar in its place."""
        if alone := self.text(*path):
            return (alone,)
        return tuple(text for where, text in self.scalars.items() if where[:-1] == path and where[-1].isdecimal())

    def keys(self, *path: str) -> Iterator[str]:
        """Yield the keys directly below a path, in file order."""
        return (where[-1] for where in self.lines if where[:-1] == path and len(where) == len(path) + 1)

    def has(self, *path: str) -> bool:
        """Return whether the file has a key, with any value."""
        return path in self.lines

    def place(self, *path: str) -> str:
        """Return `FILE line N` for a key."""
        return f"{self.source} line {self.lines.get(path, 1)}"


def read_job_document(text: str, source: str) -> JobDocument:
    """Return the content of a text.

    Raises `InvalidInputError` if it is neither YAML nor JSON, if a key is duplicated, and if it is too large, too deep
    or expands through aliases.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidInputError(f"{source} is too large for a job's configuration", hint="name the file of one job")
    text = text.removeprefix("\ufeff")
    root = compose_yaml(_json_as_yaml(text) if text.lstrip().startswith("{") else text, source, most=_MAX_KEYS)
    if root is None or root.id != "mapping":
        raise InvalidInputError(
            f"{source} is not a job's configuration: it holds no `key: value` lines",
            hint="name the file that `gcloud ai-platform jobs submit training --config` took",
        )
    document = JobDocument(source, {}, {})
    _walk_job_node(root, (), document)
    return document


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


def _walk_job_node(node: _YamlNode, path: KeyPath, document: JobDocument) -> None:
    if len(path) > _MAX_DEPTH or len(document.lines) > _MAX_KEYS:
        raise InvalidInputError(f"{document.source} is nested too deeply for a job's configuration")
    if node.id == "scalar":
        value = "" if node.tag == _NULL_TAG else str(node.value)
        document.scalars[path] = JobField(value, ".".join(path), document.lines.get(path, 1))
        return
    if node.id == "sequence":
        for number, item in enumerate(node.value):
            document.lines[*path, str(number)] = item.start_mark.line + 1
            _walk_job_node(item, (*path, str(number)), document)
        return
    for key_node, item in node.value:
        line = key_node.start_mark.line + 1
        if key_node.id != "scalar":
            raise InvalidInputError(f"{document.source} line {line}: a key must be a plain word")
        below = (*path, str(key_node.value))
        if below in document.lines:
            first = document.lines[below]
            raise InvalidInputError(
                f"{document.source} line {line}: `{key_node.value}` is duplicated, first in line {first}"
            )
        document.lines[below] = line
        _walk_job_node(item, below, document)


# The form of Compute Engine's names: n1-highcpu-16, e2-standard-4, a2-highgpu-1g.
_COMPUTE_ENGINE_TYPE = re.compile(r"[a-z]\d[a-z]?-[a-z]+-\d+[a-z]?")
CLOUD_TPU = "cloud_tpu"


@dataclass(frozen=True, slots=True)
class ServiceOffer:
    """What AI Platform Training offered before it ended (`data/ai_platform.yaml`).

    `keys` says for every key of the API how it is converted.
    """

    ended: date
    regions: tuple[str, ...]
    types: dict[str, dict[str, Any]]
    default: AcceleratorType
    runtimes: dict[str, str | None]
    containers: dict[str, str]
    prebuilt: str
    legacy_machines: frozenset[str]
    keys: dict[str, Any]

    def counts(self, type_: str) -> tuple[int, ...]:
        """Return the numbers of cores of an accelerator type; empty for a type that was not offered."""
        return tuple(self.types.get(type_, {}).get("counts", ()))

    def accelerator(self, type_: str, count: int) -> AcceleratorType | None:
        """Return the Cloud TPU type with this number of cores; None if it was not offered."""
        if count not in self.counts(type_):
            return None
        return find_accelerator_type(f"{self.types[type_]['prefix']}-{count}")

    def is_legacy(self, machine: str) -> bool:
        """Return whether a machine type is one of the service's own."""
        return machine in self.legacy_machines

    def is_compute_engine(self, machine: str) -> bool:
        """Return whether a machine type has the form of a Compute Engine name."""
        return bool(_COMPUTE_ENGINE_TYPE.fullmatch(machine))

    def is_prebuilt(self, image: str) -> bool:
        """Return whether a container image is one of the service's own."""
        return image.startswith(self.prebuilt)

    def pytorch(self, image: str) -> str | None:
        """Return the tpuTfVersion of a prebuilt PyTorch container, ignoring its tag; None for other images."""
        return self.containers.get(image.partition("@")[0].partition(":")[0])

    @property
    def tpu_tf_versions(self) -> tuple[str, ...]:
        """All accepted values of tpuTfVersion."""
        return (*self.runtimes, *self.containers.values())


@cache
def load_service_offer() -> ServiceOffer:
    """Return the table; the file is read once."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("tpuctl.data").joinpath("ai_platform.yaml").read_text("utf-8")
    data = yaml.load(text, Loader=loader)  # noqa: S506  # the C version of the safe loader
    default = find_accelerator_type(f"{data['default']['prefix']}-{data['default']['count']}")
    if default is None:
        raise ValueError("the table names a default type that the table of accelerators lacks")
    return ServiceOffer(
        ended=date.fromisoformat(data["ended"]),
        regions=tuple(data["regions"]),
        types=data["types"],
        default=default,
        runtimes=data["runtimes"],
        containers=data["containers"],
        prebuilt=data["prebuilt"],
        legacy_machines=frozenset(data["legacy_machines"]),
        keys=data["keys"],
    )


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
    def buckets(self) -> tuple[str, ...]:
        """The buckets of all these, each once, in file order."""
        named = [place.path.bucket for place in self.places]
        return tuple(dict.fromkeys([*named, *(BucketPath.parse(text.value).bucket for text in self.packages)]))

    @property
    def written(self) -> frozenset[str]:
        """The buckets that the job may write to."""
        return frozenset(place.path.bucket for place in self.places if place.setting is not BucketSetting.DATA)


def find_job_storage(job: TrainingInput) -> JobStorage:
    """Return the locations that a job names; a repeated location with the same setting only once."""
    places: dict[tuple[BucketSetting, BucketPath], StoragePlace] = {}
    refused: list[tuple[JobField, str]] = []
    for field, flag, setting, url in _storage_candidates(job):
        try:
            wild = re.search(r"[*?\[{#]", url)
            path = BucketPath.parse(url if wild is None else url[: url.rfind("/", 0, wild.start())])
        except InvalidInputError as error:
            refused.append((field, error.message))
            continue
        places.setdefault((setting, path), StoragePlace(path, setting, field, flag))
    packages = []
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


def program_arguments(job: TrainingInput) -> tuple[str, ...]:
    """Return the program's arguments; the service added `--job-dir` [API field text of jobDir]."""
    given = tuple(text.value for text in job.items("args") or job.items("masterConfig", "containerArgs"))
    job_dir = job.text("jobDir")
    if job_dir is None or any(re.match(r"--job[-_]dir(?:=|$)", word) for word in given):
        return given
    return (*given, f"--job-dir={job_dir.value}")


def _storage_candidates(job: TrainingInput) -> Iterator[tuple[JobField, str | None, BucketSetting, str]]:
    """Yield what looks like a location, with the option that names it and its purpose."""
    if field := job.text("jobDir"):
        yield field, None, BucketSetting.CHECKPOINTS, field.value
    before: str | None = None
    for field in (*job.items("args"), *job.items("masterConfig", "containerArgs")):
        match = _PROGRAM_FLAG.fullmatch(field.value)
        flag = match["name"] if match else before
        text = (match["value"] or "") if match else field.value
        before = match["name"] if match and match["value"] is None else None
        for url in _GS_URL.findall(text):
            name = (flag or "").lower().replace("-", "_")
            # `train_output_dir` is written, so written locations are matched first.
            is_written, is_read = _CHECKPOINT_WORDS.search(name), _DATA_WORDS.search(name)
            yield (
                field,
                flag,
                BucketSetting.CHECKPOINTS if is_written else BucketSetting.DATA if is_read else BucketSetting.ANY,
                url,
            )
