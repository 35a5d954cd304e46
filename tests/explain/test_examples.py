"""The messages of TensorFlow and of Cloud Storage: known from an example and in other words; ordinary lines are not."""

from __future__ import annotations

import pytest

from tests.explain import test_messages_of_storage, test_messages_of_tensorflow
from tests.explain.examples import Example, first_known, names_of

_EXAMPLES = [*test_messages_of_storage.EXAMPLES, *test_messages_of_tensorflow.EXAMPLES]


@pytest.mark.parametrize("example", _EXAMPLES, ids=names_of(_EXAMPLES))
def test_message_is_recognized_from_its_example(example: Example) -> None:
    assert first_known(example.text) == example


@pytest.mark.parametrize(("known", "text"), [*test_messages_of_storage.VARIANTS, *test_messages_of_tensorflow.VARIANTS])
def test_other_wordings_are_recognized(known: str, text: str) -> None:
    assert first_known(text).id == known


@pytest.mark.parametrize("text", [*test_messages_of_storage.HARMLESS, *test_messages_of_tensorflow.HARMLESS])
def test_ordinary_lines_are_not_recognized(text: str) -> None:
    assert first_known(text) == Example("", "", "", "", {}, text)
