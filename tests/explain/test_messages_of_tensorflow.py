"""What TensorFlow says on a TPU: each entry known from a text as it was met, and what only looks like it."""

from __future__ import annotations

import pytest

from tests.explain.examples import Example, examples_of, ids_of, match_as_in_log, messages_of
from tpuctl.explain.messages import Message, MessageRole, message_by_id

_MESSAGES = messages_of("storage", "tensorflow")
_EXAMPLES = examples_of("tensorflow")

# Ordinary lines that come near.
_HARMLESS = [
    "TPUPollingThread found TPU b'au2018-3' in state READY, and health HEALTHY.",
    "DEBUG:websockets:connection is CLOSED: Socket closed by peer",
    "[debug] jupyter websocket: Socket closed, will reconnect",
    "Retrying (1/3)...",
    "Download failed. Retrying (12/20).",
    "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken",
    "error: array bound must be a compile-time constant",
    "INFO:tensorflow:Using config: {'_model_dir': 'gs://b/m', '_session_creation_timeout_secs': 7200, 'preemption': True}",
    "INFO:tensorflow:Initialized dataset iterators in 0 seconds",
    "INFO:tensorflow:Init TPU system",
    "GrpcSession::ListDevices will initialize the session with an empty graph and other defaults because the session",
    "the batch size is divisible by the number of replicas",
    "Session is not found in the cache, making a new one",
    "INFO:tensorflow:Waiting for TPU compilation to finish",
    "loss = 0.3, step = 100 (3.1 sec), hbm used 7.1G of 8G",
]


@pytest.mark.parametrize("example", _EXAMPLES, ids=ids_of(_EXAMPLES))
def test_tensorflow_message_is_recognized_with_facts(example: Example) -> None:
    assert match_as_in_log(example.text, _MESSAGES) == example.match


@pytest.mark.parametrize("text", _HARMLESS)
def test_tensorflow_ordinary_line_is_not_recognized(text: str) -> None:
    assert match_as_in_log(text, _MESSAGES) is None


@pytest.mark.parametrize("effect", ["tf-socket-closed", "tf-preemption-hint", "tf-context-id", "tf-session-missing"])
def test_consequence_of_a_lost_worker_is_never_a_cause(effect: str) -> None:
    """The state of the node and the death of its processes explain it; it explains none of them."""
    found = message_by_id(effect)

    assert isinstance(found, Message)
    assert (found.role, found.explained_by >= {"tf-node-lost", "tf-shutdown-hook", "oom-kill-137"}) == (
        MessageRole.SYMPTOM,
        True,
    )
