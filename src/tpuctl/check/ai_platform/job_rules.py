"""Rules about jobs of AI Platform Training: their machines, their software, and their environment.

Each rule gets a `JobCase`: the job, its replacement, and the command that replaces its submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tpuctl.accelerators import AcceleratorType
from tpuctl.check.ai_platform.replacement import Replacement, ReplacementMove, region_of_job
from tpuctl.check.ai_platform.training_job import (
    BASIC_TPU,
    CLOUD_TPU,
    CUSTOM,
    JobField,
    JobStorage,
    KeyPath,
    TrainingJob,
    load_service_offer,
)
from tpuctl.check.findings import GrantBucketRole, Level, Remedy, RuleResult, check_rule, join_words
from tpuctl.names import closest_match, parse_whole_number

# Fields that only the tier `CUSTOM` allows.
_CUSTOM_KEYS = (
    *("masterType", "workerType", "workerCount", "parameterServerType", "parameterServerCount"),
    "workerConfig.acceleratorConfig.type",
)
# The form of Compute Engine's names: n1-highcpu-16, e2-standard-4, a2-highgpu-1g.
_COMPUTE_ENGINE_TYPE = re.compile(r"[a-z]\d[a-z]?-[a-z]+-\d+[a-z]?")


@dataclass(frozen=True, slots=True)
class JobCase:
    """One job and its replacement: the file name `target`, and the command that replaces the submission."""

    job: TrainingJob
    replacement: Replacement | None
    storage: JobStorage
    target: str
    command: str | None

    def found(
        self, level: Level, field: JobField | str | None, text: str, *remedies: Remedy | str, why: str | None = None
    ) -> RuleResult:
        """Return a result about a field, about the key of an absent field, or about the whole job."""
        line = field.line if isinstance(field, JobField) else self.job.line(field or "")
        facts: dict[str, object] = {"file": self.job.document.source, "line": line}
        if isinstance(field, JobField):
            facts |= {"key": field.key, "value": field.value or None}
        elif field is not None:
            facts |= {"key": field, "value": None}
        return RuleResult.of(level, f"{self.job.document.source} line {line}", text, *remedies, why=why, facts=facts)


def _written(field: JobField | None, key: str) -> str:
    return f"`{field.written}`" if field else f"no `{key.rpartition('.')[2]}`"


def _did_you_mean(field: JobField, known: Collection[str], otherwise: str) -> str:
    near = closest_match(field.value, known)
    return f"did you mean `{near}`?" if near else otherwise


def _pytorch_version(image: JobField) -> str | None:
    """Return the tpuTfVersion of a prebuilt PyTorch container, ignoring its tag; None for other images."""
    version: str | None = load_service_offer()["containers"].get(image.value.partition("@")[0].partition(":")[0])
    return version


def _tpu_tf_versions() -> tuple[str, ...]:
    offer = load_service_offer()
    return (*offer["runtimes"], *offer["containers"].values())


def _chips_and_memory(type_: AcceleratorType) -> str:
    return f"{type_.chips} chips with {type_.generation.hbm_gib_per_chip} GiB each"


def _unused_keys(job: TrainingJob, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str | None]]:
    """Yield the keys that are not converted: with the reason, or None if the service did not know them."""
    known = _known_keys(path)
    for key in job.keys(path):
        verdict = known.get(key)
        if isinstance(verdict, dict):
            yield from _unused_keys(job, (*path, key))
        elif verdict is not True:
            yield (*path, key), verdict


def _known_keys(path: KeyPath) -> dict[Any, Any]:
    """Return the keys that are valid below a path; those of TrainingInput are also valid at the top."""
    keys = load_service_offer()["keys"]
    known: dict[Any, Any] = {**keys["trainingInput"], **keys}
    for key in path:
        known = known[key]
    return known


@check_rule("TPU801", "AI Platform Training has ended")
def service_has_ended(case: JobCase) -> Iterator[RuleResult]:
    """Report that the service no longer accepts jobs, and which command does the same work.

    Always a warning: it ended on 2025-01-31 (documentation).
    """
    text = f"AI Platform Training ended on {load_service_offer()['ended']} and no longer runs this job"
    run = Remedy("run it on your own TPU VM, with the file that was converted from this one", case.command)
    why = "`gcloud ai-platform jobs submit training` always fails"
    yield case.found(Level.WARNING, None, text, *([run] if case.command else []), why=why)


@check_rule("TPU802", "Number of TPU cores")
def core_count_was_offered(case: JobCase) -> Iterator[RuleResult]:
    """Check that acceleratorConfig has a number of cores that its type offered.

    TPU_V2 and TPU_V3 had 8, TPU_V2_POD 32, 128, 256 and 512, TPU_V3_POD 32, 128 and 256 (documentation). Any other
    number is an error, and so is a missing one: there is no equivalent TPU VM then. Not checked for a type that was not
    offered.
    """
    type_, field = case.job.accelerator("type"), case.job.accelerator("count")
    offered = load_service_offer()["types"].get(type_.value) if type_ else None
    if type_ is None and field is None and case.replacement:
        yield case.found(Level.OK, "scaleTier", f"one TPU with {case.replacement.requested.size} cores")
    if type_ is None or offered is None:
        return
    counts = join_words(offered["counts"], last="or")
    if field is not None and parse_whole_number(field.value) in offered["counts"]:
        yield case.found(Level.OK, field, f"`{type_.value}` had {field.value} cores")
    else:
        key = f"{case.job.replica}.acceleratorConfig.count"
        text = f"{_written(field, key)}: `{type_.value}` had {counts} cores"
        yield case.found(Level.ERROR, field or key, text, f"set `{key}` to {counts}")


@check_rule("TPU803", "Type of TPU")
def accelerator_type_was_offered(case: JobCase) -> Iterator[RuleResult]:
    """Check that acceleratorConfig names a TPU type that the service offered.

    These were TPU_V2, TPU_V3, TPU_V2_POD and TPU_V3_POD (documentation); the API's TPU_V4_POD (API field text) was
    never documented for jobs. Any other is an error, and so is a count without a type.
    """
    field, types = case.job.accelerator("type"), load_service_offer()["types"]
    if field is None and case.job.accelerator("count") is None:
        return
    if field is not None and field.value in types:
        yield case.found(Level.OK, field, f"`{field.value}` was offered")
        return
    key = f"{case.job.replica}.acceleratorConfig.type"
    near = closest_match(field.value.upper(), types) if field else None
    advice = f"set `{key}` to " + (f"`{near}`" if near else "one of them, or choose a TPU VM type yourself")
    text = f"{_written(field, key)}: jobs with a TPU had {join_words(types, last='or')}"
    yield case.found(Level.ERROR, field or key, text, advice)


@check_rule("TPU804", "Scale tier and machine of the master")
def machines_belong_together(case: JobCase) -> Iterator[RuleResult]:
    """Check that scale tier, master machine and TPU worker are consistent.

    Errors: an acceleratorConfig with a legacy machine type (it needs a Compute Engine type, and TPU v3 was only
    available with one); `CUSTOM` without a masterType; an acceleratorConfig on a worker that is not `cloud_tpu`; fields
    of `CUSTOM` with `BASIC_TPU` (documentation, API field text). Notes: a `cloud_tpu` master, and a Compute Engine
    master without an acceleratorConfig, on which sources disagree. A TPU VM has no master: the code runs on the TPU
    workers.
    """
    job, offer = case.job, load_service_offer()
    master, worker = job.text("masterType"), job.text("workerType")
    has_config = job.accelerator("type") is not None or job.accelerator("count") is not None
    is_legacy = master is not None and master.value in offer["legacy_machines"]
    if job.is_basic:
        fields = [field for key in _CUSTOM_KEYS if (field := job.text(key))]
        if not fields:
            yield case.found(Level.OK, "scaleTier", f"`{BASIC_TPU}` determines every machine")
            return
        keys = join_words(f"`{field.key.removeprefix('trainingInput.')}`" for field in fields)
        text = f"{keys} with `scaleTier: {BASIC_TPU}`: these belong to the tier `{CUSTOM}`"
        advice = f"set `scaleTier: {CUSTOM}` if you mean them; the job is read as 8 cores of TPU v2"
        yield case.found(Level.ERROR, fields[0], text, advice)
        return
    if job.replica == "masterConfig":
        yield case.found(Level.NOTE, master, f"`masterType: {CLOUD_TPU}` is read as `workerType: {CLOUD_TPU}`")
        return
    if not job.has_tpu_worker:
        text = f"{_written(worker, 'workerType')}: a TPU needed a `{CLOUD_TPU}` worker"
        yield case.found(Level.ERROR, worker or "workerType", text, f"set `workerType: {CLOUD_TPU}`")
    if master is None:
        text = f"no `masterType`: the scale tier `{CUSTOM}` needed one"
        yield case.found(Level.ERROR, "masterType", text, "a TPU VM needs none: the code runs on the TPU workers")
    elif is_legacy and job.accelerator("type"):
        text = f"`{master.written}` is a legacy machine type; `acceleratorConfig` needed a Compute Engine type"
        advice = "use a type like `n1-highcpu-16`, or omit `acceleratorConfig` for 8 cores of TPU v2"
        yield case.found(Level.ERROR, master, text, advice)
    elif not is_legacy and not _COMPUTE_ENGINE_TYPE.fullmatch(master.value):
        near = closest_match(master.value, offer["legacy_machines"])
        meant = f"; did you mean `{near}`?" if near else ""
        yield case.found(Level.NOTE, master, f"`{master.written}` is not a known machine type{meant}")
    elif not is_legacy and not has_config:
        beside = f"no `acceleratorConfig` beside the Compute Engine machine `{master.value}`"
        text = f"{beside}: read as {offer['default']['count']} cores of TPU v2"
        yield case.found(Level.NOTE, "workerConfig", text)
    else:
        yield case.found(Level.OK, master, f"`{master.value}` fits this TPU; a TPU VM needs no master")


@check_rule("TPU805", "One TPU worker")
def has_one_tpu_worker(case: JobCase) -> Iterator[RuleResult]:
    """Check that a `cloud_tpu` worker has workerCount 1.

    Any other number, or none, was rejected: an error (documentation). One `cloud_tpu` worker was one TPU or one whole
    pod slice.
    """
    field = case.job.text("workerCount")
    if case.job.is_basic or (field is None and not case.job.has_tpu_worker):
        return
    if field is not None and field.value == "1":
        yield case.found(Level.OK, field, "one TPU worker")
        return
    text = f"{_written(field, 'workerCount')}: a job had exactly one `{CLOUD_TPU}` worker"
    advice = "set `workerCount: 1`; for more cores ask for a pod type, for more TPUs run `tpuctl run` for each"
    yield case.found(Level.ERROR, field or "workerCount", text, advice)


@check_rule("TPU806", "No parameter servers")
def has_no_parameter_servers(case: JobCase) -> Iterator[RuleResult]:
    """Check that a job with a TPU has no parameter servers.

    A parameterServerCount above zero was rejected: an error (documentation). TPU chips exchange gradients directly.
    """
    count = case.job.text("parameterServerCount")
    field = count or case.job.text("parameterServerType")
    if field is None or case.job.is_basic:
        return
    if count is not None and count.value == "0":
        yield case.found(Level.OK, count, "no parameter servers")
        return
    text = f"`{field.written}`: a job with a TPU had no parameter servers"
    yield case.found(Level.ERROR, field, text, "remove `parameterServerType` and `parameterServerCount`")


@check_rule("TPU807", "Region of the job")
def region_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that the job is for a region in which the service had TPUs: us-central1 or europe-west4.

    Any other is an error (documentation). A file without a region is a note: it was given by gcloud's flag `--region`;
    the zone is then chosen in the first of the two.
    """
    field, regions = case.job.text("region"), load_service_offer()["regions"]
    if field is None:
        where = f"; `zone: {case.replacement.zone}` is a guess" if case.replacement else ""
        text = f"no `region`: it was given by the flag `--region` of gcloud{where}"
        advice = "add `region`, or set `zone` in tpuctl.yaml to a zone near the buckets"
        yield case.found(Level.NOTE, "region", text, advice)
    elif field.value in regions:
        yield case.found(Level.OK, field, f"{field.value} had TPUs")
    else:
        text = f"`{field.written}`: the service had TPUs only in {join_words(regions)}"
        otherwise = "set `region` to one of them, near the buckets"
        yield case.found(Level.ERROR, field, text, _did_you_mean(field, regions, otherwise))


