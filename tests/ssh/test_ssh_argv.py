"""The argv of ssh, the meaning of its exit, and the stored host keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.ssh.connection import (
    Connection,
    KnownHostsError,
    ProbeOutcome,
    ProbeResult,
    classify_exit,
    host_alias,
    save_host_keys,
    ssh_argv,
)

KNOWN = Connection(
    login="ada",
    address="198.18.0.1",
    host_alias=host_alias("42", 0),
    known_hosts=(Path("/h/a b/known_hosts"), Path("/h/100%/google")),
    identity=Path("/h/key"),
    proxy_command="reach %%h",
    host_keys=("ssh-ed25519 AAAA",),
)


def test_argv_is_complete() -> None:
    options = {
        "IdentityFile": '"/h/key"',
        "IdentitiesOnly": "yes",
        "HostKeyAlias": "tpu.42-0",
        "UserKnownHostsFile": '"/h/a b/known_hosts" "/h/100%%/google"',
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "HashKnownHosts": "no",
        "UpdateHostKeys": "no",
        "ProxyCommand": "reach %%h",
    }
    trust = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    alive = ["-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15"]

    assert ssh_argv(KNOWN, ("uname -a; id",), options=("-L", "1:h:1")) == [
        *("ssh", "-T", *trust, "-L", "1:h:1", *alive, "ada@198.18.0.1"),
        *("--", "uname -a; id"),
    ]
    assert ssh_argv(KNOWN, tty=True) == ["ssh", "-t", *trust, *alive, "ada@198.18.0.1"]


def test_argv_quotes_several_words() -> None:
    assert ssh_argv(KNOWN, ("python", "-c", "print('a b')"))[-1] == """python -c 'print('"'"'a b'"'"')'"""


def test_argv_without_published_key_accepts_only_new_host_keys() -> None:
    words = ssh_argv(replace(KNOWN, host_keys=(), proxy_command=None), options=("-o", "StrictHostKeyChecking=no"))

    # ssh takes the first value of an option.
    checking = [word for word in words if word.startswith("StrictHostKeyChecking")]
    assert checking == ["StrictHostKeyChecking=accept-new", "StrictHostKeyChecking=no"]
    assert not any(word.startswith("ProxyCommand") for word in words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("login", "-oProxyCommand=id"),
        ("login", "a b"),
        ("address", "-v"),
        ("address", "host;id"),
        ("address", "user@host"),
        ("address", ""),
        ("host_alias", "-x"),
        ("host_alias", "a\nb"),
        ("identity", Path('a"b')),
    ],
)
def test_connection_with_option_like_value_raises(field: str, value: object) -> None:
    changes: dict[str, object] = {field: value}
    with pytest.raises(InvalidInputError):
        replace(KNOWN, **changes)  # type: ignore[arg-type]  # the field is a parameter


@pytest.mark.parametrize(
    ("code", "stderr", "result"),
    [
        (0, "Warning: Permanently added 'tpu.42-0'", ProbeResult(ProbeOutcome.ANSWERED)),
        (1, "", ProbeResult(ProbeOutcome.COMMAND_FAILED, "`true` exited with 1")),
        (
            255,
            "ada@198.18.0.1: Permission denied (publickey).\r\n",
            ProbeResult(ProbeOutcome.KEY_REFUSED, "ada@198.18.0.1: Permission denied (publickey)."),
        ),
        (
            255,
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
            ProbeResult(ProbeOutcome.HOST_KEY_CHANGED, "Host key verification failed."),
        ),
        (
            255,
            "No ED25519 host key is known for tpu.42-0 and you have requested strict checking.\n",
            ProbeResult(
                ProbeOutcome.HOST_KEY_CHANGED,
                "No ED25519 host key is known for tpu.42-0 and you have requested strict checking.",
            ),
        ),
        (
            255,
            "ssh: connect to host x port 22: Connection refused\nConnection closed by UNKNOWN port 65535\n",
            ProbeResult(ProbeOutcome.UNREACHABLE, "ssh: connect to host x port 22: Connection refused"),
        ),
        (255, "", ProbeResult(ProbeOutcome.UNREACHABLE)),
    ],
)
def test_classify_exit_returns_outcome(code: int, stderr: str, result: ProbeResult) -> None:
    assert classify_exit(code, stderr) == result


def test_host_keys_replace_only_those_of_their_alias(tmp_path: Path) -> None:
    path = tmp_path / "state" / "known_hosts"
    connection = replace(KNOWN, known_hosts=(path, tmp_path / "google"))
    many = [replace(connection, host_alias=host_alias("7", index)) for index in range(8)]
    save_host_keys([connection])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: save_host_keys([one]), many))
    save_host_keys([replace(connection, host_keys=("ssh-ed25519 BBBB", "ssh-rsa CCCC"))])
    save_host_keys([replace(connection, host_alias="ignored", host_keys=())])

    others = {f"tpu.7-{index} ssh-ed25519 AAAA" for index in range(8)}
    lines = path.read_text().splitlines()
    assert (set(lines), len(lines)) == ({*others, "tpu.42-0 ssh-ed25519 BBBB", "tpu.42-0 ssh-rsa CCCC"}, 10)
    assert path.stat().st_mode & 0o777 == 0o600


def test_host_key_with_additional_text_raises(tmp_path: Path) -> None:
    connection = replace(KNOWN, known_hosts=(tmp_path / "k", tmp_path / "g"), host_keys=("ssh-rsa A\n* ssh-rsa EVIL",))

    with pytest.raises(KnownHostsError, match=r"^worker 0 published an invalid host key: "):
        save_host_keys([connection])
