"""`tpuctl test`: the test of the chips of workers: start it on all of them, parse what it reports, judge, show.

The program is `ssh/agent/chip_test.py`. It runs as a job that is followed, so that it ends with this command, at a time limit
and after a cut connection. `fold_event` and `judge` are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from statistics import median
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.decoding import Line, OneOf, Range
from tpuctl.durations import format_duration
from tpuctl.errors import (
    BrokenNodeError,
    ConflictError,
    ExitCode,
    NotConfirmedError,
    RemoteCommandError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.escaping import one_line
from tpuctl.models.worker_ports import COORDINATOR, OLD_COORDINATOR, SLICE_BUILDER, describe_closed
from tpuctl.names import number_ranges
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, StatusLine, View
from tpuctl.ssh.agent.chip_test import CHIP_TEST_MARK, NO_FRAMEWORK
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer
from tpuctl.ssh.channel import AgentError, explain_agent_errors, standalone_program
from tpuctl.ssh.port_probe import probe_ports
from tpuctl.ssh.tpu_devices import ACCEL_FILES, VFIO_FILES
from tpuctl.workers.environment import EnvironmentOptions, job_variables
from tpuctl.workers.execution import (
    OutputTail,
    run_error,
    run_warnings,
    show_diagnosis,
    ssh_errors,
    why_gone,
    with_diagnosis,
    worker_labels,
)
from tpuctl.workers.runner import RunRequest, StopReason, run_on_workers
from tpuctl.workers.tpu_release import find_holders
from tpuctl.workers.worker_jobs import JobScope
from tpuctl.workers.worker_stacks import StackListing, list_stacks

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
_MOST_EVENTS = 1000
_LONGEST_LINE = 4096
_LINE = """exec {python} -c 'import os; exec(os.environ.pop("TPUCTL_PROGRAM"))' tpuctl-test"""
# The chips of one worker, as libtpu writes them [observed: marin's published log; JAX's test data].
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
_REFRESH_SECONDS = 0.5
# How long before the time limit the stacks of a test that has not ended are read: of a short limit the last third.
_STACKS_BEFORE = timedelta(seconds=30)
# After its connection breaks the test is of no use.
_PATIENCE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A sum over all devices of the slice, as one worker measured it."""

    devices: Annotated[int, Range(0, 2**20)]
    duration: timedelta = field(metadata={"key": "seconds"})
    gigabytes_per_second: Annotated[float, Range(0, 1e9)]
    is_right: bool


@dataclass(frozen=True, slots=True)
class ChipTestReport:
    """What a worker has reported so far. `phase` is the step that it is in; None is what it has not reported.

    `teraflops` are by chip; `wrong` are the chips that computed a wrong product.
    """

    phase: str = "connect"
    device_files: int | None = None
    python: str = ""
    framework: str = ""
    version: str = ""
    chips: int | None = None
    teraflops: Mapping[int, float] = field(default_factory=dict)
    wrong: frozenset[int] = frozenset()
    all_reduce: AllReduce | None = None

    @property
    def is_done(self) -> bool:
        """Whether the test has run to its end."""
        return self.phase == "done"


def fold_event(report: ChipTestReport, value: Any) -> ChipTestReport:
    """Return the report with one more event. Raises `UnexpectedAnswerError`."""
    kind = decode_answer(_Event, value, "the event").event
    match decode_answer(_EVENTS[kind], value, "the event"):
        case _Host(files, python):
            return replace(report, device_files=files, python=python)
        case _Framework(name, version):
            return replace(report, framework=name, version=version)
        case _Chips(chips):
            return replace(report, chips=chips)
        case _Phase(phase):
            return replace(report, phase=phase)
        case _Product(chip, teraflops, is_right):
            # A chip of v2 and v3 is two devices.
            figures = {**report.teraflops, chip: report.teraflops.get(chip, 0.0) + teraflops}
            wrong = report.wrong if is_right else report.wrong | {chip}
            return replace(report, teraflops=figures, wrong=wrong)
        case AllReduce() as measured:
            # Of the sums of several processes a wrong one counts.
            worst = measured if report.all_reduce is None or not measured.is_right else report.all_reduce
            return replace(report, all_reduce=worst)
    raise AssertionError("every event has a case")


@dataclass(frozen=True, slots=True)
class _Host:
    device_files: Annotated[int, Range(0, _HIGHEST_CHIP + 1)]
    python: Annotated[str, Line(20)]


@dataclass(frozen=True, slots=True)
class _Framework:
    name: Annotated[str, OneOf(("JAX", "PyTorch/XLA"))]
    version: Annotated[str, Line(50)]


