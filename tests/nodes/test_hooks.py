"""Hooks as real shell commands: input, order, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from tests.conftest import Sandbox
from tpuctl.app.app import App, Invocation
from tpuctl.clock import ManualClock
from tpuctl.errors import InvalidInputError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.names import NodeName
from tpuctl.nodes import hooks
from tpuctl.nodes.commands.policy_options import build_hooks, hook_options
from tpuctl.nodes.hooks import Hooks
from tpuctl.output.terminal import StandardStreams

NAME = NodeName("vision", "us-central2-b", "trainer")
OTHER = NodeName("vision", "us-central2-b", "other")


def event(
    kind: EventKind = EventKind.PREEMPTED, node: NodeName = NAME, text: str = "it was", **data: object
) -> NodeEvent:
    return NodeEvent(kind, datetime(2026, 1, 1, tzinfo=UTC), node, text, data)


def hooks_for(
    command: str,
    commands: Mapping[EventKind, str] | None = None,
    *,
    show: Callable[..., None] = print,
    extra: Mapping[str, str] | None = None,
    **environ: str,
) -> Hooks:
    """Return hooks with this command for a preemption, and others."""
    return Hooks(
        {kind: (text,) for kind, text in {EventKind.PREEMPTED: command, **(commands or {})}.items()},
        {"PATH": os.environ["PATH"], **environ},
        extra=extra or {},
        show=show,
        clock=ManualClock(),
    )


def failed(text: str, code: int | None, *output: str, node: NodeName = NAME, hook: str = "preempted") -> NodeEvent:
    """Return the event of a failed hook."""
    data = {"hook": hook, "exit_code": code, "output": [*output]}
    return NodeEvent(
        EventKind.HOOK_FAILED, datetime(2026, 1, 1, tzinfo=UTC), node, f"the hook for `{hook}` {text}", data
    )


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something has happened in another process."""
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_there(pid_file: Path) -> bool:
    """Return whether the process whose id is in the file exists, even as a zombie."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_hook_gets_the_event_as_json_and_as_variables(tmp_path: Path) -> None:
    hidden = "'s/=[0-9]*:[0-9]*$/=DEVICE:INODE/'"
    command = f"cat > {tmp_path}/json; env | grep ^TPUCTL_ | sort | sed {hidden} > {tmp_path}/env"
    run = hooks_for(command, extra={"TPUCTL_SANDBOX": "1"}, TPUCTL_TIER="spot", TPUCTL_ZONE="of the user")

    sent = event(text="taken back\0 after \ud800 2h", state="PREEMPTED", health=None, id="17")
    run(sent)

    assert run.wait() == ()
    assert json.loads((tmp_path / "json").read_text()) == sent.to_json()
    assert (tmp_path / "env").read_text().splitlines() == [
        "TPUCTL_AT=2026-01-01T00:00:00Z",
        "TPUCTL_EVENT=preempted",
        "TPUCTL_HEALTH=",
        "TPUCTL_HOOK_STDIN=DEVICE:INODE",
        "TPUCTL_NODE=trainer",
        "TPUCTL_NODE_ID=17",
        "TPUCTL_PROJECT=vision",
        "TPUCTL_REASON=taken back  after ? 2h",
        "TPUCTL_SANDBOX=1",
        "TPUCTL_STATE=PREEMPTED",
        "TPUCTL_TIER=spot",
        "TPUCTL_ZONE=us-central2-b",
    ]


def test_events_without_a_hook_run_nothing() -> None:
    run = hooks_for("exit 1")

    run(event(EventKind.STATE))

    assert (run.running, run.wait()) == ((), ())


@pytest.mark.parametrize("length", [60_000, 3_000_000])
def test_hook_gets_a_whole_event_of_any_size(tmp_path: Path, length: int) -> None:
    run = hooks_for(f"wc -c > {tmp_path}/count")
    sent = event(text="x" * length)

    run(sent)

    assert run.wait() == ()
    assert int((tmp_path / "count").read_text()) == len(json.dumps(sent.to_json())) + 1


def test_hanging_hook_blocks_only_hooks_of_its_node(tmp_path: Path) -> None:
    hanging, other = tmp_path / "hanging", tmp_path / "other"
    command = f"[ $TPUCTL_NODE = trainer ] || exec sh -c 'echo $$ > {other}'; echo $$ > {hanging}; exec sleep 60"
    run = hooks_for(command)
    started = time.monotonic()

    run(event(text="x" * 3_000_000))
    run(event(node=OTHER))

    assert time.monotonic() - started < 30
    until(lambda: all(path.exists() and path.read_text() for path in (hanging, other)))
    # An ended hook does not stay as a zombie.
    until(lambda: run.poll() == () and not is_there(other))
    pid = int(hanging.read_text())
    assert (run.running, os.getsid(pid)) == ((f"trainer: the hook for `preempted` (process {pid})",), pid)
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == (failed(f"was terminated by SIGKILL: {command}", -9),)
    assert (run.running, is_there(hanging)) == ((), False)


def test_hooks_of_one_node_run_one_at_a_time(tmp_path: Path) -> None:
    run = hooks_for(
        f"echo preempted >> {tmp_path}/log; sleep 0.1; echo done >> {tmp_path}/log",
        {EventKind.RECOVERED: f"echo recovered >> {tmp_path}/log"},
    )

    run(event())
    run(event(EventKind.RECOVERED))

    assert run.wait() == ()
    assert (tmp_path / "log").read_text().split() == ["preempted", "done", "recovered"]


@pytest.mark.parametrize(
    ("command", "code", "words", "output"),
    [
        pytest.param("exit 3", 3, "ended with exit code 3", [], id="exit-code"),
        pytest.param("echo a; echo b >&2; exit 3", 3, "ended with exit code 3", ["a", "b"], id="output"),
        pytest.param("nosuch 2>&-", 127, "ended with exit code 127 (command not found)", [], id="not-found"),
        pytest.param("seq 30; exit 1", 1, "ended with exit code 1", [str(n) for n in range(21, 31)], id="last-lines"),
        pytest.param("kill -TERM $$", -15, "was terminated by SIGTERM", [], id="signal"),
    ],
)
def test_failed_hook_is_one_event_with_its_last_lines(command: str, code: int, words: str, output: list[str]) -> None:
    shown: list[str] = []
    run = hooks_for(command, show=lambda *lines: shown.extend(lines))

    run(event())

    assert run.wait() == (failed(f"{words}: {command}", code, *output),)
    # Lines that were shown before the end are among the last lines, too.
    earlier = [f"trainer: {n}" for n in range(1, 21)] if "seq" in command else []
    assert (run.poll(), shown[: len(earlier)]) == ((), earlier)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        pytest.param(
            EventKind.PREEMPTED, "gave-up: the hook for `preempted` ended with exit code 2: exit 2", id="runs"
        ),
        pytest.param(EventKind.GAVE_UP, "gave-up: it was", id="not-after-itself"),
    ],
)
def test_hook_for_a_node_given_up_runs_after_a_failed_hook(tmp_path: Path, kind: EventKind, end: str) -> None:
    give_up = f'echo "$TPUCTL_EVENT: $TPUCTL_REASON" >> {tmp_path}/end; cat >> {tmp_path}/json; exit 4'
    run = hooks_for("exit 2", {EventKind.GAVE_UP: give_up})
    reported: list[NodeEvent] = []

    run(event(kind, id="17"))
    failures = run.wait(reported.append)

    in_order = [failed("ended with exit code 2: exit 2", 2)] if kind is EventKind.PREEMPTED else []
    assert failures == (*in_order, failed(f"ended with exit code 4: {give_up}", 4, hook="gave-up"))
    assert (tuple(reported), (tmp_path / "end").read_text()) == (failures, f"{end}\n")
    data = {"hook": "preempted", "exit_code": 2, "output": []} if in_order else {}
    assert json.loads((tmp_path / "json").read_text()).items() >= {"id": "17", "event": "gave-up", **data}.items()


def test_hooks_that_fail_together_are_each_reported(tmp_path: Path) -> None:
    run = hooks_for("exit 2", {EventKind.GAVE_UP: f"echo $TPUCTL_NODE >> {tmp_path}/log"})

    for node in (NAME, OTHER):
        run(event(node=node))
        run(event(node=node))
    failures = run.wait()

    assert sorted(failure.node.node_id for failure in failures) == ["other", "other", "trainer", "trainer"]
    assert sorted((tmp_path / "log").read_text().split()) == ["other", "other", "trainer", "trainer"]


def test_hook_that_cannot_start_is_a_failure_and_the_next_runs() -> None:
    run = hooks_for("true", HUGE="x" * 3_000_000)

    run(event())
    run(event())

    assert run.poll() == (failed("could not be started (Argument list too long): true", None),) * 2


def test_hooks_that_queue_behind_a_hanging_one_are_skipped_with_a_report(tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = hooks_for(f'echo "$TPUCTL_REASON" >> {tmp_path}/log; until [ -e {go} ]; do sleep 0.01; done')

    for number in range(hooks.MAX_WAITING + 3):
        run(event(text=str(number)))

    assert [(failure.data["exit_code"], failure.text.partition(":")[0]) for failure in run.poll()] == [
        (None, "the hook for `preempted` was skipped, because 16 hooks are already waiting")
    ] * 2
    go.touch()
    assert run.wait() == ()
    assert (tmp_path / "log").read_text().split() == ["0", *map(str, range(3, hooks.MAX_WAITING + 3))]


def test_hooks_of_many_nodes_run_up_to_a_limit(tmp_path: Path) -> None:
    log, nodes = tmp_path / "log", [NodeName("p", "z", str(number)) for number in range(hooks.MAX_RUNNING + 2)]
    log.touch()
    run = hooks_for(f"echo $$ >> {log}; [ $TPUCTL_NODE -ge {hooks.MAX_RUNNING} ] || exec sleep 60")

    for node in nodes:
        run(event(node=node))

    until(lambda: len(log.read_text().split()) == hooks.MAX_RUNNING)
    assert run.poll() == ()
    first, *others = map(int, log.read_text().split())
    os.kill(first, signal.SIGKILL)
    until(lambda: run.poll() is not None and len(log.read_text().split()) == len(nodes))
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    assert {failure.data["exit_code"] for failure in run.wait()} == {-9}


def test_hook_survives_ctrl_c_and_our_exit(tmp_path: Path) -> None:
    code = """
