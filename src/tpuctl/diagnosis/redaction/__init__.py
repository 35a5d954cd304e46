"""Removes secrets from text that leaves this machine."""
