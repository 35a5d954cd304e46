"""`tpuctl explain`: logs, messages, ids and topics, with the node at hand; what it says, shows and does."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put
from tests.tpuctl_process import TpuctlProcess

GUIDE = Path(__file__).with_name("guide_logs")
SOCKET = "2026-01-01T00:05:00Z tensorflow.python.framework.errors_impl.UnavailableError: Socket closed\n"
IN_USE = (
    "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 2718466. "
    "Not attempting to load libtpu.so in this process.\n"
)
# What the notes say of each of their logs: id, action, and what the remedy has to tell. A restart needs certainty: then `none`.
NOTES = {
    "bad_alloc": ("host-bad-alloc", "host-memory", ("fewer jobs", "more memory")),
    "libcurl": ("gcs-libcurl-28", "wait", ("again",)),
    "enqueue": ("tf-enqueue", "none", ("wait", "WAIT_FOR_COORDINATOR")),
    "retrying": ("tf-master", "none", ("tpuctl reset", "recreate it")),
    "vmem": ("vmem-oom", "fix-training-code", ("512 or 256",)),
}


def verdicts(console: Console, *arguments: str, **how: Any) -> list[dict[str, Any]]:
    """Return the verdicts that scripts get."""
    out, err, code = console("explain", *arguments, "-o", "json", **how)
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)["verdicts"]
    return found


@pytest.mark.parametrize("name", NOTES)
def test_explain_guide_log_gets_its_answer(offline: Console, name: str) -> None:
    first = verdicts(offline, "-", piped=(GUIDE / f"{name}.log").read_text("utf-8"))[0]
    id_, action, words = NOTES[name]
    assert (first["id"], first["action"], first["where"], first["symptom_of"]) == (id_, action, "training-log", None)
    assert [word for word in words if word not in " ".join(first["remedy"])] == []


def test_explain_combined_guide_logs_get_all_answers(offline: Console) -> None:
    everything = "\n".join((GUIDE / f"{name}.log").read_text("utf-8") for name in NOTES)
    found = {one["id"]: one for one in verdicts(offline, piped=everything)}
    for id_, action, words in NOTES.values():
        assert (found[id_]["action"], found[id_]["symptom_of"]) == (action, None)
        assert [word for word in words if word not in " ".join(found[id_]["remedy"])] == []
    assert found["tf-master"]["facts"] == {"address": "grpc://10.3.2.2:8470", "attempt": "12", "attempts": "120"}
    assert (found["tf-step-cancelled"]["symptom_of"], found["tf-compile-failed"]["symptom_of"]) == ("vmem-oom",) * 2


def test_explain_repeats_show_times(offline: Console) -> None:
    lines = [
        f"2019-01-13 {10 + minute // 60:02}:{minute % 60:02}:46.904944: W tensorflow/x.cc:349] WARNING:tensorflow:"
        f"Failed to connect to the Tensorflow master. The TPU worker may not be ready. Retrying ({minute}/120).\n"
        for minute in range(1, 121)
    ]
    out, _, code = offline("explain", "-", terminal=True, piped="".join(lines))
    assert (code, "\N{MULTIPLICATION SIGN}120, 10:01 to 12:00" in out) == (0, True)


def test_explain_node_state_comes_before_log(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    first, second = verdicts(tpuctl, "-", "--node", "demo", piped=SOCKET)
    assert (first["id"], first["action"], first["first_line"], first["count"]) == (
        "node-preempted",
        "recreate-node",
        None,
        0,
    )
    assert first["remedy"][0] == "recreate it with `tpuctl up demo`, and continue from the last checkpoint"
    assert (second["id"], second["symptom_of"]) == ("tf-socket-closed", "node-preempted")


def test_explain_healthy_node_is_not_blamed(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, createTime="2025-12-31T00:00:00Z")
    (only,) = verdicts(tpuctl, "-", "--node", "demo", piped=SOCKET)
    assert (only["id"], only["confidence"]) == ("tf-socket-closed", "medium")
    assert only["why"] == "`demo` is READY and HEALTHY now, so check its workers next"


def test_explain_suspended_request_means_preempted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("asked", state="SUSPENDED", initiator="SERVICE", node_ids=("demo",))
    first, _ = verdicts(tpuctl, "-", "--node", "demo", piped=SOCKET)
    assert first["id"] == "node-preempted"


def test_explain_unknown_node_warns(tpuctl: Console) -> None:
    out, err, code = tpuctl("explain", "-", "--node", "typo", "-o", "name", piped=SOCKET)
    assert (out, code) == ("tf-socket-closed\n", 0)
    assert err.endswith("so its state does not explain the log\n")
    assert "typo" not in tpuctl("explain", "-", "--node", "typo", piped=SOCKET)[0]


def test_explain_failing_api_is_not_a_state(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("http-error", status=503, count=500)
    out, err, code = tpuctl("explain", "-", "--node", "demo", "-o", "name", piped=SOCKET)
    assert (out, code) == ("tf-socket-closed\n", 0)
    assert "warning: cannot read the state of `demo`, so only the log counts" in err


def test_act_recreates_dead_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (0, ["delete", "create"])
    assert "for `node-preempted`: `tpuctl up demo`" in err


def test_act_without_confirmation_does_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", piped=SOCKET)
    assert (code, sandbox.changes()) == (2, [])
    assert "cannot ask for confirmation" in err
    _, err, code = tpuctl("explain", "Socket closed", "--node", "demo", "--act", stdin="n\n")
    assert (code, sandbox.changes()) == (1, [])


def test_act_never_recreates_living_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    text = 'This TPU has terminal state "PREEMPTED", so it cannot be used anymore.'
    _, err, code = tpuctl("explain", text, "--node", "demo", "--act", "--yes")
    assert (code, sandbox.changes()) == (8, [])
    assert "error: `demo` is READY, so it is not recreated: the data on its disk would be lost" in err


def test_act_uncertain_verdict_does_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (1, [])
    assert "error: `--act` does nothing: `tf-socket-closed` is not certain enough\n  hint: " in err


def test_act_runs_command_of_remedy(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED")
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (0, ["start"])
    assert "for `node-stopped`: `tpuctl start demo`" in err


@pytest.mark.parametrize(
    ("log", "commands"),
    [
        (f"[0] {IN_USE}" * 3, ["--worker 0 --pid 2718466 --started-before NOW"]),
        (IN_USE, ["--pid 2718466 --started-before NOW"]),
        (
            f"[0] 2026-01-01T00:05:00Z {IN_USE}[1] 2026-01-01 00:06:07 {IN_USE.replace('2718466', '31')}",
            [
                "--worker 0 --pid 2718466 --started-before 2026-01-01T00:05:00Z",
                "--worker 1 --pid 31 --started-before 2026-01-01T00:06:07Z",
            ],
        ),
        (
            "[2] RuntimeError: TPU is already in use by process\n" + f"[1] 2999-01-01T00:05:00Z {IN_USE}",
            ["--worker 2 --started-before NOW", "--worker 1 --pid 2718466 --started-before NOW"],
        ),
    ],
)
def test_act_limits_unstick_to_the_process_of_each_worker(
    tpuctl: Console, sandbox: Sandbox, log: str, commands: list[str]
) -> None:
    put(sandbox, acceleratorType="v4-32")
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=log)

    now = datetime.now(UTC).isoformat()[:14]
    found = re.findall(r"^for `tpu-in-use-pid`: `tpuctl unstick demo (.*)`$", err, re.MULTILINE)
    assert [re.sub(f"{now}[0-9:]+Z", "NOW", one) for one in found] == commands
    assert code != 0  # the fake ssh does not know that process


def test_act_leaves_node_newer_than_log_alone(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    log = f"2024-05-01T10:00:00Z {IN_USE}"
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=log)
    assert (code, "error: the log is older than `demo`, which was recreated since" in err) == (8, True)


def test_act_does_not_recreate_deleted_node(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--for", "ready")[2] == 0
    assert tpuctl("down", "demo", "--yes")[2] == 0
    before = sandbox.changes()
    _, err, code = tpuctl("explain", "-", "--node", "demo", "--act", "--yes", piped=SOCKET)
    assert (code, sandbox.changes()) == (1, before)
    assert "tpuctl has no command that fixes `node-gone`" in err


def test_act_without_command_names_remedy(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    _, err, code = tpuctl("explain", "ValueError: No space left on device", "--node", "demo", "--act", "--yes")
    assert (code, sandbox.changes()) == (1, [])
    assert "error: `--act` does nothing: tpuctl has no command that fixes `disk-full`\n  hint: " in err


def test_explain_log_without_known_message_shows_suspicious_lines(offline: Console) -> None:
    log = "step 1 loss 2.3\nthe frobnicator failed\nstep 2\n"
    out, err, code = offline("explain", "-", piped=log)
    assert (out, code) == ("2  the frobnicator failed\n", 1)
    assert err == "warning: no known message in these 3 lines\nthe lines that look most like an error:\n"
    out, _, code = offline("explain", "-", "-o", "json", piped=log)
    document = json.loads(out)
    assert (code, document["verdicts"], [place["line"] for place in document["suspicious"]]) == (1, [], [2])


FROBNICATED = """\
step 1 loss 2.3
Traceback (most recent call last):
  File "/home/ann/train.py", line 12, in main
    frobnicate(state)
  File "/usr/lib/python3/dist-packages/frob/core.py", line 99, in frobnicate
    raise FrobnicationError(path)
