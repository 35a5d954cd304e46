"""Runs on a worker, as a job: runs a command in a docker container that has the TPU, and that ends with the job.

The variables of the container reach this program under other names (`CONTAINER_PREFIX`), so that no program outside of the
container reads one: neither the loader nor docker. docker runs in the environment of the login, and gets them through a pipe.

The container is a child of docker's daemon, not of this program. So a signal is passed on by `docker kill`, and a process
outside of the job's group removes the container when this program has ended, also by KILL. It must run under Python 3.8.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

# The exit codes of docker: its own failure; a command that cannot be run.
DOCKER_FAILED, NOT_RUNNABLE, NO_DOCKER = 125, 126, 127
PASSED_ON = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT")
# A container appears some time after `docker run` has started.
PATIENCE, PAUSE = 20.0, 0.2
METADATA = "metadata.google.internal"
CONTAINER_PREFIX = "TPUCTL_CONTAINER_"
# Docker reads a file of variables line by line, and refuses lines from 64 KiB [docker/cli, pkg/kvfile; bufio.MaxScanTokenSize].
LONGEST_LINE = 60 * 1024
# What docker, sudo, Go, the loader and credential helpers read.
READ_BY_PROGRAMS = (
    r"(DOCKER|BUILDKIT|BUILDX|COMPOSE|LD|GLIBC|MALLOC|OTEL|SUDO|XDG|LC|CLOUDSDK)_\w*|PYTHON\w*|\w*_PROXY"
    r"|GO(DEBUG|TRACEBACK|MAXPROCS|GC|MEMLIMIT|ROOT|COVERDIR)|SSL_CERT_(FILE|DIR)|SSH_(AUTH_SOCK|ASKPASS)|GNUPGHOME"
    r"|PATH|HOME|USER|LOGNAME|SHELL|IFS|ENV|BASH_ENV|TMPDIR|TERM|TZ|LANG|LANGUAGE|NO_COLOR"
)
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  # no token


def run_container(request: dict[str, Any]) -> None:
    """Pull the image, run the container, and exit with its exit code."""
    variables = take_variables()
    docker = find_docker()
    for signal_name in PASSED_ON[:4]:
        # So that the token of a pull is removed.
        signal.signal(getattr(signal, "SIG" + signal_name), lambda number, _: sys.exit(128 + number))
    pull_image(docker, request["image"])
    name = "tpuctl-%d-%s" % (os.getpid(), os.urandom(4).hex())
    folder = os.getcwd()
    options = ["--rm", "--init", "--interactive", "--name", name, "--sig-proxy=false"]
    # The TPU's device files, its network between workers, and shared memory for data loaders.
    options += ["--privileged", "--net=host", "--ipc=host"]
    shared = tree_around(folder, request["tree"])
    options += ["--volume", "%s:%s" % (shared, shared), "--workdir", folder]
    for mount in request["mounts"]:
        # Fails for a missing folder, where --volume would make an empty one.
        options += ["--mount", mount]
    if request["line"] is None:
        words = [request["image"], *request["words"]]
    else:
        words = ["--entrypoint", "sh", request["image"], "-c", request["line"]]
    done = start_remover(docker, name)
    client = start_client(docker, [*options, *words], variables)
    for signal_name in PASSED_ON:
        signal.signal(getattr(signal, "SIG" + signal_name), lambda number, _: pass_on(docker, name, client, number))
    code = client.wait()
    if code >= 0 and code != DOCKER_FAILED:
        # Otherwise the client was killed or lost docker's daemon, and the container may still run.
        os.write(done, b"x")
    sys.exit(code if code >= 0 else 128 - code)


def tree_around(folder: str, tree: str | None) -> str:
    """Return the synced folder that a folder is in; else the folder itself."""
    root = os.path.realpath(os.path.expanduser(tree)) if tree else folder
    return root if folder.startswith(root + "/") else folder


def take_variables() -> dict[bytes, bytes]:
    """Remove the variables of the container from the environment, and return them by their names there."""
    prefix = CONTAINER_PREFIX.encode()
    names = [name for name in os.environb if name.startswith(prefix)]
    return {name[len(prefix) :]: os.environb.pop(name) for name in names}


def fits_line(name: bytes, value: bytes) -> bool:
    """Return whether docker reads this variable unchanged from a line of a file."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return b"\n" not in value and not value.endswith(b"\r") and len(name) + len(value) < LONGEST_LINE


def may_pass_through_docker(name: bytes) -> bool:
    """Return whether no program outside of the container reads this variable."""
    return re.fullmatch(READ_BY_PROGRAMS.encode(), name, re.IGNORECASE) is None


