"""`Client.run`: commands on workers, their output as values, and the node that is never left behind."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tests.lifecycle import own, put
from tests.nodes.test_busy_nodes import ON_THIS, Worker
from tpuctl import (
    Client,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutputPiece,
    RemoteCommandError,
    TimedOutError,
    TpuctlError,
    WorkerOutcome,
)

TRAIN = Path(__file__).resolve().parents[2] / "examples/python/train.py"
SHORT = timedelta(seconds=0.2)


@pytest.fixture
def worker(tmp_path: Path, fake_ssh: Callable[[str], None]) -> Worker:
    """Let all commands on workers run on this machine."""
    found = Worker(tmp_path / "root")
    fake_ssh(ON_THIS.format(root=found.root))
    return found


@pytest.fixture
def pair(sandbox: Sandbox, worker: Worker) -> str:
    """Return the name of a node with two workers."""
    put(sandbox, "pair", acceleratorType="v4-16")
    return "pair"


def test_result_has_exit_code_and_output_of_each_worker(client: Client, pair: str) -> None:
    line = "echo $A $TPUCTL_WORKER_ID; printf 'no newline' >&2; exit $TPUCTL_WORKER_ID"

    result = client.run(pair, line, env={"A": "a  b"})

    runs = [(one.node.node_id, one.worker, one.exit_code, one.stdout, one.stderr) for one in result.workers]
    assert runs == [("pair", 0, 0, "a b 0\n", "no newline"), ("pair", 1, 1, "a b 1\n", "no newline")]
    assert [(one.is_good, one.is_cut, one.outcome) for one in result.workers] == [
        (True, False, WorkerOutcome.EXITED),
        (False, False, WorkerOutcome.EXITED),
    ]
    with pytest.raises(RemoteCommandError, match=r"the command failed on 1 of 2 workers: 1 \(exit 1\)"):
        result.check()


def test_sequence_is_an_argument_vector(client: Client, pair: str) -> None:
    result = client.run(pair, ["printf", "%s|", "a b", "$HOME", ";"], workers=0)

    assert [one.stdout for one in result.check().workers] == ["a b|$HOME|;|"]


def test_output_arrives_as_it_was_sent(client: Client, pair: str) -> None:
    pieces: list[OutputPiece] = []

    result = client.run(pair, r"printf '\033]0;title\007\377'", workers="1", on_output=pieces.append)

    assert b"".join(piece.data for piece in pieces) == b"\x1b]0;title\x07\xff"
    assert {(piece.worker, piece.is_stderr) for piece in pieces} == {(1, False)}
    assert result.workers[0].stdout == "\x1b]0;title\x07\N{REPLACEMENT CHARACTER}"


def test_only_the_end_of_long_output_is_kept(client: Client, pair: str) -> None:
    line = "head -c 3000000 /dev/zero | tr '\\0' x; echo end"

    (run,) = client.run(pair, line, workers="0").check().workers

    assert (run.is_cut, len(run.stdout), run.stdout[-5:]) == (True, 1024 * 1024, "xend\n")


def test_command_is_terminated_after_its_time(client: Client, pair: str) -> None:
    result = client.run(pair, "sleep 100", workers="0", timeout=SHORT)

    assert (result.is_good, type(result.error)) == (False, TimedOutError)


@pytest.mark.parametrize(
    ("node", "arguments", "error"),
    [
        pytest.param("pair", {"workers": "7"}, InvalidInputError, id="worker"),
        pytest.param("pair", {"workers": "x"}, InvalidInputError, id="workers"),
        pytest.param("pair", {"command": " "}, InvalidInputError, id="no-command"),
        pytest.param("pair", {"command": ()}, InvalidInputError, id="no-words"),
        pytest.param("pair", {"env": {"A B": "1"}}, InvalidInputError, id="variable"),
        pytest.param("pair", {"timeout": timedelta()}, InvalidInputError, id="timeout"),
        pytest.param("none", {}, NotFoundError, id="absent"),
        pytest.param("stopped", {}, ConflictError, id="stopped"),
    ],
)
@pytest.mark.usefixtures("pair")
def test_command_that_cannot_start_is_an_exception(
    client: Client, sandbox: Sandbox, node: str, arguments: dict[str, str], error: type[TpuctlError]
) -> None:
    put(sandbox, "stopped", state="STOPPED")

    with pytest.raises(error):
        client.run(node, **({"command": "true"} | arguments))  # type: ignore[arg-type]  # a column


def test_interruption_says_what_becomes_of_the_command(client: Client, pair: str) -> None:
    def press(_: OutputPiece) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        client.run(pair, "echo", workers="0", on_output=press)

    assert raised.value.__notes__ == ["the command on `pair` is terminated after 5m without a client"]


def test_node_in_use_is_deleted_only_with_consent(client: Client, sandbox: Sandbox, worker: Worker) -> None:
    own(sandbox, "trainer")
    client.run("trainer", "true").check()
    handle = worker.start_job("train", "./train.sh", 90)

    with pytest.raises(ConflictError, match=r"`trainer` .*is in use: job `train`"):
        client.down("trainer")
    left = sandbox.changes().count("delete")
    os.close(handle)

    assert (left, client.down("trainer")) == (0, True)


@pytest.mark.parametrize(
    ("line", "code"),
    [pytest.param("true", 0, id="success"), pytest.param("exit 3", 11, id="failure")],
)
def test_example_leaves_no_node(client: Client, sandbox: Sandbox, worker: Worker, line: str, code: int) -> None:
    train, pieces = runpy.run_path(str(TRAIN))["train"], list[OutputPiece]()

    assert (train(client, "v4-8", line, pieces.append), client.list()) == (code, [])
    assert [change for change in sandbox.changes() if change != "patch"] == ["create", "delete"]


def test_example_leaves_no_node_after_an_interruption(client: Client, sandbox: Sandbox, worker: Worker) -> None:
    train = runpy.run_path(str(TRAIN))["train"]

    def press(_: OutputPiece) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(client, "v4-8", "echo; sleep 100", press)

    assert client.list() == []


@pytest.mark.parametrize("sync", [pytest.param(False, id="default"), pytest.param(True, id="sync")])
def test_run_syncs_only_the_folder_that_is_given(
    client: Client, pair: str, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sync: bool
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name in ("train.py", "tpuctl.yaml"):
        (code / name).write_text("")
    monkeypatch.chdir(code)

    result = client.run(pair, "pwd", workers=0, sync=code if sync else None)

    assert (worker.root / "code/train.py").exists() is sync
    assert result.workers[0].stdout == f"{worker.root / 'code' if sync else code}\n"


def test_detached_command_is_a_job_that_is_listed_and_read(client: Client, pair: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    line = f"echo begin; while [ ! -e {go} ]; do sleep 0.02; done; echo end $TPUCTL_WORKER_ID; exit $TPUCTL_WORKER_ID"

    result = client.run(pair, line, detach=True, name="nightly")

    assert (result.job, result.is_good) == ("nightly", True)
    assert {one.outcome for one in result.workers} == {WorkerOutcome.DETACHED}
    (job,) = client.jobs(pair)
    assert (job.job, job.nodes, job.state, job.is_running, job.exit_codes, job.command) == (
        "nightly",
        ("pair",),
        "running on 2 workers",
        True,
        (None, None),
        line,
    )
    early = client.logs(pair, workers=0)
    assert [(one.outcome, one.exit_code) for one in early.workers] == [(WorkerOutcome.DETACHED, None)]
    go.touch()
    pieces: list[OutputPiece] = []
    late = client.logs(pair, "nightly", follow=True, on_output=pieces.append)
    assert [(one.stdout, one.exit_code) for one in late.workers] == [("begin\nend 0\n", 0), ("begin\nend 1\n", 1)]
    assert isinstance(late.error, RemoteCommandError)
    assert {piece.worker for piece in pieces} == {0, 1}
    (job,) = client.jobs()
    assert (job.exit_codes, job.is_running) == ((0, 1), False)
    assert [one.stdout for one in client.logs(pair, tail=1).workers] == ["end 0\n", "end 1\n"]
    assert [one.stdout for one in client.logs(pair, since=timedelta(hours=1), workers=1).workers] == ["begin\nend 1\n"]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda client: client.logs("pair", "none"), id="logs"),
        pytest.param(lambda client: client.jobs("none"), id="jobs"),
        pytest.param(lambda client: client.sync("none"), id="sync"),
        pytest.param(lambda client: client.copy("none:a", "b"), id="copy"),
    ],
)
@pytest.mark.usefixtures("pair")
def test_work_on_what_does_not_exist_is_not_found(client: Client, call: Callable[[Client], object]) -> None:
    with pytest.raises(NotFoundError):
        call(client)


def test_sync_and_copy_return_what_each_worker_got(client: Client, pair: str, tmp_path: Path) -> None:
    source = tmp_path / "code"
    source.mkdir()
    (source / "train.py").write_text("print(1)\n")

    synced = client.sync(pair, source, to=str(tmp_path / "there"), workers=0)

    assert [(one.node.node_id, one.worker, one.files, one.size) for one in synced] == [("pair", 0, 1, 9)]
    assert Path(synced[0].folder, "train.py").read_text() == "print(1)\n"
    assert [one.files for one in client.sync(pair, source, to=str(tmp_path / "there"), workers=0)] == [0]
    copied = client.copy(source / "train.py", f"{pair}:{tmp_path}/copied.py", workers=0)
    assert [(one.worker, one.files, one.size) for one in copied] == [(0, 1, 9)]
    client.copy(f"{pair}:{tmp_path}/copied.py", tmp_path / "back.py", workers=0)
    assert (tmp_path / "back.py").read_text() == "print(1)\n"
    with pytest.raises(InvalidInputError, match="no such folder"):
        client.sync(pair, tmp_path / "absent")
    with pytest.raises(InvalidInputError, match="no path is on a node"):
        client.copy("a", "b")
