"""Rules about the runtime version: whether it fits the accelerator, and whether the zone has it."""

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
    Match.DOUBTFUL: "nothing documents that this pair works, and the node is billed before it shows",
    Match.MISFIT: "with an image that does not fit, a node becomes READY and its chips are not seen",
    Match.UNKNOWN: "with an image that does not fit, a node becomes READY and its chips are not seen",
}


@rule("TPU303", "runtime version fits the accelerator")
def version_fits(facts: Facts) -> Iterator[Found]:
    """Check by name that the runtime version (image) is one for the accelerator's generation and number of workers.

    An error where it is for generations with other drivers: the service accepts it, the node becomes READY, and its chips are
    not seen [documentation "TPU software versions"; observed: dstack#2148, pytorch/xla#9753]. A warning for a pair that is not
    documented and was reported to work, or may work: an image for another generation with the same device files, one of
    TensorFlow without `-pod` on a slice. A note for an image that tpuctl does not know.
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

    An error where it has not: the service refuses the node [observed: tensorflow/tpu#877]. A warning where the documentation
    names it for the accelerator all the same, as lists of other API versions may have it; unknown where the list is empty.
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
            yield _not_offered(wanted, name, versions)
        case (Absent() | Unknown()) as fact:
            is_without_tpus = isinstance(fact, Absent) or fact.error_id == "zone-not-supported"
            if not is_without_tpus or isinstance(facts.types, Known):  # else TPU301 says that there are no TPUs
                yield _unread(wanted, name, fact)


def _unread(wanted: Wanted, name: str, fact: Absent | Unknown) -> Found:
    what = f"which runtime versions {wanted.zone} offers"
    return unread(fact, name, what, permission="tpu.runtimeversions.list", project=wanted.project)


def _not_offered(wanted: Wanted, name: str, versions: tuple[str, ...]) -> Found:
    usual = wanted.accelerator.runtime_version if wanted.accelerator else None
    near = nearest(name, versions) or (usual if usual in versions else None)
    is_documented = wanted.accelerator is not None and is_named(name, wanted.accelerator)
    return Found(
        level=Level.WARNING if is_documented else Level.ERROR,
        subject=name,
        text=f"{wanted.zone} has no runtime version `{name}`" + (f"; the nearest is `{near}`" if near else ""),
        why="the documentation names it, yet the service may refuse what the zone's list lacks"
        if is_documented
        else "the service refuses to create a node with it",
        remedies=(
            *((_instead(wanted, near),) if near else ()),
            Remedy("see what the zone has", f"tpuctl versions --project={wanted.project} --zone={wanted.zone}"),
        ),
        facts={"runtimeVersion": name, "zone": wanted.zone, "nearest": near},
    )


def _instead(wanted: Wanted, version: str) -> Remedy:
    if not wanted.creates:
        # A node keeps the image that it was made with [API v2: nodes.patch does not take it].
        more = (f"--version={version}", "--replace")
        return Remedy(f"make the node again with `{version}`", own_commands.again(wanted, more=more))
    return Remedy(f"use `{version}`", own_commands.again(wanted, more=(f"--version={version}",)))
