"""Copies to and from workers: one ssh with a program of ours for each, which goes on where a broken one ended."""
