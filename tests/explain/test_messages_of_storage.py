"""What programs say of Cloud Storage: each entry known from a text as it was met, and what only looks like it."""

from __future__ import annotations

import pytest

from tests.explain.examples import Example, examples_of, ids_of, match_as_in_log, messages_of

_MESSAGES = messages_of("storage", "tensorflow")
_EXAMPLES = examples_of("storage")

# Ordinary lines that come near.
_HARMLESS = [
    "Error: No such object: gcr.io/project/image",
    "An error occurred (NoSuchBucket) when calling the ListObjects operation: The specified bucket does not exist",
    "INFO:tensorflow:Saving checkpoints for 0 into gs://my_results/resnet/model.ckpt.",
    "10.0.0.7 - - [01/May/2024] GET /storage/v1/b HTTP response code 503",
    "google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/storage/v1/b/b/o/x?alt=json",
    "google.api_core.exceptions.ServiceUnavailable: 503 GET https://secretmanager.googleapis.com/v1/x",
    "curl: (28) Operation timed out",
    "the account has storage.objects.list access to my-bucket",
    "Downloading https://storage.googleapis.com/libtpu-releases/index.html",
]


@pytest.mark.parametrize("example", _EXAMPLES, ids=ids_of(_EXAMPLES))
def test_storage_message_is_recognized_with_facts(example: Example) -> None:
    assert match_as_in_log(example.text, _MESSAGES) == example.match


@pytest.mark.parametrize("text", _HARMLESS)
def test_storage_ordinary_line_is_not_recognized(text: str) -> None:
    assert match_as_in_log(text, _MESSAGES) is None