def start_client(docker: list[str], words: list[str], variables: dict[bytes, bytes]) -> subprocess.Popen[bytes]:
    """Start `docker run` with these words and variables of the container.

    Neither a command line, which other users of the machine can read, nor a disk gets a value. What a line cannot hold, docker
    takes from its own environment.
    """
    lines = b"".join(name + b"=" + value + b"\n" for name, value in variables.items() if fits_line(name, value))
    others = {
        name: value for name, value in variables.items() if not fits_line(name, value) and may_pass_through_docker(name)
    }
    names = [os.fsdecode(name) for name in others]
    if names and docker[0] == "sudo":
        docker = ["sudo", "-n", "--preserve-env=" + ",".join(names), *docker[2:]]
    options = [word for name in names for word in ("--env", name)]
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "variables")
        os.mkfifo(pipe, 0o600)
        client = subprocess.Popen(
            [*docker, "run", "--env-file", pipe, *options, *words],
            env={**os.environb, **others},
            # In a session of its own it gets no signal that is sent to the job.
            start_new_session=True,
        )
        feed(pipe, lines, client)
    return client


def feed(pipe: str, content: bytes, client: subprocess.Popen[bytes]) -> None:
    """Write to a pipe as soon as the client has opened it."""
    while client.poll() is None:
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            time.sleep(0.01)
            continue
        os.set_blocking(writer, True)
        try:
            with os.fdopen(writer, "wb") as file:
                file.write(content)
        except BrokenPipeError:  # the client has ended
            pass
        return


def find_docker() -> list[str]:
    """Return the words that start docker, as root if it needs that; exit if there is none."""
    if shutil.which("docker") is None:
        fail(NO_DOCKER, "tpuctl: docker is not installed on this worker")
    check = ["docker", "version", "--format", "{{.Server.Version}}"]
    tried = subprocess.run(check, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if tried.returncode == 0:
        return ["docker"]
    sudo = ["sudo", "-n"]
    if shutil.which("sudo") is not None:
        null = subprocess.DEVNULL
        if subprocess.run([*sudo, *check], stdin=null, stdout=null, stderr=null, check=False).returncode == 0:
            return [*sudo, "docker"]
    fail(NOT_RUNNABLE, tried.stderr.decode("utf-8", "replace").strip() or "tpuctl: docker does not answer")
    return []


def pull_image(docker: list[str], image: str) -> None:
    """Pull an image, from Google's registries as the worker's service account; exit if there is no such image."""
    host = image.partition("/")[0]
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        ways: list[list[str]] = [[]]
        if host == "gcr.io" or host.endswith((".gcr.io", ".pkg.dev")):
            token = service_account_token()
            login = [*docker, "--config", folder, "login", "--username", "oauth2accesstoken", "--password-stdin"]
            if token and attempt([*login, "https://" + host], token) is None:
                ways.insert(0, ["--config", folder])
        for way in ways:
            error = attempt([*docker, *way, "pull", "--quiet", image])
            if error is None:
                return
            errors.append(error)
    if attempt([*docker, "image", "inspect", image]) is None:
        sys.stderr.write("tpuctl: cannot pull %s: running the copy on this worker\n" % image)
        return
    fail(DOCKER_FAILED, errors[0])


def attempt(words: list[str], text: str = "") -> str | None:
    """Run a command; return its stderr if it fails, None if it succeeds. `text` is its stdin."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, errors = process.communicate(text.encode())
    return errors.decode("utf-8", "replace").strip() if process.returncode else None


def service_account_token() -> str:
    """Return an access token of the worker's service account; empty without one."""
    named = os.environ.get("GCE_METADATA_HOST")
    if named is None and "TPUCTL_METADATA_ROOT" in os.environ:  # of the machine of a sandbox worker
        return ""
    host, slash, folder = (named or METADATA).partition("/")
    connection = http.client.HTTPConnection(host, timeout=5)
    try:
        connection.request("GET", slash + folder + TOKEN_PATH, headers={"Metadata-Flavor": "Google"})
        response = connection.getresponse()
        found = json.loads(response.read(64 * 1024)) if response.status == 200 else {}
        return str(found.get("access_token", ""))
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def pass_on(docker: list[str], name: str, client: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the container, as soon as there is one."""
    until = time.monotonic() + PATIENCE
    while client.poll() is None and time.monotonic() < until:
        if attempt([*docker, "kill", "--signal", str(number), name]) is None:
            return
        time.sleep(PAUSE)


def start_remover(docker: list[str], name: str) -> int:
    """Start a process that removes the container if this one ends before it has written to the returned descriptor."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        return writer
    os.close(writer)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    until = 0.0
    if not os.read(reader, 1):
        until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        removed = subprocess.run([*docker, "rm", "--force", name], stdout=subprocess.PIPE, check=False)
        if removed.stdout.strip() == name.encode():
            break
        time.sleep(PAUSE)
    os._exit(0)


def fail(code: int, text: str) -> None:
    """Exit with a message."""
    sys.stderr.write(text + "\n")
    sys.exit(code)
