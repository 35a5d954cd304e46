"""`tpuctl check` with an API that fails, is slow, is disabled or refuses: an unread fact is never ok."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.check.check_findings import V4, findings, levels
from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, both_faces
from tpuctl.sandbox import administration
from tpuctl.sandbox.http_server import open_server


@both_faces
def test_api_down_leaves_facts_unknown(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("http-error", method="compute.*", status=503, count=0)

    out, _, code = tpuctl(*V4, "-o", "json")

    unknown = levels(out)["unknown"]
    assert (code, {"TPU601", "TPU604"} <= unknown, "TPU301" in unknown) == (0, True, False)


def test_missing_project_is_an_error(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.add_project(sandbox.state, "another")

    out, err, code = tpuctl(*V4)

    assert (out, code) == ("", 4)
    assert err.startswith("error: there is no project of that id that the caller may use")


def test_no_answer_at_all_is_an_error(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("http-error", status=503, count=0)

    out, err, code = tpuctl(*V4, "-o", "tsv")

    assert ({line.partition("\t")[0] for line in out.splitlines()[1:]}, code) == ({"unknown"}, 1)
    assert err.splitlines()[-2] == "error: nothing could be checked: the cloud did not answer"


def test_refused_credentials_are_an_error(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unauthenticated", count=0)

    out, err, code = tpuctl(*V4)

    assert (out, code) == ("", 4)
    assert err.startswith("error: ")


def test_slow_api_is_given_up_at_deadline(tpuctl: Console, tmp_path: Path) -> None:
    """In real time: late answers are unknown, all others are reported."""
    from tpuctl.sandbox.state import SandboxState  # noqa: PLC0415  # a world of its own, on the real clock

    with (
        SandboxState.open(tmp_path / "slow" / "world.sqlite3", speed=1) as sandbox_state,
        open_server(sandbox_state) as server,
    ):
        Sandbox(sandbox_state).fault("slow", method="compute.firewalls.list", duration=timedelta(seconds=8), count=0)
        server.start()
        environ = {"TPUCTL_SANDBOX": "0", "TPUCTL_ENDPOINT": server.url, "TPUCTL_PROJECT": "sandbox"}
        elsewhere = replace(tpuctl, environ={**tpuctl.environ, **environ})
        out, _, code = elsewhere(*V4, "-o", "json", "--check-timeout", "4s")

    found = {key: entry["text"] for key, entry in findings(out).items() if entry["level"] == "unknown"}
    assert code == 0
    assert list(found) == [("TPU604", "network default")]
    assert "no answer within 4s" in found["TPU604", "network default"]


@pytest.mark.parametrize("kind", ["http-error", "unreachable"])
def test_unlisted_node_is_one_unknown_finding(tpuctl: Console, sandbox: Sandbox, kind: str) -> None:
    method = {"method": "*.nodes.*", "status": 503} if kind == "http-error" else {"zone": ZONE}
    sandbox.fault(kind, count=0, **method)

    out, _, code = tpuctl("check", "demo", "--type", *V4[1:], "-o", "json")

    assert (code, levels(out)["unknown"] & {"TPU306"}) == (0, {"TPU306"})
    assert tpuctl("check", "demo", "--zone", ZONE)[2] == 1


def test_disabled_api_is_found_with_node_name(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.set_services(sandbox.state, {"tpu.googleapis.com": "DISABLED"})

    out, _, code = tpuctl("check", "demo", "--type", *V4[1:], "-o", "json")

    assert (code, levels(out)["error"]) == (9, {"TPU501"})
