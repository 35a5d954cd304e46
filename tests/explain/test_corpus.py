"""Logs as users have them, each with the verdict that an expert would give: how often tpuctl gives the same one."""

from __future__ import annotations

import functools
import random

from tests.corpus.labelled import LOGS, Labelled, corpus, wrong_details, wrong_verdicts
from tpuctl.explain.conclusion import Explanation, conclude
from tpuctl.explain.messages import message_by_id
from tpuctl.explain.scanner import LogReader

_RIGHT = 0.97
# Logs of which each is read in pieces, too.
_EVERY = 5


@functools.cache
def _explained(log: Labelled) -> Explanation:
    reader = LogReader(name=log.name)
    reader.feed(log.data)
    return conclude(reader.so_far())


def _table(wrong: dict[str, tuple[str, ...]]) -> str:
    return "\n".join(f"{name}: {'; '.join(words)}" for name, words in wrong.items())


def test_corpus_is_complete() -> None:
    """Each log has a label and each label a log; labels name messages that there are; there is enough of each kind."""
    logs = corpus()
    files = {str(file.relative_to(LOGS)) for file in LOGS.rglob("*") if file.is_file()}

    assert files == {log.name for log in logs}
    assert {id_ for log in logs for id_ in log.ids if message_by_id(id_) is None} == set()
    assert len(logs) >= 200
    assert sum(log.is_harmless for log in logs) >= 60
    assert sum(bool(log.label.get("only_quoted")) for log in logs) >= 20


def test_corpus_verdicts_are_those_of_an_expert() -> None:
    failures = [log for log in corpus() if not log.is_harmless]
    wrong = {log.name: words for log in failures if (words := wrong_verdicts(log, _explained(log)))}

    print(_table(wrong))  # noqa: T201  # shown when the test fails, and with -s
    right = 1 - len(wrong) / len(failures)
    assert right >= _RIGHT


def test_corpus_facts_of_verdicts_are_right() -> None:
    """The number of occurrences, and the facts that the commands of the remedy are filled with."""
    detailed = [log for log in corpus() if {"count", "facts"} & log.label.keys()]
    wrong = {log.name: words for log in detailed if (words := wrong_details(log, _explained(log)))}

    print(_table(wrong))  # noqa: T201  # as above
    right = 1 - len(wrong) / len(detailed)
    assert right >= _RIGHT


def test_corpus_harmless_logs_have_no_verdict() -> None:
    harmless = [log for log in corpus() if log.is_harmless]
    wrong = {log.name: words for log in harmless if (words := wrong_verdicts(log, _explained(log)))}

    assert wrong == {}


def test_corpus_guesses_speak_about_failures_and_seldom_about_harmless_logs() -> None:
    """Guesses have low confidence: of a log without a known message they name a kind of failure."""
    spoken = {log for log in corpus() if _explained(log).conclusions}
    unknown = {log for log in corpus() if log.category == "unknown"}
    harmless = {log for log in corpus() if not log.is_failure}

    print(*sorted(log.name for log in spoken & harmless), sep="\n")  # noqa: T201  # as above
    assert len(spoken & unknown) >= 0.75 * len(unknown)
    assert len(spoken & harmless) <= 0.1 * len(harmless)


def test_corpus_is_independent_of_pieces() -> None:
    chance = random.Random(7)  # noqa: S311  # not a secret, but the same in every run
    for log in corpus()[::_EVERY]:
        reader, rest = LogReader(name=log.name), log.data
        while rest:
            size = chance.choice((1, 2, 7, 63, 400, 5000))
            reader.feed(rest[:size])
            rest = rest[size:]

        assert conclude(reader.so_far()) == _explained(log), log.name
