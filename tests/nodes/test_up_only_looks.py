"""`tpuctl up NODE --timeout 0` takes one look: it sends nothing, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, one_face, put
from tests.others import errors

# Runs here what the workers would run.
RUNS = 'for last; do :; done\ncase $last in *TPUCTL_WORKER=*) exec sh -c "$last" ;; esac'
LOOK = ("--timeout", "0")
OTHER_ZONES = "us-central1-a,us-east5-b"


def written(tpuctl: Console) -> dict[str, bytes]:
    """Return what the state folder has: the journal and the leases."""
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"])
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.json*")) if path.is_file()}


@one_face
@pytest.mark.parametrize(
    ("before", "look", "code", "error"),
    [
        pytest.param((*UP,), ("up", "demo", "--ttl", "2h"), 0, None, id="limit"),
        pytest.param((*UP,), (*UP, "--labels", "team=x", "--description", "d"), 0, None, id="labels"),
        pytest.param(
            (*UP, "--setup", "exit 3"),
            ("up", "demo"),
            5,
            "`demo` is usable, but its set-up has not succeeded yet",
            id="set-up",
        ),
        pytest.param(
            (*UP,),
            ("up", "demo", "--setup", "true"),
            5,
            "`demo` is usable, but its set-up has not succeeded yet",
            id="named set-up",
        ),
        pytest.param(
            (*UP,),
            (*UP, "--spot", "--replace", "--yes"),
            5,
            "`demo` is not usable by ssh: it is READY, and differs from the requested spec: tier",
            id="replacement",
        ),
        pytest.param(None, UP, 5, "`demo` does not exist and was not created", id="new"),
        pytest.param(
            None,
            ("up", "demo", "--type", "v6e-8", "--zone", OTHER_ZONES),
            5,
            "`demo` does not exist and was not created",
            id="several zones",
        ),
    ],
)
def test_look_sends_and_writes_nothing(
    tpuctl: Console,
    sandbox: Sandbox,
    fake_ssh: Callable[[str], None],
    *,
    before: tuple[str, ...] | None,
    look: tuple[str, ...],
    code: int,
    error: str | None,
) -> None:
    fake_ssh(RUNS)
    if before is not None:
        tpuctl(*before)
    changes, state = sandbox.changes(), written(tpuctl)

    _, err, found = tpuctl(*look, *LOOK)

    assert found == code, err
    assert error is None or any(line.startswith(f"error: {error}") for line in errors(err)), err
    assert (sandbox.changes(), written(tpuctl)) == (changes, state)


@one_face
def test_look_at_a_stopped_node_says_so_and_leaves_it(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "demo", state="STOPPED")

    _, err, code = tpuctl("up", "demo", "--zone", ZONE, *LOOK)

    assert (code, sandbox.changes(), written(tpuctl)) == (5, [], {})
    assert errors(err) == ["error: `demo` is not usable by ssh: it is STOPPED"]
