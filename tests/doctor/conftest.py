"""Fixtures: a machine without an account and without a network, and an ssh key pair on it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.doctor.doctor_console import NOWHERE, make_key


@pytest.fixture
def alone(offline: Console) -> Console:
    """A machine without an account and without gcloud. Every request to another host is refused at once."""
    programs = offline.folder.parent / "programs"
    programs.mkdir()
    for name in ("ssh", "scp", "ssh-keygen", "ssh-add"):
        (programs / name).symlink_to(str(shutil.which(name)))
    # Replaces a proxy of the machine that runs the tests.
    return replace(offline, environ={**offline.environ, "HTTPS_PROXY": NOWHERE, "PATH": str(programs)})


@pytest.fixture
def pair(alone: Console) -> Path:
    """A valid key pair in the home folder of that machine."""
    folder = Path(alone.environ["HOME"]) / ".ssh"
    folder.mkdir(mode=0o700)
    return make_key(folder / "google_compute_engine")
