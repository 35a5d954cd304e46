"""OpenSSH's client: the argv of `ssh`, one command on a worker, the pipes of a process, and tpuctl's known_hosts file.

Every session has a timeout and never prompts; the output that is kept is bounded, however much a worker sends.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.files import file_lock, read_own_file
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.keys import SshProgramMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import IO

    from tpuctl.models.node import Node

_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

CONNECT_TIMEOUT = timedelta(seconds=20)
KEEPALIVE_INTERVAL = timedelta(seconds=15)
# For a session that tests whether a worker is reachable now: no shared connection, not even one of the user's configuration.
NEW_CONNECTION = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
BATCH_MODE = ("-o", "BatchMode=yes")
SSH_FAILED = 255
# For `start_ssh`: one pipe for stdout and stderr.
WITH_STDOUT = subprocess.STDOUT


@dataclass(frozen=True, slots=True)
class Connection:
    """How ssh reaches one worker. Raises `InvalidInputError` for values that ssh could parse as an option."""

    login: str
    address: str
    # The name of its host key in the known_hosts files (`host_alias()`).
    host_alias: str
    # tpuctl's file, which ssh writes, and gcloud's, which it only reads.
    known_hosts: tuple[Path, Path]
    identity: Path
    # The value of ssh's option, with `%` doubled.
    proxy_command: str | None = None
    # The keys that the API publishes (`ssh-ed25519 BASE64`); empty if unknown.
    host_keys: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        checks = (
            ("login", self.login, _LOGIN),
            ("address", self.address, _ADDRESS),
            ("alias", self.host_alias, _ALIAS),
        )
        for what, value, pattern in checks:
            if not pattern.fullmatch(value):
                raise InvalidInputError(f"`{value}` is not a valid {what} for an ssh connection")
        for path in (self.identity, *self.known_hosts):
            if re.search(r'["\n]', str(path)):
                raise InvalidInputError(f"ssh cannot use the path `{path}`", hint="use a path without quotes")


class ProbeOutcome(StrEnum):
    """What happened when ssh tried to log in to a worker."""

    ANSWERED = "answered"
    COMMAND_FAILED = "command-failed"
    KEY_REFUSED = "key-refused"
    HOST_KEY_CHANGED = "host-key-changed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The outcome of a login, and ssh's message if it failed."""

    outcome: ProbeOutcome
    detail: str = ""


def host_alias(incarnation: str, worker: int) -> str:
    """Return the name for a worker's host key: gcloud's name without its key suffix [gcloud 528 source].

    It contains the node's numeric id, so a recreated node has a new one. Write it only to tpuctl's own file: gcloud treats an
    alias as known if it is part of any line of its file, and would then refuse to connect.
    """
    return f"tpu.{incarnation}-{worker}"


def ssh_argv(
    connection: Connection, command: tuple[str, ...] = (), *, tty: bool = False, options: tuple[str, ...] = ()
) -> list[str]:
    """Return the whole argv of ssh. Without a command ssh opens a login shell.

    `options` are the user's options for ssh (`-L`, `8080:localhost:8080`, …). They override timeouts, but not `trust_options`.
    A command of one word is a shell line and is sent unchanged; several words are an argv, quoted for the remote shell.
    """
    connect, alive = round(CONNECT_TIMEOUT.total_seconds()), round(KEEPALIVE_INTERVAL.total_seconds())
    timeouts = ("-o", f"ConnectTimeout={connect}", "-o", f"ServerAliveInterval={alive}")
    words = ["ssh", "-t" if tty else "-T", *trust_options(connection), *options, *timeouts]
    return [*words, f"{connection.login}@{connection.address}", *_remote_command(command)]


def trust_options(connection: Connection) -> list[str]:
    """Return the options for ssh and scp that set the identity, the proxy and the trusted host keys."""
    files = " ".join(f'"{_escaped(path)}"' for path in connection.known_hosts)
    settings = {
        "IdentityFile": f'"{_escaped(connection.identity)}"',
        "IdentitiesOnly": "yes",
        "HostKeyAlias": connection.host_alias,
        "UserKnownHostsFile": files,
        "StrictHostKeyChecking": "yes" if connection.host_keys else "accept-new",
        "CheckHostIP": "no",
        "HashKnownHosts": "no",
        "UpdateHostKeys": "no",
    }
    if connection.proxy_command is not None:
        settings["ProxyCommand"] = connection.proxy_command
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def plain_ssh_argv(
    connection: Connection, command: tuple[str, ...] = (), *, tty: bool = False, options: tuple[str, ...] = ()
) -> list[str]:
    """Return an argv that leaves the keys and the host keys to the user's own ssh configuration."""
    proxy = [] if connection.proxy_command is None else ["-o", f"ProxyCommand={connection.proxy_command}"]
    words = ["ssh", "-t" if tty else "-T", *proxy, *options, f"{connection.login}@{connection.address}"]
    return [*words, *_remote_command(command)]


