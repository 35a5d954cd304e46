"""OpenSSH's client: what is passed to `ssh`, and what its end means."""

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
# For a session that must show whether a worker can be reached now, whatever is kept, also by the user's own configuration.
FRESH = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
SSH_FAILED = 255
# ssh says last what ended it; before that a worker may print a message of any length.
_ERRORS_KEPT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Connection:
    """How one worker is reached.

    `host_alias` is the name under which its host key is kept (`host_alias()`); `known_hosts` is tpuctl's file, which is
    written, and gcloud's, which is read; `host_keys` are those the API vouches for (`ssh-ed25519 BASE64`), none when unknown;
    `proxy_command` is ssh's option, with `%` doubled. Raises `InvalidInputError` for what could be taken for an option.
    """

    login: str
    address: str
    host_alias: str
    known_hosts: tuple[Path, Path]
    identity: Path
    proxy_command: str | None = None
    host_keys: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        checks = (
            ("login", self.login, _LOGIN),
            ("address", self.address, _ADDRESS),
            ("alias", self.host_alias, _ALIAS),
        )
        for what, value, pattern in checks:
            if not pattern.fullmatch(value):
                raise InvalidInputError(f"`{value}` cannot be the {what} of an ssh connection")
        for path in (self.identity, *self.known_hosts):
            if re.search(r'["\n]', str(path)):
                raise InvalidInputError(f"ssh cannot use the path `{path}`", hint="use one without quotes in it")


class ProbeOutcome(StrEnum):
    """What a worker did when ssh knocked."""

    ANSWERED = "answered"
    COMMAND_FAILED = "command-failed"
    KEY_REFUSED = "key-refused"
    HOST_KEY_CHANGED = "host-key-changed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """An outcome and ssh's own words for it; empty when it answered."""

    outcome: ProbeOutcome
    detail: str = ""


def host_alias(incarnation: str, worker: int) -> str:
    """Return the name under which a worker's host key is kept: that of gcloud without its key suffix [gcloud 528 source].

    The node's numeric id makes it new with each incarnation. It goes into a file of tpuctl's own: gcloud takes an alias for
    known when it is part of any line of its file, and would then refuse to connect.
    """
    return f"tpu.{incarnation}-{worker}"


def argv(
    connection: Connection, command: tuple[str, ...] = (), *, tty: bool = False, options: tuple[str, ...] = ()
) -> list[str]:
    """Return the whole argv of ssh. No command is a login shell.

    `options` are the user's own for ssh (`-L`, `8080:localhost:8080`, …); they win over time-outs, not over whom to trust.
    One word of command is a shell line and is sent as it is; several are an argv, quoted for the remote shell.
    """
    words = ["ssh", "-t" if tty else "-T", *trust_options(connection), *options, *_liveliness_options()]
    return [*words, f"{connection.login}@{connection.address}", *_remote_line(command)]


def trust_options(connection: Connection) -> list[str]:
    """Return the options, good for ssh and scp, that say how to reach a worker, as whom, and which host keys to trust."""
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
    """Return an argv with nothing in it that the user's own ssh configuration could say: keys and host keys are its affair."""
    proxy = [] if connection.proxy_command is None else ["-o", f"ProxyCommand={connection.proxy_command}"]
    words = ["ssh", "-t" if tty else "-T", *proxy, *options, f"{connection.login}@{connection.address}"]
    return [*words, *_remote_line(command)]


def probe(connection: Connection, timeout: timedelta) -> ProbeResult:
    """Run `true` on a worker and return what came of it; it never asks anything.

    Raises `SshProgramMissingError`. A worker that says nothing until the time-out is unreachable, and so is one that prints
    without end.
    """
    try:
        code, stderr = knock(connection, timeout)
    except UnexpectedAnswerError as error:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"unexpected answer: {error.what}")
    if code is None:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"no answer within {timeout.total_seconds():g} s")
    return classify(code, stderr)


def knock(connection: Connection, timeout: timedelta) -> tuple[int | None, str]:
    """Run `true` on a worker and return ssh's exit code, nothing where the time was up, and its stderr; it never asks anything.

    Raises `SshProgramMissingError`, and `UnexpectedAnswerError` for more output than a login may print.
    """
    seconds = timeout.total_seconds()
    options = (*FRESH, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(seconds))}")
    words = argv(connection, ("true",), options=options)
    nowhere, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(words, bufsize=0, stdin=nowhere, stdout=pipe, stderr=pipe)
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error
    errors = Kept(head=0, tail=_ERRORS_KEPT)
    with process:
        try:
            has_ended = exchange(process, b"", Kept(head=0, tail=0), errors, timeout, most=LONGEST_BANNER)
        finally:
            end(process)
    return process.returncode if has_ended else None, bytes(errors).decode(errors="replace")


def classify(code: int, stderr: str) -> ProbeResult:
    """Return what the end of an ssh that ran `true` means. ssh has one code for all its failures, so its words decide."""
    if code == 0:
        return ProbeResult(ProbeOutcome.ANSWERED)
    if code != SSH_FAILED:
        return ProbeResult(ProbeOutcome.COMMAND_FAILED, f"`true` ended with {code}")
    from tpuctl.remote import failures  # noqa: PLC0415  # only who meets a failure needs it

    found, detail = failures.verdict_of(stderr), failures.telling_line(stderr)
    if found is not None and found.id in failures.HOST_KEY_CHANGED:
        return ProbeResult(ProbeOutcome.HOST_KEY_CHANGED, detail)
    if found is not None and found.id in failures.KEY_REFUSED:
        return ProbeResult(ProbeOutcome.KEY_REFUSED, detail)
    return ProbeResult(ProbeOutcome.UNREACHABLE, detail)


def _remote_line(command: tuple[str, ...]) -> list[str]:
    return ["--", command[0] if len(command) == 1 else shlex.join(command)] if command else []


def _liveliness_options() -> list[str]:
    connect, alive = round(CONNECT_TIMEOUT.total_seconds()), round(ALIVE_INTERVAL.total_seconds())
    return ["-o", f"ConnectTimeout={connect}", "-o", f"ServerAliveInterval={alive}"]


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
