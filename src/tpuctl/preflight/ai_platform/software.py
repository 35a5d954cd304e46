"""Rules about software: runtime version, containers, Python, the replacing image, and how the code finds the TPU."""

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
    """Check that the runtime version supported TPUs: 1.15, 2.1 to 2.9, or 2.11.

    Any other is an error, and so is one together with a container of the master (documentation, API field text). A
    warning: 1.15, whose TensorFlow 1 is in no TPU VM image. A note: a missing one, as it was given by gcloud's flag
    `--runtime-version`.
    """
    said, image = case.job.text("runtimeVersion"), case.job.master_image
    known = offered.load().runtimes
    if said is None:
        if image is None:
            text = "no `runtimeVersion`: it was given by the flag `--runtime-version` of gcloud"
            remedies = [Remedy("add `runtimeVersion` to get the image with the same TensorFlow")]
            yield case.found(Level.NOTE, "runtimeVersion", text, remedies=remedies)
    elif image is not None:
        text = f"`runtimeVersion: {said.value}` with a container: only one of them was accepted"
        yield case.found(Level.ERROR, said, text, remedies=[Remedy("remove `runtimeVersion`")])
    elif said.value not in known:
        near = nearest(said.value, known)
        remedies = [
            Remedy(f"did you mean `{near}`?" if near else "set the TensorFlow version that the code was written for")
        ]
        text = f"`runtimeVersion: {said.value}`: those with TPUs were {listing(known, last='and')}"
        yield case.found(Level.ERROR, said, text, remedies=remedies)
    elif said.value.startswith("1."):
        text = f"`runtimeVersion: {said.value}` is TensorFlow 1, which no TPU VM image has"
        why = "`TPUEstimator` and `tf.contrib` do not exist in TensorFlow 2"
        remedies = [Remedy("port the code to TensorFlow 2 and `tf.distribute.TPUStrategy`")]
        yield case.found(Level.WARNING, said, text, why=why, remedies=remedies)
    else:
        yield case.found(Level.OK, said, f"runtime version {said.value} had TPUs")


@rule("TPU809", "tpuTfVersion of a container")
def tpu_tf_version(case: Case) -> Iterator[Found]:
    """Check that a container on the TPU worker has a tpuTfVersion that supported TPUs.

    An error if it is missing, if it is not one of the runtime versions with TPUs, or if it is set without a container
    (API field text).
    """
    said, image = case.job.tpu_tf_version, case.job.worker_image
    known = offered.load().tpu_tf_versions
    key = "workerConfig.tpuTfVersion"
    if said is None:
        if image is not None:
            text = "a container without `tpuTfVersion`: the TPU worker needed its TensorFlow or PyTorch version"
            fitting = offered.load().pytorch(image.value)
            remedies = [Remedy(f"set `{key}: {fitting}`" if fitting else f"set `{key}` to the container's version")]
            yield case.found(Level.ERROR, key, text, remedies=remedies)
    elif image is None:
        text = f"`tpuTfVersion: {said.value}` without a container: use `runtimeVersion` instead"
        yield case.found(Level.ERROR, said, text, remedies=[Remedy("remove it, or set the container's `imageUri`")])
    elif said.value not in known:
        near = nearest(said.value, known)
        remedies = [Remedy(f"did you mean `{near}`?" if near else "set the version that is nearest to the container's")]
        text = f"`tpuTfVersion: {said.value}`: those with TPUs were {listing(known, last='and')}"
        yield case.found(Level.ERROR, said, text, remedies=remedies)
    else:
        yield case.found(Level.OK, said, f"`tpuTfVersion: {said.value}` had TPUs")


@rule("TPU810", "PyTorch containers")
def pytorch(case: Case) -> Iterator[Found]:
    """Check that a prebuilt PyTorch container supported TPUs, and that its tpuTfVersion is the same release.

    pytorch-xla.1-6, 1-7, 1-9, 1-10 and 1-11 did (documentation); another container, or a version of another release, is
    an error.
    """
    offer, version = offered.load(), case.job.tpu_tf_version
    images = {image.value: image for image in (case.job.master_image, case.job.worker_image) if image}
    for image in images.values():
        if not offer.is_prebuilt(image.value):
            continue
        fitting = offer.pytorch(image.value)
        if fitting is None:
            text = f"`{image.value}`: the prebuilt containers for TPUs were {listing(offer.containers, last='and')}"
            yield case.found(Level.ERROR, image, text, remedies=[Remedy("use one of them, or your own container")])
        elif version is not None and version.value != fitting and version.value in offer.tpu_tf_versions:
            text = f"`tpuTfVersion: {version.value}` with `{image.value}`, which needed `{fitting}`"
            yield case.found(Level.ERROR, version, text, remedies=[Remedy(f"set `tpuTfVersion: {fitting}`")])
        else:
            yield case.found(Level.OK, image, f"`{image.value}` supported TPUs")


