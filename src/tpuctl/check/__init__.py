"""Checks before money is spent: pure decisions from facts to findings. Nothing here calls an API."""
