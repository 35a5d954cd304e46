"""The messages of TensorFlow and of Cloud Storage: known from an example and in other words; ordinary lines are not."""

from __future__ import annotations

import pytest

from tests.diagnosis import test_messages_of_storage as storage
from tests.diagnosis import test_messages_of_tensorflow as tensorflow
from tests.diagnosis.examples import Example, first_known, names_of

_EXAMPLES = [*storage.EXAMPLES, *tensorflow.EXAMPLES]


@pytest.mark.parametrize("example", _EXAMPLES, ids=names_of(_EXAMPLES))
def test_message_is_recognized_from_its_example(example: Example) -> None:
    assert first_known(example.text) == example


@pytest.mark.parametrize(("known", "text"), [*storage.VARIANTS, *tensorflow.VARIANTS])
def test_other_wordings_are_recognized(known: str, text: str) -> None:
    assert first_known(text).id == known


@pytest.mark.parametrize("text", [*storage.HARMLESS, *tensorflow.HARMLESS])
def test_ordinary_lines_are_not_recognized(text: str) -> None:
    assert first_known(text) == Example("", "", "", "", {}, text)