@dataclass(frozen=True, slots=True)
class _Chips:
    chips: Annotated[int, Range(0, _HIGHEST_CHIP + 1)]


@dataclass(frozen=True, slots=True)
class _Phase:
    phase: Annotated[str, OneOf(tuple(_PHASES))]


@dataclass(frozen=True, slots=True)
class _Product:
    chip: Annotated[int, Range(0, _HIGHEST_CHIP)]
    teraflops: Annotated[float, Range(0, 1e9)]
    is_right: bool


_EVENTS: Mapping[str, type[Any]] = {
    "host": _Host,
    "framework": _Framework,
    "chips": _Chips,
    "phase": _Phase,
    "product": _Product,
    "allReduce": AllReduce,
}


@dataclass(frozen=True, slots=True)
class _Event:
    event: Annotated[str, OneOf(tuple(_EVENTS))]


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
        for chip, figure in sorted(report.teraflops.items()):
            if chip in report.wrong:
                problems.append(f"chip {chip}: wrong product")
            elif figure < THRESHOLD * middle:
                problems.append(f"chip {chip}: {figure:.0f} TFLOP/s, {figure / middle:.0%} of the median")
        if report.all_reduce is not None and not report.all_reduce.is_right:
            problems.append("wrong sum over all chips")
        found.append(problems)
    return found


class ReportCollector:
    """Parses the reports of the workers while they arrive, and keeps the end of their other output. An `OutputSink`."""

    failure = None

    def __init__(self, terminal: Terminal, targets: Sequence[Target]) -> None:
        self.reports = {target.label: ChipTestReport() for target in targets}
        self.errors: dict[str, UnexpectedAnswerError] = {}
        self.tail = OutputTail(len(targets))
        self._terminal = terminal
        self._events = dict.fromkeys(self.reports, 0)
        self._pending = dict.fromkeys(self.reports, b"")
        self._status = StatusLine(terminal, SystemClock())
        self._closed = Event()
        # Workers that hang write nothing, and the last line that was drawn may be of an earlier step.
        Thread(target=self._keep_current, daemon=True).start()

    def _keep_current(self) -> None:
        while not self._closed.wait(_REFRESH_SECONDS):
            if any(self._events.values()):
                self._status.show(self._progress)

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Take a piece of output: lines with the mark are events, all else is kept for a diagnosis."""
        self.tail.add(target, data, is_error=is_error)
        if is_error or target.label in self.errors:
            return
        *lines, rest = (self._pending[target.label] + data).split(b"\n")
        # Of a longer line enough for the parser to reject it.
        self._pending[target.label] = rest[: 2 * _LONGEST_LINE]
        for line in lines:
            if line.startswith(CHIP_TEST_MARK.encode()):
                self._take(target.label, line)
        self._status.show(self._progress)

    def _take(self, label: str, line: bytes) -> None:
        self._events[label] += 1
        if self._events[label] > _MOST_EVENTS:
            self.errors[label] = UnexpectedAnswerError(f"more than {_MOST_EVENTS} events", worker=label)
            return
        try:
            value = parse_answer(line.removeprefix(CHIP_TEST_MARK.encode()), longest=_LONGEST_LINE)
            self.reports[label] = fold_event(self.reports[label], value)
        except UnexpectedAnswerError as error:
            self.errors[label] = error.of(label)

    def _progress(self) -> str:
        phases = [report.phase for report in self.reports.values()]
        slowest = min(phases, key=list(_PHASES).index)
        return f"testing: {_PHASES[slowest]} ({phases.count('done')} of {len(phases)} workers done)"

    def ended(self, target: Target) -> None:
        """Do nothing: a line without its end is no event."""

    def connected(self, count: int, total: int) -> None:
        """Show how many workers answer so far."""
        self._status.show(lambda: f"reaching the workers: {count} of {total}")

    def interrupted(self) -> None:
        """Start a new line on a terminal, after its `^C`."""
        self._status.clear()
        self._terminal.end_line()

    def note(self, target: Target | None, text: str) -> None:
        """Print information about a worker, or about all."""
        self._status.clear()
        self._terminal.note(f"worker {target.label}: {text}" if target else text)

    def close(self) -> None:
        """Remove the progress line."""
        self._closed.set()
        self._status.clear()


def check_tpu_is_free(app: App, targets: Sequence[Target], *, force: bool) -> None:
    """Ask before a test on workers whose TPU is held, or refuse it if no question can be answered; `force` does neither.

    Raises `ConflictError`, and `NotConfirmedError` if the user declines. What cannot be examined counts as free: the framework
    refuses a TPU that is held.
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
    if not held or force:
        return
    more = f", and {len(held) - 3} more" if len(held) > 3 else ""
    text = f"the TPU is in use: {', '.join(held[:3])}{more}"
    node = targets[0].node.name.node_id
    if not app.terminal.may_ask:
        hint = f"end what holds it: `tpuctl unstick {node}`; to test all the same: `--force`"
        raise ConflictError(text, hint=hint)
    app.terminal.warn(text)
    if not app.terminal.confirm("test all the same?", yes=False):
        raise NotConfirmedError("nothing was tested")


