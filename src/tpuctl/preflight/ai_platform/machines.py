"""Rules about the machines of a job: TPU type, number of cores, master and region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.names import nearest, whole_number
from tpuctl.preflight.ai_platform import offered
from tpuctl.preflight.ai_platform.judging import Case, listing
from tpuctl.preflight.ai_platform.offered import CLOUD_TPU
from tpuctl.preflight.ai_platform.training_input import BASIC_TPU, CUSTOM
from tpuctl.preflight.findings import Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.findings import Found


@rule("TPU801", "AI Platform Training has ended")
def ended(case: Case) -> Iterator[Found]:
    """Report that the service no longer accepts jobs, and which command does the same work.

    Always a warning: it ended on 2025-01-31 (documentation).
    """
    remedy = Remedy("run it on your own TPU VM, with the file that was converted from this one", case.command)
    text = f"AI Platform Training ended on {offered.load().ended} and no longer runs this job"
    why = "`gcloud ai-platform jobs submit training` always fails"
    yield case.found(Level.WARNING, None, text, why=why, remedies=[remedy] if case.command else [])


@rule("TPU802", "Number of TPU cores")
def count(case: Case) -> Iterator[Found]:
    """Check that acceleratorConfig has a number of cores that its type offered.

    TPU_V2 and TPU_V3 had 8, TPU_V2_POD 32, 128, 256 and 512, TPU_V3_POD 32, 128 and 256 (documentation). Any other
    number is an error, and so is a missing one: there is no equivalent TPU VM then. Not checked for a type that was not
    offered.
    """
    type_, said = case.job.accelerator_type, case.job.accelerator_count
    if type_ is None or not (counts := offered.load().counts(type_.value)):
        if type_ is None and said is None and case.replacement:
            yield case.found(Level.OK, "scaleTier", f"one TPU with {case.replacement.asked.size} cores")
        return
    key = f"{case.job.replica}.acceleratorConfig.count"
    if said is not None and whole_number(said.value) in counts:
        yield case.found(Level.OK, said, f"`{type_.value}` had {said.value} cores")
        return
    what = f"`count: {said.value}`" if said else "no `count`"
    remedy = Remedy(f"set `{key}` to {listing(counts)}")
    yield case.found(
        Level.ERROR, said or key, f"{what}: `{type_.value}` had {listing(counts)} cores", remedies=[remedy]
    )


@rule("TPU803", "Type of TPU")
def accelerator_type(case: Case) -> Iterator[Found]:
    """Check that acceleratorConfig names a TPU type that the service offered.

    These were TPU_V2, TPU_V3, TPU_V2_POD and TPU_V3_POD (documentation); the API's TPU_V4_POD (API field text) was
    never documented for jobs. Any other is an error, and so is a count without a type.
    """
    said = case.job.accelerator_type
    types = offered.load().types
    if said is None and case.job.accelerator_count is None:
        return
    if said is not None and said.value in types:
        yield case.found(Level.OK, said, f"`{said.value}` was offered")
        return
    key = f"{case.job.replica}.acceleratorConfig.type"
    near = nearest(said.value.upper(), types) if said else None
    what = f"`type: {said.value}`" if said else "no `type`"
    text = f"{what}: jobs with a TPU had {listing(types)}"
    remedy = Remedy(
        f"set `{key}` to `{near}`" if near else f"set `{key}` to one of them, or choose a TPU VM type yourself"
    )
    yield case.found(Level.ERROR, said or key, text, remedies=[remedy])


@rule("TPU804", "Scale tier and machine of the master")
def machines(case: Case) -> Iterator[Found]:
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
        beside = [*job.fields_of_custom, *([config] if config else [])]
        if not beside:
            yield case.found(Level.OK, "scaleTier", f"`{BASIC_TPU}` determines every machine")
            return
        keys = listing((f"`{text.key.removeprefix('trainingInput.')}`" for text in beside), last="and")
        what = f"{keys} with `scaleTier: {BASIC_TPU}`: these belong to the tier `{CUSTOM}`"
        remedy = Remedy(f"set `scaleTier: {CUSTOM}` if you mean them; the job is read as 8 cores of TPU v2")
        yield case.found(Level.ERROR, beside[0], what, remedies=[remedy])
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
    offer, type_, count_ = offered.load(), case.job.accelerator_type, case.job.accelerator_count
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
        near = nearest(master.value, offer.legacy_machines)
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


@rule("TPU805", "One TPU worker")
def one_worker(case: Case) -> Iterator[Found]:
    """Check that a `cloud_tpu` worker has workerCount 1.

    Any other number, or none, was rejected: an error (documentation). One `cloud_tpu` worker was one TPU or one whole
    pod slice.
    """
    said, worker = case.job.text("workerCount"), case.job.text("workerType")
    if case.job.is_basic or (said is None and (worker is None or worker.value != CLOUD_TPU)):
        return
    if said is not None and said.value == "1":
        yield case.found(Level.OK, said, "one TPU worker")
        return
    what = f"`workerCount: {said.value}`" if said else "no `workerCount`"
    remedies = [
        Remedy("set `workerCount: 1`; for more cores ask for a pod type, for more TPUs run `tpuctl run` for each")
    ]
    yield case.found(
        Level.ERROR, said or "workerCount", f"{what}: a job had exactly one `{CLOUD_TPU}` worker", remedies=remedies
    )


@rule("TPU806", "No parameter servers")
def parameter_servers(case: Case) -> Iterator[Found]:
    """Check that a job with a TPU has no parameter servers.

    A parameterServerCount above zero was rejected: an error (documentation). TPU chips exchange gradients directly.
    """
    said = case.job.text("parameterServerCount") or case.job.text("parameterServerType")
    if said is None or case.job.is_basic:
        return
    if said.key.endswith("parameterServerCount") and said.value == "0":
        yield case.found(Level.OK, said, "no parameter servers")
        return
    text = f"`{said.key.rpartition('.')[2]}: {said.value}`: a job with a TPU had no parameter servers"
    remedies = [Remedy("remove `parameterServerType` and `parameterServerCount`")]
    yield case.found(Level.ERROR, said, text, remedies=remedies)


@rule("TPU807", "Region of the job")
def region(case: Case) -> Iterator[Found]:
    """Check that the job is for a region in which the service had TPUs: us-central1 or europe-west4.

    Any other is an error (documentation). A file without a region is a note: it was given by gcloud's flag `--region`;
    the zone is then chosen in the first of the two.
    """
    regions = offered.load().regions
    said = case.job.text("region")
    if said is None:
        where = f"; `zone: {case.replacement.zone}` is a guess" if case.replacement else ""
        text = f"no `region`: it was given by the flag `--region` of gcloud{where}"
        remedies = [Remedy("add `region`, or set `zone` in tpuctl.yaml to a zone near the buckets")]
        yield case.found(Level.NOTE, "region", text, remedies=remedies)
    elif said.value in regions:
        yield case.found(Level.OK, said, f"{said.value} had TPUs")
    else:
        near = nearest(said.value, regions)
        remedies = [Remedy(f"did you mean `{near}`?" if near else "set `region` to one of them, near the buckets")]
        text = f"`region: {said.value}`: the service had TPUs only in {listing(regions, last='and')}"
        yield case.found(Level.ERROR, said, text, remedies=remedies)


RULES = (ended, count, accelerator_type, machines, one_worker, parameter_servers, region)
