"""How often `tpuctl explain` gives an expert's verdict: the labelled logs of tests/corpus, by kind. Nothing is asserted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from benchmarks.waiting import Table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.corpus.labelled import Labelled

NAMES = ("accuracy",)
_TEXT = """Each log of `tests/corpus` is labelled with the verdict of an expert: the first cause, its symptoms, the worker that
failed first, and the confidence. A verdict is *right* if all of these agree. A harmless log is right if there is no verdict.
`python -m pytest -s tests/explain/test_corpus.py` prints the wrong ones."""

_UNSEEN = """Each set of `tests/corpus/unseen` was labelled from public threads by a person who had not seen the patterns. A
verdict is right if an expert accepts its kind of remedy; without a known message, its kind of failure. A verdict that destroys
or kills is wrong unless the label names that. The eighth set of 2026-11-23, `-h`, was judged once, and was not used for
tuning: 54 of 64 (84%) right in the first two, 25 of 25 at high confidence, none destructive, and no verdict of any
confidence on 48 harmless logs. Since then, rules that hid failures in other logs were taken back; that gives two of the
harmless ones a guess of low confidence. The other sets have been used for tuning since they were judged. Then, the third
had 78 of 93 (84%) right in the first two, 52 of 55 (94.5%) at high confidence, and no verdict on 20 harmless logs; the
fourth 59 of 69 (86%), 30 of 33 (91%), and verdicts on 3 of 20; the fifth 60 of 70 (86%), 29 of 29, and a verdict on one of
20; the seventh, `-g`, 57 of 73 (78%), 30 of 32 (94%), and verdicts on 3 of 25. The sixth, `-f`, was written for tuning: a
third of its 304 harmless logs are made of known messages, and 20 still have a verdict."""


def tables(_: Path, names: tuple[str, ...]) -> Iterator[Table]:
    """Yield the table if it is named, or if no name is given."""
    if not names or set(NAMES) & set(names):
        yield _accuracy()
        yield _unseen()


def _accuracy() -> Table:
    from tests.corpus.labelled import corpus  # noqa: PLC0415  # only this measurement needs the tests

    by_kind: dict[str, list[Labelled]] = defaultdict(list)
    for log in corpus():
        by_kind[log.category].append(log)
    failures = [log for log in corpus() if not log.is_harmless]
    rows = [_row(kind, logs) for kind, logs in by_kind.items()]
    rows.append(_row("all but harmless", failures))
    return Table("Accuracy of the verdicts", _TEXT, ("logs", "number", "right", "share"), rows)


def _row(kind: str, logs: list[Labelled]) -> tuple[str, ...]:
    right = sum(_is_right(log) for log in logs)
    return kind, str(len(logs)), str(right), f"{right / len(logs):.1%}"


def _is_right(log: Labelled) -> bool:
    from tests.corpus.labelled import wrong_verdicts  # noqa: PLC0415  # as above

    from tpuctl.explain.conclusion import conclude  # noqa: PLC0415  # as above
    from tpuctl.explain.scanner import LogReader  # noqa: PLC0415  # as above

    reader = LogReader(name=log.name)
    reader.feed(log.data)
    return not wrong_verdicts(log, conclude(reader.so_far()))


def _unseen() -> Table:
    from tests.corpus.unseen import accuracy, set_names, unseen_set  # noqa: PLC0415  # as above

    from tpuctl.explain.conclusion import Confidence  # noqa: PLC0415  # as above

    rows = []
    for name in set_names():
        found = accuracy(unseen_set(name))
        precisions = [_share(*found.right_by_confidence[level]) for level in Confidence]
        rows.append(
            (
                name,
                _share(found.spoken_to, found.failures),
                _share(found.answered, found.failures),
                *precisions,
                f"{found.wrongly_destructive} of {found.destructive}",
                f"{len(found.alarming)} and {found.low_alarms} of {found.harmless}",
            )
        )
    header = ("set", "spoken to", "right in the first two", "precision: high", "medium", "low")
    return Table("Unseen logs", _UNSEEN, (*header, "wrongly destructive", "false alarms, and low"), rows)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")
