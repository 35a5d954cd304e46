"""`tpuctl explain`: logs, messages, ids and topics, with the node at hand; what it says, shows and does."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import one_face, put

GUIDE = Path(__file__).parent / "diagnosis" / "guide_logs"
SOCKET = "2026-01-01T00:05:00Z tensorflow.python.framework.errors_impl.UnavailableError: Socket closed\n"
IN_USE = (
    "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 2718466. "
    "Not attempting to load libtpu.so in this process.\n"
)
# What the notes say of each of their logs: id, action, and what the remedy has to tell.
NOTES = {
    "bad_alloc": ("host-bad-alloc", "host-memory", ("fewer jobs", "more memory")),
    "libcurl": ("gcs-libcurl-28", "fix-bucket", ("again",)),
    "enqueue": ("tf-enqueue", "restart-node", ("wait", "WAIT_FOR_COORDINATOR")),
    "retrying": ("tf-master", "restart-node", ("tpuctl reset", "anew")),
    "vmem": ("vmem-oom", "fix-training-code", ("512 or 256",)),
}


def verdicts(console: Console, *arguments: str, **how: Any) -> list[dict[str, Any]]:
    """Return the verdicts that scripts get."""
    out, err, code = console("explain", *arguments, "-o", "json", **how)
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)["verdicts"]
    return found


@pytest.mark.parametrize("name", NOTES)
def test_a_log_of_the_notes_gets_their_answer(offline: Console, name: str) -> None:
    first = verdicts(offline, "-", piped=(GUIDE / f"{name}.log").read_text("utf-8"))[0]
    id_, action, words = NOTES[name]
    assert (first["id"], first["action"], first["where"], first["symptom_of"]) == (id_, action, "training-log", None)
    assert [word for word in words if word not in " ".join(first["remedy"])] == []


def test_all_logs_of_the_notes_in_one_get_all_their_answers(offline: Console) -> None:
    everything = "\n".join((GUIDE / f"{name}.log").read_text("utf-8") for name in NOTES)
    found = {one["id"]: one for one in verdicts(offline, piped=everything)}
    for id_, action, words in NOTES.values():
        assert (found[id_]["action"], found[id_]["symptom_of"]) == (action, None)
        assert [word for word in words if word not in " ".join(found[id_]["remedy"])] == []
    assert found["tf-master"]["facts"] == {"address": "grpc://10.3.2.2:8470", "attempt": "12", "attempts": "120"}
    assert (found["tf-step-cancelled"]["symptom_of"], found["tf-compile-failed"]["symptom_of"]) == ("vmem-oom",) * 2


def test_repeats_are_told_with_their_times(offline: Console) -> None:
    lines = [
        f"2019-01-13 {10 + minute // 60:02}:{minute % 60:02}:46.904944: W tensorflow/x.cc:349] WARNING:tensorflow:"
        f"Failed to connect to the Tensorflow master. The TPU worker may not be ready. Retrying ({minute}/120).\n"
        for minute in range(1, 121)
    ]
    out, _, code = offline("explain", "-", terminal=True, piped="".join(lines))
    assert (code, "\N{MULTIPLICATION SIGN}120, 10:01 to 12:00" in out) == (0, True)


@one_face
def test_the_state_of_the_node_goes_before_the_log(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    first, second = verdicts(tpuctl, "-", "--node", "demo", piped=SOCKET)
    assert (first["id"], first["action"], first["first_line"], first["count"]) == (
        "node-preempted",
        "recreate-node",
        None,
        0,
    )
    assert first["remedy"][0] == "make it anew with `tpuctl up demo`, and go on from the last checkpoint"
    assert (second["id"], second["symptom_of"]) == ("tf-socket-closed", "node-preempted")


@one_face
def test_a_healthy_node_is_not_blamed(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, createTime="2025-12-31T00:00:00Z")
    (only,) = verdicts(tpuctl, "-", "--node", "demo", piped=SOCKET)
    assert (only["id"], only["confidence"]) == ("tf-socket-closed", "medium")
    assert only["why"] == "`demo` is READY and HEALTHY just now, so look at its workers next"


@one_face
def test_a_spot_node_whose_request_was_suspended_was_preempted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("asked", state="SUSPENDED", initiator="SERVICE", node_ids=("demo",))
    first, _ = verdicts(tpuctl, "-", "--node", "demo", piped=SOCKET)
    assert first["id"] == "node-preempted"


@one_face
def test_a_node_that_nobody_knows_says_nothing(tpuctl: Console) -> None:
    out, err, code = tpuctl("explain", "-", "--node", "typo", "-o", "name", piped=SOCKET)
    assert (out, code) == ("tf-socket-closed\n", 0)
    assert err.endswith("so its state says nothing about the log\n")
    assert "typo" not in tpuctl("explain", "-", "--node", "typo", piped=SOCKET)[0]


@one_face
def test_an_api_that_fails_is_no_state(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("http-error", status=503, count=500)
    out, err, code = tpuctl("explain", "-", "--node", "demo", "-o", "name", piped=SOCKET)
    assert (out, code) == ("tf-socket-closed\n", 0)
    assert "warning: `demo` could not be looked at, so only the log counts" in err


@one_face
def test_act_makes_a_dead_node_anew(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (0, ["delete", "create"])
    assert "for `node-preempted`: `tpuctl up demo`" in err


@one_face
def test_act_does_nothing_that_nobody_agreed_to(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", piped=SOCKET)
    assert (code, sandbox.changes()) == (2, [])
    assert "cannot ask for confirmation" in err
    _, err, code = tpuctl("explain", "Socket closed", "--node", "demo", "--act", stdin="n\n")
    assert (code, sandbox.changes()) == (1, [])


@one_face
def test_act_never_makes_a_living_node_anew(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    text = "UNKNOWN: TPU initialization failed: No ba16c7433 device found."
    _, err, code = tpuctl("explain", text, "--node", "demo", "--act", "--yes")
    assert (code, sandbox.changes()) == (8, [])
    assert "error: `demo` is READY, so it is not made anew: what is on its disk would be lost" in err


@one_face
def test_act_does_nothing_for_what_is_not_sure(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (1, [])
    assert "error: tpuctl does not act: it is not sure enough that it is `tf-socket-closed`\n  hint: " in err


@one_face
def test_act_does_what_the_remedy_says(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED")
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (0, ["start"])
    assert "for `node-stopped`: `tpuctl start demo`" in err


@one_face
def test_act_lets_unstick_end_only_what_the_log_names(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    out, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=f"[0] {IN_USE}" * 3)
    assert "tpu-in-use-pid\tkill-stale-process\t" in out
    assert "for `tpu-in-use-pid`: `tpuctl unstick demo --pid 2718466`" in err.replace(" --worker 0", "")
    assert code != 0  # the fake ssh tells nothing of that process


@one_face
def test_act_leaves_a_node_alone_that_is_younger_than_the_log(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    log = f"2024-05-01T10:00:00Z {IN_USE}"
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=log)
    assert (code, "error: the log is older than `demo`, which was made anew since" in err) == (8, True)


@one_face
def test_act_makes_nothing_anew_that_somebody_took_down(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--for", "ready")[2] == 0
    assert tpuctl("down", "demo", "--yes")[2] == 0
    before = sandbox.changes()
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (1, before)
    assert "it can do nothing itself about `node-gone`" in err


@one_face
def test_act_says_what_tpuctl_cannot_do(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    _, err, code = tpuctl("explain", "ValueError: No space left on device", "--node", "demo", "--act", "--yes")
    assert (code, sandbox.changes()) == (1, [])
    assert "error: tpuctl does not act: it can do nothing itself about `disk-full`\n  hint: " in err


def test_nothing_that_is_known(offline: Console) -> None:
    log = "step 1 loss 2.3\nFrobnicationError: the frobnicator failed\nstep 2\n"
    out, err, code = offline("explain", "-", piped=log)
    assert (out, code) == ("2  FrobnicationError: the frobnicator failed\n", 1)
    assert err == "warning: nothing that tpuctl knows is in these 3 lines\nthe lines that look most like an error:\n"
    out, _, code = offline("explain", "-", "-o", "json", piped=log)
    told = json.loads(out)
    assert (code, told["verdicts"], [place["line"] for place in told["suspicious"]]) == (1, [], [2])


def test_a_word_that_may_have_been_meant_as_a_file(offline: Console) -> None:
    assert offline("explain", "trainlog") == (
        *(
            "",
            "warning: nothing that tpuctl knows is in this line\n`trainlog` is no file, so it was taken as a message\n",
        ),
        1,
    )


def test_what_is_harmless_is_said_to_be(offline: Console) -> None:
    log = "Estimator's model_fn (<function f>) includes params argument, but params are not passed to Estimator.\n"
    out, err, code = offline("explain", "-", piped=log)
    assert (out, code) == ("", 0)
    assert err.startswith("nothing is wrong as far as tpuctl knows: what it recognised is harmless")


def test_a_message_may_be_given_in_words(offline: Console) -> None:
    assert verdicts(offline, IN_USE)[0]["facts"] == {"pid": "2718466"}
    # Quotation marks of the user's own do not make a quote of it.
    assert verdicts(offline, f'"{IN_USE.strip()}"')[0]["confidence"] == "high"
    # What is too general to be looked for in logs is known where it is all that there is.
    (only,) = verdicts(offline, "RESOURCE_EXHAUSTED: something is used up")
    assert (only["id"], only["confidence"]) == ("exhausted-api", "medium")


def test_files_are_one_log_each_named(offline: Console) -> None:
    (offline.folder / "worker-0.log").write_text("DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect\n")
    with gzip.open(offline.folder / "worker-1.log.gz", "wt") as stream:
        stream.write("fine\nOSError: [Errno 28] No space left on device\n")
    first, second = verdicts(offline, "worker-0.log", "worker-1.log.gz")
    assert (first["id"], first["file"], first["first_line"], first["worker"]) == (
        *("disk-full", "worker-1.log.gz", 2),
        "1",
    )
    assert (second["id"], second["symptom_of"]) == ("barrier-timeout", "disk-full")


@pytest.mark.parametrize(
    ("arguments", "piped", "expected"),
    [
        (["-"], "", "error: `stdin` is empty\n  hint: there is nothing to explain\n"),
        (["empty.log"], "", "error: `empty.log` is empty\n  hint: there is nothing to explain\n"),
        (["none.log"], "", "error: there is no file `none.log`\n  hint: name a log file, or `-` for stdin\n"),
        (["empty.log", "none"], "", "error: there is no file `none`\n  hint: name a log file, or `-` for stdin\n"),
        (["logs/none"], "", "error: there is no file `logs/none`\n  hint: name a log file, or `-` for stdin\n"),
        (
            ["folder"],
            "",
            "error: `folder` cannot be read: is a directory\n  hint: name the files in it, as `folder/*`\n",
        ),
        ([""], "", "error: the message is empty\n  hint: give the message in quotes, or name a log file\n"),
        (["  "], "", "error: the message is empty\n  hint: give the message in quotes, or name a log file\n"),
        (
            ["--act", "--node", "x", "no-capacity"],
            "",
            "error: `--act` goes with a log or a message, not with an id\n  hint: give the log\n",
        ),
        (["--act", "x y"], "", "error: `--act` needs to know the node\n  hint: name it with `--node NODE`\n"),
        (
            ["--topic", "x", "--node", "y"],
            "",
            "error: `--topic` goes with nothing else\n  hint: `tpuctl explain --topic NAME` shows one topic\n",
        ),
    ],
)
def test_bad_input(offline: Console, arguments: list[str], piped: str, expected: str) -> None:
    (offline.folder / "empty.log").touch()
    (offline.folder / "folder").mkdir()
    assert offline("explain", *arguments, piped=piped) == ("", expected, 2)


def test_nothing_to_explain_at_a_terminal(offline: Console) -> None:
    _, err, code = offline("explain", stdin="")
    assert (code, err.splitlines()[0]) == (2, "error: explain what?")


def test_what_is_no_text(offline: Console) -> None:
    (offline.folder / "core").write_bytes(bytes(range(256)) * 64)
    _, err, code = offline("explain", "core")
    assert code == 1
    assert err.startswith("warning: nothing that tpuctl knows is in ")
    assert "(it is no text)" in err


@pytest.mark.parametrize(
    "id_", ["capacity-zone", "no-capacity", "TPU101", "tpu901", "exit-7", "usage", "node-preempted"]
)
def test_an_id_is_explained(offline: Console, id_: str) -> None:
    out, err, code = offline("explain", id_)
    assert (code, err) == (0, "")
    assert out.lower().startswith(id_.lower())


def test_an_id_that_nobody_has(offline: Console) -> None:
    _, err, code = offline("explain", "capacity-zon")
    said = "error: tpuctl knows no error, message or finding `capacity-zon`\n  hint: did you mean `capacity-zone`, "
    assert (code, err.startswith(said)) == (3, True)


def test_topics(offline: Console) -> None:
    out, _, code = offline("explain", "--topic")
    assert (code, "batch-size\thow large a batch should be\n" in out) == (0, True)
    out, _, code = offline("explain", "--topic", "Batch size")
    assert (code, "1024" in out, "8 per core" in out) == (0, True, True)
    assert offline("explain", "batch-size")[0] == out
    assert offline("explain", "--topic", "batchsiz") == (
        *("", "error: there is no topic `batchsiz`\n  hint: did you mean `batch-size`?\n"),
        3,
    )


def test_an_endless_log_is_answered_at_ctrl_c(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}
    running = subprocess.Popen(
        [sys.executable, "-m", "tpuctl", "explain", "-", "-o", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        cwd=tmp_path,
    )
    assert running.stdin is not None
    # More than a pipe holds: when this has been written, most of it was read.
    running.stdin.write(IN_USE.encode() + b"step 1 loss 2.5\n" * 20_000)
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert (running.returncode, err) == (130, b"")
    assert json.loads(out)["verdicts"][0]["id"] == "tpu-in-use-pid"