@check_rule("TPU808", "Runtime version")
def runtime_version_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that the runtime version supported TPUs: 1.15, 2.1 to 2.9, or 2.11.

    Any other is an error, and so is one together with a container of the master (documentation, API field text). A
    warning: 1.15, whose TensorFlow 1 is in no TPU VM image. A note: a missing one, as it was given by gcloud's flag
    `--runtime-version`.
    """
    field, image, known = case.job.text("runtimeVersion"), case.job.master_image, load_service_offer()["runtimes"]
    if field is None:
        if image is None:
            text = "no `runtimeVersion`: it was given by the flag `--runtime-version` of gcloud"
            advice = "add `runtimeVersion` to get the image with the same TensorFlow"
            yield case.found(Level.NOTE, "runtimeVersion", text, advice)
    elif image is not None:
        text = f"`{field.written}` with a container: only one of them was accepted"
        yield case.found(Level.ERROR, field, text, "remove `runtimeVersion`")
    elif field.value not in known:
        text = f"`{field.written}`: those with TPUs were {join_words(known)}"
        otherwise = "set the TensorFlow version that the code was written for"
        yield case.found(Level.ERROR, field, text, _did_you_mean(field, known, otherwise))
    elif field.value.startswith("1."):
        text = f"`{field.written}` is TensorFlow 1, which no TPU VM image has"
        why = "`TPUEstimator` and `tf.contrib` do not exist in TensorFlow 2"
        advice = "port the code to TensorFlow 2 and `tf.distribute.TPUStrategy`"
        yield case.found(Level.WARNING, field, text, advice, why=why)
    else:
        yield case.found(Level.OK, field, f"runtime version {field.value} had TPUs")


@check_rule("TPU809", "tpuTfVersion of a container")
def tpu_tf_version_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that a container on the TPU worker has a tpuTfVersion that supported TPUs.

    An error if it is missing, if it is not one of the runtime versions with TPUs, or if it is set without a container
    (API field text).
    """
    field, image, known = case.job.tpu_tf_version, case.job.worker_image, _tpu_tf_versions()
    if field is None:
        if image is not None:
            key, fitting = "workerConfig.tpuTfVersion", _pytorch_version(image)
            text = "a container without `tpuTfVersion`: the TPU worker needed its TensorFlow or PyTorch version"
            advice = f"set `{key}: {fitting}`" if fitting else f"set `{key}` to the container's version"
            yield case.found(Level.ERROR, key, text, advice)
    elif image is None:
        text = f"`{field.written}` without a container: use `runtimeVersion` instead"
        yield case.found(Level.ERROR, field, text, "remove it, or set the container's `imageUri`")
    elif field.value not in known:
        text = f"`{field.written}`: those with TPUs were {join_words(known)}"
        otherwise = "set the version that is nearest to the container's"
        yield case.found(Level.ERROR, field, text, _did_you_mean(field, known, otherwise))
    else:
        yield case.found(Level.OK, field, f"`{field.written}` had TPUs")