def probe_ssh(connection: Connection, timeout: timedelta) -> ProbeResult:
    """Run `true` on a worker without prompts, and return the outcome.

    A worker that does not answer within the timeout, or prints too much, is unreachable. Raises `SshProgramMissingError`.
    """
    try:
        ended = run_ssh_command(connection, "true", timeout=timeout)
    except UnexpectedAnswerError as error:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"unexpected answer: {error.what}")
    if ended.code is None:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"no answer within {timeout.total_seconds():g} s")
    return classify_exit(ended.code, ended.errors)


def classify_exit(code: int, stderr: str) -> ProbeResult:
    """Classify the end of an ssh that ran `true`. ssh has one exit code for all its failures, so its stderr decides."""
    if code == 0:
        return ProbeResult(ProbeOutcome.ANSWERED)
    if code != SSH_FAILED:
        return ProbeResult(ProbeOutcome.COMMAND_FAILED, f"`true` exited with {code}")
    from tpuctl.ssh.ssh_errors import HOST_KEY_CHANGED_IDS, KEY_REFUSED_IDS, classify_stderr, significant_line  # noqa: PLC0415  # only for failures

    found, detail = classify_stderr(stderr), significant_line(stderr)
    if found is not None and found.id in HOST_KEY_CHANGED_IDS:
        return ProbeResult(ProbeOutcome.HOST_KEY_CHANGED, detail)
    if found is not None and found.id in KEY_REFUSED_IDS:
        return ProbeResult(ProbeOutcome.KEY_REFUSED, detail)
    return ProbeResult(ProbeOutcome.UNREACHABLE, detail)


def _remote_command(command: tuple[str, ...]) -> list[str]:
    return ["--", command[0] if len(command) == 1 else shlex.join(command)] if command else []


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


# How many bytes of the start and of the end are kept of a long command's output, and of ssh's stderr.
_KEPT_OUTPUT = 64 * 1024
# The longest answer, including what a login shell prints before it.
_MAX_OUTPUT = 4 << 20


@dataclass(frozen=True, slots=True)
class SshCommandResult:
    """The result of a command. `code` is the exit code of ssh, None after a timeout; 255 is a failure of ssh itself."""

    code: int | None
    output: str
    errors: str


def run_ssh_command(
    connection: Connection, command: str, *, text: str = "", timeout: timedelta, is_long: bool = False
) -> SshCommandResult:
    """Run a shell line with `text` as stdin, and return its output, also after a timeout.

    Of a command that `is_long` and may print much, only the first and the last 64 KiB of stdout are kept. Raises
    `SshProgramMissingError`, and `UnexpectedAnswerError` once any other has printed more than 4 MiB.
    """
    connecting = () if is_long else ("-o", f"ConnectTimeout={max(1, round(timeout.total_seconds()))}")
    process = start_ssh(ssh_argv(connection, (command,), options=(*NEW_CONNECTION, *BATCH_MODE, *connecting)))
    errors = BoundedBuffer(head=_KEPT_OUTPUT, tail=_KEPT_OUTPUT)
    output = BoundedBuffer(head=_KEPT_OUTPUT, tail=_KEPT_OUTPUT) if is_long else BoundedBuffer(head=_MAX_OUTPUT, tail=0)
    with process:
        try:
            most = None if is_long else _MAX_OUTPUT
            has_ended = _exchange(process, text.encode(), output, errors, timeout, most=most)
        finally:
            terminate_process(process)
    code = 128 - process.returncode if process.returncode < 0 else process.returncode  # a signal
    texts = (bytes(kept).decode(errors="replace") for kept in (output, errors))
    return SshCommandResult(code if has_ended else None, *texts)


def start_ssh(
    words: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    bufsize: int = 0,
    is_in_own_group: bool = False,
) -> subprocess.Popen[bytes]:
    """Start ssh with a pipe as stdout. Every connection to a worker begins here.

    In its own process group it does not get a Ctrl-C at the terminal. Raises `SshProgramMissingError`.
    """
    group = 0 if is_in_own_group else None
    try:
        return subprocess.Popen(
            words, bufsize=bufsize, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, process_group=group
        )
    except FileNotFoundError as error:
        raise SshProgramMissingError(words[0]) from error


# Seconds for ssh to end after SIGTERM: it terminates its ProxyCommand first.
_TERMINATE_TIMEOUT = 1.0
_BLOCK = 64 * 1024
# Seconds between checks whether ssh has ended; output is noticed at once.
_POLL, _FAST_POLL = 0.25, 0.01
# How long the program of a copy or a sync may take to start: Python on a busy worker, after a slow login shell.
START_TIMEOUT = timedelta(minutes=2)


