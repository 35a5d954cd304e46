"""The routes of `tpuctl ssh` to a worker: addresses, tunnels, ports, new keys, failed logins."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.ssh.test_routes import METADATA, metadata_server

FakeSsh = Callable[[str], None]
PRIVATE = {"networkConfig": {"enableExternalIps": False}}
over_http = pytest.mark.parametrize("face", ["http"], indirect=True)

NO_EXTERNAL = """\
error: worker 0 of `private` has no external address, so it is not reachable from outside its network
  hint: use `--iap` to tunnel through Identity-Aware Proxy (setting `iap`)
  hint: or `--internal-ip` on a machine in its network or a peered one (setting `internal_ip`)
"""


@pytest.fixture
def gcloud(tmp_path: Path, fake_ssh: FakeSsh) -> Path:
    """A gcloud on PATH that is never started."""
    program = tmp_path / "bin" / "gcloud"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    return program


def words(out: str) -> list[str]:
    return shlex.split(out)


@over_http
def test_node_without_external_address_needs_a_route(tpuctl: Console, sandbox: Sandbox, gcloud: Path) -> None:
    sandbox.add_node("private", **PRIVATE)

    assert tpuctl("ssh", "private", "--", "true") == ("", NO_EXTERNAL, 8)

    out, err, code = tpuctl("ssh", "private", "--internal-ip", "--dry-run", "--", "ls -l")
    assert (err, code, words(out)[-3:]) == ("", 0, ["ada@10.128.0.1", "--", "ls -l"])

    tunnelled = words(tpuctl("ssh", "private", "--tunnel-through-iap", "--dry-run")[0])
    proxy = next(word for word in tunnelled if word.startswith("ProxyCommand="))
    name, zone = proxy.split("start-iap-tunnel ")[1].split()[0], "us-central2-b"
    assert proxy == (
        f"ProxyCommand={gcloud} compute start-iap-tunnel {name} %p --listen-on-stdin "
        f"--project=sandbox --zone={zone} --verbosity=warning"
    )
    assert name.startswith("t1v-n-")
    # Nothing was changed: no key was made, none was sent.
    assert (sandbox.changes(), list(Path(tpuctl.environ["HOME"]).iterdir())) == ([], [])


@over_http
def test_flag_overrides_the_route_of_the_settings(tpuctl: Console, sandbox: Sandbox, gcloud: Path) -> None:
    sandbox.add_node("trainer")
    (tpuctl.folder / "tpuctl.yaml").write_text("iap: true\n")

    def address(*flags: str, internal: str = "") -> tuple[str, bool]:
        console = replace(tpuctl, environ={**tpuctl.environ, **({"TPUCTL_INTERNAL_IP": internal} if internal else {})})
        argv = words(console("ssh", "trainer", "--dry-run", *flags)[0])
        return argv[-1].partition("@")[2], any("start-iap-tunnel" in word for word in argv)

    assert address() == ("10.128.0.1", True)
    assert address("--external-ip") == ("198.18.0.1", False)
    assert address("--internal-ip") == ("10.128.0.1", False)
    assert address(internal="true") == ("10.128.0.1", False)
    _, err, code = tpuctl("ssh", "trainer", "--iap", "--external-ip", "--dry-run")
    assert (err.splitlines()[0], code) == ("error: `--iap` and `--external-ip` exclude each other", 2)


@over_http
def test_internal_address_is_used_inside_the_network(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer")
    here = {**METADATA, "project/project-id?alt=json": "sandbox"}
    with metadata_server(here) as host:
        out = tpuctl("ssh", "trainer", "--dry-run", GCE_METADATA_HOST=host)[0]

    assert words(out)[-1] == "ada@10.128.0.1"


@over_http
def test_missing_gcloud_is_reported(tpuctl: Console, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.add_node("trainer")
    monkeypatch.setenv("PATH", str(Path(tpuctl.environ["HOME"]).parent / "bin"))

    _, err, code = tpuctl("ssh", "trainer", "--iap", "--dry-run")

    expected = "error: a tunnel through Identity-Aware Proxy needs `gcloud`, which is not on PATH"
    assert (err.splitlines()[0], code) == (expected, 1)


def test_up_without_a_route_waits_for_healthy(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "private", "--type", "v4-8", "--zone", "us-central2-b", "--internal-ips")

    _, err, code = tpuctl(*up)
    lines = err.splitlines()
    assert (code, lines[-1].split(" after ")[0]) == (0, "private: healthy")
    assert lines[0] == (
        "private: waiting until it is healthy, not until ssh answers: its workers have no external address "
        "(use `--iap` or `--internal-ip`)"
    )
    waited = tpuctl("wait", "private")[1].splitlines()
    assert waited[1:] == [
        f"private: waiting until it is healthy, not until ssh answers: {NO_EXTERNAL.splitlines()[0][7:]}",
        "private: healthy after 0s",
    ]
    # What was asked for by name is refused, and where there is a way it is taken.
    assert tpuctl(*up, "--for", "ssh")[2] == 8
    assert tpuctl(*up, "--internal-ip")[1].splitlines()[-1].startswith("private: usable (ssh)")


def test_new_key_is_waited_for(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path) -> None:
    sandbox.add_node("trainer")
    log = tmp_path / "log"
    fake_ssh(
        f"""for last; do :; done; echo "$last" >> '{log}'
