"""What a kept job needs to start again, on any machine: its order, and the files that were synced first, as an archive.

Both lie beside the journal: in its bucket, or in the state directory. The order has the values of `--env`.
"""

from __future__ import annotations

import io
import json
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

from tpuctl.decoding import Range, ShapeError, Text, decode, encode, parse_json
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.files import make_private_folder, read_regular_file, replace_private_file
from tpuctl.names import BucketPath, file_stem
from tpuctl.workers.file_tree import read_copy
from tpuctl.workers.keep_policy import KeepPolicy
from tpuctl.workers.multislice import DEFAULT_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.app.app import App
    from tpuctl.workers.file_tree import FileTree

# It is read and sent as a whole.
LARGEST_ARCHIVE: Final = 256 << 20
_LONGEST: Final = 1 << 20
_LongText = Annotated[str, Text(_LONGEST)]
_Seconds = Annotated[float, Range(0, 10**10)]
_Codes = tuple[Annotated[int, Range(0, 255)], ...]


class NodeAtEnd(StrEnum):
    """What becomes of the node when its job is over."""

    KEEP = "keep"
    DELETE = "delete"
    DELETE_ON_SUCCESS = "delete-on-success"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOrder:
    """What to run, where, and how often. Times are in seconds."""

    line: _LongText
    shown: _LongText | None = None
    environment: dict[str, _LongText] = field(default_factory=dict)
    tpu: bool = False
    container_program: _LongText | None = None
    fanout: Annotated[int, Range(1, 10**6)] = 64
    folder: _LongText | None = None  # on the workers
    synced_to: _LongText | None = None  # the folder on the workers of the archive; None without one
    slices: tuple[_LongText, ...] = ()  # the names of all nodes of a job over several slices, in order; else none
    slice_port: Annotated[int, Range(1, 65535)] = DEFAULT_PORT
    zones: tuple[_LongText, ...] = ()
    tiers: tuple[_LongText, ...] = ()
    spec: Any = None  # JSON of `NodeSpec`
    max_failures: Annotated[int, Range(0, 10**6)] = 3
    healthy_after: _Seconds = 1800
    restart_on: _Codes = ()
    stop_on: _Codes = ()
    pauses: tuple[_Seconds, ...] = ()
    timeout: _Seconds | None = None
    budget: _Seconds | None = None
    hang_after: _Seconds = 1800
    start_grace: _Seconds = 2400
    log_folder: _LongText | None = None  # here; in the state directory without it
    collect: tuple[_LongText, ...] = ()  # paths on the workers
    preempt_signal: Annotated[int, Range(0, 64)] = 0
    end: NodeAtEnd = NodeAtEnd.KEEP
    max_price: _LongText | None = None  # of a node, as given; settings count without it
    max_project_price: _LongText | None = None  # `--budget`
    allow_unknown_price: bool = False

    @property
    def price_limits(self) -> dict[str, Any]:
        """The options that limit the price of each new node, by the names of their settings."""
        given = {
            "max_price": self.max_price,
            "budget": self.max_project_price,
            "allow_unknown_price": self.allow_unknown_price,
        }
        return {name: value for name, value in given.items() if value}

    @property
    def policy(self) -> KeepPolicy:
        """When the job is restarted."""
        return KeepPolicy(
            max_failures=self.max_failures,
            healthy_after=timedelta(seconds=self.healthy_after),
            restart_on=frozenset(self.restart_on),
            stop_on=frozenset(self.stop_on),
            pauses=tuple(timedelta(seconds=pause) for pause in self.pauses),
            timeout=None if self.timeout is None else timedelta(seconds=self.timeout),
            budget=self.budget,
            hang_after=timedelta(seconds=self.hang_after),
            start_grace=timedelta(seconds=self.start_grace),
        )


class KeptFiles:
    """The order and the archive of one kept job."""

    def __init__(self, app: App, project: str, node_id: str, job: str) -> None:
        self._app, self.job = app, job
        self._name = f"jobs/{project}/{file_stem(node_id)}/{job}"
        place = app.settings.text("journal")
        self._bucket = BucketPath.parse(place) if place is not None else None

    @property
    def log_folder(self) -> Path:
        """The local folder of the output of all attempts."""
        return self._app.state_folder / f"{self._name}.logs"

    def write_order(self, order: KeptOrder) -> None:
        """Write the order. Raises `TpuctlError`."""
        self._write("json", json.dumps(encode(order)).encode())

    def read_order(self) -> KeptOrder:
        """Return the order. Raises `InvalidInputError` if it is missing or damaged."""
        content = self._read("json")
        if content is None:
            raise InvalidInputError(
                f"the order of the job is not here: {self._where('json')}",
                hint="supervise it on the machine that started it, or start jobs with `TPUCTL_JOURNAL=gs://BUCKET/PREFIX`",
            )
        try:
            return decode(KeptOrder, parse_json(content))
        except ShapeError as error:
            raise InvalidInputError(f"{self._where('json')}: {error}") from error

    def write_archive(self, tree: FileTree) -> None:
        """Keep the files of a tree. Raises `InvalidInputError` if it is too large."""
        if (size := tree.size(range(len(tree.entries)))) > LARGEST_ARCHIVE:
            raise InvalidInputError(
                f"`{tree.folder}` has {size >> 20} MiB, and at most {LARGEST_ARCHIVE >> 20} MiB are kept for the restarts",
                hint="leave data out with .gitignore, or pass `--no-sync` and copy the code in the command",
            )
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for number, entry in enumerate(tree.entries):
                path = tree.path(number).decode(errors="surrogateescape")
                archive.add(path, arcname=entry.path, recursive=False)
        self._write("tar", content.getvalue())

    @contextmanager
    def archived_tree(self) -> Iterator[FileTree]:
        """Unpack the archive, and return its files. Raises `InvalidInputError` if it is missing."""
        content = self._read("tar")
        if content is None:
            raise InvalidInputError(f"the files of the job are not here: {self._where('tar')}")
        with TemporaryDirectory(prefix="tpuctl-") as place, tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(place, filter="tar")
            yield read_copy(Path(place))

    def _read(self, kind: str) -> bytes | None:
        if self._bucket is not None:
            found = self._app.services.storage.read(
                self._bucket.bucket, self._bucket.object_name(f"{self._name}.{kind}")
            )
            return found.content if found else None
        try:
            return read_regular_file(self._app.state_folder / f"{self._name}.{kind}", longest=2 * LARGEST_ARCHIVE)[0]
        except FileNotFoundError:
            return None

    def _write(self, kind: str, content: bytes) -> None:
        if self._bucket is not None:
            name = self._bucket.object_name(f"{self._name}.{kind}")
            self._app.services.storage.write(self._bucket.bucket, name, content, generation=None)
            return
        path = self._app.state_folder / f"{self._name}.{kind}"
        try:
            make_private_folder(path.parent)
            replace_private_file(path, content)
        except OSError as error:
            raise TpuctlError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from error

    def _where(self, kind: str) -> str:
        if self._bucket is not None:
            return f"gs://{self._bucket.bucket}/{self._bucket.object_name(f'{self._name}.{kind}')}"
        return f"`{self._app.state_folder / f'{self._name}.{kind}'}`"
