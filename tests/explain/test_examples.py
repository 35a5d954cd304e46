"""Each known message has examples, and the examples stand in the order of the messages."""

from __future__ import annotations

import pytest

from tests.explain.examples import examples_of, ids_of, messages_of
from tpuctl.explain.messages import MESSAGE_FILES


# Those of ssh are in `tests/ssh/test_failures.py`. Messages of `node` match a state, not a text.
@pytest.mark.parametrize("name", [name for name in MESSAGE_FILES if name not in {"ssh", "node"}])
def test_every_message_has_an_example(name: str) -> None:
    """A pattern that was never tried on a text is a guess."""
    assert list(dict.fromkeys(ids_of(examples_of(name)))) == [message.id for message in messages_of(name)]