[ "$(wc -l < '{log}')" -gt 3 ] && exit 0
echo 'ada@198.18.0.1: Permission denied (publickey).' >&2; exit 255"""
    )

    out, err, code = tpuctl("ssh", "trainer", "--", "start the job")

    assert (out, err.splitlines(), code) == (
        "",
        [
            "adding our ssh key to the metadata of `trainer`",
            "waiting up to 60 s until the workers accept the new ssh key",
        ],
        0,
    )
    # Nothing but knocking before it answers, and the command once.
    assert log.read_text().splitlines() == ["true"] * 4 + ["start the job"]


@pytest.mark.parametrize(
    ("is_let_in", "texts"),
    [(True, []), (False, ["trainer", "Connection refused"])],
)
def test_exit_255_is_explained_only_without_a_login(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, *, is_let_in: bool, texts: list[str]
) -> None:
    sandbox.add_node("trainer")
    tpuctl("ssh", "trainer", "--", "true")
    mark = 'for word; do case "$word" in LocalCommand=*) sh -c "${word#LocalCommand=}" ;; esac; done; exit 255'
    refusal = "echo 'ssh: connect to host 198.18.0.1 port 22: Connection refused' >&2; exit 255"
    fake_ssh(mark if is_let_in else refusal)

    out, err, code = tpuctl("ssh", "trainer", "--", "exit 255")

    assert (out, code) == ("", 255)
    assert all(text in err for text in texts)
    assert bool(err) is bool(texts)


def test_used_local_port_raises_or_another_is_chosen(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path
) -> None:
    sandbox.add_node("trainer")
    fake_ssh(f"printf '%s\\n' \"$@\" > '{tmp_path}/argv'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        fixed = tpuctl("ssh", "trainer", "--forward", f"{port}:6006")
        free = tpuctl("ssh", "trainer", "--forward", str(port))

    refusal = (
        f"error: the local port {port} cannot be used: another program listens on it\n"
        "  hint: name another port: `--forward LOCAL:6006`, or let tpuctl choose: `--forward 6006`\n"
    )
    assert fixed == ("", refusal, 8)
    texts = free[1].splitlines()[-1]
    chosen = int(texts.split("localhost:")[1].split("/")[0])
    assert (chosen > port, texts) == (
        True,
        f"http://localhost:{chosen}/ forwards to port {port} of worker 0 of `trainer`",
    )
    argv = (tmp_path / "argv").read_text().splitlines()
    # stdin is not a terminal, so it stays open until terminated.
    assert {"-N", "-T", "ExitOnForwardFailure=yes", f"{chosen}:localhost:{port}"} <= set(argv)


def test_command_on_several_workers_runs_as_with_run(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("slice", zone="us-central1-a", acceleratorType="v5litepod-16")

    out, _, code = tpuctl("ssh", "slice", "--worker", "1-2", "--dry-run", "--", "hostname")

    assert (code, [line.rpartition("@")[2] for line in out.splitlines()]) == (
        0,
        ["198.18.0.2 -- hostname", "198.18.0.3 -- hostname"],
    )
