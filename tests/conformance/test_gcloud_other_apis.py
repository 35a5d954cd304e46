"""gcloud against the APIs beside the TPU API: storage, compute, services and policies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.conformance.conftest import PROJECT, ZONE, Service
from tpuctl.sandbox import administration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

if TYPE_CHECKING:
    Gcloud = Callable[..., tuple[str, str, int]]

pytestmark = pytest.mark.gcloud


@pytest.fixture
def gcloud(service: Service) -> Gcloud:
    """Run gcloud and return its stdout, stderr and exit code."""
    environ = {**service._gcloud_environ(), "CLOUDSDK_CORE_PROJECT": PROJECT}

    def run(*words: str) -> tuple[str, str, int]:
        done = service.process.run(words, environ, service.folder)
        return done.out, done.err, done.code

    return run


def test_gcloud_storage_copies_files_to_and_from_a_bucket(service: Service, gcloud: Gcloud, tmp_path: Path) -> None:
    administration.add_bucket(service.state, "data", location="us-central2")
    small, other = tmp_path / "small.txt", tmp_path / "other"
    small.write_text("content\n")
    other.write_bytes(os.urandom(100_000))

    assert gcloud("storage", "cp", str(small), str(other), "gs://data/in/")[2] == 0
    assert gcloud("storage", "ls", "gs://data/in/") == ("gs://data/in/other\ngs://data/in/small.txt\n", "", 0)
    assert gcloud("storage", "cat", "gs://data/in/small.txt") == ("content\n", "", 0)
    assert gcloud("storage", "cp", "gs://data/in/other", str(tmp_path / "back"))[2] == 0
    assert (tmp_path / "back").read_bytes() == other.read_bytes()


def test_gcloud_reads_project_disks_services_and_policy(service: Service, gcloud: Gcloud) -> None:
    administration.add_disk(service.state, "checkpoints", zone=ZONE)
    number = administration.project_number(PROJECT)
    described = gcloud("storage", "buckets", "describe", "gs://none")
    assert described == ("", "ERROR: (gcloud.storage.buckets.describe) gs://none not found: 404.\n", 1)

    for command, expected in {
        "compute project-info add-metadata --metadata=a=b": "",
        "compute project-info describe --format=value(commonInstanceMetadata.items)": "{'key': 'a', 'value': 'b'}\n",
        "compute disks list --format=value(name,zone.basename(),sizeGb)": f"checkpoints\t{ZONE}\t100\n",
        "services list --enabled --filter=config.name:tpu --format=value(config.name)": "tpu.googleapis.com\n",
        f"projects get-iam-policy {PROJECT} --flatten=bindings --filter=bindings.role:editor "
        "--format=value(bindings.members)": f"serviceAccount:{number}-compute@developer.gserviceaccount.com\n",
    }.items():
        out, err, code = gcloud(*command.split(" "))
        assert (out, code) == (expected, 0), err
