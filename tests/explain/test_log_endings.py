"""How a log ends: lines that show that a program works, and what follows for the failures before them."""

from __future__ import annotations

import json

import pytest

from tests.explain.synthetic import scan
from tpuctl.explain.conclusion import Confidence, conclude
from tpuctl.explain.log_endings import shows_saved, shows_success
from tpuctl.explain.log_lines import LogLevel, line_level
from tpuctl.explain.scanner import LogReader

_ERROR = "RuntimeError: frob"
_TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
_CAUSES = {
    "hbm-oom-running": _TRACEBACK
    + "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 4.50G. "
    "That was not possible. There are 3.20G free.; (0x0x0_HBM0)\n",
    "tpu-in-use-pid": _TRACEBACK + "RuntimeError: The TPU is already in use by process with pid 4242. "
    "Not attempting to load libtpu.so in this process.\n",
    "gcs-denied": _TRACEBACK + "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/x: "
    "a@p.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket.\n",
    "capacity-zone": "ERROR: (gcloud.compute.tpus.tpu-vm.create) {\n"
    '  "message": "There is no more capacity in the zone \\"europe-west4-b\\"; you can try in another zone"\n}\n',
}
_CAUSE_ROWS = [pytest.param(id_, text, id=id_) for id_, text in _CAUSES.items()]


def _verdicts(log: str) -> list[tuple[str, Confidence]]:
    reader = LogReader()
    reader.feed(log.encode())
    return [(one.id, one.confidence) for one in conclude(reader.so_far()).conclusions]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("step 100 loss 2.31", id="step"),
        pytest.param("{'train_loss': 0.51, 'epoch': 2.0}", id="mapping"),
        pytest.param("300/300 [====] - 40s 133ms/step - accuracy: 0.68", id="keras"),
        pytest.param("throughput 1.2 tokens/s", id="rate"),
        pytest.param("100%|####| 920/920 [08:41<00:00,  1.76it/s]", id="full-bar"),
        pytest.param("restored checkpoint 881", id="restored"),
        pytest.param("INFO:     Application startup complete.", id="server"),
        pytest.param('10.0.0.9:51 - "GET /health HTTP/1.1" 200 OK', id="request"),
        pytest.param("request 3 ok 198ms", id="answer"),
        pytest.param("[TpuDevice(id=0, process_index=0)]", id="devices"),
        pytest.param("Normal Started 39s kubelet Started container jax-tpu", id="pod"),
        pytest.param("state changed CREATING -> READY", id="state"),
        pytest.param("Deployments stabilized in 5 minutes 41.208 seconds", id="ready"),
        pytest.param("container healthy", id="container"),
        pytest.param("GET http://localhost:8000/health -> 200 (3 ms)", id="checked"),
        pytest.param('10.0.0.9:51 - "POST /generate HTTP/1.1" 200', id="answered"),
        pytest.param("[evaluator] ckpt=25000 top1=0.6843 top5=0.8842", id="metric"),
        pytest.param("train -     500  rmse_z500=  611.2", id="metric-of-a-level"),
        pytest.param("Training: step 200", id="bare-step"),
        pytest.param("Engine 000: 812.4 tokens/s, Running: 14 reqs, Waiting: 0 reqs", id="nothing-waits"),
        pytest.param("Operation completed over 32 objects/11.8 GiB.", id="copied"),
        pytest.param("google_tpu_v2_vm.dev: Creation complete after 1m21s [id=dev]", id="terraform"),
        pytest.param("Generation 2 complete: ok=14 min=0.18", id="generation"),
        pytest.param("Training finished.", id="finished"),
        pytest.param("Job 'raysubmit_f8' succeeded", id="named-job"),
        pytest.param("exited with code 0", id="code-0"),
        pytest.param("8 passed, 2 warnings in 14.31s", id="quiet-tests"),
        pytest.param("=========== 8 passed, 2 warnings in 14.31s ==========", id="tests"),
        pytest.param("training complete, failed: 0", id="no-failures"),
    ],
)
def test_line_of_a_program_that_works_is_success(text: str) -> None:
    assert shows_success(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("connecting to 10.0.0.2", id="neutral"),
        pytest.param("12%|#| 120/1000 [01:00<07:20,  2.00it/s]", id="bar"),
        pytest.param("step 100 failed after 3.2s", id="failed-step"),
        pytest.param("the job never finished", id="negation"),
        pytest.param("task completed with exit code 1", id="code-1"),
        pytest.param("Job finished (status: FAILED)", id="failed-job"),
        pytest.param("step 5002: loss is nan 3.1", id="nan"),
        pytest.param("wandb: loss 3.42", id="summary"),
        pytest.param("waiting for step 12 of 3.2s", id="waiting"),
        pytest.param("8 passed, 1 error in 3.1s", id="quiet-failed-tests"),
        pytest.param("=========== 1 failed, 8 passed in 3.1s ===========", id="failed-tests"),
        pytest.param("waiting for 812.4 tokens/s", id="waits"),
        pytest.param("HBM memory map: 0x0-0x7fff", id="memory-map"),
        pytest.param("top-5: 3.2G jit_step", id="largest-buffers"),
        pytest.param("121it [00:41,  2.95it/s]", id="bar-without-a-total"),
    ],
)
def test_other_line_is_no_success(text: str) -> None:
    assert not shows_success(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("checkpoint 881 saved", True, id="saved"),
        pytest.param("wrote ckpt-1200", True, id="wrote"),
        pytest.param("saving checkpoint 881", False, id="not-yet"),
        pytest.param("checkpoint not saved", False, id="negation"),
    ],
)
def test_line_that_says_that_a_state_was_saved(text: str, expected: bool) -> None:
    assert shows_saved(text) is expected