class BoundedBuffer:
    """The first and the last bytes of a stream. `size` is the length of the whole stream."""

    def __init__(self, *, head: int, tail: int) -> None:
        self.size = 0
        self._max_head, self._max_tail = head, tail
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Append bytes of the stream."""
        self.size += len(data)
        room = self._max_head - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(0, len(self._tail) - self._max_tail)]

    def __bytes__(self) -> bytes:
        return bytes(self._head + self._tail)


def _exchange(
    process: subprocess.Popen[bytes],
    text: bytes,
    output: BoundedBuffer,
    errors: BoundedBuffer,
    timeout: timedelta,
    *,
    most: int | None = None,
) -> bool:
    """Write stdin of a process and keep its output until it ends. Return False if it is still running after the timeout.

    Raises `UnexpectedAnswerError` if it prints more than `most` bytes; the process is not terminated then.
    """
    until = time.monotonic() + timeout.total_seconds()
    waiting = memoryview(text)
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((process.stdout, output), (process.stderr, errors)):
            selector.register(require_pipe(stream), selectors.EVENT_READ, kept)
        stdin = require_pipe(process.stdin)
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        while (left := until - time.monotonic()) > 0:
            # Child processes of ssh may keep its pipes open, so the end of ssh itself counts.
            has_ended = process.poll() is not None
            is_ending = process.stdout not in selector.get_map()
            ready = selector.select(0 if has_ended else min(left, _FAST_POLL if is_ending else _POLL))
            if has_ended and not ready:
                return True
            for key, _ in ready:
                if key.fileobj is stdin:
                    waiting = _write_some(key.fd, waiting)
                    if not waiting:
                        selector.unregister(stdin)
                        stdin.close()
                elif data := os.read(key.fd, _BLOCK):
                    key.data.add(data)
                    if most is not None and output.size > most:
                        raise UnexpectedAnswerError(f"more than {most} bytes")
                else:
                    selector.unregister(key.fileobj)
    return process.poll() is not None


def _write_some(file: int, waiting: memoryview) -> memoryview:
    """Write a part and return the rest, which is empty if the reader is gone."""
    try:
        return waiting[os.write(file, waiting[:_BLOCK]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def require_pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return the pipe to a process that was started with one."""
    if stream is None:
        raise AssertionError("it was opened as a pipe")
    return stream


def terminate_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate a running process, and kill it after a second. ssh needs that time to terminate its ProxyCommand."""
    if process.poll() is not None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TERMINATE_TIMEOUT)
        return
    process.kill()
    process.wait()


# The host alias contains the node's id, so a recreated node has a new alias and its new host key is no conflict. If a machine
# keeps its id (after a reimage), the API's key replaces the old one. gcloud's file is only read: ssh accepts a host if a key of
# either file matches, and reports a changed key if there are keys and none matches (observed: OpenSSH 9.2).
_KEY = re.compile(r"(?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+=*")


class KnownHostsError(TpuctlError):
    """tpuctl's known_hosts file cannot be written, or the API returned an invalid host key."""

    kind = "known_hosts"


def save_host_keys(connections: Iterable[Connection]) -> None:
    """Write the host keys of connections to their shared known_hosts file, replacing older keys of the same aliases.

    Connections without host keys change nothing. Several processes may do this at the same time. Raises `KnownHostsError`.
    """
    known = {one.host_alias: one for one in connections if one.host_keys}
    if not known:
        return
    lines: list[str] = []
    for alias, one in known.items():
        for key in one.host_keys:
            if not _KEY.fullmatch(key):
                # An alias is `tpu.ID-WORKER`.
                worker = alias.rpartition("-")[2]
                raise KnownHostsError(
                    f"worker {worker} published an invalid host key: `{key[:60]}`",
                    hint="exclude that worker with `--worker`, or recreate the node",
                )
            lines.append(f"{alias} {key}")
    path = next(iter(known.values())).known_hosts[0]
    try:
        with file_lock(path.with_name(path.name + ".lock")):
            old = read_own_file(path).decode().splitlines() if path.exists() else []
            new = [*(line for line in old if line.split(" ", 1)[0] not in known), *lines]
            if set(new) != set(old):
                # mkstemp's files are private to their owner.
                descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write("".join(f"{line}\n" for line in new))
                Path(scratch).replace(path)
    except (OSError, UnicodeDecodeError) as error:
        hint = "make it writable, or remove it: tpuctl writes it again"
        raise KnownHostsError(f"cannot write host keys to `{path}`: {error}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Target:
    """A worker and the connection to it. `label` marks its output and is unique among the targets of one command."""

    node: Node
    worker: int
    connection: Connection
    label: str


# Only the end of the output is searched for messages, because a login may print without end.
_SEARCHED_OUTPUT = 64 * 1024
_LONGEST_SHOWN_LINE = 200


def last_printed_line(output: str) -> str:
    """Return the last line with text, without control characters, and shortened."""
    lines = (
        "".join(char if char.isprintable() else " " for char in line).strip()
        for line in output[-_SEARCHED_OUTPUT:].splitlines()
    )
    printed = [line for line in lines if line and not line.startswith("tpuctl-")]
    return printed[-1][-_LONGEST_SHOWN_LINE:] if printed else ""
