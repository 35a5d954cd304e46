"""`tpuctl run`: all workers or none, the errors of failed workers, and the limits of parallel connections."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.workers.running import NO_KEY, REFUSED, Slice

HANGS: dict[str, object] = {"hangs": True}


def test_run_lines_are_marked_and_the_failed_worker_is_named_last(pod: Slice) -> None:
    out, err, code = pod.run("--", "echo $TPUCTL_WORKER_ID; exit $((TPUCTL_WORKER_ID==5))")

    assert sorted(out.splitlines()) == [f"[{worker}] {worker}" for worker in range(8)]
    assert (err, code) == ("error: the command failed on 1 of 8 workers: 5 (exit 1)\n", 11)
    assert pod.left() == []


def test_run_with_unreachable_worker_starts_nowhere_unless_allowed(pod: Slice) -> None:
    pod.plan({2: [REFUSED], 3: [NO_KEY], 5: [HANGS]})
    options = ("--connect-timeout", "4s")

    refused = pod.run(*options, "--", "echo x >count")
    ran = pod.texts("count")
    pod.plan({3: [NO_KEY]})
    partial = pod.run("--allow-unreachable", "--", "echo x >count")

    *causes, last, hint, advice = refused[1].splitlines()
    assert [line for line in causes if line.startswith("error")] == [
        "error: worker 2 of `pod`: its ssh port is still closed, most often because it is still booting",
        next(line for line in causes if line.startswith("error: worker 3 of `pod`: it does not accept our key `")),
    ]
    assert (last, hint, advice) == (
        "error: 3 of 8 workers cannot be reached, so the command was not started on any worker: 2-3,5",
        "  hint: worker 5: no answer within 4 s",
        "  hint: start it on the others: `--allow-unreachable`",
    )
    assert (refused[0], refused[2], ran) == ("", 11, {})
    assert partial[1].splitlines()[-1] == "error: the command failed on 1 of 8 workers: 3 (unreachable)"
    assert (partial[2], sorted(pod.texts("count"))) == (11, [0, 1, 2, 4, 5, 6, 7])


def test_run_with_refusing_worker_starts_nowhere(pod: Slice) -> None:
    jobs = pod.home(1) / ".tpuctl" / "jobs"
    jobs.parent.mkdir(parents=True)
    jobs.touch()
    (pod.home(0) / "there").mkdir(parents=True)
    shells = {"silent": "echo welcome; exit 3", "bare": "exit 127", "full": 'ulimit -f 0; exec /bin/sh "$@"'}
    for name, lines in shells.items():
        (pod.root / name).write_text(f"#!/bin/sh\n{lines}\n")
        (pod.root / name).chmod(0o755)
    (pod.home(4) / "there").mkdir(parents=True)
    pod.plan({worker: [{"shell": str(pod.root / name)}] for worker, name in enumerate(shells, 2)})

    told = pod.run("--worker", "0-4", "--name", "job", "-w", "there", "--", "echo x >~/count")
    jobs.unlink()
    first = pod.run("--worker", "1", "--name", "mine", "--detach", "--", "sleep 30")
    second = pod.run("--worker", "0-1", "--name", "mine", "--", "echo x >~/count")

    assert told == (
        "",
        (
            "error: 4 of 5 workers cannot run it, so the command was not started on any worker: 1-4\n"
            f"  hint: worker 1: {jobs}: not a directory\n"
            "  hint: worker 2: the login shell exited with 3\n"
            "  hint: worker 3: `python3` is not installed there\n"
            f"  hint: worker 4: {pod.home(4)}/.tpuctl/jobs/job.4: file too large\n"
            "  hint: start it on the others: `--allow-unreachable`\n"
        ),
        11,
    )
    assert pod.run("--worker", "1", "-w", "/nowhere", "--", "true")[1].splitlines()[1] == (
        "  hint: worker 1: /nowhere: no such file or directory"
    )
    assert first == ("mine\n", "", 0)
    assert second == (
        "",
        (
            "error: 1 of 2 workers cannot run it, so the command was not started on any worker: 1\n"
            "  hint: worker 1: a job `mine` already exists\n"
            "  hint: start it on the others: `--allow-unreachable`\n"
        ),
        11,
    )
    assert (pod.texts("count"), pod.left()) == ({}, ["1/.tpuctl/jobs/mine.1"])


def test_run_with_printing_shell_and_late_connection_succeeds(pod: Slice) -> None:
    noisy = pod.root / "noisy"
    noisy.write_text("#!/bin/sh\necho hi; printf '\\0\\n'; echo psst >&2; exec /bin/sh \"$@\"\n")
    noisy.chmod(0o755)
    pod.plan({0: [{"shell": str(noisy)}], 1: [REFUSED, {}]})

    assert pod.run("--worker", "0", "--", "echo out; echo err >&2") == ("out\n", "err\n", 0)
    assert pod.run("--worker", "1", "--", "echo out") == ("out\n", "", 0)
    assert pod.links(1) == 2


def test_run_fanout_limits_handshakes_and_batch_limits_commands(pod: Slice) -> None:
    command = (
        "date +%s.%N >b; mv b begin; while [ $(ls ../*/begin | wc -l) -lt 8 ]; do sleep 0.02; done; date +%s.%N >end"
    )
    assert pod.run("--fanout", "2", "--", command)[2] == 0
    begin, end = pod.texts("begin"), pod.texts("end")
    assert max(map(float, begin.values())) < min(map(float, end.values()))
    # A handshake ends before the command begins, which is later than all handshakes.
    assert pod.run("--batch", "2", "--", "date +%s.%N >begin; sleep 0.05; date +%s.%N >end")[2] == 0
    spans = [(float(pod.texts("begin")[worker]), float(pod.texts("end")[worker])) for worker in range(8)]
    assert max(sum(start <= moment < stop for start, stop in spans) for moment, _ in spans) <= 2


def test_run_environment_is_that_of_the_login_and_of_the_options(pod: Slice) -> None:
    (pod.home(1)).mkdir(exist_ok=True)
    plain = {"LANG": "C", "PATH": os.environ["PATH"], "HOME": str(pod.home(1)), "SHELL": "/bin/sh", "USER": "ada"}
    pod.plan({1: [{"environ": {"LANG": "C"}}]})

    out, err, code = pod.run("--worker", "1", "--env", "A=b c", "--env", "B=é\n", "--", "env -0; trap")

    assert (err, code) == ("", 0)
    told = dict(entry.split("=", 1) for entry in out.rstrip("\0").split("\0"))
    assert {name: value for name, value in told.items() if name not in {"PWD", "_", "SHLVL", "OLDPWD"}} == {
        **plain, "A": "b c", "B": "é\n", "TPUCTL_NODE": "pod", "TPUCTL_PROJECT": "sandbox", "TPUCTL_WORKER_COUNT": "8",
        "TPUCTL_WORKER_ID": "1", "TPUCTL_ZONE": "us-central2-b",
    }  # fmt: skip


def test_run_json_has_the_result_of_each_worker(pod: Slice) -> None:
    out, err, code = pod.run("--worker", "0-1", "-o", "json", "--", "printf abc; kill -$((9 * $TPUCTL_WORKER_ID)) $$")

    report = json.loads(out)
    assert re.fullmatch(r"\d{4}-\d{6}-[0-9a-f]{4}", report.pop("job"))
    assert [type(one.pop("seconds")) for one in report["workers"]] == [float, float]
    shared = {"nodeId": "pod", "zone": "us-central2-b", "stdoutBytes": 3, "stderrBytes": 0}
    assert report == {
        "workers": [
            {**shared, "worker": 0, "outcome": "exited", "exitCode": 0, "signal": None},
            {**shared, "worker": 1, "outcome": "signaled", "exitCode": 137, "signal": 9},
        ],
        "diagnosis": None,
        "sandbox": True,
    }
    assert sorted(err.splitlines()[:2]) == ["[0] abc", "[1] abc"]
    assert (json.loads(err.splitlines()[2])["error"]["message"], code) == (
        "the command failed on 1 of 2 workers: 1 (exit 137: killed; often out of memory)",
        11,
    )


@pytest.mark.parametrize("command", ["printf %s", "sh -c 'kill -PIPE $$'"])
def test_run_command_is_interpreted_by_the_shell(pod: Slice, command: str) -> None:
    """Words arrive unchanged, and signals that Python ignores have their default effect in the command."""
    if command == "printf %s":
        words = ["a  b", "$HOME", "'\"`\\", "x\ny", "é\udcff", "*", ""]
        assert pod.run("--worker", "0", "--", "printf", "%s|", *words)[0].encode("utf-8", "surrogateescape") == (
            "|".join([*words[:4], "é\ufffd", "*", "", ""]).encode()  # the console of this test shows text
        )
    else:
        assert pod.run("--worker", "0", "--", command)[1] == "error: the command failed on worker 0 (exit 141)\n"
