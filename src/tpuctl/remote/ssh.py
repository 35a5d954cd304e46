"""OpenSSH's client: the argv of `ssh`, and the meaning of its exit code and stderr."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.remote.answers import LONGEST_BANNER, UnexpectedAnswerError
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.pipes import Kept, end, exchange

if TYPE_CHECKING:
    from pathlib import Path

_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

CONNECT_TIMEOUT = timedelta(seconds=20)
ALIVE_INTERVAL = timedelta(seconds=15)
# For a session that tests whether a worker is reachable now: no shared connection, not even one of the user's configuration.
FRESH = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
SSH_FAILED = 255
# ssh prints the reason last; before that a worker may print a message of any length.
_KEPT_ERRORS = 64 * 1024


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


def argv(
    connection: Connection, command: tuple[str, ...] = (), *, tty: bool = False, options: tuple[str, ...] = ()
) -> list[str]:
    """Return the whole argv of ssh. Without a command ssh opens a login shell.

    `options` are the user's options for ssh (`-L`, `8080:localhost:8080`, …). They override timeouts, but not `trust_options`.
    A command of one word is a shell line and is sent unchanged; several words are an argv, quoted for the remote shell.
    """
    connect, alive = round(CONNECT_TIMEOUT.total_seconds()), round(ALIVE_INTERVAL.total_seconds())
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


def plain_argv(
    connection: Connection, command: tuple[str, ...] = (), *, tty: bool = False, options: tuple[str, ...] = ()
) -> list[str]:
    """Return an argv that leaves the keys and the host keys to the user's own ssh configuration."""
    proxy = [] if connection.proxy_command is None else ["-o", f"ProxyCommand={connection.proxy_command}"]
    words = ["ssh", "-t" if tty else "-T", *proxy, *options, f"{connection.login}@{connection.address}"]
    return [*words, *_remote_command(command)]


def probe(connection: Connection, timeout: timedelta) -> ProbeResult:
    """Run `true` on a worker without prompts, and return the outcome.

    A worker that does not answer within the timeout, or prints too much, is unreachable. Raises `SshProgramMissingError`.
    """
    try:
        code, stderr = knock(connection, timeout)
    except UnexpectedAnswerError as error:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"unexpected answer: {error.what}")
    if code is None:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"no answer within {timeout.total_seconds():g} s")
    return classify(code, stderr)


def knock(connection: Connection, timeout: timedelta) -> tuple[int | None, str]:
    """Run `true` on a worker without prompts. Return the exit code of ssh, None after a timeout, and its stderr.

    Raises `SshProgramMissingError`, and `UnexpectedAnswerError` for too much output.
    """
    seconds = timeout.total_seconds()
    options = (*FRESH, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(seconds))}")
    words = argv(connection, ("true",), options=options)
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(words, bufsize=0, stdin=null, stdout=pipe, stderr=pipe)
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error
    errors = Kept(head=0, tail=_KEPT_ERRORS)
    with process:
        try:
            has_ended = exchange(process, b"", Kept(head=0, tail=0), errors, timeout, most=LONGEST_BANNER)
        finally:
            end(process)
    return process.returncode if has_ended else None, bytes(errors).decode(errors="replace")


def classify(code: int, stderr: str) -> ProbeResult:
    """Classify the end of an ssh that ran `true`. ssh has one exit code for all its failures, so its stderr decides."""
    if code == 0:
        return ProbeResult(ProbeOutcome.ANSWERED)
    if code != SSH_FAILED:
        return ProbeResult(ProbeOutcome.COMMAND_FAILED, f"`true` exited with {code}")
    from tpuctl.remote import failures  # noqa: PLC0415  # only for failures

    found, detail = failures.verdict_of(stderr), failures.telling_line(stderr)
    if found is not None and found.id in failures.HOST_KEY_CHANGED:
        return ProbeResult(ProbeOutcome.HOST_KEY_CHANGED, detail)
    if found is not None and found.id in failures.KEY_REFUSED:
        return ProbeResult(ProbeOutcome.KEY_REFUSED, detail)
    return ProbeResult(ProbeOutcome.UNREACHABLE, detail)


def _remote_command(command: tuple[str, ...]) -> list[str]:
    return ["--", command[0] if len(command) == 1 else shlex.join(command)] if command else []


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
