"""Helpers: run `tpuctl doctor` and parse its findings; create ssh keys for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.conftest import Console

# No program listens on that port, so a request to Google's hosts ends on this machine.
NOWHERE = "http://127.0.0.1:9"


def make_key(path: Path, *, passphrase: str = "") -> Path:
    """Create a key pair with an empty comment."""
    # One round of key derivation is enough for a test.
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-a", "1", "-N", passphrase, "-C", "", "-f", path], check=True)
    return path


def found(out: str) -> Iterator[tuple[str, str, str]]:
    """Yield id, level and text of each finding that is not ok."""
    for one in json.loads(out)["findings"]:
        if one["level"] != "ok":
            yield one["id"], one["level"], one["text"]


def run_doctor(console: Console, *arguments: str, **environ: str) -> tuple[dict[str, tuple[str, str]], int]:
    """Run `tpuctl doctor`. Return level and text of each finding that is not ok, by id, and the exit code."""
    out, _, code = replace(console, environ={**console.environ, **environ})("doctor", "-o", "json", *arguments)
    return {id_: (level, text) for id_, level, text in found(out)}, code
