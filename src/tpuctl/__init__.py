"""Bring a Google Cloud TPU from nothing to usable, and keep it there."""

__version__ = "0.1.0"
