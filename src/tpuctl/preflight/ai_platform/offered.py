"""What AI Platform Training offered before it ended. Source: `data/ai_platform.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

from tpuctl.accelerators import AcceleratorType, find

# The form of Compute Engine's names: n1-highcpu-16, e2-standard-4, a2-highgpu-1g.
_COMPUTE_ENGINE = re.compile(r"[a-z]\d[a-z]?-[a-z]+-\d+[a-z]?")
CLOUD_TPU = "cloud_tpu"


@dataclass(frozen=True, slots=True)
class Offer:
    """The whole table. `keys` says for every key of the API how it is converted."""

    ended: date
    regions: tuple[str, ...]
    types: dict[str, dict[str, Any]]
    default: AcceleratorType
    runtimes: dict[str, str | None]
    containers: dict[str, str]
    prebuilt: str
    legacy_machines: frozenset[str]
    keys: dict[str, Any]

    def counts(self, type_: str) -> tuple[int, ...]:
        """Return the numbers of cores of an accelerator type; empty for a type that was not offered."""
        return tuple(self.types.get(type_, {}).get("counts", ()))

    def accelerator(self, type_: str, count: int) -> AcceleratorType | None:
        """Return the Cloud TPU type with this number of cores; None if it was not offered."""
        if count not in self.counts(type_):
            return None
        return find(f"{self.types[type_]['prefix']}-{count}")

    def is_legacy(self, machine: str) -> bool:
        """Return whether a machine type is one of the service's own."""
        return machine in self.legacy_machines

    def is_compute_engine(self, machine: str) -> bool:
        """Return whether a machine type has the form of a Compute Engine name."""
        return bool(_COMPUTE_ENGINE.fullmatch(machine))

    def is_prebuilt(self, image: str) -> bool:
        """Return whether a container image is one of the service's own."""
        return image.startswith(self.prebuilt)

    def pytorch(self, image: str) -> str | None:
        """Return the tpuTfVersion of a prebuilt PyTorch container, ignoring its tag; None for other images."""
        return self.containers.get(image.partition("@")[0].partition(":")[0])

    @property
    def tpu_tf_versions(self) -> tuple[str, ...]:
        """All accepted values of tpuTfVersion."""
        return (*self.runtimes, *self.containers.values())


@cache
def load() -> Offer:
    """Return the table; the file is read once."""
    from importlib import resources  # noqa: PLC0415  # only to read the table

    import yaml  # noqa: PLC0415  # 12 ms, and only this command needs the table

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("tpuctl.data").joinpath("ai_platform.yaml").read_text("utf-8")
    data = yaml.load(text, Loader=loader)  # noqa: S506  # the C version of the safe loader
    default = find(f"{data['default']['prefix']}-{data['default']['count']}")
    if default is None:
        raise ValueError("the table names a default type that the table of accelerators lacks")
    return Offer(
        ended=date.fromisoformat(data["ended"]),
        regions=tuple(data["regions"]),
        types=data["types"],
        default=default,
        runtimes=data["runtimes"],
        containers=data["containers"],
        prebuilt=data["prebuilt"],
        legacy_machines=frozenset(data["legacy_machines"]),
        keys=data["keys"],
    )
