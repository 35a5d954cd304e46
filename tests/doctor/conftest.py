"""A machine without an account, whose requests to the outside all end on it, and a key pair on it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.doctor.reported import NOWHERE, make_key


@pytest.fixture
def alone(offline: Console) -> Console:
    """A machine without an account whose every request to the outside is refused at once, and that has no gcloud."""
    programs = offline.folder.parent / "programs"
    programs.mkdir()
    for name in ("ssh", "scp", "ssh-keygen", "ssh-add"):
        (programs / name).symlink_to(str(shutil.which(name)))
    # The variable of the machine that runs the tests is not of this one.
    return replace(offline, environ={**offline.environ, "HTTPS_PROXY": NOWHERE, "PATH": str(programs)})


@pytest.fixture
def pair(alone: Console) -> Path:
    """A sound key pair in that machine's home."""
    folder = Path(alone.environ["HOME"]) / ".ssh"
    folder.mkdir(mode=0o700)
    return make_key(folder / "google_compute_engine")
