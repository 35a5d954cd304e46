"""Rules about what a node was made with: image, addresses, account, disks, and whether its workers can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.model import NodeState
from tpuctl.names import short
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.images import Match, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.node.facts import NodeFacts

_LEVELS = {Match.FITS: Level.OK, Match.DOUBTFUL: Level.WARNING, Match.MISFIT: Level.ERROR, Match.UNKNOWN: Level.NOTE}
# Either of them leaves all to IAM, or at least lets programs at buckets.
_ALL_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_STORAGE = ("devstorage.read_write", "devstorage.full_control")


@rule("TPU957", "runtime version of the node")
def image(facts: NodeFacts) -> Iterator[Found]:
    """Check by name that the image is one for the accelerator, by the same table as TPU303.

    With another one the node is READY all the same, and its chips are not seen [observed]. API v2 cannot change a node's image.
    """
    node, name = facts.node, short(facts.node.runtime_version)
    if node.accelerator is None or not name:
        return
    verdict = judge(name, node.accelerator)
    better = verdict.better or node.accelerator.runtime_version
    is_fine = verdict.match is Match.FITS
    again = f"tpuctl up {node.name.node_id} --version={better} --replace"
    yield Found(
        level=_LEVELS[verdict.match],
        subject=node.name.node_id,
        text=f"`{name}` fits {node.accelerator.name}"
        if is_fine
        else f"`{name}` on {node.accelerator.name}: {verdict.reason}",
        why=None if is_fine else "with an image that does not fit, a node is READY and its chips are not seen",
        remedies=() if is_fine else (Remedy(f"make the node again with `{better}`", again),),
        facts={"runtimeVersion": name, "match": str(verdict.match), "better": verdict.better},
    )


@rule("TPU958", "addresses of the workers")
def addresses(facts: NodeFacts) -> Iterator[Found]:
    """Check that a READY node lists an address for each worker that its type promises; a note where none is external."""
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    endpoints = node.endpoints
    found = {
        "workers": node.workers,
        "endpoints": len(endpoints),
        "external": sum(one.external is not None for one in endpoints),
    }
    lacking = sum(one.address is None for one in endpoints)
    if len(endpoints) < node.workers or lacking:
        has = len(endpoints) - lacking
        text = f"it lists {has or 'no'} address{'es' if has != 1 else ''} for {node.workers} workers"
        wait = Remedy("wait until all are there", f"tpuctl wait {name} --for healthy")
        why = "a worker without an address cannot be reached, and may not be there"
        yield Found(level=Level.ERROR, subject=name, text=text, why=why, remedies=(wait,), facts=found)
    elif not found["external"]:
        text = "its workers have internal addresses only: they are reached by `--iap`, or from inside their network"
        yield Found(level=Level.NOTE, subject=name, text=text, facts=found)
    else:
        yield Found(level=Level.OK, subject=name, text="every worker has an address", facts=found)


@rule("TPU959", "service account of the node")
def account(facts: NodeFacts) -> Iterator[Found]:
    """Check that the scopes of the node's service account let programs at Cloud Storage; what IAM grants is TPU201's affair."""
    given = facts.node.raw.get("serviceAccount") or {}
    scopes, name = tuple(given.get("scope") or ()), facts.node.name.node_id
    if not scopes:
        return
    found = {"email": given.get("email"), "scopes": list(scopes)}
    if _ALL_SCOPES in scopes or any(scope.endswith(_STORAGE) for scope in scopes):
        yield Found(level=Level.OK, subject=name, text="its scopes let programs at Cloud Storage", facts=found)
        return
    reads = any("devstorage.read_only" in scope for scope in scopes)
    yield Found(
        level=Level.WARNING,
        subject=name,
        text=f"its scopes {'let programs only read from' if reads else 'keep programs from'} Cloud Storage",
        why="checkpoints and logs cannot be written there, whatever IAM grants",
        remedies=(
            Remedy(
                "make the node again with the scope that leaves everything to IAM",
                f"tpuctl up {name} --scopes=cloud-platform --replace",
            ),
        ),
        facts=found,
    )


@rule("TPU960", "disks and shielding of the node")
def equipment(facts: NodeFacts) -> Iterator[Found]:
    """Tell which data disks are attached, and whether it boots shielded; nobody mounts a disk by itself [API v2, dataDisks]."""
    raw = facts.node.raw
    disks = [
        (short(str(one.get("sourceDisk") or "")), str(one.get("mode") or "")) for one in raw.get("dataDisks") or ()
    ]
    shielded = bool((raw.get("shieldedInstanceConfig") or {}).get("enableSecureBoot"))
    named = ", ".join(f"`{name}`" for name, _ in disks)
    text = f"data disks: {named}" if disks else "it has no data disk"
    yield Found(
        level=Level.OK,
        subject=facts.node.name.node_id,
        text=text + ("; secure boot is on" if shielded else ""),
        facts={"dataDisks": [{"name": name, "mode": mode} for name, mode in disks], "enableSecureBoot": shielded},
    )


@rule("TPU961", "what the workers publish")
def published(facts: NodeFacts) -> Iterator[Found]:
    """Check that the workers publish host keys and instance names as guest attributes [observed; gcloud 528 source].

    A note where they do not: ssh trusts at first sight then, and no tunnel of Identity-Aware Proxy finds them.
    """
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    match facts.published:
        case Known(workers):
            silent = sum(not any(key.startswith("hostkeys/") for key in one) for one in workers)
            silent += max(0, node.workers - len(workers))
            if not silent:
                yield Found(level=Level.OK, subject=name, text="every worker publishes its host keys")
                return
            which = "none of its workers publishes" if silent >= node.workers else f"{silent} of its workers publish no"
            yield Found(
                level=Level.NOTE,
                subject=name,
                text=f"{which} host keys",
                why="ssh takes the first key that it sees for theirs; and `--iap` needs what they publish",
                remedies=(
                    Remedy("see that `compute.disableGuestAttributesAccess` is not enforced in the organization"),
                ),
                facts={"silent": silent},
            )
        case Absent():
            pass
        case Unknown() as fact:
            text = f"what its workers publish could not be read: {fact.reason}"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


@rule("TPU965", "whether the workers can be asked")
def can_be_asked(facts: NodeFacts) -> Iterator[Found]:
    """Tell why the workers were not looked at, where they were not: the node's state, or what is missing on this machine."""
    if facts.obstacle is not None:
        yield Found(
            level=Level.UNKNOWN,
            subject=facts.node.name.node_id,
            text=f"its workers were not looked at: {facts.obstacle}",
            remedies=(Remedy(facts.remedy),) if facts.remedy else (),
            is_passing=facts.node.state is not NodeState.READY,
        )


RULES = (image, addresses, account, equipment, published, can_be_asked)
