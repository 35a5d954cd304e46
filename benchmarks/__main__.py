"""Measure and print; with `--markdown` write figures.md and docs/contributing/benchmarks.md too."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import accuracy, cases, checks, explain, remote, report, waiting
from benchmarks.cases import Stages
from benchmarks.measurement import compare

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = (*cases.NAMES, *waiting.NAMES, *remote.NAMES, *checks.NAMES, *accuracy.NAMES, *explain.NAMES)
_FIGURES = Path(__file__).with_name("figures.md")
_PAGE = Path(__file__).parents[1] / "docs" / "contributing" / "benchmarks.md"


def main() -> None:
    """Run the named measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure tpuctl, and compare it with gcloud.",
        epilog="`python -m benchmarks.simulation` simulates 50 000 lives of nodes and checks them; "
        "`python -m benchmarks.killed_runs` kills runs, and checks that their nodes end with their time limit.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"measurements: {', '.join(_NAMES)}; default: all")
    parser.add_argument("--runs", type=int, default=9, help="number of runs of each program (default: 9)")
    parser.add_argument("--markdown", action="store_true", help="write figures.md and docs/contributing/benchmarks.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(_NAMES):
        parser.error(f"unknown name: {', '.join(sorted(unknown))}; choose from {', '.join(_NAMES)}")
    measured: list[report.Measured] = []
    tables: list[waiting.Table] = []
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder, ExitStack() as stack:
        for case in cases.cases(Stages(Path(folder), stack), tuple(arguments.names)):
            costs = compare(case.programs, runs=arguments.runs, report_progress=_progress(case.name))
            measured.append((case, costs))
            print("\n".join(report.lines(measured[-1:])), flush=True)
        for table in chain(
            *(
                each.tables(Path(folder), tuple(arguments.names))
                for each in (waiting, remote, checks, accuracy, explain)
            )
        ):
            tables.append(table)
            print("\n".join(table.lines()), flush=True)
    if arguments.markdown:
        figures = report.markdown(measured, tables, runs=arguments.runs)
        _FIGURES.write_text(figures, "utf-8")
        _PAGE.write_text(report.summary(figures), "utf-8")


def _progress(name: str) -> Callable[[str], None]:
    def report_progress(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{name}: {text}")

    return report_progress


main()
