"""The job that a configuration describes: the fields of the API's TrainingInput, each with its line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest
from tpuctl.preflight.ai_platform import offered
from tpuctl.preflight.ai_platform.offered import CLOUD_TPU

if TYPE_CHECKING:
    from tpuctl.preflight.ai_platform.document import Document, Path, Text

BASIC_TPU, CUSTOM = "BASIC_TPU", "CUSTOM"
_OF_CUSTOM = ("masterType", "workerType", "workerCount", "parameterServerType", "parameterServerCount")


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """A job with a TPU. `root` is the path of the TrainingInput: below its own key, or the top of the file."""

    document: Document
    root: Path

    def text(self, *path: str) -> Text | None:
        """Return one field; None if it is absent or empty."""
        return self.document.text(*self.root, *path)

    def items(self, *path: str) -> tuple[Text, ...]:
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
    def fields_of_custom(self) -> tuple[Text, ...]:
        """The fields that only the tier `CUSTOM` allows."""
        return tuple(text for key in _OF_CUSTOM if (text := self.text(key)))

    @property
    def replica(self) -> str:
        """The configuration with the TPU: that of the worker, or of a master that is itself `cloud_tpu`."""
        master, worker = self.text("masterType"), self.text("workerType")
        is_master = master is not None and master.value == CLOUD_TPU and (worker is None or worker.value != CLOUD_TPU)
        return "masterConfig" if is_master else "workerConfig"

    @property
    def accelerator_type(self) -> Text | None:
        """The `type` of the TPU's acceleratorConfig; None for the tier `BASIC_TPU`."""
        return None if self.is_basic else self.text(self.replica, "acceleratorConfig", "type")

    @property
    def accelerator_count(self) -> Text | None:
        """The `count` of the TPU's acceleratorConfig: cores."""
        return None if self.is_basic else self.text(self.replica, "acceleratorConfig", "count")

    @property
    def master_image(self) -> Text | None:
        """The container that runs the Python code."""
        return self.text("masterConfig", "imageUri") or self.text("imageUri")

    @property
    def worker_image(self) -> Text | None:
        """The container of the TPU worker; the master's if it has none [API field text]."""
        return self.text("workerConfig", "imageUri") or self.master_image

    @property
    def custom_image(self) -> Text | None:
        """The user's own container that runs the Python code."""
        image = self.master_image or self.worker_image
        return image if image and not offered.load().is_prebuilt(image.value) else None

    @property
    def tpu_tf_version(self) -> Text | None:
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
    def tensorflow(self) -> Text | None:
        """The field with the TensorFlow version: tpuTfVersion for a container, else runtimeVersion."""
        if self.is_pytorch:
            return None
        return (self.tpu_tf_version if self.worker_image else None) or self.text("runtimeVersion")


def find_job(document: Document) -> TrainingInput:
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
    said = job.text(job.replica, "acceleratorConfig", "type") or job.text("workerType") or job.text("masterType")
    said = said if said and job.scale_tier in {None, CUSTOM} else job.text("scaleTier")
    if said is not None:
        key = said.key.rpartition(".")[2]
        raise InvalidInputError(
            f"{document.source} line {said.line}: `{key}: {said.value}` is not a job with a TPU", hint=hint
        )
    known = ("trainingInput", "scaleTier")
    near = next(((key, guess) for key in document.keys(*root) if (guess := nearest(key, known)) and guess != key), None)
    raise InvalidInputError(
        f"{document.source} is not a job with a TPU: it does not name its machines",
        hint=f"is `{near[0]}` in {document.place(*root, near[0])} meant to be `{near[1]}`?" if near else hint,
    )
