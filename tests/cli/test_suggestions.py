"""What is suggested for a mistyped command, option or value."""

from __future__ import annotations

import pytest

from tests.conftest import Console


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param(("own", "a"), "see `tpuctl --help`", id="own-is-not-down"),
        pytest.param(("stat", "a"), "did you mean `tpuctl status`?", id="stat-is-status-not-start"),
        pytest.param(("dwon", "a"), "did you mean `tpuctl down`?", id="exchanged-letters"),
        pytest.param(("delte", "a"), "did you mean `tpuctl delete`?", id="missed-letter"),
        pytest.param(("destroy", "a"), "did you mean `tpuctl down`?", id="as-harmful-as-typed"),
        pytest.param(("queue", "cance", "a"), "did you mean `tpuctl queue cancel`?", id="group"),
        pytest.param(("--foo", "list"), "see `tpuctl --help`", id="foo-is-not-force"),
        pytest.param(("queue", "cancel", "a", "--all"), "see `tpuctl queue cancel --help`", id="all-is-not-all-nodes"),
        pytest.param(("down", "a", "--all-node"), "did you mean `--all-nodes`?", id="option-with-a-missed-letter"),
        pytest.param(("wait", "a", "--for", "deleted"), "did you mean `gone`?", id="deleted-is-gone"),
        pytest.param(("wait", "a", "--for", "prempted"), "did you mean `preempted`?", id="value"),
        pytest.param(("reset", "a", "--mode", "rec"), "did you mean `recreate`?", id="beginning-of-a-value"),
    ],
)
def test_hint_for_a_mistyped_word(offline: Console, words: tuple[str, ...], hint: str) -> None:
    out, err, code = offline(*words)

    assert (out, err.splitlines()[1], code) == ("", f"  hint: {hint}", 2)
