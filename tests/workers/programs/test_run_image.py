"""`tpuctl run --image`: the container gets its command, environment, folder and signals, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.lifecycle import said
from tests.workers.programs import Pair
from tests.workers.sync.trees import git
from tpuctl.errors import InvalidInputError
from tpuctl.workers.container_image import in_container
from tpuctl.workers.environment import EnvironmentOptions
from tpuctl.workers.runner import RunRequest

IMAGE = "us-docker.pkg.dev/acme/train/jax:v3"
TOKEN = "ya29.planted"


@contextmanager
def metadata_server() -> Iterator[str]:
    """A metadata server that gives out a token; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_asked = self.path.endswith("/token") and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if is_asked else 403)
            self.end_headers()
            self.wfile.write(json.dumps({"access_token": TOKEN}).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(pair: Pair, *words: str) -> tuple[str, str, int]:
    return pair.tpuctl("run", "pair", "--worker", "0", "--image", IMAGE, *words)


def test_run_image_passes_command_environment_and_folder(pair: Pair) -> None:
    pair.install_docker(OTHER="not passed on")

    line = 'echo "$TPUCTL_NODE $FOO [$OTHER] [$TPUCTL_PROGRAM]"; pwd; exit 7'
    out, _, code = pair.tpuctl("run", "pair", "--image", IMAGE, "--env", "FOO=a b", "--name", "one", "--", line)

    home = pair.slice.home
    assert sorted(out.splitlines()) == [
        *(f"[0] {text}" for text in (str(home(0)), "pair a b [] []")),
        *(f"[1] {text}" for text in (str(home(1)), "pair a b [] []")),
    ]
    assert (code, pair.containers()) == (11, [])


@pytest.mark.parametrize(
    ("options", "shared", "folder"),
    [
        pytest.param((), "code", "code/src", id="tree"),
        pytest.param(("--workdir", "code/src"), "code/src", "code/src", id="workdir"),
    ],
)
def test_run_image_has_the_whole_tree_of_a_subfolder(
    pair: Pair, options: tuple[str, ...], shared: str, folder: str
) -> None:
    pair.install_docker()
    docker, home = pair.root / "0.sshd/bin/docker", pair.slice.home(0)
    docker.rename(docker.with_name("docker.real"))
    docker.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$@" >>{pair.root}/words\nexec {docker}.real "$@"\n')
    docker.chmod(0o755)
    tree = pair.tpuctl.folder / "code"
    (tree / "src").mkdir(parents=True)
    (tree / "src/train.py").touch()
    git(tree, "init", "-q")
    (home / "code/src").mkdir(parents=True)

    words = ("pair", "--worker", "0", *options, "--image", IMAGE, "--", "pwd")
    out, _, code = replace(pair.tpuctl, folder=tree / "src")("run", *words)

    said_to_docker = (pair.root / "words").read_text().splitlines()
    assert (out, code) == (said(str(home / folder)), 0)
    assert said_to_docker[said_to_docker.index("--volume") + 1] == f"{home / shared}:{home / shared}"


VARIABLES = {
    "DOCKER_HOST": "tcp://192.0.2.1:2375",
    "DOCKER_CONFIG": "/of/the/container",
    "PATH": "/usr/bin:/bin:/of/the/container",
    "HOME": "/of/the/container",
    "LD_PRELOAD": "",
    "BASH_ENV": "/of/the/container",
    "PYTHONPATH": "/of/the/container",
    "SPACES": "  two  ",
    "QUOTES": "'a' \"b\" $HOME `id` #",
    "TWO_LINES": "a\nFORGED=1",
    "A_RETURN": "a\r",
    "LONG": "x" * 70_000,
    "UNICODE": "проект",
    "EMPTY": "",
}
READ_IT = """
import json, os, sys
own = {name: value for name, value in os.environ.items() if name in sys.argv or name.startswith(("TPUCTL_C", "FORGED"))}
print(json.dumps(own, sort_keys=True))
"""


def test_run_image_shows_variables_to_the_container_alone(pair: Pair) -> None:
    with metadata_server() as address:
        pair.install_docker(GCE_METADATA_HOST=address)
        registry = pair.slice.home(0) / "said" / "docker-registry"
        registry.parent.mkdir(parents=True)
        registry.write_text(f"{IMAGE} {TOKEN}\n")
        words = [word for name, value in VARIABLES.items() for word in ("--env", f"{name}={value}")]

        out, err, code = run(pair, *words, "--", sys.executable, "-c", READ_IT, *VARIABLES)

    assert (json.loads(out), err, code) == (VARIABLES, "", 0)


@pytest.mark.parametrize(
    ("variable", "is_refused"),
    [
        pytest.param("DOCKER_HOST=tcp://192.0.2.1\n", True, id="docker"),
        pytest.param("LD_PRELOAD=a\r", True, id="the loader"),
        pytest.param("PATH=" + "x" * 70_000, True, id="the shell"),
        pytest.param("https_proxy=a\nb", True, id="Go"),
        pytest.param("GODEBUG=a\nb", True, id="the runtime of Go"),
        pytest.param("CERTIFICATE=a\nb", False, id="no program"),
        pytest.param("GOOGLE_CREDENTIALS=a\nb", False, id="a key of Google"),
        pytest.param("SSH_PRIVATE_KEY=a\nb", False, id="a key of ssh"),
        pytest.param("DOCKER_HOST=unix:///docker.sock", False, id="one line"),
    ],
)
def test_run_image_refuses_a_variable_that_only_docker_itself_could_pass_on(variable: str, *, is_refused: bool) -> None:
    name, _, value = variable.partition("=")
    request = RunRequest(line="true", environment=EnvironmentOptions({name: value}))

    if is_refused:
        with pytest.raises(InvalidInputError, match=f"the value of `{name}` cannot reach a container"):
            in_container(request, IMAGE, ["true"])
    else:
        in_container(request, IMAGE, ["true"])


def test_run_image_passes_several_words_to_the_image(pair: Pair) -> None:
    pair.install_docker()

    assert run(pair, "--", "printf", "%s|", "a b", "$HOME") == ("a b|$HOME|", "", 0)


def test_run_image_without_a_command_runs_that_of_the_image(pair: Pair) -> None:
    pair.install_docker()

    assert run(pair) == ("", "", 0)


@pytest.mark.parametrize(
    ("name", "rest"), [pytest.param("TERM", "got TERM\n", id="passed on"), pytest.param("KILL", "", id="by removal")]
)
def test_kill_ends_the_container_of_a_job(pair: Pair, name: str, rest: str) -> None:
    pair.install_docker()
    line = 'trap "echo got TERM; exit 3" TERM; echo on; while :; do sleep 0.02; done'
    run(pair, "--detach", "--name", "long", "--", line)
    until = time.monotonic() + 60
    output = pair.slice.home(0) / ".tpuctl" / "jobs" / "long.0" / "out"
    while not output.exists() or output.read_text() != "on\n":
        assert time.monotonic() < until
        time.sleep(0.05)

    (listed,) = json.loads(pair.tpuctl("jobs", "pair", "-o", "json")[0])
    pair.tpuctl("kill", "pair", "long", "--signal", name, "--wait", "--yes")

    assert listed["command"] == f"{IMAGE}: {line}"
    assert pair.tpuctl("logs", "pair", "long")[0] == f"on\n{rest}"
    while pair.containers():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_container_is_removed_if_the_client_of_docker_is_killed(pair: Pair) -> None:
    pair.install_docker()
    run(pair, "--detach", "--name", "long", "--", "echo on; while :; do sleep 0.02; done")
    until = time.monotonic() + 60
    while not (names := pair.containers()):
        assert time.monotonic() < until
        time.sleep(0.02)

    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"run" in words and names[0].encode() in words:
                os.kill(int(folder.name), signal.SIGKILL)

    while pair.containers():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert pair.tpuctl("logs", "pair", "long", "--worker", "0")[0] == "on\n"


def test_run_image_logs_in_to_the_registry_with_the_token_of_the_worker(pair: Pair) -> None:
    with metadata_server() as address:
        pair.install_docker(GCE_METADATA_HOST=address)
        registry = pair.slice.home(0) / "said" / "docker-registry"
        registry.parent.mkdir(parents=True)
        registry.write_text(f"{IMAGE} {TOKEN}\n")

        result = run(pair, "--", "cat /proc/*/cmdline /proc/*/environ 2>/dev/null | grep -c ya29[.]planted; true")

    assert result == ("0\n", "", 0)


@pytest.mark.parametrize(
    ("registry", "expected"),
    [
        pytest.param("other\n", f"manifest for {IMAGE} not found: manifest unknown: manifest unknown", id="no image"),
        pytest.param(f"{IMAGE} {TOKEN}\n", 'denied: Permission "artifactregistry.', id="denied"),
    ],
)
def test_run_image_that_cannot_be_pulled_fails_with_the_reason(pair: Pair, registry: str, expected: str) -> None:
    pair.install_docker()
    path = pair.slice.home(0) / "said" / "docker-registry"
    path.parent.mkdir(parents=True)
    path.write_text(registry)

    out, err, code = run(pair, "--", "true")

    assert (out, code, expected in err) == ("", 11, True)
    assert "error: the command failed on worker 0 (exit 125)" in err.splitlines()


def test_run_image_without_docker_says_so(pair: Pair) -> None:
    pair.slice.plan({0: [{"environ": pair.environ(0, PATH=str(pair.root / "nothing"))}]})
    (pair.root / "nothing").mkdir()
    for name, path in (("python3", sys.executable), ("sh", "/bin/sh")):
        (pair.root / "nothing" / name).symlink_to(path)

    out, err, code = run(pair, "--", "true")

    assert (out, code) == ("", 11)
    assert err.startswith(said("tpuctl: docker is not installed on this worker"))


@pytest.mark.parametrize(
    ("image", "is_valid"),
    [
        pytest.param(IMAGE, True, id="a registry"),
        pytest.param("ubuntu", True, id="a name"),
        pytest.param("ubuntu@sha256:" + "0" * 64, True, id="a digest"),
        pytest.param("-v/:/host", False, id="an option"),
        pytest.param("a b", False, id="two words"),
        pytest.param("a\nb", False, id="two lines"),
        pytest.param("a" * 513, False, id="too long"),
        pytest.param("", False, id="empty"),
    ],
)
def test_in_container_accepts_names_of_images_only(image: str, *, is_valid: bool) -> None:
    if is_valid:
        assert in_container(RunRequest(line="true"), image, ["true"]).shown == f"{image}: true"
    else:
        with pytest.raises(InvalidInputError):
            in_container(RunRequest(line="true"), image, ["true"])


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("/mnt/data", "type=bind,source=/mnt/data,target=/mnt/data"),
        ("/mnt/data:/data", "type=bind,source=/mnt/data,target=/data"),
        ("/mnt/a b:/data:ro", "type=bind,source=/mnt/a b,target=/data,readonly"),
        ("/mnt/data:ro", "type=bind,source=/mnt/data,target=/mnt/data,readonly"),
        ("/mnt/data:/data:rw", "type=bind,source=/mnt/data,target=/data"),
        ("data:/data", None),
        ("/a:data", None),
        ("/a,readonly:/b", None),
        ('/a":/b', None),
        ("/a\n:/b", None),
        ("/a:/b:z", None),
        ("", None),
    ],
)
def test_mount_is_a_bind_mount_of_docker(text: str, option: str | None) -> None:
    def program() -> str:
        return in_container(RunRequest(line="true"), IMAGE, ["true"], mounts=[text]).environment.container_program or ""

    if option is None:
        with pytest.raises(InvalidInputError):
            program()
    else:
        assert f"'mounts': [{option!r}]" in program()