@pytest.mark.parametrize(
    ("log", "works", "is_well", "is_done"),
    [
        pytest.param(f"{_ERROR}\n", None, False, False, id="error"),
        pytest.param(f"{_ERROR}\nstep 3 loss 2.1\n", 2, True, False, id="steps-after"),
        pytest.param(f"step 3 loss 2.1\n{_ERROR}\n", None, False, False, id="error-after"),
        pytest.param(f"{_ERROR}\nstep 3 loss 2.1\nTraining finished.\n", 3, True, True, id="done"),
        pytest.param("step 3 loss 2.1\ncould not flush\n", 1, False, False, id="alarm-after"),
        pytest.param("step 3 loss 2.1\nI0101 10:00:00.0 7 a.py:3] could not flush\n", 1, True, False, id="noted-after"),
        pytest.param("step 3 loss 2.1\nE0101 10:00:00.0 7 a.py:3] flush\n", None, False, False, id="level-after"),
        pytest.param("0%|  | 1/9 [00:01<00:02, 1.1s/it]\n", None, False, False, id="one-bar"),
        pytest.param("0%|  | 1/9 [00:01, 1.1s/it]\n1%|  | 2/9 [00:02, 1.1s/it]\n", 1, True, False, id="bars"),
        pytest.param("flush: 503, once more\ncheckpoint 881 saved\n", 2, True, False, id="saved"),
        pytest.param("SIGTERM received\ncheckpoint 881 saved\n", None, False, False, id="saved-at-the-end"),
        pytest.param(f"{_ERROR}\ncheckpoint 881 saved\n", None, False, False, id="saved-after-an-error"),
        pytest.param(
            "Normal Started 3s\nWarning BackOff 1s Back-off restarting it\n",
            None,
            False,
            False,
            id="loop",
        ),
        pytest.param("step 3 loss 2.1\n" + "frob\n" * 60, None, False, False, id="long-ago"),
    ],
)
def test_end_of_a_log(log: str, works: int | None, is_well: bool, is_done: bool) -> None:
    (ending,) = scan(log).endings

    assert (ending.works and ending.works.line, ending.is_well, ending.is_done) == (works, is_well, is_done)


def test_last_failure_and_what_worked_before_it() -> None:
    (ending,) = scan(f"step 3 loss 2.1\nfrob\n{_ERROR}\nfrob\n").endings

    assert ending.failure is not None
    assert ending.resumed is not None
    assert (ending.failure.line, ending.resumed.line) == (3, 1)


