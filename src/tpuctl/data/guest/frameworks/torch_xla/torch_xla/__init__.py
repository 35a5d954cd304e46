"""A stand-in for PyTorch/XLA on a sandbox worker: the few functions of its public interface that a test of chips calls."""

from __future__ import annotations

__version__ = "2.7.0"


def sync(wait: bool = False) -> None:
    """Do nothing: all is computed at once."""
