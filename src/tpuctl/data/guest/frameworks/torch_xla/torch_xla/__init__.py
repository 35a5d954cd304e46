"""A stand-in for PyTorch/XLA on a sandbox worker: the few functions of its public interface that a test of chips calls."""

from __future__ import annotations

from torch_xla._process import Device

__version__ = "2.7.0"


def device() -> Device:
    """Return the device of this thread."""
    return Device()


def sync(wait: bool = False) -> None:
    """Do nothing: all is computed at once."""