@dataclass(frozen=True, slots=True)
class NodeTest:
    """The test of one node: the result of the run, the report of each worker, and what is wrong with each."""

    node: Node
    result: RunResult
    reports: Mapping[str, ChipTestReport]
    errors: Mapping[str, UnexpectedAnswerError]
    last_lines: Mapping[str, str]
    timeout: timedelta
    # Where the workers were shortly before the time limit, for a test that reached it.
    stacks: StackListing | None = None
    # The ports at which workers do not reach the first one.
    closed_ports: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def chips(self) -> int | None:
        """The number of chips of a worker, None for an unknown type."""
        return self.node.accelerator.chips_per_worker if self.node.accelerator else None

    @property
    def lacks_chips(self) -> bool:
        """Whether a worker has fewer device files than its type has chips."""
        counts = [report.device_files for report in self.reports.values() if report.device_files is not None]
        return self.chips is not None and bool(counts) and min(counts) < self.chips

    @property
    def workers(self) -> list[tuple[WorkerResult, ChipTestReport, list[str]]]:
        """Each worker with its result, its report, and what is wrong with its hardware."""
        reports = [self.reports[one.target.label] for one in self.result.results]
        return list(zip(self.result.results, reports, judge(reports, chips=self.chips), strict=True))


def run_node_test(
    app: App, node: Node, targets: Sequence[Target], *, python: str, timeout: timedelta, fanout: int
) -> NodeTest:
    """Run the test on these workers of a node."""
    is_part = len(targets) < node.workers
    chips = node.accelerator.chips_per_worker if node.accelerator else 4
    order = {
        "devices": [ACCEL_FILES, VFIO_FILES],
        "together": node.workers > 1 and not is_part,
        "bounds": _BOUNDS.get(chips, f"{chips},1,1") if is_part else None,
    }
    program = standalone_program("chip_test", f"check_chips({order!r})")
    request = RunRequest(
        line=_LINE.format(python=python),
        shown="tpuctl test",
        environment=EnvironmentOptions({"TPUCTL_PROGRAM": program}),
        takes_stdin=False,
        fanout=fanout,
        # All workers wait for one that has failed.
        fail_fast=not is_part,
        timeout=timeout,
        attach_within=_PATIENCE,
        linger=_PATIENCE,
    )
    closed = {} if is_part else find_closed_ports(app, targets)
    collector = ReportCollector(app.terminal, targets)
    stacks = LateStacks(JobScope(targets, shared_connection_options(app), node.name.node_id), timeout)
    try:
        result = run_on_workers(
            targets,
            request,
            collector,
            environment=lambda one: job_variables(request.environment, one.node, one.worker),
            why_gone=lambda target: why_gone(app, target),
            ssh_options=shared_connection_options(app),
        )
    finally:
        collector.close()
        stacks.cancel()
    last_lines = {target.label: _last_line(collector.tail, target) for target in targets}
    result = with_diagnosis(result, collector.tail)
    listing = stacks.listing if result.stopped is StopReason.TIMED_OUT else None
    return NodeTest(node, result, collector.reports, collector.errors, last_lines, timeout, listing, closed)


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


class LateStacks:
    """Reads the stacks of the workers shortly before a time limit, which ends the programs, unless it is cancelled before."""

    def __init__(self, scope: JobScope, limit: timedelta) -> None:
        self._scope = scope
        self._listing: StackListing | None = None
        self._timer = Timer((limit - min(_STACKS_BEFORE, limit / 3)).total_seconds(), self._read)
        self._timer.daemon = True
        self._timer.start()

    def _read(self) -> None:
        with suppress(TpuctlError):  # they only explain
            self._listing = list_stacks(self._scope, signal=None)

    def cancel(self) -> None:
        """Read no stacks any more."""
        self._timer.cancel()

    @property
    def listing(self) -> StackListing | None:
        """What the workers reported, None if that was not in time."""
        return self._listing