def test_run_image_mounts_a_folder_of_the_worker_that_exists(pair: Pair) -> None:
    pair.install_docker()
    home = pair.slice.home(0)

    assert run(pair, "--mount", f"{home}:/data:ro", "--", "true") == ("", "", 0)
    _, err, code = run(pair, "--mount", f"{home}/missing", "--", "true")
    assert (f"bind source path does not exist: {home}/missing" in err, code) == (True, 11)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (
            ("--image", IMAGE, "-v", "/a:/a"),
            "`/a:/a` is not a node name",
            "mount a directory of the workers with `--mount /a:/a`",
        ),
        (("--mount", "/a"), "`--mount` needs a container", "add `--image IMAGE`, or leave it out"),
        (
            ("--image", IMAGE, "--mount", "a"),
            "`--mount a` is not DIR, DIR:PATH or DIR:PATH:ro",
            "write it like `--mount /mnt/data:/data:ro`",
        ),
        (("--image", IMAGE, "--volume", "/a:/a"), "`tpuctl run` has no option `--volume`", "use `--mount`"),
    ],
    ids=["docker's -v", "without an image", "not absolute", "docker's --volume"],
)
def test_wrong_mount_names_the_right_option(pair: Pair, words: tuple[str, ...], error: str, hint: str) -> None:
    assert pair.tpuctl("run", "pair", *words, "--", "true") == ("", said(f"error: {error}", f"  hint: {hint}"), 2)