@rule("TPU811", "Python version")
def python_version(case: Case) -> Iterator[Found]:
    """Report that the Python version of the job differs from that of the TPU VM.

    Runtime versions from 1.15 had Python 3.7, and 1.15 also 2.7 (API field text). TPU VM images have a newer one:
    tpu-ubuntu2204-base has Python 3.10. A warning, since packages pinned for 3.7 may not exist for it; an error for a
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
    text = f"Python {said.value} is in no TPU VM image: the command runs with the image's own `python3`"
    why = "packages pinned for an old Python may have no build for a newer one"
    remedies = [Remedy("first try the pinned versions with `python3 --version` and `pip3 install` on a worker")]
    yield case.found(Level.WARNING, said, text, why=why, remedies=remedies)


@rule("TPU813", "Image of the TPU VM")
def image(case: Case) -> Iterator[Found]:
    """Check that a TPU VM image includes the framework of the job.

    TensorFlow 2.6 to 2.9 and 2.11 have their own images, with `-pod` for slices (documentation, lists of 2022 to 2024;
    a zone may no longer offer them). Otherwise the default image of the accelerator is used, without TensorFlow: a
    warning. PyTorch/XLA is installed by `setup`: a note.
    """
    made = case.replacement
    if made is None or case.job.custom_image:
        return
    said = case.job.tensorflow or "runtimeVersion"
    see = Remedy("list the images of the zone", f"tpuctl versions --zone {made.zone}")
    if case.job.is_pytorch:
        text = f"PyTorch/XLA is installed on `{made.version}` by `setup`, in the newest version"
        why = "a job used one XLA device of the TPU; on a TPU VM every worker sees its own chips"
        yield case.found(Level.NOTE, case.job.tpu_tf_version, text, why=why)
    elif made.has_framework:
        remedies = [see] if made.move is Move.NOTHING else []
        yield case.found(Level.OK, said, f"`{made.version}` has the same TensorFlow", remedies=remedies)
    else:
        text = f"no image with the job's TensorFlow is known for {made.type.name}: `{made.version}` has none"
        choose = Remedy("choose an image with a suitable TensorFlow, and set `version` to it", see.command)
        yield case.found(Level.WARNING, said, text, remedies=[choose])


@rule("TPU815", "How the code finds the TPU")
def resolver(case: Case) -> Iterator[Found]:
    """Report how the code must change to find the TPU. Always a note.

    The service set TPU_CONFIG for a job, and `TPUClusterResolver()` without arguments read it (documentation). On a TPU
    VM the chips are attached to the machine: use `TPUClusterResolver('local')`; for a slice use the node's name, on
    worker 0 only (TensorFlow source). PyTorch/XLA needs PJRT_DEVICE=TPU (documentation).
    """
    made = case.replacement
    if made is None:
        return
    if case.job.is_pytorch:
        text = "PyTorch/XLA finds the chips of a TPU VM by `PJRT_DEVICE=TPU`, which the command sets"
        remedies = [Remedy("remove code that reads XRT_TPU_CONFIG or TPU_CONFIG")]
    elif made.is_slice:
        text = "`TPUClusterResolver()` without arguments does not find a slice: it needs the node's name"
        code = "`TPUClusterResolver(os.environ['TPU_NAME'])`"
        remedies = [Remedy(f"write {code}, and run on worker 0 only; `--tpu-env` sets the name")]
    else:
        text = (
            "`TPUClusterResolver()` without arguments does not find the chips of a TPU VM: they are in the same machine"
        )
        remedies = [Remedy("write `TPUClusterResolver('local')`, and remove code that waits for TPU_CONFIG")]
    yield case.found(Level.NOTE, None, text, remedies=remedies)


@rule("TPU816", "Container of your own")
def custom_container(case: Case) -> Iterator[Found]:
    """Report how a custom container runs on a TPU VM, which starts no container by itself. A warning.

    The command starts it with docker, with the machine's network and devices (documentation). The account of the
    workers must be able to read the image: roles/artifactregistry.reader. The container of the TPU worker is no longer
    needed.
    """
    said = case.job.custom_image
    if said is None:
        return
    text = f"`{said.value}` is started by the command with docker: it must contain libtpu and find the chips itself"
    why = "on AI Platform the TPU was another machine; on a TPU VM the container needs the TPU library"
    reader = (
        "grant the account of the workers `roles/artifactregistry.reader` on the image, and rebuild it for a TPU VM"
    )
    yield case.found(Level.WARNING, said, text, why=why, remedies=[Remedy(reader)])


RULES = (runtime_version, tpu_tf_version, pytorch, python_version, image, resolver, custom_container)