@pytest.mark.parametrize(
    ("end", "calm"),
    [
        pytest.param(["start", "load", "compile"], 1, id="calm"),
        pytest.param(["start", "load"], None, id="too-few"),
        pytest.param(["start", "will retry", "load", "compile"], None, id="still-tried"),
        pytest.param(["start", "System is rebooting", "load", "compile"], None, id="reboot"),
        pytest.param(["load", "7 uploaded, 0 failed", "exiting with 0"], 1, id="nothing-failed"),
    ],
)
def test_calm_end_is_three_lines_without_an_alarm(end: list[str], calm: int | None) -> None:
    (ending,) = scan("".join(f"I0101 10:00:00.0 7 a.py:3] {text}\n" for text in end)).endings

    assert (ending.calm and ending.calm.line) == calm


@pytest.mark.parametrize(
    ("log", "peace"),
    [
        pytest.param("Jan 14 21:31:50 host-3 frobd[7]: frob\n", 1, id="logged-without-a-level"),
        pytest.param("[    0.016000] frob\n", 1, id="dmesg"),
        pytest.param("frob\n", None, id="printed"),
        pytest.param("[worker 3] frob\n", None, id="printed-by-a-worker"),
        pytest.param("(pid=812) frob\n", None, id="printed-through-ray"),
        pytest.param("Jan 14 21:31:50 box frobd[7]: frob\nprinted\n", 1, id="printed-afterwards"),
        pytest.param('{"level":"info","ts":1718874001.4,"msg":"frob"}\n', 1, id="json"),
        pytest.param('{"level":"error","ts":1718874001.4,"msg":"frob"}\n', None, id="json-error"),
        pytest.param('{"severity":"ERROR","timestamp":"2026-01-01T10:00:00Z","message":"frob"}\n', 1, id="stderr"),
    ],
)
def test_last_logged_line_without_an_alarm_is_peace(log: str, peace: int | None) -> None:
    """Cloud Logging calls all that a program writes to stderr an error."""
    (ending,) = scan(log).endings

    assert (ending.at_peace and ending.at_peace.line) == peace


@pytest.mark.parametrize(
    ("log", "calm"),
    [
        pytest.param("frob\n" * 6, 1, id="printed"),
        pytest.param("frob\n" * 5, None, id="too-few"),
        pytest.param("frob\nada@box:~$ ls\n" + "frob\n" * 6, 3, id="behind-a-prompt"),
        pytest.param("frob\n" * 6 + ">>> frob()\nfrob\n", None, id="before-a-prompt"),
        pytest.param('"details": frob\n' * 6, None, id="of-a-larger-text"),
    ],
)
def test_six_printed_lines_without_an_alarm_are_calm(log: str, calm: int | None) -> None:
    (ending,) = scan(log).endings

    assert (ending.quiet and ending.quiet.line) == calm


def test_warning_is_not_over_because_another_program_is_calm() -> None:
    warning = "W0101 10:00:00.0 7 a.py:3] All attempts to get a Google authentication bearer token failed.\n"

    assert _verdicts(warning + "frob\n" * 6) == []
    assert _verdicts(f"{warning}ada@box:~$ ls\n" + "frob\n" * 6) != []


def test_each_worker_has_its_own_end() -> None:
    endings = scan(f"[0] {_ERROR}\n[1] step 3 loss 2.1\n[0] frob\n[1] step 4 loss 2.0\n").endings

    assert {one.worker: one.works and one.works.line for one in endings} == {"0": None, "1": 4}


def test_log_with_its_newest_line_first_has_no_end() -> None:
    log = "2026-01-02T10:00:02Z frob\n2026-01-02T10:00:01Z step 3 loss 2.1\n"

    assert scan(log).endings == ()