def _last_line(tail: OutputTail, target: Target) -> str:
    """Return the last line on a worker's stderr, for a failure that no message explains."""
    *_, errors = tail.of(target)
    lines = errors.decode("utf-8", "replace").split("\n")
    return one_line(next((line.strip() for line in reversed(lines) if line.strip()), ""), longest=300)


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
    broken = [f"worker {one.target.label} ({', '.join(problems)})" for one, _, problems in test.workers if problems]
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
    if test.errors:
        return next(iter(test.errors.values()))
    without = [one for one, _, _ in test.workers if one.code == NO_FRAMEWORK]
    if without:
        return RemoteCommandError(
            f"neither JAX nor PyTorch/XLA is installed on worker {worker_labels(without)}",
            hint=f"install JAX: `tpuctl run {node} -- 'python3 -m pip install -U \"jax[tpu]\"'`\n"
            "name the Python of another environment: `--python PATH`",
        )
    if test.result.stopped is StopReason.TIMED_OUT:
        steps = {one.target.worker: report.phase for one, report, _ in test.workers if not report.is_done}
        return TimedOutError(
            f"the test did not end within {format_duration(test.timeout)}: {describe_steps(steps)}",
            hint=describe_places(test.stacks) or f"show what they wait for, while a test runs: `tpuctl stacks {node}`",
        )
    error = run_error(test.result)
    if error is None:
        unfinished = [one for one, report, _ in test.workers if not report.is_done]
        text = f"the test ended without a report on worker {worker_labels(unfinished)}"
        return RemoteCommandError(text) if unfinished else None
    failed = [one for one, _, _ in test.workers if not one.is_good and test.last_lines[one.target.label]]
    first = min(failed, key=lambda one: (one.signal is not None, one.duration or timedelta.max), default=None)
    if first is None or error.hint:
        return error
    hint = f"worker {first.target.label} printed: {test.last_lines[first.target.label]}"
    return RemoteCommandError(error.message.replace("the command failed", "the test failed", 1), hint=hint)


def describe_places(listing: StackListing | None) -> str:
    """Return where the workers were, the fewest at one place first; empty if all were at one, or if it is not known."""
    groups = [group for group in listing.groups if group[0].processes] if listing else []
    if len(groups) < 2:
        return ""
    texts = []
    for group in groups[:_MOST_PLACES]:
        workers = ",".join(number_ranges([one.target.worker for one in group]))
        frames = [frame for process in group[0].processes for thread in process.threads for frame in thread.frames]
        place = next((f"{one.function} ({one.file}:{one.line})" if one.file else one.function for one in frames), "")
        texts.append(f"worker {workers} in {place or group[0].processes[0].command}")
    more = f"; {len(groups) - _MOST_PLACES} more places" if len(groups) > _MOST_PLACES else ""
    return f"shortly before, {'; '.join(reversed(texts))}{more}"


_MOST_PLACES = 4


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
    terminal.table(_COLUMNS, [_row(test, *worker) for worker in test.workers])
    if used := {f"{one.framework} {one.version}" for one in test.reports.values() if one.framework}:
        terminal.note(f"tested with {', '.join(sorted(used))}")


def _row(test: NodeTest, one: WorkerResult, report: ChipTestReport, problems: Sequence[str]) -> tuple[Cell, ...]:
    """Return the row of a worker; what it has not reported is empty."""
    figures, total = report.teraflops, report.all_reduce
    slowest = min(figures, key=lambda chip: figures[chip], default=None)
    counted = report.chips if report.chips is not None else report.device_files
    count = "" if counted is None else str(counted)
    good = "ok" if report.is_done and one.is_good else f"stopped in {_PHASES[report.phase]}"
    return (
        Cell(one.target.label),
        Cell(f"{count} of {test.chips}" if count and test.chips else count, plain=count),
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
        "workers": [
            {
                "worker": one.target.worker,
                "outcome": str(one.outcome),
                "exitCode": one.code,
                "phase": report.phase,
                "deviceFiles": report.device_files,
                "chips": report.chips,
                "expectedChips": test.chips,
                "framework": report.framework or None,
                "version": report.version or None,
                "teraflops": [
                    {"chip": chip, "teraflops": round(figure, 1), "isRight": chip not in report.wrong}
                    for chip, figure in sorted(report.teraflops.items())
                ],
                "allReduce": {
                    "devices": report.all_reduce.devices,
                    "seconds": report.all_reduce.duration.total_seconds(),
                    "gigabytesPerSecond": round(report.all_reduce.gigabytes_per_second, 1),
                    "isRight": report.all_reduce.is_right,
                }
                if report.all_reduce
                else None,
                "problems": problems,
            }
            for one, report, problems in test.workers
        ],
    }
