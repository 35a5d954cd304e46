"""Rules about what runs: runtime version, containers, Python, the image that replaces them, how the code finds the TPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.names import nearest
from tpuctl.preflight.ai_platform import offered
from tpuctl.preflight.ai_platform.judging import Case, listing
from tpuctl.preflight.ai_platform.replacement import Move
from tpuctl.preflight.findings import Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.findings import Found


@rule("TPU808", "Runtime version")
def runtime_version(case: Case) -> Iterator[Found]:
    """Check that the runtime version was one with TPUs: 1.15, 2.1 to 2.9, or 2.11.

    Another is an error, and so is one beside a container of the master (documentation, API field text). A warning: 1.15, whose
    TensorFlow 1 no TPU VM image has. A note: none at all, when gcloud's flag `--runtime-version` said it.
    """
    said, image = case.job.text("runtimeVersion"), case.job.master_image
    known = offered.load().runtimes
    if said is None:
        if image is None:
            text = "no `runtimeVersion`: it was given as `--runtime-version` of the submission"
            remedies = [Remedy("add `runtimeVersion`, and the image with the same TensorFlow is chosen")]
            yield case.found(Level.NOTE, "runtimeVersion", text, remedies=remedies)
    elif image is not None:
        text = f"`runtimeVersion: {said.value}` beside a container: only one of them was taken"
        yield case.found(Level.ERROR, said, text, remedies=[Remedy("leave `runtimeVersion` out")])
    elif said.value not in known:
        near = nearest(said.value, known)
        remedies = [Remedy(f"did you mean `{near}`?" if near else "name the TensorFlow that the code was written for")]
        text = f"`runtimeVersion: {said.value}`: those with TPUs were {listing(known, last='and')}"
        yield case.found(Level.ERROR, said, text, remedies=remedies)
    elif said.value.startswith("1."):
        text = f"`runtimeVersion: {said.value}` is TensorFlow 1, which no TPU VM image has"
        why = "`TPUEstimator` and `tf.contrib` are gone in TensorFlow 2"
        remedies = [Remedy("move the code to TensorFlow 2 and `tf.distribute.TPUStrategy`")]
        yield case.found(Level.WARNING, said, text, why=why, remedies=remedies)
    else:
        yield case.found(Level.OK, said, f"runtime version {said.value} had TPUs")


@rule("TPU809", "tpuTfVersion of a container")
def tpu_tf_version(case: Case) -> Iterator[Found]:
    """Check that a container on the TPU worker comes with a tpuTfVersion that had TPUs.

    An error where it is missing, not one of the runtime versions with TPUs, or there without a container, for which it was
    not to be set (API field text).
    """
    said, image = case.job.tpu_tf_version, case.job.worker_image
    known = offered.load().tpu_tf_versions
    key = "workerConfig.tpuTfVersion"
    if said is None:
        if image is not None:
            text = "a container without `tpuTfVersion`: the TPU worker needed to know its TensorFlow or PyTorch"
            fitting = offered.load().pytorch(image.value)
            remedies = [Remedy(f"set `{key}: {fitting}`" if fitting else f"set `{key}` to the container's version")]
            yield case.found(Level.ERROR, key, text, remedies=remedies)
    elif image is None:
        text = f"`tpuTfVersion: {said.value}` without a container: `runtimeVersion` says it then"
        yield case.found(Level.ERROR, said, text, remedies=[Remedy("leave it out, or name the container's `imageUri`")])
    elif said.value not in known:
        near = nearest(said.value, known)
        remedies = [Remedy(f"did you mean `{near}`?" if near else "name the one that is nearest to the container's")]
        text = f"`tpuTfVersion: {said.value}`: those with TPUs were {listing(known, last='and')}"
        yield case.found(Level.ERROR, said, text, remedies=remedies)
    else:
        yield case.found(Level.OK, said, f"`tpuTfVersion: {said.value}` had TPUs")


@rule("TPU810", "PyTorch containers")
def pytorch(case: Case) -> Iterator[Found]:
    """Check that a prebuilt PyTorch container was one for TPUs, and that its tpuTfVersion is the same release.

    pytorch-xla.1-6, 1-7, 1-9, 1-10 and 1-11 were (documentation); another, or a version of another release, is an error.
    """
    offer, version = offered.load(), case.job.tpu_tf_version
    images = {image.value: image for image in (case.job.master_image, case.job.worker_image) if image}
    for image in images.values():
        if not offer.is_prebuilt(image.value):
            continue
        fitting = offer.pytorch(image.value)
        if fitting is None:
            text = f"`{image.value}`: the prebuilt containers for TPUs were {listing(offer.containers, last='and')}"
            yield case.found(
                Level.ERROR, image, text, remedies=[Remedy("name one of them, or a container of your own")]
            )
        elif version is not None and version.value != fitting and version.value in offer.tpu_tf_versions:
            text = f"`tpuTfVersion: {version.value}` beside `{image.value}`, which needed `{fitting}`"
            yield case.found(Level.ERROR, version, text, remedies=[Remedy(f"set `tpuTfVersion: {fitting}`")])
        else:
            yield case.found(Level.OK, image, f"`{image.value}` was one for TPUs")


@rule("TPU811", "Python version")
def python_version(case: Case) -> Iterator[Found]:
    """Say that the Python of the job is not the Python of the TPU VM.

    Runtime versions from 1.15 had Python 3.7, and 1.15 also 2.7 (API field text). TPU VM images bring a newer one: on
    tpu-ubuntu2204-base Python 3.10. A warning, since packages pinned for 3.7 may not be there for it; an error for a
    version that the runtime version did not have.
    """
    said, runtime = case.job.text("pythonVersion"), case.job.text("runtimeVersion")
    if said is None or case.job.master_image is not None:
        return
    offered_here = {"3.7", *(["2.7"] if runtime is None or runtime.value == "1.15" else [])}
    if said.value not in offered_here:
        text = f"`pythonVersion: {said.value}`: runtime versions with TPUs had Python {listing(sorted(offered_here))}"
        yield case.found(Level.ERROR, said, text, remedies=[Remedy("set `pythonVersion: '3.7'`")])
        return
    text = f"Python {said.value} is on no image of a TPU VM: the command runs with the image's own `python3`"
    why = "packages that are pinned for an old Python may have no build for a newer one"
    remedies = [Remedy("try the pinned versions with `python3 --version` and `pip3 install` on a worker first")]
    yield case.found(Level.WARNING, said, text, why=why, remedies=remedies)


@rule("TPU813", "Image of the TPU VM")
def image(case: Case) -> Iterator[Found]:
    """Check that a TPU VM image brings the framework of the job.

    TensorFlow 2.6 to 2.9 and 2.11 have an image of their own, with `-pod` for slices (documentation, lists of 2022 to 2024;
    whether a zone still has it, the zone says). For all else the default image of the accelerator is taken, without TensorFlow:
    a warning. PyTorch/XLA is installed by `setup`: a note.
    """
    made = case.replacement
    if made is None or case.job.custom_image:
        return
    said = case.job.tensorflow or "runtimeVersion"
    see = Remedy("see which images the zone has", f"tpuctl versions --zone {made.zone}")
    if case.job.is_pytorch:
        text = f"PyTorch/XLA is installed on `{made.version}` by `setup`, in its newest version"
        why = "a job used one XLA device of the TPU; on a TPU VM every worker sees its own chips"
        yield case.found(Level.NOTE, case.job.tpu_tf_version, text, why=why)
    elif made.has_framework:
        remedies = [see] if made.move is Move.NOTHING else []
        yield case.found(Level.OK, said, f"`{made.version}` has the same TensorFlow", remedies=remedies)
    else:
        text = f"no image with the job's TensorFlow is known for {made.type.name}: `{made.version}` has none"
        choose = Remedy("choose one whose TensorFlow the code can do with, and set `version` to it", see.command)
        yield case.found(Level.WARNING, said, text, remedies=[choose])


@rule("TPU815", "How the code finds the TPU")
def resolver(case: Case) -> Iterator[Found]:
    """Say what the code has to change in how it finds the TPU. Always a note.

    A job was told by TPU_CONFIG, and `TPUClusterResolver()` without arguments found it there (documentation). On a TPU VM the
    chips are attached to the machine itself: `TPUClusterResolver('local')`; of a slice, the node's name, on worker 0 only
    (TensorFlow source). PyTorch/XLA needs PJRT_DEVICE=TPU (documentation).
    """
    made = case.replacement
    if made is None:
        return
    if case.job.is_pytorch:
        text = "PyTorch/XLA finds the chips of a TPU VM by `PJRT_DEVICE=TPU`, which the command sets"
        remedies = [Remedy("remove what reads XRT_TPU_CONFIG or TPU_CONFIG")]
    elif made.is_slice:
        text = "`TPUClusterResolver()` without arguments does not find a slice: it needs the node's name"
        code = "`TPUClusterResolver(os.environ['TPU_NAME'])`"
        remedies = [Remedy(f"write {code}, and run on worker 0 only; `--tpu-env` sets the name")]
    else:
        text = "`TPUClusterResolver()` without arguments does not find the chips of a TPU VM: there is no other machine"
        remedies = [Remedy("write `TPUClusterResolver('local')`, and remove what waits for TPU_CONFIG")]
    yield case.found(Level.NOTE, None, text, remedies=remedies)


@rule("TPU816", "Container of your own")
def custom_container(case: Case) -> Iterator[Found]:
    """Say how a container of the user's own runs on a TPU VM, where nothing starts it by itself. A warning.

    The command starts it with docker, with the machine's network and devices (documentation). The account of the workers has to
    read the image: roles/artifactregistry.reader. The container of the TPU worker is not needed any more.
    """
    said = case.job.custom_image
    if said is None:
        return
    text = f"`{said.value}` is started by the command, with docker: it has to bring libtpu, and find the chips itself"
    why = "on AI Platform the TPU was another machine; a container on a TPU VM holds the library that drives it"
    reader = (
        "let the account of the workers read the image (`roles/artifactregistry.reader`), and rebuild it for a TPU VM"
    )
    yield case.found(Level.WARNING, said, text, why=why, remedies=[Remedy(reader)])


RULES = (runtime_version, tpu_tf_version, pytorch, python_version, image, resolver, custom_container)
