"""Rules about the runtime version: whether it fits the accelerator, and whether the zone offers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.names import nearest, short
from tpuctl.preflight import own_commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.images import Match, is_named, judge
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.wanted import Wanted

_LEVELS = {
    Match.FITS: Level.OK,
    Match.DOUBTFUL: Level.WARNING,
    Match.MISFIT: Level.ERROR,
    Match.UNKNOWN: Level.NOTE,
}
_WHY = {
    Match.DOUBTFUL: "this pair is not documented to work, and the node is billed before a failure shows",
    Match.MISFIT: "with an image that does not fit, a node becomes READY and its chips are not visible",
    Match.UNKNOWN: "with an image that does not fit, a node becomes READY and its chips are not visible",
}


@rule("TPU303", "runtime version fits the accelerator")
def version_fits(facts: Facts) -> Iterator[Found]:
    """Check by name that the runtime version (image) is for the accelerator's generation and number of workers.

    An error if it is for generations with other drivers: the service accepts it, the node becomes READY, and its chips are not
    visible [documentation "TPU software versions"; observed: dstack#2148, pytorch/xla#9753]. A warning for a pair that is not
    documented and is reported to work, or may work: an image for another generation with the same device files, or a
    TensorFlow image without `-pod` on a slice. A note for an image that tpuctl does not know.
    """
    wanted, accelerator, name = facts.wanted, facts.wanted.accelerator, short(facts.wanted.spec.runtime_version)
    if accelerator is None or not name:
        return
    verdict = judge(name, accelerator)
    is_fine = verdict.match is Match.FITS
    yield Found(
        level=_LEVELS[verdict.match],
        subject=name,
        text=f"`{name}` fits {accelerator.name}" if is_fine else f"`{name}` on {accelerator.name}: {verdict.reason}",
        why=_WHY.get(verdict.match),
        remedies=() if is_fine else (_instead(wanted, verdict.better or accelerator.runtime_version),),
        facts={
            "runtimeVersion": name,
            "acceleratorType": accelerator.name,
            "match": str(verdict.match),
            "better": verdict.better,
        },
    )


@rule("TPU305", "runtime version offered in the zone")
def version_is_offered(facts: Facts) -> Iterator[Found]:
    """Check that the zone's own list (runtimeVersions.list) has the runtime version.

    An error if it has not: the service rejects the node [observed: tensorflow/tpu#877]. A warning if the documentation
    nevertheless names it for the accelerator, as the lists of other API versions may have it; unknown if the list is empty.
    """
    wanted, name = facts.wanted, short(facts.wanted.spec.runtime_version)
    if not wanted.creates or not name or facts.is_without_zone:
        return
    match facts.versions:
        case Known(versions) if name in versions:
            text = f"{wanted.zone} offers `{name}`"
            yield Found(level=Level.OK, subject=name, text=text, facts={"runtimeVersion": name, "zone": wanted.zone})
        case Known(()):
            yield _unread(wanted, name, Unknown("its list is empty"))
        case Known(versions):
            usual = wanted.accelerator.runtime_version if wanted.accelerator else None
            near = nearest(name, versions) or (usual if usual in versions else None)
            is_documented = wanted.accelerator is not None and is_named(name, wanted.accelerator)
            listing = f"tpuctl versions --project={wanted.project} --zone={wanted.zone}"
            yield Found(
                level=Level.WARNING if is_documented else Level.ERROR,
                subject=name,
                text=f"{wanted.zone} has no runtime version `{name}`" + (f"; the nearest is `{near}`" if near else ""),
                why="the documentation names it, but the service may reject what the zone's list lacks"
                if is_documented
                else "the service rejects a node with it",
                remedies=(
                    *((_instead(wanted, near),) if near else ()),
                    Remedy("list the runtime versions of the zone", listing),
                ),
                facts={"runtimeVersion": name, "zone": wanted.zone, "nearest": near},
            )
        case (Absent() | Unknown()) as fact:
            is_without_tpus = isinstance(fact, Absent) or fact.error_id == "zone-not-supported"
            if not is_without_tpus or isinstance(facts.types, Known):  # else TPU301 reports that there are no TPUs
                yield _unread(wanted, name, fact)


def _unread(wanted: Wanted, name: str, fact: Absent | Unknown) -> Found:
    what = f"the list of runtime versions in {wanted.zone}"
    return unread(fact, name, what, permission="tpu.runtimeversions.list", project=wanted.project)


def _instead(wanted: Wanted, version: str) -> Remedy:
    if not wanted.creates:
        # A node keeps the image that it was created with [API v2: nodes.patch does not accept it].
        more = (f"--version={version}", "--replace")
        return Remedy(f"recreate the node with `{version}`", own_commands.again(wanted, more=more))
    return Remedy(f"use `{version}`", own_commands.again(wanted, more=(f"--version={version}",)))