@check_rule("TPU810", "PyTorch containers")
def pytorch_container_was_for_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that a prebuilt PyTorch container supported TPUs, and that its tpuTfVersion is the same release.

    pytorch-xla.1-6, 1-7, 1-9, 1-10 and 1-11 did (documentation); another container, or a version of another release, is
    an error.
    """
    offer, version = load_service_offer(), case.job.tpu_tf_version
    images = {image.value: image for image in (case.job.master_image, case.job.worker_image) if image}
    for image in images.values():
        fitting = _pytorch_version(image)
        if not image.value.startswith(offer["prebuilt"]):
            continue
        if fitting is None:
            listed = join_words(offer["containers"])
            text = f"`{image.value}`: the prebuilt containers for TPUs were {listed}"
            yield case.found(Level.ERROR, image, text, "use one of them, or your own container")
        elif version is not None and version.value != fitting and version.value in _tpu_tf_versions():
            text = f"`{version.written}` with `{image.value}`, which needed `{fitting}`"
            yield case.found(Level.ERROR, version, text, f"set `tpuTfVersion: {fitting}`")
        else:
            yield case.found(Level.OK, image, f"`{image.value}` supported TPUs")


@check_rule("TPU811", "Python version")
def python_version_differs(case: JobCase) -> Iterator[RuleResult]:
    """Report that the Python version of the job differs from that of the TPU VM.

    Runtime versions from 1.15 had Python 3.7, and 1.15 also 2.7 (API field text). TPU VM images have a newer one:
    tpu-ubuntu2204-base has Python 3.10. A warning, since packages pinned for 3.7 may not exist for it; an error for a
    version that the runtime version did not have.
    """
    field, runtime = case.job.text("pythonVersion"), case.job.text("runtimeVersion")
    if field is None or case.job.master_image is not None:
        return
    offered = ["2.7", "3.7"] if runtime is None or runtime.value == "1.15" else ["3.7"]
    if field.value not in offered:
        text = f"`{field.written}`: runtime versions with TPUs had Python {join_words(offered, last='or')}"
        yield case.found(Level.ERROR, field, text, "set `pythonVersion: '3.7'`")
        return
    text = f"Python {field.value} is in no TPU VM image: the command runs with the image's own `python3`"
    why = "packages pinned for an old Python may have no build for a newer one"
    advice = "first try the pinned versions with `python3 --version` and `pip3 install` on a worker"
    yield case.found(Level.WARNING, field, text, advice, why=why)


@check_rule("TPU812", "Zone that offers the type")
def zone_offers_type(case: JobCase) -> Iterator[RuleResult]:
    """Check that a zone of the job's region offers the TPU as a TPU VM, according to the table of accelerators.

    A warning if none does: then a newer type with as many chips in the same region is used, so that the data stays
    near, or, if there is none, the same type in another region.
    """
    replacement, region = case.replacement, region_of_job(case.job)
    if replacement is None:
        return
    field, name = case.job.text("region") or "region", replacement.requested.name
    type_, zone = replacement.type, replacement.zone
    listing = Remedy("list the zones that offer the TPU now", f"tpuctl types {type_.name}")
    if replacement.move is ReplacementMove.NOTHING:
        yield case.found(Level.OK, field, f"{name} is offered in {zone}")
    elif replacement.move is ReplacementMove.TYPE:
        text = f"no zone of {region} offers {name}: using {type_.name} in {zone} ({_chips_and_memory(type_)})"
        others = join_words((f"{other.name} in {place}" for other, place in replacement.others))
        remedies = [f"alternatives: {others}", listing] if others else [listing]
        why = f"{name} had {_chips_and_memory(replacement.requested)}"
        yield case.found(Level.WARNING, field, text, *remedies, why=why)
    else:
        text = f"no zone of {region} offers {name}, nor a newer TPU with as many chips: using {name} in {zone}"
        why = "data in the old region is read across regions, which is billed and slow"
        yield case.found(Level.WARNING, field, text, listing, why=why)


@check_rule("TPU813", "Image of the TPU VM")
def image_has_framework(case: JobCase) -> Iterator[RuleResult]:
    """Check that a TPU VM image includes the framework of the job.

    TensorFlow 2.6 to 2.9 and 2.11 have their own images, with `-pod` for slices (documentation, lists of 2022 to 2024;
    a zone may no longer offer them). Otherwise the default image of the accelerator is used, without TensorFlow: a
    warning. PyTorch/XLA is installed by `setup`: a note.
    """
    replacement = case.replacement
    if replacement is None or case.job.custom_image:
        return
    field, listing = case.job.tensorflow or "runtimeVersion", f"tpuctl versions --zone {replacement.zone}"
    if case.job.is_pytorch:
        text = f"PyTorch/XLA is installed on `{replacement.version}` by `setup`, in the newest version"
        why = "a job used one XLA device of the TPU; on a TPU VM every worker sees its own chips"
        yield case.found(Level.NOTE, case.job.tpu_tf_version, text, why=why)
    elif replacement.has_framework:
        see = [Remedy("list the images of the zone", listing)] if replacement.move is ReplacementMove.NOTHING else []
        yield case.found(Level.OK, field, f"`{replacement.version}` has the same TensorFlow", *see)
    else:
        missing = f"no image with the job's TensorFlow is known for {replacement.type.name}"
        choose = Remedy("choose an image with a suitable TensorFlow, and set `version` to it", listing)
        yield case.found(Level.WARNING, field, f"{missing}: `{replacement.version}` has none", choose)


@check_rule("TPU814", "Account that reads and writes")
def account_of_tpu_vm(case: JobCase) -> Iterator[RuleResult]:
    """Report whose permissions matter on a TPU VM. Always a note.

    Jobs read data as the account that projects.getConfig calls tpuServiceAccount, with roles/ml.serviceAgent
    (documentation). A TPU VM reads as its own account, serviceAccount of the node, which needs a role on each bucket;
    `tpuctl check` verifies that.
    """
    field, buckets, remedies = case.job.text("serviceAccount"), case.storage.buckets, []
    who = "its own account, the default one of Compute Engine unless `service_account` is set"
    if field is not None:
        who, member = f"`{field.value}`", f"serviceAccount:{field.value}"
        for bucket, is_written in buckets.items():
            role = "roles/storage.objectUser" if is_written else "roles/storage.objectViewer"
            access = "read and write" if is_written else "read"
            command = GrantBucketRole(bucket, role, member).command
            remedies.append(Remedy(f"grant it {access} access to gs://{bucket}", command))
    elif buckets:
        names = join_words(f"gs://{bucket}" for bucket in buckets)
        remedies.append(Remedy(f"check whether it may use {names}", shlex.join(["tpuctl", "check", case.target])))
    text = f"the TPU VM reads and writes as {who}; the `tpuServiceAccount` of AI Platform is no longer needed"
    why = "its role `roles/ml.serviceAgent` has no effect on a TPU VM, and can be removed"
    yield case.found(Level.NOTE, field, text, *remedies, why=why)


@check_rule("TPU815", "How the code finds the TPU")
def code_finds_tpu(case: JobCase) -> Iterator[RuleResult]:
    """Report how the code must change to find the TPU. Always a note.

    The service set TPU_CONFIG for a job, and `TPUClusterResolver()` without arguments read it (documentation). On a TPU
    VM the chips are attached to the machine: use `TPUClusterResolver('local')`; for a slice use the node's name, on
    worker 0 only (TensorFlow source). PyTorch/XLA needs PJRT_DEVICE=TPU (documentation).
    """
    if case.replacement is None:
        return
    if case.job.is_pytorch:
        text = "PyTorch/XLA finds the chips of a TPU VM by `PJRT_DEVICE=TPU`, which the command sets"
        advice = "remove code that reads XRT_TPU_CONFIG or TPU_CONFIG"
    elif case.replacement.type.is_slice:
        text = "`TPUClusterResolver()` without arguments does not find a slice: it needs the node's name"
        code = "`TPUClusterResolver(os.environ['TPU_NAME'])`"
        advice = f"write {code}, and run on worker 0 only; `--tpu-env` sets the name"
    else:
        where = "they are in the same machine"
        text = f"`TPUClusterResolver()` without arguments does not find the chips of a TPU VM: {where}"
        advice = "write `TPUClusterResolver('local')`, and remove code that waits for TPU_CONFIG"
    yield case.found(Level.NOTE, None, text, advice)


@check_rule("TPU816", "Container of your own")
def custom_container_runs(case: JobCase) -> Iterator[RuleResult]:
    """Report how a custom container runs on a TPU VM, which starts no container by itself. A warning.

    The command starts it with docker, with the machine's network and devices (documentation). The account of the
    workers must be able to read the image: roles/artifactregistry.reader. The container of the TPU worker is no longer
    needed.
    """
    if field := case.job.custom_image:
        text = (
            f"`{field.value}` is started by the command with docker: it must contain libtpu and find the chips itself"
        )
        why = "on AI Platform the TPU was another machine; on a TPU VM the container needs the TPU library"
        reader = "grant the account of the workers `roles/artifactregistry.reader` on the image"
        yield case.found(Level.WARNING, field, text, f"{reader}, and rebuild it for a TPU VM", why=why)


@check_rule("TPU817", "Keys that nothing replaces")
def keys_without_replacement(case: JobCase) -> Iterator[RuleResult]:
    """Report the keys that have no equivalent in tpuctl.yaml, each with an alternative.

    A warning for hyperparameters, which started many runs; notes for all others.
    """
    for path, reason in _unused_keys(case.job):
        if reason is not None:
            level = Level.WARNING if path[-1] == "hyperparameters" else Level.NOTE
            field = JobField("", ".".join(map(str, path)), case.job.document.lines[path])
            yield case.found(level, field, f"`{path[-1]}` is not converted: {reason}")


@check_rule("TPU818", "Unknown keys")
def unknown_keys(case: JobCase) -> Iterator[RuleResult]:
    """Report the keys that the service did not know, in one note: they are ignored."""
    lines = {path: case.job.document.lines[path] for path, reason in _unused_keys(case.job) if reason is None}
    shown = []
    for path, line in lines.items():
        near = closest_match(str(path[-1]), _known_keys(path[:-1]))
        shown.append(f"`{path[-1]}` (line {line}{f', like `{near}`' if near else ''})")
    if shown:
        first = next(JobField("", ".".join(map(str, path)), line) for path, line in lines.items())
        are = "key is" if len(shown) == 1 else "keys are"
        yield case.found(Level.NOTE, first, f"unknown {are} ignored: {join_words(shown)}")


@check_rule("TPU819", "Places in Cloud Storage")
def storage_places_are_valid(case: JobCase) -> Iterator[RuleResult]:
    """Check that what looks like a location in Cloud Storage is valid: jobDir, packageUris, and `gs://` arguments.

    A warning for an invalid one: it is missing in the buckets that `tpuctl check` checks. Distance and access are
    checked by other rules.
    """
    for field, reason in case.storage.refused:
        yield case.found(Level.WARNING, field, reason, "write it like `gs://BUCKET/PREFIX`")
    if places := case.storage.places:
        urls = join_words(dict.fromkeys(str(place.path) for place in places))
        yield case.found(Level.OK, places[0].field, f"`tpuctl check` checks: {urls}")


@check_rule("TPU820", "What the job runs")
def job_has_program(case: JobCase) -> Iterator[RuleResult]:
    """Check that the file says what to run: pythonModule, or a container.

    A note if it does not: gcloud's flags `--module-name` and `--package-path` gave it then.
    """
    if field := case.job.text("pythonModule") or case.job.custom_image:
        yield case.found(Level.OK, field, "the file says what to run")
        return
    text = "no `pythonModule`: it was given by gcloud's flags `--module-name` and `--package-path`"
    why = "`tpuctl run --up` syncs the current git tree, so that you need not build a package"
    advice = "put the module's name in the command, and run it from the folder with the code"
    yield case.found(Level.NOTE, "pythonModule", text, advice, why=why)


JOB_RULES = (
    service_has_ended,
    core_count_was_offered,
    accelerator_type_was_offered,
    machines_belong_together,
    has_one_tpu_worker,
    has_no_parameter_servers,
    region_had_tpus,
    runtime_version_had_tpus,
    tpu_tf_version_had_tpus,
    pytorch_container_was_for_tpus,
    python_version_differs,
    zone_offers_type,
    image_has_framework,
    account_of_tpu_vm,
    code_finds_tpu,
    custom_container_runs,
    keys_without_replacement,
    unknown_keys,
    storage_places_are_valid,
    job_has_program,
)