@pytest.mark.parametrize(
    ("header", "text", "level"),
    [
        pytest.param("I0101 10:00:00.000000 7 a.py:3] ", "x", LogLevel.INFO, id="glog"),
        pytest.param("2026-01-01 10:00:00.1: W a/b.cc:7] ", "x", LogLevel.WARNING, id="tensorflow"),
        pytest.param("2026-01-01 10:00:00 - train - ERROR - ", "x", LogLevel.ERROR, id="logging"),
        pytest.param("", "W 03-18 09:12:49 instance_utils.py:112] x", LogLevel.WARNING, id="skypilot"),
        pytest.param("", "ERROR: x", LogLevel.ERROR, id="gcloud"),
        pytest.param("", "(EngineCore pid=8) INFO 04-15 x", LogLevel.INFO, id="vllm"),
        pytest.param("", "[I 2026-02-02 10:00:00,000] x", LogLevel.INFO, id="optuna"),
        pytest.param("", "  Normal   Started   39s  kubelet", LogLevel.INFO, id="event"),
        pytest.param("", "7m24s Warning Unhealthy pod/frob Startup probe failed", LogLevel.WARNING, id="listed-event"),
        pytest.param("", 'ts=2024-02-09T15:40:10Z caller=a.go:9 level=warn msg="x"', LogLevel.WARNING, id="logfmt"),
        pytest.param("", 'time="2025-03-27T05:51:08Z" level=error msg="x"', LogLevel.ERROR, id="containerd"),
        pytest.param("", "dhcp.py[WARNING]: x", LogLevel.WARNING, id="cloud-init"),
        pytest.param("", "/a/b.py:76: UserWarning: x", LogLevel.WARNING, id="python"),
        pytest.param("", "error\texporter/retry.go:149\tx", LogLevel.ERROR, id="zap"),
        pytest.param("", 'time="14/02/2025 08:33" severity=TRACE message="x"', LogLevel.INFO, id="gcsfuse"),
        pytest.param("", "2023-01-14T21:31:50.6Z GCEGuestAgent Error a.go:75: x", LogLevel.ERROR, id="guest-agent"),
        pytest.param("", "GCEGuestAgent Info: x", LogLevel.INFO, id="guest-agent-info"),
        pytest.param("", "the level=high of frob", None, id="another-level"),
        pytest.param("", "Value Error: x", LogLevel.ERROR, id="words-before-a-colon"),
        pytest.param("", "I am a line", None, id="pronoun"),
        pytest.param("", "Errors are rare", None, id="prose"),
        pytest.param("2026-01-01T10:00:00Z ", "x", None, id="no-level"),
    ],
)
def test_level_of_a_line(header: str, text: str, level: LogLevel | None) -> None:
    assert line_level(header, text) is level


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param("Done.", id="done"),
        pytest.param("Uploading logs: done", id="uploading"),
        pytest.param("Upload of logs completed", id="upload"),
        pytest.param("logs uploaded, job finished", id="finished"),
        pytest.param("exited with code 0", id="code-0"),
        pytest.param("TensorBoard 2.15 listening on http://localhost:6006/", id="server"),
        pytest.param('127.0.0.1 - - "GET /healthz HTTP/1.1" 200 OK', id="probe"),
        pytest.param("Saved checkpoint at step 1200 in 3.2s", id="saved"),
        pytest.param("Uploading: 100%|####| 3/3 [00:02<00:00, 1.2it/s]", id="bar-of-an-upload"),
        pytest.param("final loss: 2.31", id="summary"),
        pytest.param("Normal Started 3s kubelet Started container", id="container"),
        pytest.param("frob\n" * 80 + "Done.", id="long-after"),
    ],
)
@pytest.mark.parametrize(("id_", "cause"), _CAUSE_ROWS)
def test_fatal_cause_is_not_over_after_other_success(id_: str, cause: str, tail: str) -> None:
    verdicts = _verdicts(f"step 1 loss 3.2\n{cause}{tail}\n")

    assert verdicts[0][0] == id_
    assert verdicts[0][1] in {Confidence.HIGH, Confidence.MEDIUM}


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param("step 3 loss 2.1", id="step"),
        pytest.param("step 3 loss 2.1\nDone.", id="step-and-end"),
        pytest.param("attempt 2\nrestored checkpoint 12\nstep 13 loss 2.0", id="restarted"),
        pytest.param("1%| | 1/9 [00:01, 1.1it/s]\n2%| | 2/9 [00:01, 1.1it/s]", id="bars"),
    ],
)
@pytest.mark.parametrize(("id_", "cause"), _CAUSE_ROWS)
def test_fatal_cause_is_over_if_steps_go_on(id_: str, cause: str, tail: str) -> None:
    assert _verdicts(f"step 1 loss 3.2\n{cause}{tail}\n") == []


