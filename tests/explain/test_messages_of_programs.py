"""Messages of libtpu, JAX, PyTorch/XLA, of used-up memory and of the worker: what is known, and what only looks alike."""

from __future__ import annotations

import re

import pytest

from tests.explain.examples import Example, examples_of, ids_of, match_as_in_log, messages_of
from tpuctl.explain.messages import MessageRole, message_by_id

_FILES = ("memory", "libtpu", "jax", "torch_xla", "host")
_MESSAGES = messages_of(*_FILES)
_EXAMPLES = examples_of(*_FILES)


@pytest.mark.parametrize("example", _EXAMPLES, ids=ids_of(_EXAMPLES))
def test_message_is_recognized_with_facts(example: Example) -> None:
    """The first entry that matches is the right one, with any text around the message."""
    assert match_as_in_log(example.text, _MESSAGES) == example.match


@pytest.mark.parametrize(
    "text",
    [
        # memory that suffices, and configurations
        "Memory usage: hbm 14.2G of 15.48G, peak 15.1G",
        "step 1200: hbm used 7.1GiB of 8GiB (88%)",
        "INFO memory space hbm: 15.48G, vmem: 16.00M",
        "xla_tpu_scoped_vmem_limit_kib: 65536",
        "Attempting to allocate 2 workers; that was possible",
        "Total hbm usage >= 9.60G: reserved 530.00M program 9.08G arguments 0B",
        # the TPU, well
        "Connecting to the TPU: device /dev/accel0 opened",
        "I0000 pjrt_api.cc:167] The PJRT plugin has PJRT API version 0.94. The framework PJRT API version is 0.93.",
        "JAX sees 8 TPU devices on 2 hosts; TPU initialization took 12.3 seconds",
        "megascale_num_slices=2 megascale_abort_on_hangs=true",
        "Port 8888 is already in use, trying another port.",
        # workers, well
        "heartbeat_timeout_seconds: 100",
        "Barrier checkpoint_save passed after 0.2 s",
        "coordination service started at 10.0.0.2:8476",
        "Preemption sync manager: no preemption; saving a preemption checkpoint at step 100",
        "jax.distributed.initialize() done: process 0 of 4",
        # the machine
        "Process finished with exit code 0",
        "train loss 137, exit_threshold 137",
        "processed 137 files, status 1370",
        "Filesystem Size Used Avail Use% Mounted on /dev/sda1 97G 45G 52G 47% /",
        "apt-get: Get:1 http://archive.ubuntu.com/ubuntu jammy InRelease",
        "Killed 3 stale sessions",
        "SIGTERM handler installed; a checkpoint is saved before the process ends",
        "memory: 12.3 GiB of 334 GiB; oom_score_adj 0",
        "No module named in the configuration, using default",
        "Permission denied (publickey).",
    ],
)
def test_similar_text_is_not_recognized(text: str) -> None:
    """Logs without a failure have similar words."""
    assert match_as_in_log(text, _MESSAGES) is None


def test_tpu_failure_is_not_the_harmless_note_of_other_backends() -> None:
    """JAX writes the same words when it only tries backends, and when it fails."""
    failed = "RuntimeError: Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: no such file"
    harmless = message_by_id("jax-other-backend")
    assert harmless is not None
    assert harmless.role is MessageRole.HARMLESS
    assert re.search(harmless.match, failed) is None
    assert re.search(harmless.match, failed.removeprefix("RuntimeError: ")) is not None
