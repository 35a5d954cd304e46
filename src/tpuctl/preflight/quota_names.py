"""The quotas of the Cloud TPU API: which quota a node counts against, and which limit belongs to which quota.

Observed names: metrics such as `tpu.googleapis.com/tpu-v5s-litepod-serving-preemptible` (marin#6198), limits such as
`TPUV6EPreemptiblePerProjectPerRegionForTPUAPI` (marin#1612). They are matched by their words, as the scheme is not
documented.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.model.states import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.model.project import QuotaLimit

_WORD = re.compile(r"tpu(?=v\d)|v\d[a-z]?(?![a-z])|[a-z]+", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
_GENERATION = re.compile(r"v(\d)([a-z]?)")
# Generations whose multi-worker slices have their own quota; v4 has a single quota, whose name says pods.
_OF_SLICES = frozenset({"v2", "v3"})
_SCOPES = ("zone", "region")


@dataclass(frozen=True, slots=True)
class Pool:
    """What one quota counts. `kind` is `pod` for slices of v2 and v3, `serving` for small v5e types, else empty.

    Spot and preemptible nodes share one quota. Reserved nodes are assumed to count as on-demand (unverified).
    """

    generation: str
    is_preemptible: bool
    kind: str = ""

    @classmethod
    def of(cls, accelerator: AcceleratorType, tier: Tier | None) -> Pool:
        """Return the quota that a node counts against."""
        generation = accelerator.generation
        is_pod = generation.name in _OF_SLICES and accelerator.is_slice
        kind = "pod" if is_pod else "serving" if accelerator.size in generation.serving else ""
        return cls(generation.name, tier in {Tier.SPOT, Tier.PREEMPTIBLE}, kind)

    @classmethod
    def named(cls, text: str) -> Pool | None:
        """Return the quota that the name of a metric or a limit describes; None if it names no generation."""
        last = re.split(r"per ?project", text.rpartition("/")[2], flags=re.IGNORECASE)[0]
        apart = re.sub(r"lite ?-?pod", " litepod ", _CAMEL.sub(" ", last), flags=re.IGNORECASE)
        words = frozenset(word.lower() for word in _WORD.findall(apart))
        generation = next(filter(None, (_generation(word, words) for word in words)), None)
        # Reserved capacity has its own quota, which is 0 without a reservation [documentation of quotas].
        if generation is None or "reserved" in words:
            return None
        kind = "pod" if "pod" in words and generation in _OF_SLICES else "serving" if "serving" in words else ""
        return cls(generation, not words.isdisjoint({"preemptible", "spot"}), kind)

    def __str__(self) -> str:
        tier = "preemptible" if self.is_preemptible else "on-demand"
        return " ".join(filter(None, (tier, self.generation, {"pod": "slices", "serving": "serving"}.get(self.kind))))


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that applies in a place: a zone, a region or, if empty, the whole project."""

    metric: str
    name: str
    place: str
    value: int | None

    def holds_in(self, zone: str) -> bool:
        """Return whether resources in a zone count against the limit."""
        return self.place in {"", zone, zone.rpartition("-")[0]}


def limits(quotas: Iterable[QuotaLimit], pool: Pool, zone: str) -> tuple[Limit, ...]:
    """Return the limits of a pool for a zone.

    Limits of the zone and of its region both apply [observed: skypilot source].
    """
    places = {"zone": zone, "region": zone.rpartition("-")[0], "": ""}
    found: dict[Limit, None] = {}
    of_pool = [quota for quota in quotas if _counted(quota) == pool]
    for metric, name, scope in dict.fromkeys((quota.metric, quota.name, _scope(quota)) for quota in of_pool):
        same = [quota for quota in of_pool if (quota.metric, quota.name, _scope(quota)) == (metric, name, scope)]
        # The limit of the place itself applies; otherwise the one without a place, which is the default.
        own = [quota for quota in same if scope and quota.places.get(scope) == places[scope]]
        for quota in own or [quota for quota in same if not quota.places]:
            found[Limit(metric, name, places[scope], quota.value)] = None
    return tuple(found)


def _counted(quota: QuotaLimit) -> Pool | None:
    """Return what a limit counts, combined from its metric and its name. None if they contradict each other."""
    pools = [pool for pool in (Pool.named(quota.metric), Pool.named(quota.name)) if pool]
    if len({pool.generation for pool in pools}) != 1 or len({pool.kind for pool in pools} - {""}) > 1:
        return None
    kind = max(pool.kind for pool in pools)
    return Pool(pools[0].generation, any(pool.is_preemptible for pool in pools), kind)


def _scope(quota: QuotaLimit) -> str:
    """Return what the limit applies to: each zone, each region, or (empty) the project."""
    text = f"{quota.unit} {quota.name}".lower()
    return next((scope for scope in _SCOPES if f"{{{scope}}}" in text or f"per{scope}" in text), "")


def _generation(word: str, words: frozenset[str]) -> str | None:
    found = _GENERATION.fullmatch(word)
    if found is None:
        return None
    letter = found[2].removesuffix("s") or ("e" if "litepod" in words else "")
    name = f"v{found[1]}{letter}"
    return name if name in accelerators.load().generations else None
