"""Rules about jobs of AI Platform Training: their machines, their software, and their environment.

Each rule gets a `JobCase`: the job, its replacement, and the command that replaces its submission.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.check.ai_platform.replacement import ReplacementMove, region_of_field
from tpuctl.check.ai_platform.training_job import BASIC_TPU, CLOUD_TPU, CUSTOM, JobField, load_service_offer
from tpuctl.check.findings import GrantBucketRole, Level, Remedy, RuleResult, check_rule
from tpuctl.names import closest_match, parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.check.ai_platform.replacement import Replacement
    from tpuctl.check.ai_platform.training_job import JobStorage, KeyPath, TrainingInput


@dataclass(frozen=True, slots=True)
class JobCase:
    """One job and its replacement: the file name `target`, and the command that replaces the submission."""

    job: TrainingInput
    replacement: Replacement | None
    storage: JobStorage
    target: str
    command: str | None

    def found(
        self,
        level: Level,
        field: JobField | str | None,
        text: str,
        *,
        why: str | None = None,
        remedies: Iterable[Remedy] = (),
    ) -> RuleResult:
        """Return a result about a field, about the path of an absent field, or about the whole job."""
        path = tuple(field.split(".")) if isinstance(field, str) else ()
        source = self.job.document.source
        subject = self.job.place(*path) if field is None or isinstance(field, str) else f"{source} line {field.line}"
        facts: dict[str, object] = {"file": source, "line": int(subject.rpartition(" ")[2])}
        if field is not None:
            facts["key"] = field if isinstance(field, str) else field.key
            facts["value"] = None if isinstance(field, str) else field.value or None
        return RuleResult(level=level, subject=subject, text=text, why=why, remedies=tuple(remedies), facts=facts)


def join_words(words: Iterable[object], *, last: str = "or") -> str:
    """Return `8`, `32 or 128`, `32, 128 or 256`."""
    texts = [str(word) for word in words]
    return f" {last} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


@check_rule("TPU801", "AI Platform Training has ended")
def service_has_ended(case: JobCase) -> Iterator[RuleResult]:
    """Report that the service no longer accepts jobs, and which command does the same work.

    Always a warning: it ended on 2025-01-31 (documentation).
    """
    remedy = Remedy("run it on your own TPU VM, with the file that was converted from this one", case.command)
    text = f"AI Platform Training ended on {load_service_offer().ended} and no longer runs this job"
    why = "`gcloud ai-platform jobs submit training` always fails"
    yield case.found(Level.WARNING, None, text, why=why, remedies=[remedy] if case.command else [])


@check_rule("TPU802", "Number of TPU cores")
def core_count_was_offered(case: JobCase) -> Iterator[RuleResult]:
    """Check that acceleratorConfig has a number of cores that its type offered.

    TPU_V2 and TPU_V3 had 8, TPU_V2_POD 32, 128, 256 and 512, TPU_V3_POD 32, 128 and 256 (documentation). Any other
    number is an error, and so is a missing one: there is no equivalent TPU VM then. Not checked for a type that was not
    offered.
    """
    type_, field = case.job.accelerator_type, case.job.accelerator_count
    if type_ is None or not (counts := load_service_offer().counts(type_.value)):
        if type_ is None and field is None and case.replacement:
            yield case.found(Level.OK, "scaleTier", f"one TPU with {case.replacement.requested.size} cores")
        return
    key = f"{case.job.replica}.acceleratorConfig.count"
    if field is not None and parse_whole_number(field.value) in counts:
        yield case.found(Level.OK, field, f"`{type_.value}` had {field.value} cores")
        return
    what = f"`count: {field.value}`" if field else "no `count`"
    remedy = Remedy(f"set `{key}` to {join_words(counts)}")
    yield case.found(
        Level.ERROR, field or key, f"{what}: `{type_.value}` had {join_words(counts)} cores", remedies=[remedy]
    )


@check_rule("TPU803", "Type of TPU")
def accelerator_type_was_offered(case: JobCase) -> Iterator[RuleResult]:
    """Check that acceleratorConfig names a TPU type that the service offered.

    These were TPU_V2, TPU_V3, TPU_V2_POD and TPU_V3_POD (documentation); the API's TPU_V4_POD (API field text) was
    never documented for jobs. Any other is an error, and so is a count without a type.
    """
    field = case.job.accelerator_type
    types = load_service_offer().types
    if field is None and case.job.accelerator_count is None:
        return
    if field is not None and field.value in types:
        yield case.found(Level.OK, field, f"`{field.value}` was offered")
        return
    key = f"{case.job.replica}.acceleratorConfig.type"
    near = closest_match(field.value.upper(), types) if field else None
    what = f"`type: {field.value}`" if field else "no `type`"
    text = f"{what}: jobs with a TPU had {join_words(types)}"
    remedy = Remedy(
        f"set `{key}` to `{near}`" if near else f"set `{key}` to one of them, or choose a TPU VM type yourself"
    )
    yield case.found(Level.ERROR, field or key, text, remedies=[remedy])


@check_rule("TPU804", "Scale tier and machine of the master")
def machines_belong_together(case: JobCase) -> Iterator[RuleResult]:
    """Check that scale tier, master machine and TPU worker are consistent.

    Errors: an acceleratorConfig with a legacy machine type (it needs a Compute Engine type, and TPU v3 was only
    available with one); `CUSTOM` without a masterType; an acceleratorConfig on a worker that is not `cloud_tpu`; fields
    of `CUSTOM` with `BASIC_TPU` (documentation, API field text). Notes: a `cloud_tpu` master, and a Compute Engine
    master without an acceleratorConfig, on which sources disagree. A TPU VM has no master: the code runs on the TPU
    workers.
    """
    job = case.job
    if job.is_basic:
        config = job.text("workerConfig", "acceleratorConfig", "type")
        custom_fields = [*job.fields_of_custom, *([config] if config else [])]
        if not custom_fields:
            yield case.found(Level.OK, "scaleTier", f"`{BASIC_TPU}` determines every machine")
            return
        keys = join_words((f"`{text.key.removeprefix('trainingInput.')}`" for text in custom_fields), last="and")
        what = f"{keys} with `scaleTier: {BASIC_TPU}`: these belong to the tier `{CUSTOM}`"
        remedy = Remedy(f"set `scaleTier: {CUSTOM}` if you mean them; the job is read as 8 cores of TPU v2")
        yield case.found(Level.ERROR, custom_fields[0], what, remedies=[remedy])
        return
    master, worker = job.text("masterType"), job.text("workerType")
    if job.replica == "masterConfig":
        yield case.found(Level.NOTE, master, f"`masterType: {CLOUD_TPU}` is read as `workerType: {CLOUD_TPU}`")
        return
    if worker is None or worker.value != CLOUD_TPU:
        what = f"`workerType: {worker.value}`" if worker else "no `workerType`"
        remedy = Remedy(f"set `workerType: {CLOUD_TPU}`")
        yield case.found(
            Level.ERROR, worker or "workerType", f"{what}: a TPU needed a `{CLOUD_TPU}` worker", remedies=[remedy]
        )
    offer, type_, count_ = load_service_offer(), case.job.accelerator_type, case.job.accelerator_count
    if master is None:
        remedy = Remedy("a TPU VM needs none: the code runs on the TPU workers")
        text = f"no `masterType`: the scale tier `{CUSTOM}` needed one"
        yield case.found(Level.ERROR, "masterType", text, remedies=[remedy])
    elif offer.is_legacy(master.value) and type_ is not None:
        text = (
            f"`masterType: {master.value}` is a legacy machine type; `acceleratorConfig` needed a Compute Engine type"
        )
        remedies = [Remedy("use a type like `n1-highcpu-16`, or omit `acceleratorConfig` for 8 cores of TPU v2")]
        yield case.found(Level.ERROR, master, text, remedies=remedies)
    elif not offer.is_legacy(master.value) and not offer.is_compute_engine(master.value):
        near = closest_match(master.value, offer.legacy_machines)
        meant = f"; did you mean `{near}`?" if near else ""
        yield case.found(Level.NOTE, master, f"`masterType: {master.value}` is not a known machine type{meant}")
    elif not offer.is_legacy(master.value) and type_ is None and count_ is None:
        size = offer.default.size
        text = (
            f"no `acceleratorConfig` beside the Compute Engine machine `{master.value}`: read as {size} cores of TPU v2"
        )
        yield case.found(Level.NOTE, "workerConfig", text)
    else:
        yield case.found(Level.OK, master, f"`{master.value}` fits this TPU; a TPU VM needs no master")


@check_rule("TPU805", "One TPU worker")
def has_one_tpu_worker(case: JobCase) -> Iterator[RuleResult]:
    """Check that a `cloud_tpu` worker has workerCount 1.

    Any other number, or none, was rejected: an error (documentation). One `cloud_tpu` worker was one TPU or one whole
    pod slice.
    """
    field, worker = case.job.text("workerCount"), case.job.text("workerType")
    if case.job.is_basic or (field is None and (worker is None or worker.value != CLOUD_TPU)):
        return
    if field is not None and field.value == "1":
        yield case.found(Level.OK, field, "one TPU worker")
        return
    what = f"`workerCount: {field.value}`" if field else "no `workerCount`"
    remedies = [
        Remedy("set `workerCount: 1`; for more cores ask for a pod type, for more TPUs run `tpuctl run` for each")
    ]
    yield case.found(
        Level.ERROR, field or "workerCount", f"{what}: a job had exactly one `{CLOUD_TPU}` worker", remedies=remedies
    )


@check_rule("TPU806", "No parameter servers")
def has_no_parameter_servers(case: JobCase) -> Iterator[RuleResult]:
    """Check that a job with a TPU has no parameter servers.

    A parameterServerCount above zero was rejected: an error (documentation). TPU chips exchange gradients directly.
    """
    field = case.job.text("parameterServerCount") or case.job.text("parameterServerType")
    if field is None or case.job.is_basic:
        return
    if field.key.endswith("parameterServerCount") and field.value == "0":
        yield case.found(Level.OK, field, "no parameter servers")
        return
    text = f"`{field.key.rpartition('.')[2]}: {field.value}`: a job with a TPU had no parameter servers"
    remedies = [Remedy("remove `parameterServerType` and `parameterServerCount`")]
    yield case.found(Level.ERROR, field, text, remedies=remedies)


@check_rule("TPU807", "Region of the job")
def region_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that the job is for a region in which the service had TPUs: us-central1 or europe-west4.

    Any other is an error (documentation). A file without a region is a note: it was given by gcloud's flag `--region`;
    the zone is then chosen in the first of the two.
    """
    regions = load_service_offer().regions
    field = case.job.text("region")
    if field is None:
        where = f"; `zone: {case.replacement.zone}` is a guess" if case.replacement else ""
        text = f"no `region`: it was given by the flag `--region` of gcloud{where}"
        remedies = [Remedy("add `region`, or set `zone` in tpuctl.yaml to a zone near the buckets")]
        yield case.found(Level.NOTE, "region", text, remedies=remedies)
    elif field.value in regions:
        yield case.found(Level.OK, field, f"{field.value} had TPUs")
    else:
        near = closest_match(field.value, regions)
        remedies = [Remedy(f"did you mean `{near}`?" if near else "set `region` to one of them, near the buckets")]
        text = f"`region: {field.value}`: the service had TPUs only in {join_words(regions, last='and')}"
        yield case.found(Level.ERROR, field, text, remedies=remedies)


