"""Rules about all around the machines: the zone, the account, the code to run, buckets, and keys that are left over."""

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
    """Check that a zone of the job's region offers the TPU as a TPU VM, by the table of accelerators.

    A warning where none does: then a newer type of the same region with as many chips is taken, so that the data stays near, or
    the same type in another region where there is none.
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
    check = Remedy("ask which zones offer the TPU now", f"tpuctl types {made.type.name}")
    if made.move is Move.TYPE:
        chips = f"{made.type.chips} chips with {made.type.generation.hbm_gib_per_chip} GiB each"
        others = listing((f"{type_} in {place}" for type_, place in made.others), last="and")
        text = f"no zone of {region} offers {name}: taken is {made.type.name} in {made.zone} ({chips})"
        why = f"{name} had {made.asked.chips} chips with {made.asked.generation.hbm_gib_per_chip} GiB each"
        more = [Remedy(f"there are also {others}")] if others else []
        yield case.found(Level.WARNING, said, text, why=why, remedies=[*more, check])
        return
    text = f"no zone of {region} offers {name}, nor a newer TPU with as many chips: taken is {name} in {made.zone}"
    why = "data that stays in the other region is read across regions, which is billed and slow"
    yield case.found(Level.WARNING, said, text, why=why, remedies=[check])


@rule("TPU814", "Account that reads and writes")
def account(case: Case) -> Iterator[Found]:
    """Say whose permissions count on a TPU VM. Always a note.

    Jobs read data as the account that projects.getConfig calls tpuServiceAccount, which had roles/ml.serviceAgent
    (documentation). A TPU VM reads as its own account, serviceAccount of the node, and that needs a role on each bucket;
    `tpuctl check` looks whether it has one.
    """
    said = case.job.text("serviceAccount")
    who = (
        f"`{said.value}`"
        if said
        else "its own account, the default one of Compute Engine unless `service_account` is set"
    )
    text = f"the TPU VM reads and writes as {who}; the `tpuServiceAccount` of AI Platform is not needed any more"
    why = "its role `roles/ml.serviceAgent` gives a TPU VM nothing, and can be taken back"
    yield case.found(Level.NOTE, said, text, why=why, remedies=list(_grants(case, said)))


def _grants(case: Case, said: Text | None) -> Iterator[Remedy]:
    buckets = case.storage.buckets
    if said is None:
        if buckets:
            names = listing((f"gs://{bucket}" for bucket in buckets), last="and")
            yield Remedy(f"see whether it may use {names}", shlex.join(["tpuctl", "check", case.target]))
        return
    for bucket in buckets:
        is_written = bucket in case.storage.written
        change = GrantBucketRole(bucket, _WRITES if is_written else _READS, f"serviceAccount:{said.value}")
        yield Remedy(f"let it {'read and write' if is_written else 'read'} gs://{bucket}", change.command)


@rule("TPU817", "Keys that nothing replaces")
def left_over(case: Case) -> Iterator[Found]:
    """Name the keys of which nothing in tpuctl.yaml comes, each with what to do instead.

    A warning for hyperparameters, which were many runs and are one here; notes for all else.
    """
    for path, text in _verdicts(case):
        if text is None:
            continue
        key = ".".join(path)
        level = Level.WARNING if path[-1] == "hyperparameters" else Level.NOTE
        place = Text("", key, case.job.document.lines[path])
        yield case.found(level, place, f"nothing comes of `{path[-1]}`: {text}")


@rule("TPU818", "Unknown keys")
def unknown(case: Case) -> Iterator[Found]:
    """Name the keys that the service did not know. One note for all: they are left out."""
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
    yield case.found(Level.NOTE, first, f"unknown {are} left out: {listing(shown, last='and')}")


@rule("TPU819", "Places in Cloud Storage")
def places(case: Case) -> Iterator[Found]:
    """Check that what looks like a place in Cloud Storage is one: jobDir, packageUris, and `gs://` among the arguments.

    A warning for one that cannot be: it is left out of the buckets that `tpuctl check` looks at. That they are near the
    TPU and may be used is for the other checks.
    """
    for said, reason in case.storage.refused:
        yield case.found(Level.WARNING, said, reason, remedies=[Remedy("write it like `gs://BUCKET/PREFIX`")])
    if found := case.storage.places:
        urls = listing(dict.fromkeys(str(place.path) for place in found), last="and")
        yield case.found(Level.OK, found[0].said, f"to be checked: {urls}")


@rule("TPU820", "What the job runs")
def program(case: Case) -> Iterator[Found]:
    """Check that the file says what to run: pythonModule, or a container.

    A note where it does not: gcloud's flags `--module-name` and `--package-path` said it then.
    """
    said = case.job.text("pythonModule")
    if said is not None or case.job.custom_image is not None:
        yield case.found(Level.OK, said or case.job.custom_image, "the file says what to run")
        return
    text = "no `pythonModule`: it was given as `--module-name` of the submission, with the code as `--package-path`"
    why = "`tpuctl run --up` syncs the git tree that you are in, so that no package has to be built"
    remedies = [Remedy("put the module's name in the command, and run it from the folder that holds the code")]
    yield case.found(Level.NOTE, "pythonModule", text, why=why, remedies=remedies)


def _verdicts(case: Case) -> Iterator[tuple[Path, str | None]]:
    """Yield the keys that come to nothing: with the reason, or with none where the service did not know them."""
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
    """Return the keys that may stand below a path; those of TrainingInput may stand at the top, too."""
    keys = offered.load().keys
    known = {**keys["trainingInput"], **keys}
    for key in path:
        known = known[key]
    return known


RULES = (zone, account, left_over, unknown, places, program)
