"""No literal of any message is overlooked, however a terminal or a program cuts the lines."""

from __future__ import annotations

import pytest

from tpuctl.explain.messages import known_messages
from tpuctl.explain.scanner import index_literals, without_whitespace

_INDEX = index_literals(known_messages())
# Those that need their digits are searched in another way.
_LITERALS = [
    (order, message.id, anchor)
    for order, message in enumerate(known_messages())
    for anchor in message.anchors
    if without_whitespace(anchor.encode()) not in _INDEX.exact
]


@pytest.mark.parametrize(
    "between", ["\n", "\n    ", " |\n| ", "\n[3] "], ids=["plain", "indented", "table", "numbered"]
)
@pytest.mark.parametrize("width", [40, 57])
def test_anchor_is_found_at_any_line_cut(width: int, between: str) -> None:
    """Words cut in two are joined again, with any text between their parts."""
    overlooked = []
    for order, id_, anchor in _LITERALS:
        for before in ("", "worker said: ", "the program of the trainer failed with "):
            line = f"{before}{anchor.upper()} of something"
            text = between.join(line[at : at + width] for at in range(0, len(line), width))
            if not any(order in hit.messages for hit in _INDEX.find(text.encode())):
                overlooked.append((id_, text))

    assert overlooked == []