MACHINE_RULES = (
    service_has_ended,
    core_count_was_offered,
    accelerator_type_was_offered,
    machines_belong_together,
    has_one_tpu_worker,
    has_no_parameter_servers,
    region_had_tpus,
)


@check_rule("TPU808", "Runtime version")
def runtime_version_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that the runtime version supported TPUs: 1.15, 2.1 to 2.9, or 2.11.

    Any other is an error, and so is one together with a container of the master (documentation, API field text). A
    warning: 1.15, whose TensorFlow 1 is in no TPU VM image. A note: a missing one, as it was given by gcloud's flag
    `--runtime-version`.
    """
    field, image = case.job.text("runtimeVersion"), case.job.master_image
    known = load_service_offer().runtimes
    if field is None:
        if image is None:
            text = "no `runtimeVersion`: it was given by the flag `--runtime-version` of gcloud"
            remedies = [Remedy("add `runtimeVersion` to get the image with the same TensorFlow")]
            yield case.found(Level.NOTE, "runtimeVersion", text, remedies=remedies)
    elif image is not None:
        text = f"`runtimeVersion: {field.value}` with a container: only one of them was accepted"
        yield case.found(Level.ERROR, field, text, remedies=[Remedy("remove `runtimeVersion`")])
    elif field.value not in known:
        near = closest_match(field.value, known)
        remedies = [
            Remedy(f"did you mean `{near}`?" if near else "set the TensorFlow version that the code was written for")
        ]
        text = f"`runtimeVersion: {field.value}`: those with TPUs were {join_words(known, last='and')}"
        yield case.found(Level.ERROR, field, text, remedies=remedies)
    elif field.value.startswith("1."):
        text = f"`runtimeVersion: {field.value}` is TensorFlow 1, which no TPU VM image has"
        why = "`TPUEstimator` and `tf.contrib` do not exist in TensorFlow 2"
        remedies = [Remedy("port the code to TensorFlow 2 and `tf.distribute.TPUStrategy`")]
        yield case.found(Level.WARNING, field, text, why=why, remedies=remedies)
    else:
        yield case.found(Level.OK, field, f"runtime version {field.value} had TPUs")


@check_rule("TPU809", "tpuTfVersion of a container")
def tpu_tf_version_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that a container on the TPU worker has a tpuTfVersion that supported TPUs.

    An error if it is missing, if it is not one of the runtime versions with TPUs, or if it is set without a container
    (API field text).
    """
    field, image = case.job.tpu_tf_version, case.job.worker_image
    known = load_service_offer().tpu_tf_versions
    key = "workerConfig.tpuTfVersion"
    if field is None:
        if image is not None:
            text = "a container without `tpuTfVersion`: the TPU worker needed its TensorFlow or PyTorch version"
            fitting = load_service_offer().pytorch(image.value)
            remedies = [Remedy(f"set `{key}: {fitting}`" if fitting else f"set `{key}` to the container's version")]
            yield case.found(Level.ERROR, key, text, remedies=remedies)
    elif image is None:
        text = f"`tpuTfVersion: {field.value}` without a container: use `runtimeVersion` instead"
        yield case.found(Level.ERROR, field, text, remedies=[Remedy("remove it, or set the container's `imageUri`")])
    elif field.value not in known:
        near = closest_match(field.value, known)
        remedies = [Remedy(f"did you mean `{near}`?" if near else "set the version that is nearest to the container's")]
        text = f"`tpuTfVersion: {field.value}`: those with TPUs were {join_words(known, last='and')}"
        yield case.found(Level.ERROR, field, text, remedies=remedies)
    else:
        yield case.found(Level.OK, field, f"`tpuTfVersion: {field.value}` had TPUs")


