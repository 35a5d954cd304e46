"""The locations in Cloud Storage that a job names, and their purpose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.ai_platform.document import Text
    from tpuctl.preflight.ai_platform.training_input import TrainingInput

_URL = re.compile(r"gs://[^\s,;'\"\\]+")
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_DATA = re.compile(r"data|train|input|eval|valid|test|tfrecord|image|record|example|vocab")
_CHECKPOINTS = re.compile(r"job_?dir|model_?dir|output|checkpoint|ckpt|log_?dir|summar|export|save")


class Setting(StrEnum):
    """The setting of tpuctl.yaml for a bucket: read, written, or unknown."""

    DATA = "data_buckets"
    CHECKPOINTS = "checkpoint_buckets"
    ANY = "buckets"


@dataclass(frozen=True, slots=True)
class Place:
    """A location that the job reads or writes. `flag` is the program's option that names it; None without an option."""

    path: BucketPath
    setting: Setting
    said: Text
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """What the job names: locations, Python packages, and invalid locations with the reason."""

    places: tuple[Place, ...]
    packages: tuple[Text, ...]
    refused: tuple[tuple[Text, str], ...]

    @property
    def buckets(self) -> tuple[str, ...]:
        """The buckets of all these, each once, in file order."""
        named = [place.path.bucket for place in self.places]
        return tuple(dict.fromkeys([*named, *(BucketPath.parse(text.value).bucket for text in self.packages)]))

    @property
    def written(self) -> frozenset[str]:
        """The buckets that the job may write to."""
        return frozenset(place.path.bucket for place in self.places if place.setting is not Setting.DATA)


def storage(job: TrainingInput) -> Storage:
    """Return the locations that a job names; a repeated location with the same setting only once."""
    places: dict[tuple[Setting, BucketPath], Place] = {}
    refused: list[tuple[Text, str]] = []
    for said, flag, setting, url in _named(job):
        try:
            wild = re.search(r"[*?\[{#]", url)
            path = BucketPath.parse(url if wild is None else url[: url.rfind("/", 0, wild.start())])
        except InvalidInputError as error:
            refused.append((said, error.message))
            continue
        places.setdefault((setting, path), Place(path, setting, said, flag))
    packages = []
    for said in job.items("packageUris"):
        try:
            BucketPath.parse(said.value)
        except InvalidInputError as error:
            refused.append((said, error.message))
            continue
        if said.value.isprintable():
            packages.append(said)
        else:
            refused.append((said, f"`{said.value}` has characters that a command line must not have"))
    return Storage(tuple(places.values()), tuple(packages), tuple(refused))


def arguments(job: TrainingInput) -> tuple[str, ...]:
    """Return the program's arguments; the service added `--job-dir` [API field text of jobDir]."""
    given = tuple(text.value for text in job.items("args") or job.items("masterConfig", "containerArgs"))
    job_dir = job.text("jobDir")
    if job_dir is None or any(re.match(r"--job[-_]dir(?:=|$)", word) for word in given):
        return given
    return (*given, f"--job-dir={job_dir.value}")


def _named(job: TrainingInput) -> Iterator[tuple[Text, str | None, Setting, str]]:
    """Yield what looks like a location, with the option that names it and its purpose."""
    if said := job.text("jobDir"):
        yield said, None, Setting.CHECKPOINTS, said.value
    before: str | None = None
    for said in (*job.items("args"), *job.items("masterConfig", "containerArgs")):
        match = _FLAG.fullmatch(said.value)
        flag = match["name"] if match else before
        text = (match["value"] or "") if match else said.value
        before = match["name"] if match and match["value"] is None else None
        for url in _URL.findall(text):
            name = (flag or "").lower().replace("-", "_")
            # `train_output_dir` is written, so written locations are matched first.
            is_written, is_read = _CHECKPOINTS.search(name), _DATA.search(name)
            yield said, flag, Setting.CHECKPOINTS if is_written else Setting.DATA if is_read else Setting.ANY, url
