"""OpenSSH's client: what is passed to `ssh`, starting it, and what its end means."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from tpuctl.errors import InvalidInputError
from tpuctl.remote.keys import SshProgramMissingError

if TYPE_CHECKING:
    from pathlib import Path

_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

CONNECT_TIMEOUT = timedelta(seconds=20)
ALIVE_INTERVAL = timedelta(seconds=15)
_SSH_FAILED = 255


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
    words.append(f"{connection.login}@{connection.address}")
    if command:
        words += ["--", command[0] if len(command) == 1 else shlex.join(command)]
    return words


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


def probe(connection: Connection, timeout: timedelta) -> ProbeResult:
    """Run `true` on a worker and return what came of it; it never asks anything.

    Raises `SshProgramMissingError`. A worker that says nothing until the time-out is unreachable.
    """
    seconds = timeout.total_seconds()
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(seconds))}")
    words = argv(connection, ("true",), options=options)
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, errors="replace", check=False
        )
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error
    except subprocess.TimeoutExpired:
        return ProbeResult(ProbeOutcome.UNREACHABLE, f"no answer within {seconds:g} s")
    return classify(done.returncode, done.stderr)


def classify(code: int, stderr: str) -> ProbeResult:
    """Return what the end of an ssh that ran `true` means. ssh has one code for all its failures, so its words decide."""
    if code == 0:
        return ProbeResult(ProbeOutcome.ANSWERED)
    if code != _SSH_FAILED:
        return ProbeResult(ProbeOutcome.COMMAND_FAILED, f"`true` ended with {code}")
    detail = _telling_line(stderr)
    if re.search(r"HOST IDENTIFICATION HAS CHANGED|Host key verification failed|host key is known for", stderr):
        return ProbeResult(ProbeOutcome.HOST_KEY_CHANGED, detail)
    if re.search(r"Permission denied \(|Too many authentication failures|No more authentication methods", stderr):
        return ProbeResult(ProbeOutcome.KEY_REFUSED, detail)
    return ProbeResult(ProbeOutcome.UNREACHABLE, detail)


def run(connection: Connection, command: tuple[str, ...], *, tty: bool = False, options: tuple[str, ...] = ()) -> int:
    """Run a command on a worker with this process's stdin, stdout and stderr, and return its exit code.

    255 is ssh's own failure; a signal that ended ssh counts as 128 + its number. Raises `SshProgramMissingError`.
    """
    try:
        code = subprocess.call(argv(connection, command, tty=tty, options=options))
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error
    return code if code >= 0 else 128 - code


def execute(
    connection: Connection, command: tuple[str, ...] = (), *, tty: bool = True, options: tuple[str, ...] = ()
) -> NoReturn:
    """Become ssh: a terminal's signals, size and job control are then its own. Raises `SshProgramMissingError`."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp("ssh", argv(connection, command, tty=tty, options=options))  # noqa: S606  # an argv, no shell
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error


def _liveliness_options() -> list[str]:
    connect, alive = round(CONNECT_TIMEOUT.total_seconds()), round(ALIVE_INTERVAL.total_seconds())
    return ["-o", f"ConnectTimeout={connect}", "-o", f"ServerAliveInterval={alive}"]


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


def _telling_line(stderr: str) -> str:
    """Return the line that says most: ssh's last one often only says that the connection is closed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    vague = ("Connection closed by UNKNOWN", "kex_exchange_identification", "ssh_exchange_identification")
    return next((line for line in reversed(lines) if not line.startswith(vague)), lines[-1] if lines else "")