SUDO = """#!/bin/sh
shift
names=
case "$1" in --preserve-env=*) names=${1#--preserve-env=}; shift ;; esac
set -- "PATH=$PATH" AS_ROOT=1 "TPUCTL_DEVICE_ROOT=$TPUCTL_DEVICE_ROOT" "$@"
for name in $(echo "$names" | tr , ' '); do
    eval "value=\\$$name"
    set -- "$name=$value" "$@"
done
exec env -i "$@"
"""
REFUSING = """#!/bin/sh
[ -n "$AS_ROOT" ] || { echo 'permission denied while trying to connect to the docker API' >&2; exit 1; }
"""


def test_run_image_uses_sudo_where_the_login_may_not_use_docker(pair: Pair) -> None:
    pair.install_docker(OTHER="dropped")
    programs = pair.root / "0.sshd" / "bin"
    (programs / "docker").rename(programs / "real-docker")
    for name, text in (("sudo", SUDO), ("docker", f'{REFUSING}exec "${{0%/*}}/real-docker" "$@"\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    variables = ("--env", "FOO=bar", "--env", "LINES2=a\nb")
    out, _, code = run(pair, *variables, "--", 'echo "$FOO $TPUCTL_NODE [$OTHER] $LINES2"')
    (programs / "sudo").write_text("#!/bin/sh\nexit 1\n")
    refused = run(pair, "--", "true")

    assert (out, code) == ("bar pair [] a\nb\n", 0)
    assert refused[2] == 11
    assert "permission denied while trying to connect to the docker API" in refused[1]
