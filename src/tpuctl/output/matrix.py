"""Which worker of a slice has passed which check: a grid for small slices, one cell for each worker of large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from tpuctl.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.output.marks import Marks

LEVELS = ("ready", "healthy", "ssh", "startup", "devices")
_GRID = 16
_NAMED = 8


def matrix(workers: Sequence[Mapping[str, Any]], *, width: int, marks: Marks) -> list[Text]:
    """Return the workers of a slice: a row for each level that was checked, or a cell for each worker of a large slice."""
    lines: list[Text] = []
    if len(workers) > _GRID:
        a_row = 64 if len(workers) > 64 and width > 80 else 32
        for start in range(0, len(workers), a_row):
            line = Text.assemble((f"  {workers[start]['worker']:>4} ", "dim"))
            for index, worker in enumerate(workers[start : start + a_row]):
                results = [worker[level] for level in LEVELS if worker.get(level) is not None]
                sign, style = _sign(all(results) if results else None, marks)
                line.append(" " + sign if index % 8 == 0 else sign, style)
            lines.append(line)
        return lines
    checked = [level for level in LEVELS if any(worker.get(level) is not None for worker in workers)]
    if checked:
        wide = len(str(workers[-1]["worker"])) + 1
        lines.append(Text(f"  {'worker':8}" + "".join(f"{worker['worker']:>{wide}}" for worker in workers), "dim"))
    for level in checked:
        signs = [_sign(worker.get(level), marks) for worker in workers]
        lines.append(Text.assemble(f"  {level:8}", *((f"{sign:>{wide}}", style) for sign, style in signs)))
    return lines


def missing(workers: Sequence[Mapping[str, Any]]) -> Text:
    """Return a text that names the workers that have not passed a level, eight at most; empty if there are none."""
    lacking = [
        (worker, level)
        for worker in workers
        if (level := next((level for level in LEVELS if worker.get(level) is False), None))
    ]
    if not lacking:
        return Text()
    groups: dict[str, list[str]] = {}
    for worker, level in lacking[:_NAMED]:
        why = worker.get("why")
        groups.setdefault(f"{level}: {visible(str(why))}" if why else level, []).append(str(worker["worker"]))
    named = ", ".join(f"{', '.join(indices)} ({why})" for why, indices in groups.items())
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return Text.assemble((f"{len(lacking)} of {len(workers)} workers missing: ", "red"), named + more)


def _sign(has: bool | None, marks: Marks) -> tuple[str, str]:  # noqa: FBT001  # a cell of the matrix
    if has is None:
        return marks.unknown, "dim"
    return (marks.good, "green") if has else (marks.bad, "red")