import os, sys, time
from datetime import UTC, datetime
from tpuctl.clock import SystemClock
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.nodes.hooks import Hooks
from tpuctl.names import NodeName
run = Hooks({EventKind.GAVE_UP: sys.argv[1:]}, os.environ, extra={}, show=print, clock=SystemClock())
run(NodeEvent(EventKind.GAVE_UP, datetime.now(UTC), NodeName("p", "z", "n"), "why"))
time.sleep(60)
"""
    wait = f"echo > {tmp_path}/started; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    command = f"{wait}; seq 100000 && echo done > {tmp_path}/done"
    program = subprocess.Popen(
        [sys.executable, "-c", code, command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    until((tmp_path / "started").exists)

    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=30)
    (tmp_path / "go").touch()

    until((tmp_path / "done").exists)
    assert (out, err.endswith(b"KeyboardInterrupt\n")) == (b"", True)


def app_with(flags: Mapping[str, object], environ: Mapping[str, str], folder: Path) -> App:
    app = App(Invocation((), environ, StandardStreams.of_process(), folder))
    app.set_options(dict(flags))
    return app


def test_tpuctl_in_a_hook_finds_the_node_of_the_event(sandbox: Sandbox, tmp_path: Path) -> None:
    """The sandbox was selected by a flag, and the node is not in the default zone."""
    sandbox.add_node("trainer", zone="us-central2-b", state="PREEMPTED")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    app = app_with(
        {"sandbox": True}, {"PATH": path, "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}, tmp_path
    )
    run = build_hooks(
        app, {EventKind.RECOVERED: f'tpuctl status "$TPUCTL_NODE" -o json > {tmp_path}/found', EventKind.PREEMPTED: ""}
    )

    run(event(EventKind.RECOVERED, NodeName("sandbox", "us-central2-b", "trainer")))

    assert run.wait() == ()
    (found,) = json.loads((tmp_path / "found").read_text())
    assert (found["name"], found["state"]) == ("projects/sandbox/locations/us-central2-b/nodes/trainer", "PREEMPTED")


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        pytest.param("tpuctl explain -", "", id="event-is-not-input"),
        pytest.param("echo Socket closed | tpuctl explain -", "tf-socket-closed", id="pipe-in-the-hook-is-input"),
        pytest.param("(sleep 0; tpuctl explain - )", "", id="also-from-a-subshell"),
    ],
)
def test_tpuctl_in_a_hook_does_not_read_the_event_as_its_input(command: str, reads: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = hooks_for(f"{command} > {tmp_path}/out 2>&1; exit 0", PATH=path, HOME=str(tmp_path))

    run(event(text="UNAVAILABLE: Connection reset by peer"))

    assert run.wait() == ()
    said = (tmp_path / "out").read_text()
    assert ("Connection reset" in said, reads in said) == (False, True)


def test_tpuctl_in_a_hook_uses_the_cloud_of_the_run_despite_a_project_file(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text("sandbox: true\n")
    flags = {"sandbox": False, "endpoint": "http://localhost:1", "user": "ada"}
    commands = {EventKind.GAVE_UP: f"env | grep ^TPUCTL_ | sort > {tmp_path}/env"}
    run = build_hooks(app_with(flags, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, tmp_path), commands)

    run(event(EventKind.GAVE_UP))

    assert run.wait() == ()
    assert {"TPUCTL_SANDBOX=0", "TPUCTL_ENDPOINT=http://localhost:1", "TPUCTL_USER=ada"} < set(
        (tmp_path / "env").read_text().split("\n")
    )


@pytest.mark.parametrize("command", ["./nosuch", "./nosuch --fast", "/nosuch/program"])
def test_hook_with_the_path_of_no_program_is_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        build_hooks(app_with({}, {"HOME": str(tmp_path)}, tmp_path), {EventKind.RECOVERED: command})

    program = command.split(maxsplit=1)[0]
    assert str(refused.value) == f"`--on-recover`: there is no program `{program}`"


@pytest.mark.parametrize(
    "command", ["./hook.sh", "nosuch", "$HOME/nosuch", "~/nosuch", "cd ./nosuch && make", "./nosuch;"]
)
def test_hook_that_may_run_is_accepted(tmp_path: Path, command: str) -> None:
    (tmp_path / "hook.sh").touch()

    assert build_hooks(app_with({}, {"HOME": str(tmp_path)}, tmp_path), {EventKind.RECOVERED: command})


def test_command_has_options_for_the_hooks_it_runs() -> None:
    def nothing() -> None:
        pass

    def flags(function: Callable[..., object]) -> list[str]:
        return [option for param in click.command()(function).params for option in param.opts]

    assert flags(hook_options()(nothing)) == [
        "--on-preempt", "--on-usable", "--on-recover", "--on-maintenance", "--on-give-up"
    ]  # fmt: skip

    def up() -> None:
        pass

    assert flags(hook_options(EventKind.RECOVERED)(up)) == ["--on-recover"]
