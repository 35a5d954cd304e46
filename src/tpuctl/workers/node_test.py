"""`tpuctl test`: the test of the chips of workers: start it on all of them, parse what it reports, judge, show.

The program is `ssh/agent/chip_test.py`. It runs as a job that is followed, so that it ends with this command, at a time limit
and after a cut connection. `parse_report` and `judge` are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.decoding import Line, Most, OneOf, Range
from tpuctl.durations import format_duration
from tpuctl.errors import BrokenNodeError, ConflictError, ExitCode, RemoteCommandError, TimedOutError, TpuctlError
from tpuctl.models.worker_ports import COORDINATOR, OLD_COORDINATOR, SLICE_BUILDER, describe_closed
from tpuctl.names import number_ranges
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, StatusLine, View
from tpuctl.ssh.agent.chip_test import CHIP_TEST_MARK, NO_FRAMEWORK
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer
from tpuctl.ssh.channel import AgentError, explain_agent_errors, standalone_program
from tpuctl.ssh.connection import last_printed_line
from tpuctl.ssh.port_probe import probe_ports
from tpuctl.workers.captured_run import CapturedOutput
from tpuctl.workers.environment import EnvironmentOptions
from tpuctl.workers.execution import run_error, run_into, run_warnings, show_diagnosis, ssh_errors, worker_labels
from tpuctl.workers.runner import RunRequest, StopReason
from tpuctl.workers.tpu_release import find_holders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.runner import RunResult
    from tpuctl.workers.worker_session import WorkerResult

# A chip falls short below this share of the median of all chips. Healthy chips of one slice differ by a few percent.
THRESHOLD = 0.8
# Name of the step, and what it is for users.
_PHASES = {
    "connect": "starting Python",
    "start": "starting the TPU with all workers",
    "product": "the matrix products",
    "all-reduce": "the all-reduce",
    "done": "done",
}
_HIGHEST_CHIP = 63
_MOST_LINES = 1000
_LONGEST_LINE = 4096
_LINE = """exec {python} -c 'import os; exec(os.environ.pop("TPUCTL_PROGRAM"))' tpuctl-test"""
# The chips of one worker, as libtpu writes them [observed: marin's published log; JAX's test data].
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
# After its connection breaks the test is of no use.
_PATIENCE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix products of one device. A chip of v2 and v3 is two devices."""

    chip: Annotated[int, Range(0, _HIGHEST_CHIP)]
    teraflops: Annotated[float, Range(0, 1e9)]
    is_right: bool


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A sum over all devices of the slice, as one process measured it."""

    devices: Annotated[int, Range(0, 2**20)]
    duration: timedelta = field(metadata={"key": "seconds"})
    gigabytes_per_second: Annotated[float, Range(0, 1e9)]
    is_right: bool


@dataclass(frozen=True, slots=True)
class ChipTestReport:
    """What a worker has reported so far, and what one of its lines adds. None, or empty, is what it has not reported."""

    phase: Annotated[str, OneOf(tuple(_PHASES))] = "connect"  # the step that it is in
    device_files: Annotated[int | None, Range(0, _HIGHEST_CHIP + 1)] = None
    framework: Annotated[str, Line(20)] = ""
    version: Annotated[str, Line(50)] = ""
    chips: Annotated[int | None, Range(0, _HIGHEST_CHIP + 1)] = None
    products: Annotated[tuple[Product, ...], Most(1)] = ()
    sums: Annotated[tuple[AllReduce, ...], Most(1)] = ()

    @property
    def is_done(self) -> bool:
        """Whether the test has run to its end."""
        return self.phase == "done"

    @property
    def teraflops(self) -> dict[int, float]:
        """The figure of each chip."""
        chips = sorted({one.chip for one in self.products})
        return {chip: sum(one.teraflops for one in self.products if one.chip == chip) for chip in chips}

    @property
    def wrong(self) -> frozenset[int]:
        """The chips that computed a wrong product."""
        return frozenset(one.chip for one in self.products if not one.is_right)

    @property
    def all_reduce(self) -> AllReduce | None:
        """The first sum; of several processes a wrong one counts."""
        return min(self.sums, key=lambda one: one.is_right, default=None)

    def plus(self, line: ChipTestReport) -> ChipTestReport:
        """Return the report with what one more line says."""
        changed: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(line, one.name)
            if isinstance(value, tuple):
                changed[one.name] = (*getattr(self, one.name), *value)
            elif value != one.default:
                changed[one.name] = value
        return replace(self, **changed)


def parse_report(
    output: bytes, worker: str, *, is_cut: bool = False
) -> tuple[ChipTestReport, UnexpectedAnswerError | None]:
    """Return what a worker has reported in its output, as far as its lines fit, and the error in the first that does not.

    A line without its end is none. `is_cut`: the beginning of the output is missing.
    """
    report = ChipTestReport()
    if is_cut:
        return report, UnexpectedAnswerError("more output than is kept", worker=worker)
    mark = CHIP_TEST_MARK.encode()
    lines = [line.removeprefix(mark) for line in output.split(b"\n")[:-1] if line.startswith(mark)]
    try:
        for line in lines[:_MOST_LINES]:
            report = report.plus(decode_answer(ChipTestReport, parse_answer(line, longest=_LONGEST_LINE), "the line"))
    except UnexpectedAnswerError as error:
        return report, error.of(worker)
    if len(lines) > _MOST_LINES:
        return report, UnexpectedAnswerError(f"more than {_MOST_LINES} lines", worker=worker)
    return report, None


def judge(reports: Sequence[ChipTestReport], *, chips: int | None) -> list[list[str]]:
    """Return what is wrong with the hardware of each worker, in the order of the reports. `chips`: of a worker, if known."""
    figures = [figure for report in reports for figure in report.teraflops.values()]
    middle = median(figures) if figures else 0.0
    found = []
    for report in reports:
        problems = []
        counts = [count for count in (report.device_files, report.chips) if count is not None]
        if chips is not None and counts and min(counts) < chips:
            problems.append(f"{min(counts)} of {chips} chips")
        for chip, figure in report.teraflops.items():
            if chip in report.wrong:
                problems.append(f"chip {chip}: wrong product")
            elif figure < THRESHOLD * middle:
                problems.append(f"chip {chip}: {figure:.0f} TFLOP/s, {figure / middle:.0%} of the median")
        if report.all_reduce is not None and not report.all_reduce.is_right:
            problems.append("wrong sum over all chips")
        found.append(problems)
    return found


def check_tpu_is_free(targets: Sequence[Target]) -> None:
    """Raise `ConflictError` if a process holds the TPU of a worker.

    What cannot be examined counts as free: the framework refuses a TPU that is held.
    """
    reports = find_holders(targets)
    if errors := [report.before for report in reports if isinstance(report.before, TpuctlError)]:
        raise explain_agent_errors(errors)[0]
    held = [
        f"{one.pid} {one.name} of {one.user}, for {format_duration(one.age)}, on worker {report.target.label}"
        for report in reports
        for one in report.holders
        if one.holds
    ]
    if held:
        more = f", and {len(held) - 3} more" if len(held) > 3 else ""
        hint = f"end what holds it: `tpuctl unstick {targets[0].node.name.node_id}`; to test all the same: `--force`"
        raise ConflictError(f"the TPU is in use: {', '.join(held[:3])}{more}", hint=hint)


@dataclass(frozen=True, slots=True)
class TestedWorker:
    """A worker: how its test ended, its report, an error in this, and its last line on stderr."""

    result: WorkerResult
    report: ChipTestReport
    error: UnexpectedAnswerError | None
    last_line: str


@dataclass(frozen=True, slots=True)
class NodeTest:
    """The test of one node. `chips`: of a worker, None for an unknown type. `closed_ports`: see `find_closed_ports`."""

    node: Node
    chips: int | None
    result: RunResult
    workers: Sequence[TestedWorker]
    closed_ports: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def problems(self) -> list[tuple[TestedWorker, list[str]]]:
        """Each worker, and what is wrong with its hardware."""
        return list(zip(self.workers, judge([one.report for one in self.workers], chips=self.chips), strict=True))

    @property
    def lacks_chips(self) -> bool:
        """Whether a worker has fewer device files than its type has chips."""
        counts = [one.report.device_files for one in self.workers if one.report.device_files is not None]
        return self.chips is not None and bool(counts) and min(counts) < self.chips


def run_node_test(
    app: App, node: Node, targets: Sequence[Target], *, python: str, timeout: timedelta, fanout: int
) -> NodeTest:
    """Run the test on these workers of a node."""
    is_part = len(targets) < node.workers
    chips = node.accelerator.chips_per_worker if node.accelerator else None
    settings = {
        "together": node.workers > 1 and not is_part,
        "bounds": _BOUNDS.get(chips or 4, f"{chips},1,1") if is_part else None,
    }
    request = RunRequest(
        line=_LINE.format(python=python),
        shown="tpuctl test",
        environment=EnvironmentOptions(
            {"TPUCTL_PROGRAM": standalone_program("chip_test", f"check_chips({settings!r})")}
        ),
        takes_stdin=False,
        fanout=fanout,
        # All workers wait for one that has failed.
        fail_fast=not is_part,
        timeout=timeout,
        attach_within=_PATIENCE,
        linger=_PATIENCE,
    )
    closed = {} if is_part else find_closed_ports(app, targets)
    with StatusLine(app.terminal, SystemClock()) as line:
        sink = CapturedOutput(app, len(targets), lambda _: line.show(lambda: f"testing {node.name.node_id}"))
        result = run_into(app, targets, request, sink, sink.tail)
    workers = []
    for one in result.results:
        (output, is_cut), (errors, _) = (sink.tail.kept(one.target, is_error=is_error) for is_error in (False, True))
        report, error = parse_report(output, one.target.label, is_cut=is_cut)
        workers.append(TestedWorker(one, report, error, last_printed_line(errors.decode("utf-8", "replace"))))
    return NodeTest(node, chips, result, workers, closed)


def find_closed_ports(app: App, targets: Sequence[Target]) -> Mapping[int, Mapping[str, str]]:
    """Warn if workers do not reach the first one at a port that the test needs: it would only wait. Return these ports."""
    address = targets[0].node.endpoints[0].internal
    if len(targets) < 2 or address is None:
        return {}
    try:
        ports = (SLICE_BUILDER, OLD_COORDINATOR, COORDINATOR)
        options = shared_connection_options(app)
        probe = probe_ports(targets, address, ports, timeout=_PATIENCE, ssh_options=options)
    except (AgentError, UnexpectedAnswerError):
        return {}  # the test says why
    if closed := probe.closed():
        node = targets[0].node.name.node_id
        app.terminal.warn(
            f"{describe_closed(probe.listener, closed)}; `tpuctl doctor {node}` names the rule that opens them"
        )
    return closed


def show_node_test(app: App, test: NodeTest) -> int:
    """Show the figures, then what is wrong. Return the exit code."""
    app.show(View(value=lambda: _test_json(test), text=lambda terminal: _show_table(terminal, test)))
    for text in run_warnings(test.result.results, tells_ends=True):
        app.terminal.warn(text)
    for reason in ssh_errors(test.result):
        app.show_error(reason)
    if test.result.stopped in {StopReason.INTERRUPTED, StopReason.TERMINATED}:
        app.terminal.note(str(test.result.stopped))
        return test.result.exit_code
    errors = node_test_errors(test)
    for error in errors:
        app.show_error(error)
    if errors and not isinstance(errors[-1], BrokenNodeError):
        show_diagnosis(app, test.result.diagnosis)
    return errors[0].exit_code if errors else ExitCode.OK


def node_test_errors(test: NodeTest) -> list[TpuctlError]:
    """Return what is wrong: broken hardware, which decides the exit code, then what kept the test from its end."""
    found: list[TpuctlError] = []
    node = test.node.name.node_id
    broken = [f"worker {one.result.target.label} ({', '.join(wrong)})" for one, wrong in test.problems if wrong]
    if broken:
        hint = (
            f"reset it, which keeps its boot disk: `tpuctl reset {node} --for devices`\n"
            f"if that does not help: `tpuctl reset {node} --mode recreate` (its boot disk is lost)"
        )
        found.append(BrokenNodeError(f"`{node}` falls short: {'; '.join(broken)}", hint=hint))
    incomplete = _why_incomplete(test)
    # A framework fails where a chip is missing.
    if incomplete and not (test.lacks_chips and isinstance(incomplete, RemoteCommandError)):
        found.append(incomplete)
    return found


def _why_incomplete(test: NodeTest) -> TpuctlError | None:
    """Return why the test did not run to its end on all workers, None if it did."""
    node = test.node.name.node_id
    if error := next((one.error for one in test.workers if one.error), None):
        return error
    without = [one.result for one in test.workers if one.result.code == NO_FRAMEWORK]
    if without:
        return RemoteCommandError(
            f"neither JAX nor PyTorch/XLA is installed on worker {worker_labels(without)}",
            hint=f"install JAX: `tpuctl run {node} -- 'python3 -m pip install -U \"jax[tpu]\"'`\n"
            "name the Python of another environment: `--python PATH`",
        )
    unfinished = [one for one in test.workers if not one.report.is_done]
    if test.result.stopped is StopReason.TIMED_OUT:
        limit = format_duration(test.result.timeout or timedelta())
        steps = describe_steps({one.result.target.worker: one.report.phase for one in unfinished})
        hint = f"show what they wait for, while a test runs: `tpuctl stacks {node}`"
        return TimedOutError(f"the test did not end within {limit}: {steps}", hint=hint)
    failure = run_error(test.result)
    if failure is None:
        text = f"the test ended without a report on worker {worker_labels(one.result for one in unfinished)}"
        return RemoteCommandError(text) if unfinished else None
    failed = [one for one in test.workers if not one.result.is_good and one.last_line]
    first = min(
        failed, key=lambda one: (one.result.signal is not None, one.result.duration or timedelta.max), default=None
    )
    if first is None or failure.hint:
        return failure
    hint = f"worker {first.result.target.label} printed: {first.last_line}"
    return RemoteCommandError(failure.message.replace("the command failed", "the test failed", 1), hint=hint)


def describe_steps(steps: Mapping[int, str]) -> str:
    """Return the step that each worker is in, those in the same step together, the earliest step first."""
    found: dict[str, list[int]] = {}
    for worker, phase in steps.items():
        found.setdefault(phase, []).append(worker)
    return "; ".join(
        f"worker {','.join(number_ranges(found[phase]))} in {text}" for phase, text in _PHASES.items() if phase in found
    )


_COLUMNS = (
    Column("worker"),
    Column("chips", Kind.NUMBER),
    Column("teraflops", Kind.NUMBER, "TFLOP/S"),
    Column("slowest", Kind.NUMBER),
    Column("slowest-chip", Kind.NUMBER, "CHIP"),
    Column("all-reduce-ms", Kind.NUMBER),
    Column("gigabytes-per-second", Kind.NUMBER, "GB/S"),
    Column("result", Kind.TEXT),
)


def _show_table(terminal: Terminal, test: NodeTest) -> None:
    """Write a row for each worker, and what measured it."""
    terminal.table(_COLUMNS, [_row(one, wrong, chips=test.chips) for one, wrong in test.problems])
    reports = [one.report for one in test.workers]
    if used := {f"{one.framework} {one.version}" for one in reports if one.framework}:
        terminal.note(f"tested with {', '.join(sorted(used))}")


def _row(one: TestedWorker, problems: Sequence[str], *, chips: int | None) -> tuple[Cell, ...]:
    """Return the row of a worker; what it has not reported is empty."""
    report, figures, total = one.report, one.report.teraflops, one.report.all_reduce
    slowest = min(figures, key=lambda chip: figures[chip], default=None)
    counted = report.chips if report.chips is not None else report.device_files
    count = "" if counted is None else str(counted)
    good = "ok" if report.is_done and one.result.is_good else f"stopped in {_PHASES[report.phase]}"
    return (
        Cell(one.result.target.label),
        Cell(f"{count} of {chips}" if count and chips else count, plain=count),
        Cell(f"{median(figures.values()):.0f}" if figures else ""),
        Cell("" if slowest is None else f"{figures[slowest]:.0f}"),
        Cell("" if slowest is None else str(slowest)),
        Cell("" if total is None else f"{total.duration.total_seconds() * 1000:.2f}"),
        Cell("" if total is None else f"{total.gigabytes_per_second:.0f}"),
        Cell(", ".join(problems) or good, style="red" if problems else "green" if good == "ok" else "yellow"),
    )


def _test_json(test: NodeTest) -> dict[str, Any]:
    """Return the report for scripts."""
    return {
        "nodeId": test.node.name.node_id,
        "zone": test.node.name.zone,
        "isGood": not node_test_errors(test) and test.result.stopped is None,
        "threshold": THRESHOLD,
        "closedPorts": [
            {"port": port, "workers": sorted(map(int, states))} for port, states in sorted(test.closed_ports.items())
        ],
        "workers": [_worker_json(one, wrong, chips=test.chips) for one, wrong in test.problems],
    }


def _worker_json(one: TestedWorker, problems: Sequence[str], *, chips: int | None) -> dict[str, Any]:
    report, total = one.report, one.report.all_reduce
    return {
        "worker": one.result.target.worker,
        "outcome": str(one.result.outcome),
        "exitCode": one.result.code,
        "phase": report.phase,
        "deviceFiles": report.device_files,
        "chips": report.chips,
        "expectedChips": chips,
        "framework": report.framework or None,
        "version": report.version or None,
        "teraflops": [
            {"chip": chip, "teraflops": round(figure, 1), "isRight": chip not in report.wrong}
            for chip, figure in report.teraflops.items()
        ],
        "allReduce": total
        and {
            "devices": total.devices,
            "seconds": total.duration.total_seconds(),
            "gigabytesPerSecond": round(total.gigabytes_per_second, 1),
            "isRight": total.is_right,
        },
        "problems": problems,
    }