def test_failure_in_tests_that_passed_was_wanted() -> None:
    log = f"{_CAUSES['gcs-denied']}PASSED [100%]\n============ 3 passed in 8.41s ============\n"

    assert _verdicts(log) == []
    assert _verdicts(log.replace("3 passed", "1 failed, 2 passed")) != []
    assert _verdicts(f"{_CAUSES['gcs-denied']}ada@box:~$ pytest -q\n3 passed in 0.21s\n") != []


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(_CAUSES["tpu-in-use-pid"] + "ada@box:~$ echo $?\n0\n", id="code-of-a-pipe"),
        pytest.param(_CAUSES["hbm-oom-running"] + "121it [00:41,  2.95it/s]\n", id="bar"),
        pytest.param(_CAUSES["hbm-oom-running"] + "thread map=4 entries\n", id="memory-dump"),
        pytest.param(
            _CAUSES["gcs-denied"] + 'DEBUG:urllib3:https://a.example:443 "POST /api/5/envelope/ HTTP/1.1" 200 2\n',
            id="report",
        ),
        pytest.param(
            _CAUSES["capacity-zone"] + "+ cleanup\n+ rm -rf /tmp/a\n+ gsutil cp run.log gs://b/c\n", id="trap"
        ),
        pytest.param(
            _CAUSES["tpu-in-use-pid"].replace("in this", "(ignoring --frob) in this") + "I bye\n" * 3, id="ignoring"
        ),
        pytest.param("Out of memory: Killed process 4242 (python3)\nsshd[7]: Accepted publickey for ada\n", id="login"),
    ],
)
def test_failure_is_not_over_because_others_go_on(log: str) -> None:
    assert _verdicts(log) != []


def test_failure_that_a_collector_calls_information_is_one() -> None:
    lines = [*_CAUSES["tpu-in-use-pid"].splitlines(), "flushing metrics", "metrics flushed", "removing /tmp/x"]

    collected = "".join(json.dumps({"severity": "INFO", "textPayload": line}) + "\n" for line in lines)
    airflow = "".join(f"[2026-05-01, 10:00:00 UTC] {{pod_manager.py:4}} INFO - [base] {line}\n" for line in lines)

    assert _verdicts(collected)[0][0] == _verdicts(airflow)[0][0] == "tpu-in-use-pid"


def test_symptom_that_names_no_worker_is_over_if_all_workers_go_on() -> None:
    log = "[0] step 3 loss 2.1\n[1] step 3 loss 2.1\nUnavailableError: Socket closed\n[0] step 4 loss 2.0\n"

    assert _verdicts(log) != []
    assert _verdicts(f"{log}[1] step 4 loss 2.0\n") == []


@pytest.mark.parametrize(
    ("id_", "expected"),
    [
        pytest.param("capacity-zone", [], id="node"),
        pytest.param("hbm-oom-running", [("hbm-oom-running", Confidence.MEDIUM)], id="program"),
    ],
)
def test_created_node_ends_only_failures_to_create_one(id_: str, expected: list[tuple[str, Confidence]]) -> None:
    assert _verdicts(f"{_CAUSES[id_]}Created tpu [frob].\n") == expected


def test_traceback_without_a_known_message_is_not_over_after_other_success() -> None:
    ((id_, confidence),) = _verdicts(f"{_TRACEBACK}KeyError: 'labels'\nUploading logs: done\n")

    assert (id_, confidence) == ("unrecognised-exception", Confidence.LOW)
