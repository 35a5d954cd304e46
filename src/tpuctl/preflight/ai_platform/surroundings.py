"""Rules about the environment of a job: zone, account, code, buckets, and keys without a replacement."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tpuctl.names import nearest
from tpuctl.preflight.ai_platform import offered
from tpuctl.preflight.ai_platform.document import Text
from tpuctl.preflight.ai_platform.judging import Case, listing
from tpuctl.preflight.ai_platform.replacement import Move, region_of
from tpuctl.preflight.findings import GrantBucketRole, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.ai_platform.document import Path
    from tpuctl.preflight.findings import Found

_READS, _WRITES = "roles/storage.objectViewer", "roles/storage.objectUser"


@rule("TPU812", "Zone that offers the type")
def zone(case: Case) -> Iterator[Found]:
    """Check that a zone of the job's region offers the TPU as a TPU VM, according to the table of accelerators.

    A warning if none does: then a newer type with as many chips in the same region is used, so that the data stays
    near, or, if there is none, the same type in another region.
    """
    made = case.replacement
    if made is None:
        return
    said = case.job.text("region") or "region"
    name = made.asked.name
    if made.move is Move.NOTHING:
        yield case.found(Level.OK, said, f"{name} is offered in {made.zone}")
        return
    region = region_of(said.value) if isinstance(said, Text) else ""
    check = Remedy("list the zones that offer the TPU now", f"tpuctl types {made.type.name}")
    if made.move is Move.TYPE:
        chips = f"{made.type.chips} chips with {made.type.generation.hbm_gib_per_chip} GiB each"
        others = listing((f"{type_} in {place}" for type_, place in made.others), last="and")
        text = f"no zone of {region} offers {name}: using {made.type.name} in {made.zone} ({chips})"
        why = f"{name} had {made.asked.chips} chips with {made.asked.generation.hbm_gib_per_chip} GiB each"
        more = [Remedy(f"alternatives: {others}")] if others else []
        yield case.found(Level.WARNING, said, text, why=why, remedies=[*more, check])
        return
    text = f"no zone of {region} offers {name}, nor a newer TPU with as many chips: using {name} in {made.zone}"
    why = "data in the old region is read across regions, which is billed and slow"
    yield case.found(Level.WARNING, said, text, why=why, remedies=[check])


@rule("TPU814", "Account that reads and writes")
def account(case: Case) -> Iterator[Found]:
    """Report whose permissions matter on a TPU VM. Always a note.

    Jobs read data as the account that projects.getConfig calls tpuServiceAccount, with roles/ml.serviceAgent
    (documentation). A TPU VM reads as its own account, serviceAccount of the node, which needs a role on each bucket;
    `tpuctl check` verifies that.
    """
    said = case.job.text("serviceAccount")
    who = (
        f"`{said.value}`"
        if said
        else "its own account, the default one of Compute Engine unless `service_account` is set"
    )
    text = f"the TPU VM reads and writes as {who}; the `tpuServiceAccount` of AI Platform is no longer needed"
    why = "its role `roles/ml.serviceAgent` has no effect on a TPU VM, and can be removed"
    yield case.found(Level.NOTE, said, text, why=why, remedies=list(_grants(case, said)))


def _grants(case: Case, said: Text | None) -> Iterator[Remedy]:
    buckets = case.storage.buckets
    if said is None:
        if buckets:
            names = listing((f"gs://{bucket}" for bucket in buckets), last="and")
            yield Remedy(f"check whether it may use {names}", shlex.join(["tpuctl", "check", case.target]))
        return
    for bucket in buckets:
        is_written = bucket in case.storage.written
        change = GrantBucketRole(bucket, _WRITES if is_written else _READS, f"serviceAccount:{said.value}")
        yield Remedy(f"grant it {'read and write' if is_written else 'read'} access to gs://{bucket}", change.command)


@rule("TPU817", "Keys that nothing replaces")
def left_over(case: Case) -> Iterator[Found]:
    """Report the keys that have no equivalent in tpuctl.yaml, each with an alternative.

    A warning for hyperparameters, which started many runs; notes for all others.
    """
    for path, text in _verdicts(case):
        if text is None:
            continue
        key = ".".join(path)
        level = Level.WARNING if path[-1] == "hyperparameters" else Level.NOTE
        place = Text("", key, case.job.document.lines[path])
        yield case.found(level, place, f"`{path[-1]}` is not converted: {text}")


@rule("TPU818", "Unknown keys")
def unknown(case: Case) -> Iterator[Found]:
    """Report the keys that the service did not know, in one note: they are ignored."""
    document = case.job.document
    paths = [path for path, text in _verdicts(case) if text is None]
    if not paths:
        return
    shown = []
    for path in paths:
        near = nearest(path[-1], _known(path[:-1]))
        shown.append(f"`{path[-1]}` (line {document.lines[path]}{f', like `{near}`' if near else ''})")
    first = Text("", ".".join(paths[0]), document.lines[paths[0]])
    are = "key is" if len(paths) == 1 else "keys are"
    yield case.found(Level.NOTE, first, f"unknown {are} ignored: {listing(shown, last='and')}")


@rule("TPU819", "Places in Cloud Storage")
def places(case: Case) -> Iterator[Found]:
    """Check that what looks like a location in Cloud Storage is valid: jobDir, packageUris, and `gs://` arguments.

    A warning for an invalid one: it is missing in the buckets that `tpuctl check` checks. Distance and access are
    checked by other rules.
    """
    for said, reason in case.storage.refused:
        yield case.found(Level.WARNING, said, reason, remedies=[Remedy("write it like `gs://BUCKET/PREFIX`")])
    if found := case.storage.places:
        urls = listing(dict.fromkeys(str(place.path) for place in found), last="and")
        yield case.found(Level.OK, found[0].said, f"`tpuctl check` checks: {urls}")


@rule("TPU820", "What the job runs")
def program(case: Case) -> Iterator[Found]:
    """Check that the file says what to run: pythonModule, or a container.

    A note if it does not: gcloud's flags `--module-name` and `--package-path` gave it then.
    """
    said = case.job.text("pythonModule")
    if said is not None or case.job.custom_image is not None:
        yield case.found(Level.OK, said or case.job.custom_image, "the file says what to run")
        return
    text = "no `pythonModule`: it was given by gcloud's flags `--module-name` and `--package-path`"
    why = "`tpuctl run --up` syncs the current git tree, so that you need not build a package"
    remedies = [Remedy("put the module's name in the command, and run it from the folder with the code")]
    yield case.found(Level.NOTE, "pythonModule", text, why=why, remedies=remedies)


def _verdicts(case: Case) -> Iterator[tuple[Path, str | None]]:
    """Yield the keys that are not converted: with the reason, or None if the service did not know them."""
    document = case.job.document

    def walk(path: Path) -> Iterator[tuple[Path, str | None]]:
        known = _known(path)
        for key in document.keys(*path):
            verdict = known.get(key)
            if isinstance(verdict, dict):
                yield from walk((*path, key))
            elif verdict is not True:
                yield (*path, key), verdict

    yield from walk(())


def _known(path: Path) -> dict[str, Any]:
    """Return the keys that are valid below a path; those of TrainingInput are also valid at the top."""
    keys = offered.load().keys
    known = {**keys["trainingInput"], **keys}
    for key in path:
        known = known[key]
    return known


RULES = (zone, account, left_over, unknown, places, program)