@check_rule("TPU810", "PyTorch containers")
def pytorch_container_was_for_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that a prebuilt PyTorch container supported TPUs, and that its tpuTfVersion is the same release.

    pytorch-xla.1-6, 1-7, 1-9, 1-10 and 1-11 did (documentation); another container, or a version of another release, is
    an error.
    """
    offer, version = load_service_offer(), case.job.tpu_tf_version
    images = {image.value: image for image in (case.job.master_image, case.job.worker_image) if image}
    for image in images.values():
        if not offer.is_prebuilt(image.value):
            continue
        fitting = offer.pytorch(image.value)
        if fitting is None:
            text = f"`{image.value}`: the prebuilt containers for TPUs were {join_words(offer.containers, last='and')}"
            yield case.found(Level.ERROR, image, text, remedies=[Remedy("use one of them, or your own container")])
        elif version is not None and version.value != fitting and version.value in offer.tpu_tf_versions:
            text = f"`tpuTfVersion: {version.value}` with `{image.value}`, which needed `{fitting}`"
            yield case.found(Level.ERROR, version, text, remedies=[Remedy(f"set `tpuTfVersion: {fitting}`")])
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
    offered_here = {"3.7", *(["2.7"] if runtime is None or runtime.value == "1.15" else [])}
    if field.value not in offered_here:
        text = (
            f"`pythonVersion: {field.value}`: runtime versions with TPUs had Python {join_words(sorted(offered_here))}"
        )
        yield case.found(Level.ERROR, field, text, remedies=[Remedy("set `pythonVersion: '3.7'`")])
        return
    text = f"Python {field.value} is in no TPU VM image: the command runs with the image's own `python3`"
    why = "packages pinned for an old Python may have no build for a newer one"
    remedies = [Remedy("first try the pinned versions with `python3 --version` and `pip3 install` on a worker")]
    yield case.found(Level.WARNING, field, text, why=why, remedies=remedies)


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
    field = case.job.tensorflow or "runtimeVersion"
    see = Remedy("list the images of the zone", f"tpuctl versions --zone {replacement.zone}")
    if case.job.is_pytorch:
        text = f"PyTorch/XLA is installed on `{replacement.version}` by `setup`, in the newest version"
        why = "a job used one XLA device of the TPU; on a TPU VM every worker sees its own chips"
        yield case.found(Level.NOTE, case.job.tpu_tf_version, text, why=why)
    elif replacement.has_framework:
        remedies = [see] if replacement.move is ReplacementMove.NOTHING else []
        yield case.found(Level.OK, field, f"`{replacement.version}` has the same TensorFlow", remedies=remedies)
    else:
        text = (
            f"no image with the job's TensorFlow is known for {replacement.type.name}: `{replacement.version}` has none"
        )
        choose = Remedy("choose an image with a suitable TensorFlow, and set `version` to it", see.command)
        yield case.found(Level.WARNING, field, text, remedies=[choose])


@check_rule("TPU815", "How the code finds the TPU")
def code_finds_tpu(case: JobCase) -> Iterator[RuleResult]:
    """Report how the code must change to find the TPU. Always a note.

    The service set TPU_CONFIG for a job, and `TPUClusterResolver()` without arguments read it (documentation). On a TPU
    VM the chips are attached to the machine: use `TPUClusterResolver('local')`; for a slice use the node's name, on
    worker 0 only (TensorFlow source). PyTorch/XLA needs PJRT_DEVICE=TPU (documentation).
    """
    replacement = case.replacement
    if replacement is None:
        return
    if case.job.is_pytorch:
        text = "PyTorch/XLA finds the chips of a TPU VM by `PJRT_DEVICE=TPU`, which the command sets"
        remedies = [Remedy("remove code that reads XRT_TPU_CONFIG or TPU_CONFIG")]
    elif replacement.is_slice:
        text = "`TPUClusterResolver()` without arguments does not find a slice: it needs the node's name"
        code = "`TPUClusterResolver(os.environ['TPU_NAME'])`"
        remedies = [Remedy(f"write {code}, and run on worker 0 only; `--tpu-env` sets the name")]
    else:
        text = (
            "`TPUClusterResolver()` without arguments does not find the chips of a TPU VM: they are in the same machine"
        )
        remedies = [Remedy("write `TPUClusterResolver('local')`, and remove code that waits for TPU_CONFIG")]
    yield case.found(Level.NOTE, None, text, remedies=remedies)


@check_rule("TPU816", "Container of your own")
def custom_container_runs(case: JobCase) -> Iterator[RuleResult]:
    """Report how a custom container runs on a TPU VM, which starts no container by itself. A warning.

    The command starts it with docker, with the machine's network and devices (documentation). The account of the
    workers must be able to read the image: roles/artifactregistry.reader. The container of the TPU worker is no longer
    needed.
    """
    field = case.job.custom_image
    if field is None:
        return
    text = f"`{field.value}` is started by the command with docker: it must contain libtpu and find the chips itself"
    why = "on AI Platform the TPU was another machine; on a TPU VM the container needs the TPU library"
    reader = (
        "grant the account of the workers `roles/artifactregistry.reader` on the image, and rebuild it for a TPU VM"
    )
    yield case.found(Level.WARNING, field, text, why=why, remedies=[Remedy(reader)])


SOFTWARE_RULES = (
    runtime_version_had_tpus,
    tpu_tf_version_had_tpus,
    pytorch_container_was_for_tpus,
    python_version_differs,
    image_has_framework,
    code_finds_tpu,
    custom_container_runs,
)


_READ_ROLE, _WRITE_ROLE = "roles/storage.objectViewer", "roles/storage.objectUser"


@check_rule("TPU812", "Zone that offers the type")
def zone_offers_type(case: JobCase) -> Iterator[RuleResult]:
    """Check that a zone of the job's region offers the TPU as a TPU VM, according to the table of accelerators.

    A warning if none does: then a newer type with as many chips in the same region is used, so that the data stays
    near, or, if there is none, the same type in another region.
    """
    replacement = case.replacement
    if replacement is None:
        return
    field = case.job.text("region") or "region"
    name = replacement.requested.name
    if replacement.move is ReplacementMove.NOTHING:
        yield case.found(Level.OK, field, f"{name} is offered in {replacement.zone}")
        return
    region = region_of_field(field.value) if isinstance(field, JobField) else ""
    check = Remedy("list the zones that offer the TPU now", f"tpuctl types {replacement.type.name}")
    if replacement.move is ReplacementMove.TYPE:
        requested = replacement.requested
        chips = f"{replacement.type.chips} chips with {replacement.type.generation.hbm_gib_per_chip} GiB each"
        others = join_words((f"{type_} in {place}" for type_, place in replacement.others), last="and")
        text = f"no zone of {region} offers {name}: using {replacement.type.name} in {replacement.zone} ({chips})"
        why = f"{name} had {requested.chips} chips with {requested.generation.hbm_gib_per_chip} GiB each"
        more = [Remedy(f"alternatives: {others}")] if others else []
        yield case.found(Level.WARNING, field, text, why=why, remedies=[*more, check])
        return
    text = f"no zone of {region} offers {name}, nor a newer TPU with as many chips: using {name} in {replacement.zone}"
    why = "data in the old region is read across regions, which is billed and slow"
    yield case.found(Level.WARNING, field, text, why=why, remedies=[check])


@check_rule("TPU814", "Account that reads and writes")
def account_of_tpu_vm(case: JobCase) -> Iterator[RuleResult]:
    """Report whose permissions matter on a TPU VM. Always a note.

    Jobs read data as the account that projects.getConfig calls tpuServiceAccount, with roles/ml.serviceAgent
    (documentation). A TPU VM reads as its own account, serviceAccount of the node, which needs a role on each bucket;
    `tpuctl check` verifies that.
    """
    field = case.job.text("serviceAccount")
    who = (
        f"`{field.value}`"
        if field
        else "its own account, the default one of Compute Engine unless `service_account` is set"
    )
    text = f"the TPU VM reads and writes as {who}; the `tpuServiceAccount` of AI Platform is no longer needed"
    why = "its role `roles/ml.serviceAgent` has no effect on a TPU VM, and can be removed"
    buckets, remedies = case.storage.buckets, []
    if field is None and buckets:
        names = join_words((f"gs://{bucket}" for bucket in buckets), last="and")
        remedies.append(Remedy(f"check whether it may use {names}", shlex.join(["tpuctl", "check", case.target])))
    elif field is not None:
        for bucket in buckets:
            is_written, member = bucket in case.storage.written, f"serviceAccount:{field.value}"
            change = GrantBucketRole(bucket, _WRITE_ROLE if is_written else _READ_ROLE, member)
            access = "read and write" if is_written else "read"
            remedies.append(Remedy(f"grant it {access} access to gs://{bucket}", change.command))
    yield case.found(Level.NOTE, field, text, why=why, remedies=remedies)


@check_rule("TPU817", "Keys that nothing replaces")
def keys_without_replacement(case: JobCase) -> Iterator[RuleResult]:
    """Report the keys that have no equivalent in tpuctl.yaml, each with an alternative.

    A warning for hyperparameters, which started many runs; notes for all others.
    """
    for path, text in _unused_keys(case):
        if text is None:
            continue
        key = ".".join(path)
        level = Level.WARNING if path[-1] == "hyperparameters" else Level.NOTE
        place = JobField("", key, case.job.document.lines[path])
        yield case.found(level, place, f"`{path[-1]}` is not converted: {text}")


@check_rule("TPU818", "Unknown keys")
def unknown_keys(case: JobCase) -> Iterator[RuleResult]:
    """Report the keys that the service did not know, in one note: they are ignored."""
    document = case.job.document
    paths = [path for path, text in _unused_keys(case) if text is None]
    if not paths:
        return
    shown = []
    for path in paths:
        near = closest_match(path[-1], _known_keys(path[:-1]))
        shown.append(f"`{path[-1]}` (line {document.lines[path]}{f', like `{near}`' if near else ''})")
    first = JobField("", ".".join(paths[0]), document.lines[paths[0]])
    are = "key is" if len(paths) == 1 else "keys are"
    yield case.found(Level.NOTE, first, f"unknown {are} ignored: {join_words(shown, last='and')}")


@check_rule("TPU819", "Places in Cloud Storage")
def storage_places_are_valid(case: JobCase) -> Iterator[RuleResult]:
    """Check that what looks like a location in Cloud Storage is valid: jobDir, packageUris, and `gs://` arguments.

    A warning for an invalid one: it is missing in the buckets that `tpuctl check` checks. Distance and access are
    checked by other rules.
    """
    for field, reason in case.storage.refused:
        yield case.found(Level.WARNING, field, reason, remedies=[Remedy("write it like `gs://BUCKET/PREFIX`")])
    if found := case.storage.places:
        urls = join_words(dict.fromkeys(str(place.path) for place in found), last="and")
        yield case.found(Level.OK, found[0].field, f"`tpuctl check` checks: {urls}")


@check_rule("TPU820", "What the job runs")
def job_has_program(case: JobCase) -> Iterator[RuleResult]:
    """Check that the file says what to run: pythonModule, or a container.

    A note if it does not: gcloud's flags `--module-name` and `--package-path` gave it then.
    """
    field = case.job.text("pythonModule")
    if field is not None or case.job.custom_image is not None:
        yield case.found(Level.OK, field or case.job.custom_image, "the file says what to run")
        return
    text = "no `pythonModule`: it was given by gcloud's flags `--module-name` and `--package-path`"
    why = "`tpuctl run --up` syncs the current git tree, so that you need not build a package"
    remedies = [Remedy("put the module's name in the command, and run it from the folder with the code")]
    yield case.found(Level.NOTE, "pythonModule", text, why=why, remedies=remedies)


def _unused_keys(case: JobCase) -> Iterator[tuple[KeyPath, str | None]]:
    """Yield the keys that are not converted: with the reason, or None if the service did not know them."""
    document = case.job.document

    def walk(path: KeyPath) -> Iterator[tuple[KeyPath, str | None]]:
        known = _known_keys(path)
        for key in document.keys(*path):
            verdict = known.get(key)
            if isinstance(verdict, dict):
                yield from walk((*path, key))
            elif verdict is not True:
                yield (*path, key), verdict

    yield from walk(())


def _known_keys(path: KeyPath) -> dict[str, Any]:
    """Return the keys that are valid below a path; those of TrainingInput are also valid at the top."""
    keys = load_service_offer().keys
    known = {**keys["trainingInput"], **keys}
    for key in path:
        known = known[key]
    return known


ENVIRONMENT_RULES = (
    zone_offers_type,
    account_of_tpu_vm,
    keys_without_replacement,
    unknown_keys,
    storage_places_are_valid,
    job_has_program,
)