FrobnicationError: 17 frobs of gs://ann-secret-run/part-7 for ann@example.com
"""


def test_explain_log_without_known_message_guesses_its_kind(offline: Console) -> None:
    out, err, code = offline("explain", "-", terminal=True, piped=FROBNICATED)
    assert code == 1
    assert "  line 7\x1b[0m  (low confidence)\n" in out
    assert "an error in the program ended it: gs://ann-secret-run/part-7, raised in /home/ann/train.py:12\n" in out
    assert "  search for: FrobnicationError frobs of for\n" in out
    assert "no known message in these 7 lines\n" in err

    (verdict,) = json.loads(offline("explain", "-", "-o", "json", piped=FROBNICATED)[0])["verdicts"]
    assert (verdict["confidence"], verdict["action"], verdict["retriable"]) == ("low", "none", False)
    assert verdict["facts"] == {
        "what": "gs://ann-secret-run/part-7",
        "raised_in": "/home/ann/train.py:12",
        "search": "FrobnicationError frobs of for",
    }
    assert offline("explain", verdict["id"])[2] == 0


def test_guess_adds_the_reason_of_a_wrapper(offline: Console) -> None:
    """An unknown reason does not inherit an action, and the wrapper does not hide it."""
    log = "RuntimeError: Unable to initialize backend 'tpu': INVALID_ARGUMENT: frob 7 is not a valid frob\n"
    verdicts = json.loads(offline("explain", "-", "-o", "json", piped=log)[0])["verdicts"]
    assert [(one["id"], one["confidence"], one["action"]) for one in verdicts] == [
        ("jax-tpu-backend", "medium", "none"),
        ("unrecognised-request", "low", "none"),
    ]


def test_act_refuses_a_guess(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    message = "FATAL: the tpu device is busy, frobnicated"
    _, err, code = tpuctl("explain", message, "--node", "demo", "--act", "--yes")
    assert (code, sandbox.changes()) == (1, [])
    assert "error: `--act` does nothing: tpuctl has no command that fixes `unrecognised-device-busy`\n" in err


def test_report_of_unknown_lines_has_no_secrets(offline: Console) -> None:
    log = FROBNICATED + "ERROR: upload failed: HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 projects/ann-1\n"
    out, _, code = offline("explain", "-", "--report", "-", piped=log)
    assert code == 0
    assert "- 8 lines; verdicts: `unrecognised-" in out
    assert "    FrobnicationError: 17 frobs of gs://ann-secret-run/part-7 for account-1\n" in out
    assert "    ERROR: upload failed: HF_TOKEN=[redacted hugging-face-token] projects/PROJECT\n" in out

    _, err, code = offline("explain", "-", "--report", "report.md", piped=log)
    assert (code, err) == (0, "wrote report.md: read it, then attach it to an issue of tpuctl\n")
    assert (offline.folder / "report.md").read_text() == out
    _, err, code = offline("explain", "-", "--report", "report.md", piped=log)
    assert (code, "`--report report.md`: the file exists" in err) == (2, True)
    offline("explain", "-", "--report", "escaped.md", piped="FrobError: frob\x07 failed\n")
    assert "    FrobError: frob\\x07 failed\n" in (offline.folder / "escaped.md").read_text()
    _, err, code = offline("explain", "-", "--report", "nowhere/report.md", piped=log)
    assert (code, "cannot write `nowhere/report.md`: no such file or directory" in err) == (2, True)
    _, err, code = offline("explain", "-", "--report", "-", piped="step 1\n")
    assert (code, "nothing to report: no line looks like an error" in err) == (3, True)


def test_explain_missing_file_name_is_a_message(offline: Console) -> None:
    assert offline("explain", "trainlog") == (
        *(
            "",
            "warning: no known message in this line\n`trainlog` is not a file, so tpuctl read it as a message\n",
        ),
        1,
    )


def test_explain_harmless_messages_exits_0(offline: Console) -> None:
    log = "Estimator's model_fn (<function f>) includes params argument, but params are not passed to Estimator.\n"
    out, err, code = offline("explain", "-", piped=log)
    assert (out, code) == ("harmless: `tf-params-benign` (line 1)\n", 0)
    assert err.startswith("no failure found: the messages that tpuctl recognized are harmless")


def test_explain_message_on_command_line_ignores_quotation_marks(offline: Console) -> None:
    assert verdicts(offline, IN_USE)[0]["facts"] == {"pid": "2718466"}
    # Quotation marks of the user's own do not make a quote of it.
    assert verdicts(offline, f'"{IN_USE.strip()}"')[0]["confidence"] == "high"
    # What is too general to be looked for in logs is known where it is all that there is.
    (only,) = verdicts(offline, "RESOURCE_EXHAUSTED: something is used up")
    assert (only["id"], only["confidence"]) == ("exhausted-api", "medium")


def test_explain_several_files_are_one_log(offline: Console) -> None:
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
        (["-"], "", "error: `stdin` is empty\n  hint: give a log with content\n"),
        (["empty.log"], "", "error: `empty.log` is empty\n  hint: give a log with content\n"),
        (["none.log"], "", "error: file `none.log` does not exist\n  hint: name a log file, or `-` for stdin\n"),
        (["empty.log", "none"], "", "error: file `none` does not exist\n  hint: name a log file, or `-` for stdin\n"),
        (["logs/none"], "", "error: file `logs/none` does not exist\n  hint: name a log file, or `-` for stdin\n"),
        (
            ["folder"],
            "",
            "error: cannot read `folder`: is a directory\n  hint: name the files in it, such as `folder/*`\n",
        ),
        ([""], "", "error: the message is empty\n  hint: give the message in quotes, or name a log file\n"),
        (["  "], "", "error: the message is empty\n  hint: give the message in quotes, or name a log file\n"),
        (
            ["--act", "--node", "x", "no-capacity"],
            "",
            "error: `--act` needs a log or a message, not an id\n  hint: give the log\n",
        ),
        (["--act", "x y"], "", "error: `--act` needs `--node`\n  hint: name the node with `--node NODE`\n"),
        (
            ["--topic", "x", "--node", "y"],
            "",
            (
                "error: `--topic` cannot be combined with a log, `--node`, `--act` or `--report`\n"
                "  hint: `tpuctl explain --topic NAME` shows one topic\n"
            ),
        ),
    ],
)
def test_explain_invalid_input_is_a_usage_error(
    offline: Console, arguments: list[str], piped: str, expected: str
) -> None:
    (offline.folder / "empty.log").touch()
    (offline.folder / "folder").mkdir()
    assert offline("explain", *arguments, piped=piped) == ("", expected, 2)


def test_explain_without_input_on_terminal_fails(offline: Console) -> None:
    _, err, code = offline("explain", stdin="")
    assert (code, err.splitlines()[0]) == (2, "error: no input to explain")


def test_explain_binary_input_warns(offline: Console) -> None:
    (offline.folder / "core").write_bytes(bytes(range(256)) * 64)
    _, err, code = offline("explain", "core")
    assert code == 1
    assert err.startswith("warning: no known message in ")
    assert "(not text)" in err


@pytest.mark.parametrize(
    "id_", ["capacity-zone", "no-capacity", "TPU101", "tpu901", "exit-7", "usage", "node-preempted"]
)
def test_explain_id_shows_its_entry(offline: Console, id_: str) -> None:
    out, err, code = offline("explain", id_)
    assert (code, err) == (0, "")
    assert out.lower().startswith(id_.lower())


def test_explain_unknown_id_suggests_similar(offline: Console) -> None:
    _, err, code = offline("explain", "capacity-zon")
    expected = "error: no error, message or finding has the id `capacity-zon`\n  hint: did you mean `capacity-zone`, "
    assert (code, err.startswith(expected)) == (3, True)


def test_explain_topics_are_listed_and_found_by_name(offline: Console) -> None:
    out, _, code = offline("explain", "--topic")
    assert (code, "batch-size\thow large a batch should be\n" in out) == (0, True)
    out, _, code = offline("explain", "--topic", "Batch size")
    assert (code, "1024" in out, "8 per core" in out) == (0, True, True)
    assert offline("explain", "batch-size")[0] == out
    assert offline("explain", "--topic", "batchsiz") == (
        *("", "error: no topic `batchsiz`\n  hint: did you mean `batch-size`?\n"),
        3,
    )


def test_explain_endless_log_after_ctrl_c_shows_verdicts(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}
    running = TpuctlProcess(
        ["explain", "-", "-o", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        cwd=tmp_path,
    )
    assert running.stdin is not None
    # More than a pipe holds: when this has been written, most of it was read.
    running.stdin.write(IN_USE.encode() + b"step 1, waiting\n" * 20_000)
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, b"")
    assert json.loads(out)["verdicts"][0]["id"] == "tpu-in-use-pid"
